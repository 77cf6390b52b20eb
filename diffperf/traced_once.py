"""Functions that JAX traces once, however many programs or parts of one program evaluate them.

To trace an estimate takes a tenth of a millisecond for each of its thousands of operations, and more under
`jax.vmap` and `jax.grad`. Programs that evaluate a part of it several times, such as the passes of two pools
of engines, and programs that have a part in common, such as a report and its derivatives, would trace that
part as often.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from diffperf.flat_program import DIFFERENTIABLE, traced_flat
from diffperf.quantity import is_traced

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_KEPT = 32  # programs, of some seven megabytes each; those that were not used for longest are forgotten


def traced_once(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function of trees of numbers and texts, all of whose results are arrays: where some of the numbers
    are traced, a program of these numbers alone, of which all others are constants.

    The program is traced once for arguments of one structure and the same constants. What no result needs is
    left out, and what it would compute twice is computed once, so that derivatives and batches of the program
    do without it as well. Of choices whose weights are constants, only alternatives with weight are computed.

    Outside of `jax.jit`, derivatives and batches are compiled as a whole: one by one, JAX would compile a
    thousand operations, which takes half a minute.
    """

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        leaves, structure = jax.tree.flatten((args, kwargs))
        traced = [leaf for leaf in leaves if is_traced(leaf)]
        if not traced:
            return function(*args, **kwargs)
        return _program(_Known(function, structure, leaves))(*traced)

    return called


class _Known:
    """A function and what is known of its arguments: their structure, and the leaves that are not traced.

    Two are equal where the function, the structure and all these leaves are.
    """

    def __init__(self, function: Callable[..., Any], structure: Any, leaves: list[Any]):
        self.function, self.structure = function, structure
        self.leaves = [None if is_traced(leaf) else leaf for leaf in leaves]  # None: traced
        arrays = [None if leaf is None else np.asarray(leaf) for leaf in self.leaves]
        contents = (None if a is None else (a.tobytes(), a.shape, a.dtype) for a in arrays)
        self._key = function, structure, *contents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, *traced: Any) -> Any:
        """The function's result for the numbers that are traced, in their order."""
        rest = iter(traced)
        args, kwargs = self.structure.unflatten(next(rest) if leaf is None else leaf for leaf in self.leaves)
        return self.function(*args, **kwargs)


@functools.lru_cache(maxsize=_KEPT)
def _program(known: _Known) -> Callable[..., Any]:
    """The program of the numbers that are traced."""

    @jax.jit
    def evaluate(*traced: Any) -> Any:
        program, leaves, structure = traced_flat(known, traced, keeps=DIFFERENTIABLE)
        return structure.unflatten(program.evaluate(leaves))

    return evaluate
