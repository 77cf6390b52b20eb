"""diffperf die: what a die of an area costs on every silicon node."""

import re
from pathlib import Path

import click

from diffperf.api.die_answer import DieAnswer
from diffperf.api.question import COMMAND_LINE
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.options import assignments, json_option, options, plot_option


class _NegativeArea(click.Command):
    """A command whose argument may begin with a minus, to say what is wrong with it: "-6" is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        negative = [text for text in args[:1] if re.match(r"-[\d.]", text)]
        return super().parse_args(ctx, [*args[1:], "--", *negative] if negative else args)


@click.command(cls=_NegativeArea)
@click.argument("area")
@click.option(
    "--nodes",
    metavar="NAME|FEATURE,…",
    shell_complete=names_of("nodes"),
    help='silicon nodes, such as n7,n5,"3.5 nm" [all shipped ones]',
)
@click.option(
    "--aspect", default="1", metavar="N", show_default=True, help="width of the die over its height"
)
@click.option(
    "--age",
    metavar="YEARS",
    help="time since the start of volume production, for the wafer price and the defects of that time "
    "[those of the processes' files]",
)
@click.option(
    "--set",
    "settings",
    metavar="PATH=VALUE",
    multiple=True,
    callback=assignments,
    help='override one input of all nodes, such as process.defect_density="0.08 1/cm^2" (repeatable)',
)
@options(json_option, plot_option)
def die(
    area: str,
    nodes: str | None,
    aspect: str,
    age: str | None,
    settings: dict[str, str],
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Price a die of AREA on silicon nodes: its wafer, the dies on it, yields by four models, a good die.

    AREA has a unit ("628 mm2", "6.28 cm2") or is in mm². The figure is the price of a good mm² over the area.
    """
    answer = DieAnswer.of(area, nodes=nodes, aspect=aspect, age=age, settings=settings, asker=COMMAND_LINE)
    show(answer, json_file=json_file, plot=plot)
