"""diffperf cost: what a system costs to build, to buy and to run."""

from pathlib import Path

import click

from diffperf.api.cost_answer import CostAnswer, curve_over, priced_source, priced_with
from diffperf.api.question import COMMAND_LINE, read_system
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.options import axis_range, json_option, options, plot_option, system_options
from diffperf.cli.training_and_rent_options import rent_option
from diffperf.estimate.phases import PHASES


def _axis(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """The input and the range of --over, if there is one."""
    return None if value is None else axis_range(ctx, parameter, value)


@click.command()
@click.argument("system", shell_complete=names_of("systems"))
@click.option(
    "--volume",
    metavar="N",
    help="number of accelerators among which the cost of designing the package and its dies is divided",
)
@click.option(
    "--against",
    metavar="SYSTEM",
    shell_complete=names_of("systems"),
    help="price another system or accelerator as configured beside it, with the ratios",
)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=names_of("models"),
    help="with --over: the model whose performance stands beside the cost",
)
@click.option(
    "--phase",
    default="decode",
    show_default=True,
    metavar="|".join(PHASES),
    help="with --over: phase of the model",
)
@click.option(
    "--over",
    metavar="PATH=LOW..HIGH",
    callback=_axis,
    help='add cost and performance along an input, such as network.nvlink.bandwidth="100..900 GB/s"',
)
@options(system_options, rent_option, json_option, plot_option)
def cost(
    system: str,
    devices: str | None,
    stack: str | None,
    calibration: str | None,
    settings: dict[str, str],
    json_file: str | None,
    plot: Path | None,
    volume: str | None,
    against: str | None,
    rent: bool,
    model: str | None,
    phase: str,
    over: tuple[str, str] | None,
) -> None:
    """Price SYSTEM: its dies, an accelerator package piece by piece, the purchase, and an hour at full power.

    The name of an accelerator prices one device of it. An hour of a device is depreciation, interest,
    repairs, facility and electricity, per device, beside its published rent where there is one. --rent fails
    where there is none.
    """
    source = priced_source(system)
    loaded = read_system(source, devices, stack, calibration)[0]
    priced, overrides = priced_with(loaded, settings, COMMAND_LINE, of_a_run=model is not None)
    other = None if against is None else read_system(priced_source(against), key="--against")[0]
    curve = curve_over(priced, model=model, phase=phase, over=over, settings=settings, asker=COMMAND_LINE)
    answer = CostAnswer.of(
        priced,
        volume=volume,
        other=other,
        rent=rent,
        asker=COMMAND_LINE,
        curve=curve,
        overrides=overrides,
    )
    show(answer, json_file=json_file, plot=plot)
