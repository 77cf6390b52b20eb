"""Tables that a sweep prints: its speed, rows, and quantiles of outputs."""

from collections.abc import Mapping

import pyarrow as pa
from rich.table import Table

from diffperf import units
from diffperf.explore.sweep.axis import Axis, ConfigAxis
from diffperf.explore.sweep.histograms import Histogram
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.sweep_result import SweepResult

# Outputs that a table of rows shows, beside those that rank and compare them.
_SHOWN = ("time", "mfu", "memory.peak", "cost.run")
# Shares of the points that quantiles are shown for.
_SHARES = {"5 %": 0.05, "median": 0.5, "95 %": 0.95}


def describe_speed(result: SweepResult) -> str:
    """Number of points that were estimated and the time that they took, in one line."""
    estimated = result.size - result.resumed
    rate = f"{result.points_per_second:,.0f} points/s; {result.compile_seconds:.1f} s compiling"
    resumed = f", {result.resumed:,} taken over from an interrupted run" if result.resumed else ""
    return f"{estimated:,} estimated in {result.seconds:.2f} s ({rate}){resumed}"


def best_table(space: Space, rows: pa.Table, first: str = "") -> Table:
    """Rows of a sweep: their position on every axis, beginning with a given one, and the main outputs."""
    compared = (path for path, _ in space.objectives)
    shown = [path for path in dict.fromkeys((space.rank_by, *compared, *_SHOWN)) if path in rows.column_names]
    axes = sorted(space.axes, key=lambda axis: axis.path != first)
    table = Table(box=None, pad_edge=False)
    for axis in axes:
        # The last two names of a path tell its input from the others: "hbm.bandwidth".
        name = ".".join(axis.path.split(".")[1:][-2:]) or axis.path
        table.add_column(name, justify="right", style="bold" if axis.path == first else None)
    for path in shown:
        table.add_column(path, justify="right", style="bold" if path == space.rank_by else None)
    for row in rows.to_pylist():
        inputs = [axis_text(axis, row[axis.path]) for axis in axes]
        table.add_row(*inputs, *(units.show(row[path], space.outputs[path].unit) for path in shown))
    return table


def quantiles_table(space: Space, histograms: Mapping[str, Histogram]) -> Table:
    """Between which numbers the values of outputs lie."""
    table = Table(box=None, pad_edge=False)
    for name in ("output", *_SHARES):
        table.add_column(name, justify="left" if name == "output" else "right")
    for path, histogram in histograms.items():
        numbers = (histogram.quantile(share) for share in _SHARES.values())
        table.add_row(path, *(units.show(number, space.outputs[path].unit, digits=2) for number in numbers))
    return table


def axis_text(axis: Axis | ConfigAxis, value: str | float) -> str:
    """A value of an axis: a number with its unit, or the name of an alternative."""
    if isinstance(value, str):
        return value
    return units.show(value, getattr(axis.declared, "unit", ""))


def part_name(space: Space, part: str) -> str:
    """Name of the model or the system of a space, or the number of them."""
    axes = [axis for axis in space.axes if isinstance(axis, ConfigAxis) and axis.part == part]
    if not axes:
        return str(getattr(space.inputs, part).name)
    counted = [f"{len(axis.labels)} {axis.path}" + "s" * (len(axis.labels) > 1) for axis in axes]
    own = any(axis.path in (part, "accelerator") for axis in axes)
    return " × ".join(counted) if own else f"{getattr(space.inputs, part).name} with {' × '.join(counted)}"
