"""diffperf cost: what a system costs to build, to buy and to run."""

from pathlib import Path

import click
import equinox as eqx
import jax
import numpy as np
from rich.table import Table

from diffperf import units
from diffperf.api.ownership_table import Ownership, ownership_table
from diffperf.api.question import COMMAND_LINE, describe_system, read_system
from diffperf.api.renting import rented
from diffperf.cli.options import json_option, options, plot_option, system_options
from diffperf.cli.terminal import console, write_json
from diffperf.cli.training_and_rent_options import rent_option
from diffperf.cost.design_cost import DesignCost, Production, design_cost
from diffperf.cost.ownership import HOUR, Cost, run_cost
from diffperf.explore.inputs import full_path
from diffperf.hardware.system import System
from diffperf.load import override
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.report.tables import as_dict, table

_SMALLEST_DIE = 50.0  # mm², where the figure's curve of package costs starts


class Inputs(eqx.Module):
    """What `--set` can change where there is no model and no strategy."""

    system: System


@click.command()
@click.argument("system")
@click.option(
    "--volume", metavar="N", help="divide the design of the package and its dies over so many accelerators"
)
@click.option(
    "--against", metavar="SYSTEM", help="price another system as configured beside it, with the ratios"
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
) -> None:
    """Price SYSTEM: an accelerator package piece by piece, the purchase, and an hour at full power.

    An hour of a device is depreciation and electricity, per device, beside its published rent where there is
    one. --rent fails where there is none.
    """
    inputs = Inputs(read_system(system, devices, stack, calibration)[0])
    values = {full_path(inputs, path): text for path, text in settings.items()}
    priced = override(inputs, values, COMMAND_LINE).system
    other = None if against is None else read_system(against)[0]
    if rent:
        for each in [priced] if other is None else [priced, other]:
            rented(each)  # refuses a system without a rent
    hour = hourly_cost(priced)
    per_hour = {name: float(getattr(hour, name)) * HOUR for name in ("depreciation", "electricity")}
    design = None if volume is None else design_per_accelerator(priced, volume)
    owners = [Ownership.of(priced, hour)]
    owners += [] if other is None else [Ownership.of(other, hourly_cost(other))]
    parts = [table(hour.accelerator, "One accelerator"), ""]
    if design is not None:
        parts += [table(design, f"Its design, divided over {volume} accelerators"), ""]
    console(json_file).print(
        f"[bold]{describe_system(priced)}[/bold]",
        *([] if other is None else [f"[bold]against {describe_system(other)}[/bold]"]),
        "",
        *parts,
        table(hour.purchase, "The system: purchase price"),
        "",
        hour_table(per_hour),
        "",
        ownership_table(owners),
        sep="\n",
    )
    answer = {
        "cost": as_dict(hour),
        "per_hour": per_hour | {"total": sum(per_hour.values())},
        "ownership": owners[0].as_dict(),
        **({} if other is None else {"against": owners[1].as_dict()}),
        "system": as_dict(priced),
    }
    if design is not None:
        answer["design"] = as_dict(design)
    write_json(answer, json_file)
    if plot:
        plot_cost(priced, hour, plot)


@jax.jit
def hourly_cost(system: System) -> Cost:
    """The cost of an hour in which every accelerator draws its power limit."""
    energy = system.n_devices * system.accelerator.power_limit * HOUR
    return run_cost(system, real(HOUR), energy, Exact())


def design_per_accelerator(system: System, volume: str) -> DesignCost:
    """USD of designing the package and its dies per accelerator, of as many as the command line says.

    **Raises:** `ConfigError` where that is not a number of at least 1.
    """
    production = override(Production(volume=real(1.0)), {"volume": volume}, COMMAND_LINE)
    design = design_cost(system.accelerator.package, Exact())
    return jax.tree.map(lambda price: price / production.volume, design)


def hour_table(per_hour: dict[str, float]) -> Table:
    """What an hour costs, by what it is spent on; `per_hour` is in USD."""
    rows = Table(
        title="An hour at full power",
        title_justify="left",
        title_style="bold",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    total = sum(per_hour.values())
    for name, value in per_hour.items():
        rows.add_row(name, units.show(value, "USD"), f"{value / total:6.1%}")
    rows.add_row("total", units.show(total, "USD"), "")
    return rows


def plot_cost(system: System, hour: Cost, file: Path) -> None:
    """Draws what a package costs, and how that grows with the area of a die."""
    from diffperf.report import plots

    die = system.accelerator.package.dies[0]  # the die that computes, where there are several kinds
    area = float(die.area)
    areas = np.linspace(min(_SMALLEST_DIE, area), max(float(die.process.reticle), area), 100)

    def package_cost(area: jax.Array) -> jax.Array:
        return hourly_cost(replace(system, {f"accelerator.package.dies.{die.name}.area": area})).manufacturing

    totals = np.asarray(jax.vmap(package_cost)(real(areas)))
    title = str(system.accelerator.name)
    plots.save(plots.package_cost(hour.accelerator, areas, totals, area, title), file)
