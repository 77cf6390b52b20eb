"""The plan of a sweep: all that its parts depend on, wherever they are estimated."""

import dataclasses
import functools
import hashlib
import os
from importlib.metadata import version

import jax
import numpy as np
from numpy.typing import DTypeLike

from diffperf.explore.sweep.axis import ConfigAxis
from diffperf.explore.sweep.parts import Parts
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.summary import SummaryRules

# Spaces of at most so many points are estimated in double precision at once, which takes less time than to
# compile another program for the rows that are kept.
_DOUBLE_UP_TO = 10_000_000
# How many times as many of the best rows are kept in single precision as remain in double precision.
_SPARE = 3
# Packages whose releases may change the bytes of a result.
_PACKAGES = ("diffperf", "jax", "numpy", "pyarrow")


def usual_dtype(space: Space) -> DTypeLike:
    """The precision of a sweep where nobody chooses one."""
    return np.float64 if space.size <= _DOUBLE_UP_TO else np.float32


def releases() -> dict[str, str]:
    """The releases of the packages that the bytes of a result depend on, and how JAX compiles for what."""
    compiler = {"backend": jax.default_backend(), "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    return {name: version(name) for name in _PACKAGES} | compiler


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep, as every part of it needs it.

    - `rules`: the space, and what to keep of its points.
    - `parts`: how the points are divided.
    - `table`: whether the rows of all points are kept too.
    """

    rules: SummaryRules
    parts: Parts
    table: bool = False

    @classmethod
    def of(cls, space: Space, dtype: DTypeLike, chunk: int, table: bool) -> "SweepPlan":
        """The plan of a sweep that computes in this precision, by calls of so many points."""
        precision = np.dtype(dtype)
        spare = 1 if precision == np.float64 else _SPARE
        return cls(SummaryRules(space, precision, spare), Parts.of(space, chunk, table), table)

    def in_double_precision(self) -> "SweepPlan":
        """This plan, in double precision."""
        return SweepPlan(SummaryRules(self.space, np.dtype(np.float64)), self.parts, self.table)

    @property
    def space(self) -> Space:
        """The space whose points are estimated."""
        return self.rules.space

    @property
    def is_double(self) -> bool:
        """Whether all points are estimated in double precision."""
        return self.rules.dtype == np.float64

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that the bytes of the parts depend on: parts are reused where it is equal."""
        space, digest = self.space, hashlib.blake2b(digest_size=16)
        described = (
            releases(),
            space.phase,
            recorded_outputs(space),
            sorted(space.derived),
            [constraint.text for constraint in space.where],
            self.rules.dtype.name,
            (self.parts, self.table, self.rules.stride),
            (space.rank_by, space.descending, space.objectives, space.histograms),
            [(ranking.path, ranking.keep) for ranking in self.rules.rankings],
        )
        digest.update(repr(described).encode())
        configs = [axis.configs for axis in space.axes if isinstance(axis, ConfigAxis)]
        for leaf in jax.tree.leaves((space.inputs, configs)):
            digest.update(np.asarray(leaf, dtype=float).tobytes())
        for axis in space.axes:
            identity = axis.path, axis.labels, axis.values.shape, axis.dimension
            digest.update(repr(identity).encode() + axis.values.tobytes())
        return digest.hexdigest()
