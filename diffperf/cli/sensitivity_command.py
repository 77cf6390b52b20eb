"""diffperf sensitivity: by how much each input moves an output."""

from pathlib import Path

import click

from diffperf.api.answer import print_lines
from diffperf.api.question import Question
from diffperf.api.sensitivity_answer import SensitivityAnswer
from diffperf.cli.options import (
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
    smooth_option,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.relax import Relaxation


@click.command()
@click.option(
    "--output",
    default="time",
    show_default=True,
    metavar="PATH",
    help="the output to explain, by its path in the report, such as cost.run",
)
@click.option(
    "--of",
    "groups",
    multiple=True,
    default=("system",),
    show_default=True,
    metavar="system|strategy|model",
    help="group of inputs to vary (repeatable)",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="how many of the inputs to print"
)
@options(phase_option, question_options(), smooth_option, json_option, plot_option)
def sensitivity(
    question: Question,
    output: str,
    groups: tuple[str, ...],
    top: int,
    phase: str,
    relax: Relaxation,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Rank the inputs by how much they move an output: the elasticity is the percentage that +1 % of the
    input adds to it."""
    with progress(f"compiling, estimating {phase} and differentiating"):
        answer = SensitivityAnswer.of(question, phase, output, groups, relax, top)
    print_lines(console(json_file), answer.lines())
    write_json(answer.to_dict(), json_file)
    if plot:
        answer.plot(plot)
