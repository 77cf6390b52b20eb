"""Trees of arrays as wholes: stacked along an axis, taken apart again, in another precision."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.quantity import AnyModule, is_traced


def as_float64(tree: Any) -> Any:
    """A tree with its leaves in float64 (needs the x64 mode of JAX)."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=jnp.float64), tree)


def split_tree(tree: Any, sizes: Iterable[int], axis: int = 0) -> list[Any]:
    """A tree of arrays as trees of consecutive parts of an axis, of the given sizes.

    Every leaf takes one operation, whose transpose is one operation too; slices would each leave a padding
    and an addition in a gradient.
    """
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum(list(sizes))[:-1]
    return [
        structure.unflatten(parts)
        for parts in zip(*(jnp.split(leaf, ends, axis) for leaf in leaves), strict=True)
    ]


def stack_trees(trees: Sequence[AnyModule]) -> AnyModule:
    """Trees of equal structure as one tree whose leaves have a new leading axis.

    Leaves that are concrete in all trees stay so, as arrays of NumPy, even while JAX traces a program.
    """

    def stacked(*leaves: Any) -> Any:
        return jnp.stack(leaves) if any(map(is_traced, leaves)) else np.stack(leaves)

    return jax.tree.map(stacked, *trees)


def unstack_tree(tree: Any) -> list[Any]:
    """A tree of arrays as trees of the entries of their leading axis."""
    leaves, structure = jax.tree.flatten(tree)
    return [structure.unflatten(entries) for entries in zip(*map(jnp.unstack, leaves), strict=True)]
