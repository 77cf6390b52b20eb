"""A space of configurations: axes over the inputs of an estimate, whose product is the points of a sweep.

Inputs that vary together are on one *dimension* of the space. Points are numbered, the last dimension
fastest, and never stored: a point is computed from its number, or from its *digits*, its position on every
dimension.
"""

import bisect
import dataclasses
import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from numpy.typing import DTypeLike

from diffperf.explore.codesign.variables import Candidate
from diffperf.explore.plan.candidates import default_global_batch
from diffperf.explore.sweep.axis import Axis, ConfigAxis, Digits, replaced
from diffperf.explore.sweep.constraint import Constraint
from diffperf.explore.sweep.designed_points import Inputs, declared_outputs, made
from diffperf.quantity import Quantity


@dataclasses.dataclass(frozen=True)
class Region:
    """Consecutive points of a space that one compiled program estimates: those whose configs have one
    structure.

    - `start`: the number of its first point.
    - `runs`: the positions on every dimension that its points have.
    """

    start: int
    runs: tuple[range, ...]

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(map(len, self.runs))

    @property
    def stop(self) -> int:
        """The number of the point after the last."""
        return self.start + self.size

    def places(self, number: int) -> tuple[int, ...]:
        """The places of a point, counted inside the region, on every dimension."""
        number, result = number - self.start, []
        for run in reversed(self.runs):
            number, place = divmod(number, len(run))
            result.append(place)
        return tuple(reversed(result))

    def positions(self, numbers: Int[np.ndarray, " points"]) -> list[Int[np.ndarray, " points"]]:
        """The positions on every dimension of the points with these numbers."""
        numbers, result = numbers - self.start, []
        for run in reversed(self.runs):
            numbers, place = np.divmod(numbers, len(run))
            result.append(place + run.start)
        return result[::-1]

    def advance(
        self, places: Int[Array, " dimensions"], offset: Int[Array, "*points"]
    ) -> list[Int[Array, "*points"]]:
        """The positions on every dimension of the points whose numbers are higher by `offset` than that of
        the point at these places, wrapped around at the end.

        Numbers of points overflow 32 bits in large spaces; their places and the offset within a chunk do not.
        """
        result, carry = [], offset
        for dimension, run in reversed(list(enumerate(self.runs))):
            total = places[dimension] + carry
            result.append(total % len(run) + run.start)
            carry = total // len(run)
        return result[::-1]


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes over a set of inputs.

    - `inputs`: the values of everything that is not an axis; a design where the space names a technology.
    - `where`: conditions that points have to satisfy; the others are numbered, but do not count.
    - `derived`: fields that neither the file gives nor an axis varies, and that follow from the other inputs
      of a point: "dp" of the strategy (the devices that tp, pp and cp leave), in training its "global_batch"
      (one micro-batch per device), and the "voltage" of a design (the technology's nominal one).
    - `rank_by`: path of the output by which the best `top` points are kept; `descending` where more of it
      is better.
    - `best_by`: paths of axes; of each of their values the best `best_per_value` points are kept too.
    - `objectives`: two to four outputs whose Pareto front is kept, each with 1 where less of it is better and
      −1 where more is; none for no front.
    - `histograms`: paths of outputs whose values are counted.
    - `table`: whether a results folder has the rows of all points too.
    """

    name: str
    inputs: Inputs
    phase: str
    axes: tuple[Axis | ConfigAxis, ...]
    derived: frozenset[str]
    rank_by: str
    descending: bool
    top: int
    best_by: tuple[str, ...] = ()
    best_per_value: int = 1
    objectives: tuple[tuple[str, int], ...] = ()
    histograms: tuple[str, ...] = ()
    where: tuple[Constraint, ...] = ()
    table: bool = False

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
        return declared_outputs(self.inputs, self.phase)

    @functools.cached_property
    def regions(self) -> tuple[Region, ...]:
        """The points by structure: axes over configs are before all others, so that every structure has
        consecutive points."""
        runs = [[range(length)] for length in self.shape]
        for axis in self.axes:
            if isinstance(axis, ConfigAxis):
                runs[axis.dimension] = axis.runs()
        regions, start = [], 0
        for chosen in itertools.product(*runs):
            regions.append(Region(start, chosen))
            start = regions[-1].stop
        return tuple(regions)

    def region_of(self, number: int) -> Region:
        """The region of the point with this number."""
        return self.regions[bisect.bisect_right(self.regions, number, key=lambda region: region.start) - 1]

    def digits(self, number: int) -> tuple[int, ...]:
        """The position on every dimension of the point with this number."""
        return tuple(int(position[0]) for position in self.positions(np.array([number])))

    def positions(self, numbers: Int[np.ndarray, " points"]) -> list[Int[np.ndarray, " points"]]:
        """The positions on every dimension of the points with these numbers."""
        if len(self.regions) == 1:
            return self.regions[0].positions(numbers)
        result = [np.zeros_like(numbers) for _ in self.shape]
        for region in self.regions:
            inside = (numbers >= region.start) & (numbers < region.stop)
            for positions, found in zip(result, region.positions(numbers[inside]), strict=True):
                positions[inside] = found
        return result

    def groups_of(self, path: str) -> tuple[int, Int[np.ndarray, " positions"]]:
        """The dimension of the axis over an input, and for each of its positions the number of its value.

        Values are numbered as they come first; on a dimension of several inputs one may repeat.
        """
        axis = next(axis for axis in self.axes if axis.path == path)
        _, first, inverse = np.unique(axis.values, axis=0, return_index=True, return_inverse=True)
        return axis.dimension, np.argsort(np.argsort(first))[np.ravel(inverse)]

    def base(self, dtype: DTypeLike) -> Inputs:
        """The inputs in the precision to compute in."""
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self.inputs)

    def point(self, digits: Digits, base: Inputs, region: Region | None = None) -> Inputs:
        """The configuration, or the design, at a position on every dimension, which is in the region (by
        default the first); `base` is `self.base` in the precision to compute in."""
        dtype, region = base.strategy.tp.dtype, region or self.regions[0]
        inputs = base
        for part, axis in {axis.part: axis for axis in self.axes if isinstance(axis, ConfigAxis)}.items():
            config = axis.config(digits[axis.dimension], region.runs[axis.dimension], dtype)
            inputs = dataclasses.replace(inputs, **{part: config})
        inputs = replaced(inputs, [axis for axis in self.axes if isinstance(axis, Axis)], digits, dtype)
        if "voltage" in self.derived and isinstance(inputs, Candidate):
            inputs = eqx.tree_at(lambda tree: tree.design.voltage, inputs, inputs.technology.nominal_voltage)
        if "dp" in self.derived:
            strategy = inputs.strategy
            left = inputs.system.n_devices / (strategy.tp * strategy.pp * strategy.cp)
            inputs = eqx.tree_at(lambda tree: tree.strategy.dp, inputs, jnp.maximum(left, 1.0))
        if "global_batch" in self.derived:
            batch = default_global_batch(inputs.system, inputs.strategy)
            inputs = eqx.tree_at(lambda tree: tree.strategy.global_batch, inputs, batch)
        return inputs

    def allows(self, inputs: Inputs) -> Bool[Array, ""]:
        """Whether a point satisfies all constraints, in pure JAX."""
        allowed = jnp.asarray(True)
        compared = made(inputs) if self.where else None
        for constraint in self.where:
            allowed &= constraint.holds(compared)
        return allowed
