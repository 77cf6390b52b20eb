"""Traced programs as a list of steps: the functions that they call in their places, no step twice, and none
on constants alone.
"""

import functools
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from diffperf.operation import Operation, kind_of
from diffperf.tracing import KEPT_SLOPE, without_garbage_collection

_MOST_KNOWN = 4096  # numbers that an operation on constants alone may have as its results, which are kept
# Primitives that call a program, and the parameter that it is in.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
}
# Primitives whose results are their inputs.
_UNCHANGED = {"copy", "copy_p", "optimization_barrier", "stop_gradient"}
# The primitive of `jax.ad_checkpoint.checkpoint_name`.
_NAME = "name"
# Primitives to keep of what `compute_once` returns: XLA computes the values behind them once.
BARRIERS = ("optimization_barrier",)
# Primitives to keep in a program that is differentiated: calls of functions with derivatives of their own.
DIFFERENTIABLE = (
    *(*BARRIERS, _NAME, "stop_gradient"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)


class Step(NamedTuple):
    """An equation of a program whose values are numbered, with the numbers of its inputs and its results."""

    equation: JaxprEqn
    used: list[int]
    made: list[int]


class FlatProgram:
    """A program with the functions that it calls in their places, without what it computes twice or in vain,
    and with the results of what it computes of constants alone.

    XLA would leave out all of these as well, after it has read and simplified them: a third of a gradient.
    Primitives to keep stay in the program, although it could do without them.

    - `steps`: its equations, in their order.
    - `inputs`, `outputs`: the numbers of its arguments and of its results.
    - `constants`: values that it knows, by their numbers.
    - `kept_slopes`: the numbers of values that `diffperf.tracing.kept_slope` has named.
    """

    def __init__(self, program: ClosedJaxpr, *, keeps: Collection[str] = BARRIERS):
        self.count = 0  # values so far
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self.kept_slopes: set[int] = set()
        self._keeps = keeps
        self._numbers_of_constants: dict[Hashable, int] = {}
        self._results: dict[Hashable, list[int]] = {}  # of an equation, by what it is
        self.inputs = self._new_numbers(len(program.jaxpr.invars))
        self.outputs = self._append(program, self.inputs)
        self._leave_out_what_no_result_needs()

    def evaluate(
        self, arguments: Sequence[Any], changed: Callable[[int, Any], Any] = lambda number, value: value
    ) -> list[Any]:
        """The results for these arguments; `changed` may replace a value, whose number it is given."""
        values = self.constants | dict(zip(self.inputs, arguments, strict=True))
        for equation, used, made in self.steps:
            primitive = equation.primitive
            inputs = [values[number] for number in used]
            results = primitive.bind(*inputs, **primitive.get_bind_params(equation.params))
            for number, value in zip(made, results if primitive.multiple_results else [results], strict=True):
                values[number] = changed(number, value)
        return [values[number] for number in self.outputs]

    def _new_numbers(self, count: int) -> list[int]:
        """Numbers of new values."""
        self.count += count
        return list(range(self.count - count, self.count))

    def _append(self, program: ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        """Appends a program that is called with the values of these numbers; returns those of its results."""
        jaxpr = program.jaxpr
        number: dict[Any, int] = dict(zip(jaxpr.constvars, map(self._constant, program.consts), strict=True))
        number |= zip(jaxpr.invars, inputs, strict=True)

        def numbered(variables: Sequence[Var | Literal]) -> list[int]:
            return [
                self._constant(np.asarray(v.val, kind_of(v))) if isinstance(v, Literal) else number[v]
                for v in variables
            ]

        for equation in jaxpr.eqns:
            number |= zip(equation.outvars, self._appended(equation, numbered(equation.invars)), strict=True)
        return numbered(jaxpr.outvars)

    def _appended(self, equation: JaxprEqn, used: list[int]) -> list[int]:
        """Appends an equation, or the program that it calls, unless its results are known; returns their
        numbers.
        """
        name, known = equation.primitive.name, self._all_known(used)
        if name not in self._keeps or (known and name not in BARRIERS):
            if (called := _called_program(equation)) is not None:
                return self._append(called, used)
            if name == _NAME and equation.params["name"] == KEPT_SLOPE:
                self.kept_slopes.update(used)
                return used
            if name in _UNCHANGED:
                return used
        key = _key(equation, used)
        if key is not None and key in self._results:
            return self._results[key]
        results = self._computed(equation, used) if known and key is not None else None
        if results is None:
            results = self._new_numbers(len(equation.outvars))
            self.steps.append(Step(equation, used, results))
        if key is not None:
            self._results[key] = results
        return results

    def _all_known(self, numbers: Sequence[int]) -> bool:
        """Whether all of these values are constants, and none of them is traced by who calls."""
        return all(number in self.constants for number in numbers) and not any(
            isinstance(self.constants[number], Tracer) for number in numbers
        )

    def _computed(self, equation: JaxprEqn, used: Sequence[int]) -> list[int] | None:
        """The numbers of an equation's results for constants; None where NumPy has no such operation, or
        where they are too large to keep.
        """
        if equation.primitive.name in self._keeps or sum(map(size_of, equation.outvars)) > _MOST_KNOWN:
            return None
        operation = Operation.of(equation)
        if operation.only_jax:
            return None
        with np.errstate(all="ignore"):
            results = operation.function(*(self.constants[number] for number in used))
        return list(map(self._constant, results if equation.primitive.multiple_results else [results]))

    def _constant(self, value: Any) -> int:
        """The number of a constant; equal ones have one number."""
        key: Hashable = id(value)
        if not isinstance(value, Tracer):
            value = np.asarray(value)
            key = value.tobytes(), value.dtype, value.shape
            value = value[()]  # NumPy computes faster with numbers than with arrays of one
        if key not in self._numbers_of_constants:
            (number,) = self._new_numbers(1)
            self._numbers_of_constants[key], self.constants[number] = number, value
        return self._numbers_of_constants[key]

    def _leave_out_what_no_result_needs(self) -> None:
        """Leaves out steps without effects that results do not depend on, and constants likewise."""
        needed, steps = {*self.outputs}, []
        for step in reversed(self.steps):
            if step.equation.effects or not needed.isdisjoint(step.made):
                needed.update(step.used)
                steps.append(step)
        self.steps = steps[::-1]
        self.constants = {number: value for number, value in self.constants.items() if number in needed}


def flattened_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of trees of arrays with the functions that it calls in their places, and no operation
    twice: one to differentiate many times at once.

    `jax.jacfwd` maps and differentiates every called function for itself, also each small one of `jax.numpy`:
    without them a Jacobian is traced in a quarter to a half of the time.
    """

    @functools.wraps(function)
    def flat(*args: Any) -> Any:
        program, leaves, structure = traced_flat(function, args, keeps=DIFFERENTIABLE)
        return jax.tree.unflatten(structure, program.evaluate(leaves))

    return flat


def traced_flat(
    function: Callable[..., Any], args: Sequence[Any], *, keeps: Collection[str] = BARRIERS
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
        program = FlatProgram(jax.make_jaxpr(of_leaves)(*leaves), keeps=keeps)
    return program, leaves, results[0]


def _called_program(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program that an equation calls; None for an operation of its own."""
    parameter = _CALLS.get(equation.primitive.name)
    if parameter is None:
        return None
    called = equation.params[parameter]
    return called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, ())


def size_of(variable: Any) -> int:
    """Number of elements of a variable."""
    return math.prod(variable.aval.shape)


def _key(equation: JaxprEqn, used: Sequence[int]) -> Hashable | None:
    """Key that equations share which compute the same value; None for an equation that must stay by
    itself.
    """
    if equation.effects:
        return None
    key = equation.primitive, tuple(used), tuple(sorted(equation.params.items()))
    try:
        hash(key)
    except TypeError:  # a parameter is a list or an array
        return None
    return key
