"""diffperf sweep: every point of a declared space."""

import dataclasses
from pathlib import Path

import click
import numpy as np

from diffperf.api.answer import print_lines
from diffperf.api.question import COMMAND_LINE
from diffperf.api.sweep_answer import SweepAnswer
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import console, progress, write_json
from diffperf.explore.sweep.chunk_files import check_output_file, parts_folder
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import sweep as run_sweep


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

    answer = SweepAnswer(declared, result)
    print_lines(console(json_file), answer.lines())
    write_json(answer.to_dict(), json_file)
    if plot:
        answer.plot(plot)
