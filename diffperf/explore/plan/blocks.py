"""Candidates evaluated block by block: all blocks have one size, so that a program is compiled only once."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

# Candidates evaluated together: few enough that their intermediates stay in a core's cache.
BLOCK = 512


def take(tree: Any, which: Any) -> Any:
    """The entries of every leaf's leading axis that an index, a slice or an array of indices names."""
    return jax.tree.map(lambda leaf: leaf[which], tree)


def count(tree: Any) -> int:
    """The length of the leading axis, which all leaves of a tree share."""
    return len(jax.tree.leaves(tree)[0])


def evaluate_in_blocks(evaluate: Callable[[Any], Any], candidates: Any) -> Iterator[tuple[Any, Any]]:
    """Every block of candidates with the results of `evaluate`, as NumPy arrays.

    The last block is filled up with the last candidate, and the copies are cut off.
    """
    number = count(candidates)
    for start in range(0, number, BLOCK):
        block = take(candidates, np.minimum(np.arange(start, start + BLOCK), number - 1))
        yield take((block, jax.device_get(evaluate(block))), slice(number - start))
