"""A space of configurations: axes over the inputs of an estimate, whose product is the points of a sweep.

Inputs that vary together are on one *dimension* of the space. Points are numbered, the last dimension
fastest, and never stored: a point is computed from its number, or from its *digits*, its position on every
dimension.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from diffperf.explore.inputs import report_outputs
from diffperf.explore.plan.candidates import default_global_batch
from diffperf.quantity import Choice, Quantity, Weights, locate
from diffperf.workload.configuration import Configuration

# The position of one point on every dimension.
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
class Space:
    """Axes over a set of inputs.

    - `inputs`: the values of everything that is not an axis.
    - `derived`: fields of the strategy that neither the file gives nor an axis varies, and that follow from
      the other inputs of a point: "dp" (the devices that tp, pp and cp leave) and in training
      "global_batch" (one micro-batch per device).
    - `rank_by`: path of the output by which the best `top` points are kept; `descending` where more of it
      is better.
    - `best_by`: paths of axes; of each of their values the best `best_per_value` points are kept too.
    - `objectives`: two to four outputs whose Pareto front is kept, each with 1 where less of it is better and
      −1 where more is; none for no front.
    - `histograms`: paths of outputs whose values are counted.
    """

    name: str
    inputs: Configuration
    phase: str
    axes: tuple[Axis, ...]
    derived: frozenset[str]
    rank_by: str
    descending: bool
    top: int
    best_by: tuple[str, ...] = ()
    best_per_value: int = 1
    objectives: tuple[tuple[str, int], ...] = ()
    histograms: tuple[str, ...] = ()

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The number of positions on every dimension."""
        lengths = {axis.dimension: len(axis) for axis in self.axes}
        return tuple(lengths[dimension] for dimension in range(len(lengths)))

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(self.shape)

    @functools.cached_property
    def outputs(self) -> dict[str, Quantity]:
        """The declarations of what the phase reports, by path."""
        return report_outputs(self.inputs, self.phase)

    def digits(self, number: int) -> tuple[int, ...]:
        """The position on every dimension of the point with this number."""
        result = []
        for length in reversed(self.shape):
            number, digit = divmod(number, length)
            result.append(digit)
        return tuple(reversed(result))

    def positions(self, numbers: Int[np.ndarray, " points"]) -> list[Int[np.ndarray, " points"]]:
        """The positions on every dimension of the points with these numbers."""
        result = []
        for length in reversed(self.shape):
            numbers, position = np.divmod(numbers, length)
            result.append(position)
        return result[::-1]

    def advance(
        self, digits: Int[Array, " dimensions"], offset: Int[Array, "*points"]
    ) -> list[Int[Array, "*points"]]:
        """The digits of the points whose numbers are higher by `offset`, wrapped around at the end.

        Numbers of points overflow 32 bits in large spaces; their digits and the offset within a chunk do not.
        """
        result, carry = [], offset
        for dimension, length in reversed(list(enumerate(self.shape))):
            total = digits[dimension] + carry
            result.append(total % length)
            carry = total // length
        return result[::-1]

    def groups_of(self, path: str) -> tuple[int, Int[np.ndarray, " positions"]]:
        """The dimension of the axis over an input, and for each of its positions the number of its value.

        Values are numbered as they come first; on a dimension of several inputs one may repeat.
        """
        axis = next(axis for axis in self.axes if axis.path == path)
        _, first, inverse = np.unique(axis.values, axis=0, return_index=True, return_inverse=True)
        return axis.dimension, np.argsort(np.argsort(first))[np.ravel(inverse)]

    def point(
        self, digits: Sequence[int | Int[Array, ""]] | Int[Array, " dimensions"], base: Configuration
    ) -> Configuration:
        """The configuration at a position on every dimension; `base` is `self.inputs` in the precision to
        compute in."""
        dtype = base.strategy.tp.dtype
        values = [axis.value(digits[axis.dimension], dtype) for axis in self.axes]
        inputs = eqx.tree_at(lambda tree: [locate(tree, axis.path)[0] for axis in self.axes], base, values)
        if "dp" in self.derived:
            strategy = inputs.strategy
            left = inputs.system.n_devices / (strategy.tp * strategy.pp * strategy.cp)
            inputs = eqx.tree_at(lambda tree: tree.strategy.dp, inputs, jnp.maximum(left, 1.0))
        if "global_batch" in self.derived:
            batch = default_global_batch(inputs.system, inputs.strategy)
            inputs = eqx.tree_at(lambda tree: tree.strategy.global_batch, inputs, batch)
        return inputs
