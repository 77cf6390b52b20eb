"""Traced programs as a list of steps: the functions that they call in their places, and no step twice."""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from diffperf.interpreter import called_program
from diffperf.tracing import without_garbage_collection

# Calls of functions with derivatives of their own.
_WITH_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


class Step(NamedTuple):
    """An equation of a program whose values are numbered; an input is the number of a value or a literal."""

    equation: JaxprEqn
    inputs: list[int | Literal]
    outputs: list[int]

    @property
    def used(self) -> list[int]:
        """The numbers of the inputs that are no literals."""
        return [value for value in self.inputs if isinstance(value, int)]


class FlatProgram:
    """A program with the functions that it calls in their places, without what it computes twice or in vain.

    XLA would leave out both as well, after it has read and simplified them: a third of a gradient.

    With `differentiable`, functions with derivatives of their own stay calls, so that the program can be
    differentiated as the function it was traced from.

    - `steps`: its equations, in their order.
    - `inputs`: the numbers of its arguments; `outputs`: those of its results, or literals.
    - `constants`: values that it knows, by their numbers.
    """

    def __init__(self, program: ClosedJaxpr, *, differentiable: bool = False):
        self.count = 0  # values so far
        self._kept_calls = _WITH_DERIVATIVES if differentiable else ()
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self._made: dict[Hashable, list[int]] = {}  # the values of an equation, by what it is
        self.inputs = self._numbers(program.jaxpr.invars)
        self.outputs = self._append(program, self.inputs)
        self.steps = self._needed()

    def _numbers(self, variables: Sequence[Any]) -> list[int]:
        """New numbers of values."""
        self.count += len(variables)
        return list(range(self.count - len(variables), self.count))

    def _append(self, program: ClosedJaxpr, inputs: Sequence[int | Literal]) -> list[int | Literal]:
        """Appends a program, which is called with `inputs`; returns the numbers of its outputs."""
        jaxpr, constants = program.jaxpr, self._numbers(program.consts)
        self.constants |= zip(constants, program.consts, strict=True)
        number: dict[Any, int | Literal] = dict(zip(jaxpr.constvars, constants, strict=True))
        number |= zip(jaxpr.invars, inputs, strict=True)

        def numbered(variables: Sequence[Var | Literal]) -> list[int | Literal]:
            return [v if isinstance(v, Literal) else number[v] for v in variables]

        for equation in jaxpr.eqns:
            used = numbered(equation.invars)
            called = None if equation.primitive.name in self._kept_calls else called_program(equation)
            made = self._results(equation, used) if called is None else self._append(called, used)
            number |= zip(equation.outvars, made, strict=True)
        return numbered(jaxpr.outvars)

    def _results(self, equation: JaxprEqn, inputs: list[int | Literal]) -> list[int]:
        """The values of an equation: those of an equal one of the same inputs where there is one."""
        key = _key(equation, inputs)
        if key is not None and key in self._made:
            return self._made[key]
        made = self._numbers(equation.outvars)
        self.steps.append(Step(equation, inputs, made))
        if key is not None:
            self._made[key] = made
        return made

    def _needed(self) -> list[Step]:
        """The steps that the outputs depend on, and those with effects."""
        needed = {value for value in self.outputs if isinstance(value, int)}
        steps = []
        for step in reversed(self.steps):
            if step.equation.effects or not needed.isdisjoint(step.outputs):
                needed.update(step.used)
                steps.append(step)
        return steps[::-1]

    def evaluate(
        self, arguments: Sequence[Any], changed: Callable[[int, Any], Any] = lambda number, value: value
    ) -> list[Any]:
        """The results for these arguments; `changed` may replace a value, whose number it is given."""
        values = self.constants | dict(zip(self.inputs, arguments, strict=True))

        def known(numbers: Sequence[int | Literal]) -> list[Any]:
            return [value.val if isinstance(value, Literal) else values[value] for value in numbers]

        for equation, inputs, outputs in self.steps:
            primitive = equation.primitive
            made = primitive.bind(*known(inputs), **primitive.get_bind_params(equation.params))
            for number, value in zip(outputs, made if primitive.multiple_results else [made], strict=True):
                values[number] = changed(number, value)
        return known(self.outputs)


def flattened_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of trees of arrays with the functions that it calls in their places, and no operation
    twice: one to differentiate many times at once.

    `jax.jacfwd` maps and differentiates every called function for itself, also each small one of `jax.numpy`:
    without them a Jacobian is traced in a quarter to a half of the time.
    """

    @functools.wraps(function)
    def flat(*args: Any) -> Any:
        program, leaves, structure = traced_flat(function, args, differentiable=True)
        return jax.tree.unflatten(structure, program.evaluate(leaves))

    return flat


def traced_flat(
    function: Callable[..., Any], args: Sequence[Any], *, differentiable: bool = False
) -> tuple[FlatProgram, list[Any], Any]:
    """The flat program of a function of trees of arrays, the arrays of its arguments, and the structure of
    its results.
    """
    leaves, structure = jax.tree.flatten(tuple(args))
    results = []

    def of_leaves(*leaves: Any) -> list[Any]:
        values, result = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
        results.append(result)
        return values

    with without_garbage_collection():
        program = FlatProgram(jax.make_jaxpr(of_leaves)(*leaves), differentiable=differentiable)
    return program, leaves, results[0]


def _key(equation: JaxprEqn, inputs: Sequence[int | Literal]) -> Hashable | None:
    """What two equations have in common that compute the same; None for one that must stay by itself."""
    if equation.effects:
        return None
    literals = [
        (np.asarray(value.val).tobytes(), value.aval) if isinstance(value, Literal) else value
        for value in inputs
    ]
    key = equation.primitive, tuple(literals), tuple(sorted(equation.params.items()))
    try:
        hash(key)
    except TypeError:  # a parameter is a list or an array
        return None
    return key
