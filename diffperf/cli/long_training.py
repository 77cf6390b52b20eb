"""What `diffperf estimate` and `diffperf plan` say about a whole training: the option --tokens."""

import math
from typing import Any

import click

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.errors import ConfigError
from diffperf.estimate.long_run import long_run
from diffperf.quantity import real
from diffperf.report.tables import as_dict
from diffperf.workload.configuration import Configuration


def _tokens(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The number of tokens of the option, if it is one."""
    if text is None:
        return None
    try:
        tokens = float(text)
    except ValueError:
        tokens = math.nan
    if not (1 <= tokens < math.inf):
        expected, remedy = "a number of tokens, at least one", "write one such as 15e12"
        raise ConfigError(COMMAND_LINE, "--tokens", f'"{text}"', expected, remedy)
    return tokens


tokens_option = click.option(
    "--tokens",
    metavar="N",
    callback=_tokens,
    help="add what training on so many tokens takes, such as 15e12, interruptions included",
)


def training_totals(inputs: Configuration, report: Any, tokens: float) -> dict[str, float]:
    """What training on so many tokens takes in all, by the names of `LongRun`, in internal units."""
    return {"tokens": tokens, **as_dict(long_run(inputs, report, real(tokens)))}


def describe_training(totals: dict[str, float]) -> list[str]:
    """Lines about a whole training."""
    show = {name: units.show(totals[name], "s") for name in ("time", "checkpoint_interval")}
    amounts = [show["time"], units.show(totals["energy"], "J"), units.show(totals["cost"], "USD")]
    carbon = f"{totals['emissions'] / 1e3:,.3g} t CO2e"
    steps = f"{totals['steps']:,.0f} steps"
    return [
        f"Training on {totals['tokens']:.3g} tokens: {steps}, {', '.join([*amounts, carbon])}",
        f"  {totals['goodput']:.1%} of the time is useful: {totals['interruptions']:,.3g} interruptions, a "
        f"checkpoint every {show['checkpoint_interval']}, {totals['spare_devices']:,.3g} spare devices",
    ]
