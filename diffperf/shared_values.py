"""Programs that compute an intermediate value once, however many others use it.

XLA fuses chains of cheap operations into loops on CPUs, and computes a cheap value again in every loop that
uses it. A gradient is full of values with several uses: that of a training step of GPT-3 has 12 thousand
operations, and 107 thousand once they are fused. XLA takes divisions for expensive and computes none of them
twice. So a value with several uses is divided here by a one that XLA cannot see through: the value stays the
same to the last bit, for the price of a division.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from diffperf.tracing import without_garbage_collection

# A value is computed once from so many operations on that computing it for all of its uses would add: below,
# the division costs more than it saves. Measured on gradients of training steps.
_LEAST_SAVED = 10
_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}  # and their parameter
# Operations that move numbers, which XLA computes into whatever uses them.
_MOVES = {
    *("broadcast_in_dim", "reshape", "squeeze", "slice", "convert_element_type", "transpose", "copy"),
    *("stop_gradient", "split", "stack", "unstack", "concatenate", "pad", "rev", "iota", "gather"),
}
# Operations that XLA takes for expensive, or cannot fuse into what uses them.
_COMPUTED_ONCE = {
    *(
        "div",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "pow",
        "sqrt",
        "rsqrt",
        "tanh",
        "logistic",
        "erf",
        "erfc",
    ),
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmin", "argmax", "dot_general"),
    *("while", "scan", "cond", "sort", "cumsum", "cumprod"),
}


class Step(NamedTuple):
    """An equation of a program whose values are numbered; an input is the number of a value or a literal."""

    equation: JaxprEqn
    inputs: list[int | Literal]
    outputs: list[int]

    @property
    def used(self) -> list[int]:
        """The numbers of the inputs that are no literals."""
        return [value for value in self.inputs if isinstance(value, int)]


class Steps:
    """A program with the functions that it calls in their places, without what it computes twice or in vain.

    XLA would leave out both as well, after it has read and simplified them: a third of a gradient.
    """

    def __init__(self, program: ClosedJaxpr):
        self.count = 0  # values so far
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
            if (parameter := _INLINED.get(equation.primitive.name)) is not None:
                made = self._append(equation.params[parameter], used)
            else:
                made = self._results(equation, used)
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

    def shared(self) -> set[int]:
        """The values with several uses that XLA would compute again for many of them."""
        uses = Counter(value for step in self.steps for value in step.used)
        shared, operations = set(), Counter()  # cheap operations that a value takes, back to shared values
        for step in self.steps:
            kind = step.equation.primitive.name
            below = sum(operations[value] for value in step.used) + (kind not in _MOVES)
            for value, variable in zip(step.outputs, step.equation.outvars, strict=True):
                is_real = jnp.issubdtype(jnp.result_type(variable.aval), jnp.floating)
                cheap = kind not in _COMPUTED_ONCE
                if is_real and cheap and below * (uses[value] - 1) > _LEAST_SAVED:
                    shared.add(value)
                elif cheap:
                    operations[value] = below
        return shared

    def evaluate(self, args: Sequence[Any], shared: set[int]) -> list[Any]:
        """The program's results; `shared` values are divided by a one that XLA cannot see through."""
        values = self.constants | dict(zip(self.inputs, args, strict=True))
        opaque = jax.lax.optimization_barrier(jnp.ones(()))

        def known(numbers: Sequence[int | Literal]) -> list[Any]:
            return [value.val if isinstance(value, Literal) else values[value] for value in numbers]

        for equation, inputs, outputs in self.steps:
            primitive = equation.primitive
            made = primitive.bind(*known(inputs), **primitive.get_bind_params(equation.params))
            for value, result in zip(outputs, made if primitive.multiple_results else [made], strict=True):
                values[value] = result / opaque.astype(result.dtype) if value in shared else result
        return known(self.outputs)


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


def compute_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of trees of arrays with the same results, for `jax.jit` to compile: on CPUs in two thirds of
    the time where it is a gradient.

    It cannot be differentiated: compute values once in the gradient of a function, not the gradient of a
    function that computes values once.
    """

    @functools.wraps(function)
    def computing_once(*args: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*args)
        leaves, structure = jax.tree.flatten(args)
        results = []

        def flat(*leaves: Any) -> list[Any]:
            flat_results, result = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
            results.append(result)
            return flat_results

        with without_garbage_collection():
            steps = Steps(jax.make_jaxpr(flat)(*leaves))
            return jax.tree.unflatten(results[0], steps.evaluate(leaves, steps.shared()))

    return computing_once
