"""diffperf sweep: every point of a declared space."""

import dataclasses
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import console, progress, write_json
from diffperf.explore.sweep.chunk_files import check_output_file, parts_folder
from diffperf.explore.sweep.space import Axis, Space
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import SweepResult, commonest_violation
from diffperf.explore.sweep.sweep import sweep as run_sweep

# Outputs that the table of the best rows shows, beside the one that ranks them.
_SHOWN = ("time", "mfu", "memory.peak", "cost.run")

_MOST_PLOTTED = 200_000  # points of a figure: more take long to draw, and hide one another


@click.command()
@click.argument("space")
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    help="Parquet file to write [the name of SPACE with .parquet, in this folder]",
)
@click.option(
    "--top",
    type=click.IntRange(1, 10_000),
    help="how many of the best rows to keep and print [as the space says, or 10]",
)
@click.option("--double", is_flag=True, help="compute in float64 instead of float32")
@options(json_option, plot_option)
def sweep(
    space: str, out: str | None, top: int | None, double: bool, json_file: str | None, plot: Path | None
) -> None:
    """Estimate every point of SPACE (a TOML file, or the name of a shipped space), write all points as
    Parquet, and print the best.

    An interrupted sweep keeps its finished chunks; the same command goes on from there.
    """
    declared = load_space(space, COMMAND_LINE)
    declared = declared if top is None else dataclasses.replace(declared, top=top)
    path = Path(out or f"{declared.name}.parquet")
    check_output_file(path)
    try:
        with progress(f"sweeping {declared.size:,} points", declared.size) as advance:
            result = run_sweep(declared, path, dtype=np.float64 if double else np.float32, progress=advance)
    except KeyboardInterrupt:
        folder = parts_folder(path)
        kept = f"{len(list(folder.glob('*.arrow')))} chunks are kept in {folder}"
        raise Interrupted(f"interrupted: {kept}; run the same command again to go on") from None

    console(json_file).print(*describe_sweep(declared, result), sep="\n", soft_wrap=True)
    write_json(sweep_json(declared, result), json_file)
    if plot:
        plot_sweep(declared, result, plot)


def describe_sweep(space: Space, result: SweepResult) -> list[Any]:
    """How many points were estimated, how fast, and the best of them, or why there are none; as lines and
    tables."""
    inputs, counts = space.inputs, f"{result.points:,} points: {result.feasible:,} possible layouts"
    lines = [
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
    return [*lines, f"Table: {result.path}"]


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


def sweep_json(space: Space, result: SweepResult) -> dict[str, Any]:
    """The answer for a program: counts, times, and the best rows in internal units."""
    numbers = ("points", "feasible", "fitting", "resumed", "seconds", "points_per_second")
    return {
        "table": str(result.path),
        "rank_by": space.rank_by,
        "descending": space.descending,
        **{name: getattr(result, name) for name in numbers},
        "best": result.best.to_pylist(),
    }


def plot_sweep(space: Space, result: SweepResult, file: Path) -> None:
    """Draws the ranked output against the peak of the memory, for at most a few hundred thousand possible
    points."""
    from diffperf.report import plots

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
    plots.save(plots.scatter(x, y, rows["fits"].to_numpy(), best, title), file)
