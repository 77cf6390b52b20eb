"""Programs that compute an intermediate value once, however many others use it.

XLA fuses chains of cheap operations into loops on CPUs, and computes a cheap value again in every loop that
uses it. A gradient is full of values with several uses: that of a training step of GPT-3 has 12 thousand
operations, and 107 thousand once they are fused. XLA takes divisions for expensive and computes none of them
twice. So a value with several uses is divided here by a one that XLA cannot see through: the value stays the
same to the last bit, for the price of a division.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from diffperf.flat_program import FlatProgram, traced_flat
from diffperf.tracing import without_garbage_collection

# A value is computed once from so many operations on that computing it for all of its uses would add: below,
# the division costs more than it saves. Measured on gradients of training steps.
_LEAST_SAVED = 10
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


def opaque_one() -> jax.Array:
    """A one that XLA cannot see through: a value divided by it stays the same to the last bit and is computed
    once, because XLA computes no division twice.
    """
    return jax.lax.optimization_barrier(jnp.ones(()))


def _shared_values(program: FlatProgram) -> set[int]:
    """The values with several uses that XLA would compute again for many of them."""
    uses = Counter(value for step in program.steps for value in step.used)
    shared, operations = set(), Counter()  # cheap operations that a value takes, back to shared values
    for step in program.steps:
        kind = step.equation.primitive.name
        below = sum(operations[value] for value in step.used) + (kind not in _MOVES)
        for value, variable in zip(step.made, step.equation.outvars, strict=True):
            is_real = jnp.issubdtype(jnp.result_type(variable.aval), jnp.floating)
            cheap = kind not in _COMPUTED_ONCE
            if is_real and cheap and below * (uses[value] - 1) > _LEAST_SAVED:
                shared.add(value)
            elif cheap:
                operations[value] = below
    return shared


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
        with without_garbage_collection():
            program, leaves, structure = traced_flat(function, args)
            shared, one = _shared_values(program), opaque_one()
            values = program.evaluate(
                leaves,
                lambda number, value: value / one.astype(value.dtype) if number in shared else value,
            )
        return jax.tree.unflatten(structure, values)

    return computing_once
