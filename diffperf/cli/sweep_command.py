"""diffperf sweep: every point of a declared space."""

import dataclasses
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from diffperf import units
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import Interrupted, console, progress, write_json


@click.command()
@click.argument("space")
@click.option("--out", "-o", metavar="FILE", help="Parquet file to write [SPACE's name with .parquet, here]")
@click.option(
    "--top", type=click.IntRange(1, 10_000), help="best rows to keep and print [as the space says, or 10]"
)
@click.option("--double", is_flag=True, help="compute in float64 instead of float32")
@options(json_option, plot_option)
def sweep(space, out, top, double, json_file, plot):
    """Estimate every point of SPACE (a TOML file, or the name of a shipped study), write them as Parquet and print the best.

    An interrupted sweep keeps its finished chunks; the same command goes on from there.
    """
    from diffperf.explore.sweep.space import load_space
    from diffperf.explore.sweep.sweep import parts_folder
    from diffperf.explore.sweep.sweep import sweep as run

    declared = load_space(space)
    declared = declared if top is None else dataclasses.replace(declared, top=top)
    path = Path(out or f"{declared.name}.parquet")
    try:
        with progress(f"sweeping {declared.size:,} points", declared.size) as advance:
            result = run(declared, path, dtype=np.float64 if double else np.float32, progress=advance)
    except KeyboardInterrupt:
        kept = len(list(parts_folder(path).glob("*.arrow")))
        raise Interrupted(
            f"interrupted: {kept} chunks are kept in {parts_folder(path)}; run the same command again to go on"
        ) from None

    console(json_file).print(*describe_sweep(declared, result), sep="\n", soft_wrap=True)
    write_json(sweep_json(declared, result), json_file)
    if plot:
        plot_sweep(declared, result, plot)


def describe_sweep(space, result) -> list[Any]:
    order = "largest" if space.descending else "smallest"
    counts = f"{result.points:,} points: {result.feasible:,} possible layouts, {result.fitting:,} of them fit memory"
    new = result.points - result.resumed
    taken = f", {result.resumed:,} taken over from an interrupted run" if result.resumed else ""
    rate = f"{result.points_per_second:,.0f} points/s; {result.compile_seconds:.1f} s compiling"
    speed = f"{new:,} estimated in {result.seconds:.2f} s ({rate})"
    head = [
        f"[bold]{space.name}: {space.inputs.model.name} {space.phase} on {space.inputs.system.name}[/bold]",
        counts,
        speed + taken,
    ]
    if not result.fitting:
        return [
            *head,
            "[bold red]No point of the space is possible and fits memory[/bold red]",
            f"Table: {result.path}",
        ]
    return [
        *head,
        "",
        f"Best by {space.rank_by}, {order} first",
        sweep_table(space, result),
        "",
        f"Table: {result.path}",
    ]


def sweep_table(space, result) -> Table:
    shown = dict.fromkeys((space.rank_by, "time", "mfu", "memory.peak", "cost.run"))
    shown = [path for path in shown if path in result.best.column_names]
    rows = Table(box=None, pad_edge=False)
    for axis in space.axes:
        rows.add_column(".".join(axis.path.split(".")[1:][-2:]), justify="right")
    for path in shown:
        rows.add_column(path, justify="right", style="bold" if path == space.rank_by else None)
    for row in result.best.to_pylist():
        inputs = [axis_text(axis, row[axis.path]) for axis in space.axes]
        rows.add_row(*inputs, *(units.show(row[path], space.outputs[path].unit) for path in shown))
    return rows


def axis_text(axis, value) -> str:
    return value if isinstance(value, str) else units.show(value, axis.declared.unit)


def sweep_json(space, result) -> dict[str, Any]:
    counts = {
        name: getattr(result, name)
        for name in ("points", "feasible", "fitting", "resumed", "seconds", "points_per_second")
    }
    return {
        "table": str(result.path),
        "rank_by": space.rank_by,
        "descending": space.descending,
        **counts,
        "best": result.best.to_pylist(),
    }


def plot_sweep(space, result, file: Path) -> None:
    """The ranked output against the memory peak, of at most a few hundred thousand points."""
    import pyarrow.parquet as pq

    from diffperf.report import plots

    across = "memory.peak" if space.rank_by != "memory.peak" else "time"
    rows = pq.read_table(result.path, columns=list({across, space.rank_by, "feasible", "fits"}))
    rows = rows.take(np.flatnonzero(rows["feasible"].to_numpy()))
    rows = rows.take(np.arange(0, rows.num_rows, max(1, rows.num_rows // 200_000)))
    x, y = (
        (rows[path].to_numpy(), space.outputs[path], path.replace(".", " "))
        for path in (across, space.rank_by)
    )
    first = result.best.slice(0, 1).to_pylist()
    best = (first[0][across], first[0][space.rank_by]) if first else None
    title = f"{space.name}: {result.feasible:,} possible layouts of {space.inputs.model.name}"
    plots.save(plots.scatter(x, y, rows["fits"].to_numpy(), best, title), file)
