"""Summary of the points of a sweep, without a table of them: the best, the Pareto front, histograms, counts.

A summary has a size of its own, however many points it is of, and summaries of consecutive ranges of points
merge into that of the whole range, so that ranges can be estimated apart, and in any order.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from diffperf.explore.sweep.histograms import BINS, count_values
from diffperf.explore.sweep.nondominated import front_of, representatives
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space import Space

# Points by number and their recorded outputs: a structured array whose first field is "number".
Rows = Shaped[np.ndarray, " _"]

_REPRESENTATIVES = 32  # of the front, that points are compared with on the device
# Points that are spread over the whole space and drawn as a cloud in figures, about.
_SAMPLED = 20_000
COUNTS = ("points", "feasible", "fitting", "unsound")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Summary of a range of points. All rows are of possible layouts that fit memory.

    - `points`, `feasible`, `fitting`: how many points satisfy the constraints of the space, how many of
      these are possible layouts, and how many of those fit memory.
    - `unsound`: how many of the fitting points have an estimate that is no number, which single precision
      may bring about; they are not among the rows.
    - `best`: for every ranking the best rows of every group, in the order of their groups and ranks.
    - `front`: the rows that no other equals or beats in every objective, by number.
    - `sample`: every so many-th row, by number.
    - `counts`: for every output with a histogram, the number of rows in each bin.
    """

    points: int
    feasible: int
    fitting: int
    unsound: int
    best: tuple[Rows, ...]
    front: Rows
    sample: Rows
    counts: Int[np.ndarray, "outputs bins"]


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best rows of every group of points: of all points, or of those of each value of an input.

    - `path`: the input that groups the points; empty where all are one group.
    - `dimension`: the dimension of its axis in the space.
    - `groups`: the group of every position on that dimension.
    - `keep`: how many rows of a group are kept.
    """

    path: str
    dimension: int
    groups: Int[np.ndarray, " positions"]
    keep: int

    @property
    def count(self) -> int:
        """The number of groups."""
        return int(self.groups.max()) + 1

    def of_digits(self, digits: Sequence[Int[Array, "*points"]]) -> Int[Array, "*points"]:
        """The group of points at these positions, on the device."""
        import jax.numpy as jnp

        return jnp.asarray(self.groups, jnp.int32)[digits[self.dimension]]


@dataclasses.dataclass(frozen=True)
class SummaryRules:
    """Rules by which a sweep of a space keeps points, and by which two summaries become one.

    - `spare`: how many times as many of the best rows are kept as the space asks for, where they will be
      ranked again in double precision.
    """

    space: Space
    dtype: np.dtype
    spare: int = 1

    @functools.cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """The ranking of all points, and those by the values of inputs that the space names."""
        everything = Ranking("", 0, np.zeros(self.space.shape[0], int), self.space.top * self.spare)
        return (everything, *(self._by_value(path) for path in self.space.best_by))

    def _by_value(self, path: str) -> Ranking:
        """The ranking by the values of an input."""
        dimension, groups = self.space.groups_of(path)
        return Ranking(path, dimension, groups, self.space.best_per_value * self.spare)

    @functools.cached_property
    def row_type(self) -> np.dtype:
        """The fields of a row: the number of its point, and every recorded output."""
        return np.dtype(
            [("number", np.int64), *((path, self.dtype) for path in recorded_outputs(self.space))]
        )

    @property
    def stride(self) -> int:
        """Every so many-th point is in the sample: no multiple of the length of an axis, so that all values
        of all axes are in it."""
        stride = max(1, self.space.size // _SAMPLED)
        while stride > 1 and any(np.gcd(stride, length) > 1 for length in self.space.shape):
            stride += 1
        return stride

    def empty(self) -> Summary:
        """The summary of no points."""
        nothing = np.empty(0, self.row_type)
        best = tuple(nothing for _ in self.rankings)
        counts = np.zeros((len(self.space.histograms), BINS), np.int64)
        return Summary(
            points=0,
            feasible=0,
            fitting=0,
            unsound=0,
            best=best,
            front=nothing,
            sample=nothing,
            counts=counts,
        )

    def of_rows(self, rows: Rows, points: int, feasible: int) -> Summary:
        """The summary of points of which these rows fit memory."""
        sound = np.isfinite(self.ranks(rows)) & np.isfinite(self.objectives(rows)).all(axis=1)
        fitting, rows = len(rows), rows[sound]
        counts = [count_values(rows[path]) for path in self.space.histograms]
        counts = np.stack(counts) if counts else self.empty().counts
        sample = rows[rows["number"] % self.stride == 0]
        numbers = (points, feasible, fitting, fitting - len(rows))
        totals: dict[str, int] = dict(zip(COUNTS, numbers, strict=True))
        return self.of_candidates(rows, totals, sample, counts)

    def of_candidates(
        self, rows: Rows, totals: Mapping[str, int], sample: Rows, counts: np.ndarray
    ) -> Summary:
        """The summary of points of which these rows may be among the best, or on the front."""
        best = tuple(self._best(ranking, rows) for ranking in self.rankings)
        return Summary(**totals, best=best, front=self._front(rows), sample=sample, counts=counts)

    def merge(self, summaries: Iterable[Summary]) -> Summary:
        """The summary of the points of all these summaries, whose points differ."""
        parts = list(summaries) or [self.empty()]
        return Summary(
            **{name: sum(getattr(part, name) for part in parts) for name in COUNTS},
            best=tuple(
                self._best(ranking, np.concatenate([part.best[i] for part in parts]))
                for i, ranking in enumerate(self.rankings)
            ),
            front=self._front(np.concatenate([part.front for part in parts])),
            sample=_by_number(np.concatenate([part.sample for part in parts])),
            counts=np.sum([part.counts for part in parts], axis=0),
        )

    def ranks(self, rows: Rows) -> Float[np.ndarray, " rows"]:
        """The output that ranks rows, the smaller the better."""
        return -rows[self.space.rank_by] if self.space.descending else rows[self.space.rank_by]

    def objectives(self, rows: Rows) -> Float[np.ndarray, "rows objectives"]:
        """The objectives of the front, the smaller the better."""
        columns = [rows[path] * sign for path, sign in self.space.objectives]
        return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0), self.dtype)

    def groups(self, ranking: Ranking, rows: Rows) -> Int[np.ndarray, " rows"]:
        """The group of every row in a ranking."""
        return ranking.groups[self.space.positions(rows["number"])[ranking.dimension]]

    def _best(self, ranking: Ranking, rows: Rows) -> Rows:
        """The best rows of every group; of equal rows, the earlier points first."""
        groups = self.groups(ranking, rows)
        order = np.lexsort((rows["number"], self.ranks(rows), groups))
        groups = groups[order]
        first = np.searchsorted(groups, groups)  # where the group of every row begins
        return rows[order[np.arange(len(rows)) - first < ranking.keep]]

    def _front(self, rows: Rows) -> Rows:
        """The rows of the front, by number; none where the space has no objectives."""
        if not self.space.objectives:
            return rows[:0]
        rows = _by_number(rows)
        return rows[front_of(self.objectives(rows))]

    # What later points have to beat, for the device.

    def thresholds(self, summary: Summary) -> list[Float[np.ndarray, " groups"]]:
        """For every ranking the rank that a later point has to be below, by group, to be among the best."""
        of_rankings = []
        for ranking, rows in zip(self.rankings, summary.best, strict=True):
            thresholds = np.full(ranking.count, np.inf, self.dtype)
            groups, ranks = self.groups(ranking, rows), self.ranks(rows)
            full = np.bincount(groups, minlength=ranking.count) >= ranking.keep
            last = np.searchsorted(groups, np.flatnonzero(full), side="right") - 1
            thresholds[full] = ranks[last]
            of_rankings.append(thresholds)
        return of_rankings

    def references(self, summary: Summary) -> Float[np.ndarray, "points objectives"]:
        """Points that a later point of the front must not be dominated by."""
        front, others = self.objectives(summary.front), self.objectives(summary.sample)
        return representatives(front, _REPRESENTATIVES, others)


def _by_number(rows: Rows) -> Rows:
    """The rows in the order of their points."""
    return rows[np.argsort(rows["number"])]
