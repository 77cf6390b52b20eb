"""dp.sweep: every point of a declared space."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import whole_number
from diffperf.explore.sweep.space import Axis, Space
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import SweepResult, commonest_violation
from diffperf.explore.sweep.sweep import sweep as run_sweep

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# Outputs that the table of the best rows shows, beside the one that ranks them.
_SHOWN = ("time", "mfu", "memory.peak", "cost.run")

_MOST_PLOTTED = 200_000  # points of a figure: more take long to draw, and hide one another


@answering("sweep")
def sweep(
    space: Space | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    top: int | None = None,
    double: bool = False,
) -> "SweepAnswer":
    """The estimates of all points of a space.

        dp.sweep({"model": "gpt3-22b", "system": "dgx-a100",
                  "axis": [{"path": "strategy.tp", "powers_of_two": {"from": 1, "to": 8}}]})

    **Arguments:**

    - `space`: the name of a shipped space, the path of a TOML file, or its table.
    - `out`: the Parquet file to write; without it a temporary file, which the answer deletes with itself.
    - `top`: how many of the best points to keep and print.
    - `double`: computes in double precision instead of single.

    **Raises:** `ConfigError`, in one line.
    """
    declared = load_space(space, asker_of("sweep"), "space")
    if top is not None:
        whole_number(asker_of("sweep"), "top", top, 1, 10_000)
    declared = declared if top is None else dataclasses.replace(declared, top=top)
    folder = tempfile.TemporaryDirectory(prefix="diffperf-sweep-") if out is None else None
    path = Path(folder.name) / f"{declared.name}.parquet" if folder is not None else Path(str(out))
    result = run_sweep(declared, path, dtype=np.float64 if double else np.float32)
    return SweepAnswer(declared, result, folder)


@dataclasses.dataclass(frozen=True, repr=False)
class SweepAnswer(Answer):
    """The points of a space: the best of them, and all in a table.

    `folder` is the temporary folder of the table, where no file was asked for.
    """

    space: Space
    result: SweepResult
    folder: Any = None

    def table(self) -> pa.Table:
        """All points: their inputs, outputs, and whether they are possible and fit memory."""
        return pq.read_table(self.result.path)

    def to_frame(self, best: bool = True) -> "pandas.DataFrame":
        """The best points as a data frame of pandas, or all of them."""
        if best:
            return super().to_frame()
        return super().to_frame().__class__(self.table().to_pydict())

    def lines(self) -> list[RenderableType]:
        """How many points were estimated, how fast, and the best of them, or why there are none."""
        space, result = self.space, self.result
        inputs, counts = space.inputs, f"{result.points:,} points: {result.feasible:,} possible layouts"
        lines: list[RenderableType] = [
            f"[bold]{space.name}: {inputs.model.name} {space.phase} on {inputs.system.name}[/bold]",
            f"{counts}, {result.fitting:,} of them fit memory",
            describe_speed(result),
        ]
        if not result.feasible:
            lines += [
                "[bold red]No point of the space is a possible layout[/bold red]",
                commonest_violation(space),
            ]
        elif not result.fitting:
            lines.append("[bold red]No possible layout of the space fits memory[/bold red]")
        else:
            order = "largest" if space.descending else "smallest"
            lines += ["", f"Best by {space.rank_by}, {order} first", best_table(space, result), ""]
        return lines if self.folder is not None else [*lines, f"Table: {result.path}"]

    def rows(self) -> list[dict[str, Any]]:
        """The best points, in internal units."""
        return self.result.best.to_pylist()

    def to_dict(self) -> dict[str, Any]:
        """Counts, times, and the best points."""
        numbers = ("points", "feasible", "fitting", "resumed", "seconds", "points_per_second")
        return {
            "table": str(self.result.path),
            "rank_by": self.space.rank_by,
            "descending": self.space.descending,
            **{name: getattr(self.result, name) for name in numbers},
            "best": self.rows(),
        }

    def figure(self) -> "Figure":
        """The ranked output against the peak of the memory, for at most a few hundred thousand points."""
        from diffperf.report import plots

        space, result = self.space, self.result
        across = "memory.peak" if space.rank_by != "memory.peak" else "time"
        rows = pq.read_table(result.path, columns=list({across, space.rank_by, "feasible", "fits"}))
        rows = rows.take(np.flatnonzero(rows["feasible"].to_numpy()))
        rows = rows.take(np.arange(0, rows.num_rows, max(1, rows.num_rows // _MOST_PLOTTED)))
        x, y = (
            plots.Column(rows[path].to_numpy(), space.outputs[path], path.replace(".", " "))
            for path in (across, space.rank_by)
        )
        first = result.best.slice(0, 1).to_pylist()
        best = (first[0][across], first[0][space.rank_by]) if first else None
        title = f"{space.name}: {result.feasible:,} possible layouts of {space.inputs.model.name}"
        return plots.scatter(x, y, rows["fits"].to_numpy(), best, title)


def describe_speed(result: SweepResult) -> str:
    """How many points were estimated in which time, in one line."""
    estimated = result.points - result.resumed
    rate = f"{result.points_per_second:,.0f} points/s; {result.compile_seconds:.1f} s compiling"
    resumed = f", {result.resumed:,} taken over from an interrupted run" if result.resumed else ""
    return f"{estimated:,} estimated in {result.seconds:.2f} s ({rate}){resumed}"


def best_table(space: Space, result: SweepResult) -> Table:
    """The best rows: their position on every axis, and the main outputs."""
    shown = [path for path in dict.fromkeys((space.rank_by, *_SHOWN)) if path in result.best.column_names]
    table = Table(box=None, pad_edge=False)
    for axis in space.axes:
        # The last two names of a path tell its input from the others: "hbm.bandwidth".
        table.add_column(".".join(axis.path.split(".")[1:][-2:]), justify="right")
    for path in shown:
        table.add_column(path, justify="right", style="bold" if path == space.rank_by else None)
    for row in result.best.to_pylist():
        inputs = [axis_text(axis, row[axis.path]) for axis in space.axes]
        table.add_row(*inputs, *(units.show(row[path], space.outputs[path].unit) for path in shown))
    return table


def axis_text(axis: Axis, value: str | float) -> str:
    """A value of an axis: a number with its unit, or the name of an alternative."""
    if isinstance(value, str):
        return value
    return units.show(value, getattr(axis.declared, "unit", ""))
