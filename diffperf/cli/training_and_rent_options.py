"""The options --tokens and --rent: what a whole training takes, and what the system costs to rent."""

import click

from diffperf.api.question import COMMAND_LINE
from diffperf.api.whole_training import number_of_tokens


def _tokens(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The number of tokens of the option, if it is one."""
    return None if text is None else number_of_tokens(text, COMMAND_LINE, "--tokens")


tokens_option = click.option(
    "--tokens",
    metavar="N",
    callback=_tokens,
    help="add time, energy and cost of a training on N tokens, such as 15e12, interruptions included",
)
rent_option = click.option(
    "--rent", is_flag=True, help="add the price in a cloud, at the published rent of the accelerator"
)
