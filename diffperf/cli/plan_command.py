"""diffperf plan: the best of all strategies, why the others lose, and the flags that train with it."""

from pathlib import Path

import click

from diffperf.api.plan_answer import DEFAULT_SCHEDULES, PlanAnswer, search_of
from diffperf.api.question import Question
from diffperf.cli.answer_output import show, text_output
from diffperf.cli.options import json_option, options, output_file, plot_option, question_options
from diffperf.cli.terminal import progress
from diffperf.cli.training_and_rent_options import rent_option, tokens_option
from diffperf.errors import counted
from diffperf.explore.plan.candidates import FIELDS
from diffperf.explore.plan.reasons import OBJECTIVES
from diffperf.report.output_files import STDOUT


class DoesNotFit(click.ClickException):
    """No strategy fits memory."""

    exit_code = 3


def _names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """The names of a list with commas; None without the option."""
    return None if value is None else tuple(name.strip() for name in value.split(","))


@click.command()
@click.option(
    "--by",
    default="time",
    show_default=True,
    metavar="|".join(OBJECTIVES),
    help="quantity to minimize: the time, the cost or the energy of a step",
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="number of the best strategies to print",
)
@click.option(
    "--schedules",
    show_default=",".join(DEFAULT_SCHEDULES),
    metavar="NAME,…",
    callback=_names,
    help="pipeline schedules to choose from",
)
@click.option(
    "--flags",
    metavar="FILE",
    callback=output_file,
    help="write the best strategy as flags of Megatron-LM (- for stdout)",
)
@options(tokens_option, rent_option, question_options(FIELDS, "searched"), json_option, plot_option)
def plan(
    question: Question,
    tokens: float | None,
    rent: bool,
    by: str,
    top: int,
    schedules: tuple[str, ...] | None,
    flags: str | None,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Find the best strategy to train MODEL on SYSTEM: all of them, ranked, and why those behind the best
    lose.

    The search covers the degrees of parallelism, virtual stages, the micro-batch, recomputation and the
    ZeRO stage, within limits that the output states. An option that is given is kept, and every other field
    has the default of its option. Where no strategy fits memory, the exit code is 3.
    """
    search = search_of(question, schedules, rent)
    strategies = counted(len(search), "strategy", plural="strategies")
    with progress(f"comparing {strategies}", len(search)) as advance:
        answer = PlanAnswer.of(question, search, by, top, tokens=tokens, rent=rent, advance=advance)
    if not answer.fits:
        # The last line is the error's, and stdout that is for the flags gets nothing.
        show(answer, json_file=json_file, lines=lambda: [] if flags == STDOUT else answer.lines()[:-1])
        raise DoesNotFit(answer.refusal)
    best = text_output(flags, lambda: "\n".join(answer.flags()) + "\n")
    show(answer, best, json_file=json_file, plot=plot)
