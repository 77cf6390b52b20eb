"""diffperf sweep: every point of a declared space."""

from pathlib import Path

import click
import numpy as np

from diffperf.api.question import COMMAND_LINE
from diffperf.api.sweep_answer import SweepAnswer, asked_to_keep, check_table, cluster_of
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.estimate_command import DOES_NOT_FIT
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, names_of_list, options, plot_option
from diffperf.cli.terminal import progress
from diffperf.errors import counted
from diffperf.explore.sweep.results_folder import finished_parts
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import parts_folder
from diffperf.explore.sweep.sweep import sweep as run_sweep


@click.command()
@click.argument("space", shell_complete=names_of("spaces"))
@click.option("--out", "-o", metavar="FILE", help="write all points to this Parquet file [no table]")
@click.option(
    "--results",
    metavar="DIR",
    help="keep the answer as files in this folder, and what a later call goes on from [none]",
)
@click.option("--table", is_flag=True, help="keep all points in the results folder too, as Parquet files")
@click.option(
    "--top",
    type=click.IntRange(1, 10_000),
    help="number of the best rows to keep and print [as the space says, or 10]",
)
@click.option(
    "--pareto",
    metavar="OUTPUT,…",
    callback=names_of_list,
    help="keep the front of two to four outputs, such as time,cost.run [as the space says]",
)
@click.option(
    "--best-by",
    metavar="PATH,…",
    callback=names_of_list,
    help="keep the best of every value of these axes, such as strategy.tp [as the space says]",
)
@click.option("--double", is_flag=True, help="compute all points in float64, not only those that are kept")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="number of processes of this machine that estimate [threads of one]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="estimate by the workers of this Dask scheduler, such as tcp://10.0.0.1:8786",
)
@options(json_option, plot_option)
def sweep(
    space: str,
    out: str | None,
    results: str | None,
    table: bool,
    top: int | None,
    pareto: tuple[str, ...],
    best_by: tuple[str, ...],
    double: bool,
    workers: int | None,
    scheduler: str | None,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Estimate every point of SPACE (a TOML file, or the name of a shipped space), and print the best, the
    Pareto front and how outputs are distributed.

    The number of points is limited by time alone: one core estimates a million and more a second. With
    --out, all points are written to one Parquet file, and with --results and --table to several. An
    interrupted or killed sweep keeps what is finished in the results folder, or without one in a folder
    beside its output, or in NAME.sweep; the same command goes on from there, to the same bytes. Where no
    point is a possible layout that fits memory, the exit code is 3.
    """
    declared = load_space(space, COMMAND_LINE)
    kept = {"top": top, "pareto": pareto or None, "best_by": best_by or None, "table": table or None}
    declared = asked_to_keep(declared, kept, COMMAND_LINE)
    path, checkpoints = out and Path(out), Path(f"{declared.name}.sweep")
    cluster = cluster_of(workers, scheduler, COMMAND_LINE)
    check_table(declared, path or None, results, COMMAND_LINE)
    try:
        with progress(f"sweeping {counted(declared.size, 'point')}", declared.size) as advance:
            result = run_sweep(
                declared,
                path,
                results=results,
                checkpoints=checkpoints,
                dtype=np.float64 if double else None,
                cluster=cluster,
                progress=advance,
            )
    except KeyboardInterrupt:
        folder = Path(results) if results else parts_folder(path) if path else checkpoints
        kept = f"{finished_parts(folder)} finished parts are kept in {folder}"
        raise Interrupted(f"interrupted: {kept}; run the same command again to go on") from None

    answer = SweepAnswer(declared, result)
    show(answer, json_file=json_file, plot=plot)
    if not result.fitting:
        click.get_current_context().exit(DOES_NOT_FIT)
