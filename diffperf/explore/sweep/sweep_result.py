"""The outcome of a sweep, and how its rows become tables."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from diffperf.explore.sweep.histograms import Histogram
from diffperf.explore.sweep.point_estimates import ALLOWED, axis_columns, recorded_outputs
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.summary import Rows, Summary, SummaryRules


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep. Tables have one column per axis and per output, in internal units.

    - `path`: the Parquet file of all points, which also has the columns `feasible` and `fits`; None where no
      table was asked for.
    - `best`: the best rows by the space's rank, among the points that are possible layouts and fit memory.
    - `best_by`: the same of every value of an input, by the path of the input, in the order of the values.
    - `front`: the rows that no other row equals or beats in every objective, by the first objective; None
      where the space has no objectives.
    - `histograms`: by the path of an output, how its values are distributed.
    - `sample`: rows that are spread over the whole space.
    - `size`: how many points the axes have; `points`, how many of these satisfy the constraints between axes;
      `feasible`, `fitting`: how many of those are possible layouts, and how many of these fit memory;
      `unsound`: how many of these have no finite estimate in the precision of the table.
    - `resumed`: how many points an interrupted run had already estimated.
    - `seconds`, `compile_seconds`: the time that estimating and writing the other points took, and
      compiling.
    """

    path: Path | None
    best: pa.Table
    best_by: dict[str, pa.Table]
    front: pa.Table | None
    histograms: dict[str, Histogram]
    sample: pa.Table
    size: int
    points: int
    feasible: int
    fitting: int
    unsound: int
    resumed: int
    seconds: float
    compile_seconds: float

    @property
    def points_per_second(self) -> float:
        """Points estimated per second, without the time to compile."""
        return (self.size - self.resumed) / max(self.seconds, 1e-9)


def result_of(
    rules: SummaryRules,
    summary: Summary,
    path: Path | None,
    *,
    resumed: int,
    seconds: float,
    compile_seconds: float,
) -> SweepResult:
    """The outcome of a sweep, from the summary of all points."""
    space = rules.space
    everything, *by_value = (rows_table(space, rows) for rows in summary.best)
    order = np.lexsort(rules.objectives(summary.front).T[::-1]) if space.objectives else None
    return SweepResult(
        path=path,
        best=everything,
        best_by=dict(zip(space.best_by, by_value, strict=True)),
        front=None if order is None else rows_table(space, summary.front[order]),
        histograms={
            name: _histogram(counts, summary.sample[name])
            for name, counts in zip(space.histograms, summary.counts, strict=True)
        },
        sample=rows_table(space, summary.sample),
        size=space.size,
        points=summary.points,
        feasible=summary.feasible,
        fitting=summary.fitting,
        unsound=summary.unsound,
        resumed=resumed,
        seconds=seconds,
        compile_seconds=compile_seconds,
    )


def _histogram(counts: Int[np.ndarray, " bins"], sample: Float[np.ndarray, " rows"]) -> Histogram:
    """The histogram of an output, with its smallest and largest value where the sample has all values."""
    if not len(sample) or len(sample) < counts.sum():
        return Histogram(counts)
    return Histogram(counts, float(sample.min()), float(sample.max()))


def rows_table(space: Space, rows: Rows) -> pa.Table:
    """Rows of points as a table: the value on every axis, then the recorded outputs."""
    columns = axis_columns(space, rows["number"])
    return pa.table(columns | {path: pa.array(rows[path]) for path in recorded_outputs(space)})


def table_summary(rules: SummaryRules, table: pa.Table, start: int) -> Summary:
    """The summary of a table of consecutive points, of which the first has the number `start`."""
    allowed = table[ALLOWED].to_numpy() if ALLOWED in table.column_names else np.ones(table.num_rows, bool)
    possible = allowed & table["feasible"].to_numpy()
    fitting = possible & table["fits"].to_numpy()
    numbers = np.arange(start, start + table.num_rows)
    return rules.of_rows(table_rows(rules, table, numbers, fitting), int(allowed.sum()), int(possible.sum()))


def table_rows(
    rules: SummaryRules,
    table: pa.Table,
    numbers: Int[np.ndarray, " points"],
    chosen: Bool[np.ndarray, " points"],
) -> Rows:
    """Some rows of a table of the points with these numbers."""
    rows = np.empty(int(chosen.sum()), rules.row_type)
    rows["number"] = numbers[chosen]
    for path in recorded_outputs(rules.space):
        rows[path] = table[path].to_numpy()[chosen]
    return rows
