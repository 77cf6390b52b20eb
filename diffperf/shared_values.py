"""Programs that compute an intermediate value once, however many others use it.

XLA fuses chains of cheap operations into loops on CPUs, and computes a cheap value again in every loop that
uses it. A gradient is full of values with several uses: that of a training step of GPT-3 has 12 thousand
operations, and 107 thousand once they are fused. So a value with several uses is put behind an optimization
barrier here, through which XLA fuses nothing: it is computed once, and stays the same to the last bit.

XLA takes barriers out before it fuses, unless the compiler options say otherwise
(`diffperf.compiler.barrier_options`). A program compiled without these options is right, and slower.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from diffperf.flat_program import FlatProgram, Step, size_of, traced_flat
from diffperf.tracing import kept_slope, without_garbage_collection

# A value is computed once from so many operations on that computing it for all of its uses would add: below,
# writing and reading it costs more than it saves. Measured on gradients of training steps.
_LEAST_SAVED = 10
# Operations that put arrays side by side, and from so many operations on their result is computed once even
# for a single use. The loop of what uses them has a branch for each part, and LLVM vectorizes no long
# branches.
_JOINS = {"concatenate", "pad", "stack"}
_LEAST_JOINED = 15
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


def shared_values(program: FlatProgram) -> set[int]:
    """The values that XLA would recompute for many of their uses, or not vectorize, and the slopes that the
    program keeps for its backward pass.
    """
    uses: Counter[int] = Counter()
    for step in program.steps:
        for value in step.used:
            uses[value] += _copies(step)
    shared, operations = set(), Counter()  # cheap operations that a value takes, back to shared values
    for step in program.steps:
        kind = step.equation.primitive.name
        below = sum(operations[value] for value in step.used) + (kind not in _MOVES)
        for value, variable in zip(step.made, step.equation.outvars, strict=True):
            is_real = jnp.issubdtype(jnp.result_type(variable.aval), jnp.floating)
            cheap = kind not in _COMPUTED_ONCE
            saves = below * (uses[value] - 1) > _LEAST_SAVED
            joins = kind in _JOINS and below > _LEAST_JOINED
            if is_real and (value in program.kept_slopes or (cheap and (saves or joins))):
                shared.add(value)
            elif cheap:
                operations[value] = below
    return shared


def _copies(step: Step) -> int:
    """How often XLA computes a value that a step uses: once, and for each copy where the step repeats the
    value along an axis.
    """
    if step.equation.primitive.name != "broadcast_in_dim":
        return 1
    return size_of(step.equation.outvars[0]) // max(size_of(step.equation.invars[0]), 1)


def compute_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of trees of arrays with the same results, for `jax.jit` to compile: on CPUs in two thirds of
    the time where it is a gradient, with `dp.throughput_options()` as its compiler options.

    It cannot be differentiated: compute values once in the gradient of a function, not the gradient of a
    function that computes values once.
    """

    @functools.wraps(function)
    def computing_once(*args: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*args)
        with without_garbage_collection():
            program, leaves, structure = traced_flat(function, args)
            shared = shared_values(program)

            def changed(number: int, value: Any) -> Any:
                value = kept_slope(value) if number in program.kept_slopes else value
                return jax.lax.optimization_barrier(value) if number in shared else value

            values = program.evaluate(leaves, changed)
        return jax.tree.unflatten(structure, values)

    return computing_once
