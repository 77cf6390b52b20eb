"""diffperf map: which resource limits a phase, over ranges of two inputs."""

from pathlib import Path

import click

from diffperf.api.map_answer import MapAnswer
from diffperf.api.question import Question
from diffperf.cli.answer_output import show
from diffperf.cli.options import (
    axis_range,
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
)
from diffperf.cli.terminal import progress
from diffperf.explore.bottleneck_map import CELLS

_METAVAR = "PATH=LOW..HIGH"


@click.command(name="map")
@click.option(
    "--x",
    required=True,
    metavar=_METAVAR,
    callback=axis_range,
    help='across, such as hbm.bandwidth="1..8 TB/s"',
)
@click.option(
    "--y",
    required=True,
    metavar=_METAVAR,
    callback=axis_range,
    help="upwards, such as strategy.global_batch=1..512",
)
@click.option(
    "--cells", type=click.IntRange(2, 512), default=CELLS, show_default=True, help="cells of each axis"
)
@options(phase_option, question_options(), json_option, plot_option)
def bottleneck_map(
    question: Question,
    x: tuple[str, str],
    y: tuple[str, str],
    cells: int,
    phase: str,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Name the resource that limits a phase in every cell over ranges of two inputs: matrix units, a memory
    level, a network tier, power, or latencies."""
    with progress(f"compiling and differentiating {phase} in {cells * cells:,} cells"):
        answer = MapAnswer.of(question, phase, x, y, cells)
    show(answer, json_file=json_file, plot=plot)
