"""diffperf estimate: the estimate of one configuration, and where its time and memory go."""

from pathlib import Path

import click

from diffperf.api.estimate_answer import EstimateAnswer
from diffperf.api.question import Question
from diffperf.cli.answer_output import show
from diffperf.cli.options import (
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
    smooth_option,
)
from diffperf.cli.terminal import progress
from diffperf.cli.training_and_rent_options import rent_option, tokens_option
from diffperf.relax import Relaxation

DOES_NOT_FIT = 3  # exit code, as of `plan` and `serve`


@click.command()
@click.option(
    "--operators",
    "list_operators",
    is_flag=True,
    help="list every operator and collective of the phase, and which resource bounds each operator",
)
@options(
    tokens_option, phase_option, question_options(), rent_option, smooth_option, json_option, plot_option
)
@click.pass_context
def estimate(
    ctx: click.Context,
    question: Question,
    phase: str,
    list_operators: bool,
    tokens: float | None,
    rent: bool,
    relax: Relaxation,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Estimate MODEL on SYSTEM: time, memory, energy and cost, and where they go.

    MODEL and SYSTEM are names (see diffperf list), TOML files, or for MODEL a Hugging Face config.json or
    the folder of one.
    Degrees of parallelism that are not given are set to the fastest layout that fits memory. Where the
    configuration does not fit, the exit code is 3.
    """
    with progress(f"compiling and estimating {phase}"):
        answer = EstimateAnswer.of(
            question, phase, relax, tokens=tokens, rent=rent, list_operators=list_operators
        )
    show(answer, json_file=json_file, plot=plot)
    if not answer.fits:
        ctx.exit(DOES_NOT_FIT)
