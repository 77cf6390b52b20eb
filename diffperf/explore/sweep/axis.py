"""The axes of a space: an input and the values that it takes, or a config in place of another."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from diffperf.quantity import AnyModule, Choice, Quantity, Weights, locate, walk
from diffperf.trees import stack_trees

# The position of one point on every dimension of a space.
Digits = Sequence[int | Int[Array, ""]] | Int[Array, " dimensions"]


@dataclasses.dataclass(frozen=True)
class Axis:
    """One input and the values it takes.

    - `values`: numbers in internal units, (values,), or weights over alternatives, (values, alternatives).
    - `dimension`: which digit of a point is the position on this axis.
    - `labels`: for a choice, the name of each value.
    """

    path: str
    declared: Quantity | Choice
    values: Float[np.ndarray, " values"] | Float[np.ndarray, "values alternatives"]
    dimension: int
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def value(self, digit: int | Int[Array, ""], dtype: np.dtype) -> Array | Weights:
        """The value at a position, as a leaf of a configuration; the position may be traced."""
        value = jnp.asarray(self.values, dtype)[digit]
        return Weights(value, self.declared.alternatives) if isinstance(self.declared, Choice) else value


@dataclasses.dataclass(frozen=True)
class ConfigAxis:
    """A part of the points that whole configs take the place of: the model, the system, or the technology.

    Axes over configs of one part are on one dimension, whose positions are all combinations of them.

    - `path`: what varies, as the file of the space calls it: "model", "system", "stack", "technology.memory".
    - `part`: the part of a point that the configs replace: "model", "system" or "technology".
    - `configs`: what it is at every position. Configs of equal structure are next to each other: a program
      serves all of them.
    - `labels`: the names that the axis takes.
    - `codes`: of every position, the index of its name among `labels`.
    - `dimension`: which digit of a point is the position on this axis.
    """

    path: str
    part: str
    configs: tuple[eqx.Module, ...]
    labels: tuple[str, ...]
    codes: tuple[int, ...]
    dimension: int

    declared = None  # a config replaces many inputs, which have declarations of their own

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def values(self) -> Float[np.ndarray, " values"]:
        """The name that every position has, by its index."""
        return np.array(self.codes, dtype=float)

    def runs(self) -> list[range]:
        """The positions of configs of equal structure, together."""
        kinds = [structure_of(config) for config in self.configs]
        starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
        return [range(*ends) for ends in zip(starts, [*starts[1:], len(kinds)], strict=True)]

    def config(self, digit: int | Int[Array, ""], run: range, dtype: np.dtype) -> eqx.Module:
        """The config at a position inside a run; the position may be traced.

        Numbers that all configs of the run share stay constants of the program.
        """
        with jax.ensure_compile_time_eval():  # constants stay concrete arrays, as those of the other inputs
            stacked = jax.tree.map(
                lambda leaf: jnp.asarray(leaf, dtype), stack_trees(self.configs[run.start : run.stop])
            )
            shared = jax.tree.map(lambda leaf: bool((leaf == leaf[:1]).all()), stacked)
            first = jax.tree.map(lambda leaf: leaf[0], stacked)
        return jax.tree.map(
            lambda leaf, one, same: one if same else leaf[digit - run.start], stacked, first, shared
        )


def structure_of(config: eqx.Module) -> tuple:
    """Key of a compiled program: the structure of a config, its shapes, and the names of its inputs."""
    leaves, structure = jax.tree.flatten(config)
    return structure, tuple(np.shape(leaf) for leaf in leaves), tuple(path for path, _, _ in walk(config))


def replaced(base: AnyModule, axes: Sequence[Axis], digits: Digits, dtype: np.dtype) -> AnyModule:
    """A configuration with the values of axes at a position on every dimension."""
    values = [axis.value(digits[axis.dimension], dtype) for axis in axes]
    return eqx.tree_at(lambda tree: [locate(tree, axis.path)[0] for axis in axes], base, values)
