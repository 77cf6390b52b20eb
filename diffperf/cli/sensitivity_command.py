"""diffperf sensitivity: what an output depends on: at a point, over ranges, between two systems."""

from pathlib import Path
from typing import Any

import click

from diffperf.api.question import Question
from diffperf.api.sensitivity_question import SAMPLES, sensitivity_answer
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.options import (
    assignments,
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
    smooth_option,
)
from diffperf.cli.terminal import progress
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
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="number of inputs to print"
)
@click.option(
    "--range",
    "ranges",
    metavar="PATH=LOW..HIGH",
    multiple=True,
    callback=assignments,
    help='the output at both ends of a range, such as hbm.bandwidth="2..5 TB/s" or tp=±50% (repeatable)',
)
@click.option(
    "--sobol",
    is_flag=True,
    help="Sobol indices: the shares of the output's variance over the ranges that each input explains",
)
@click.option("--interactions", is_flag=True, help="Sobol indices of inputs and of pairs of inputs")
@click.option("--samples", type=int, show_default=str(SAMPLES), help="samples of the ranges, a power of two")
@click.option(
    "--to",
    "to_system",
    metavar="SYSTEM",
    shell_complete=names_of("systems"),
    help="contribution of each part of another system to the difference of the outputs of both systems",
)
@click.option(
    "--to-set",
    "to_settings",
    metavar="PATH=VALUE",
    multiple=True,
    callback=assignments,
    help="contribution of this change to the difference that all such changes make (repeatable)",
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
    to_system: str | None,
    to_settings: dict[str, str],
    **asked: Any,
) -> None:
    """Rank the inputs by how much they move an output: the elasticity is the percentage that +1 % of the
    input adds to it; of a whole number what one more and one less does.

    \b
      --range PATH=LOW..HIGH …           the output at both ends of each range
      --range PATH=LOW..HIGH … --sobol   the shares of its variance over all ranges
      --to SYSTEM, --to-set PATH=VALUE   what each change on the way contributes
    """
    if to_system and to_settings:
        raise click.UsageError("--to and --to-set: give one of them")
    with progress(f"compiling, estimating {phase} and its changes"):
        answer = sensitivity_answer(
            question,
            phase=phase,
            output=output,
            groups=groups,
            relax=relax,
            top=top,
            to=to_system or to_settings or None,
            **asked,
        )
    show(answer, json_file=json_file, plot=plot)
