"""diffperf breakeven: at which price, bandwidth or batch one system overtakes another."""

from pathlib import Path

import click

from diffperf.api.break_even_answer import VARY, BreakEvenAnswer
from diffperf.api.question import Question
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.options import (
    axis_range,
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
)
from diffperf.cli.terminal import progress


@click.command()
@click.option(
    "--against", required=True, metavar="SYSTEM", shell_complete=names_of("systems"), help="the second system"
)
@click.option(
    "--x",
    required=True,
    metavar="PATH=LOW..HIGH",
    callback=axis_range,
    help="the input that varies, such as strategy.global_batch=1..512",
)
@click.option(
    "--vary",
    default="both",
    show_default=True,
    metavar="|".join(VARY),
    help="systems in which the input varies: both, or one alone, as for a price",
)
@click.option(
    "--output",
    default="cost.run",
    show_default=True,
    metavar="PATH",
    help="the output to compare, by its path in the report, such as time",
)
@options(phase_option, question_options(), json_option, plot_option)
def breakeven(
    question: Question,
    against: str,
    x: tuple[str, str],
    vary: str,
    output: str,
    phase: str,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Find where one system overtakes another as an input varies: every crossing of an output in a range."""
    with progress(f"compiling and estimating {phase} over the range"):
        answer = BreakEvenAnswer.of(question, against=against, phase=phase, x=x, vary=vary, output=output)
    show(answer, json_file=json_file, plot=plot)
