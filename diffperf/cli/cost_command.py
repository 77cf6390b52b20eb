"""diffperf cost: what a system costs to build, to buy and to run."""

from pathlib import Path

import click
import equinox as eqx
import jax
import numpy as np
from rich.table import Table

from diffperf import units
from diffperf.cli.options import (
    describe_system,
    json_option,
    options,
    plot_option,
    read_system,
    system_options,
)
from diffperf.cli.terminal import console, write_json
from diffperf.cost.ownership import run_cost
from diffperf.cost.silicon import RETICLE
from diffperf.explore.inputs import full_path
from diffperf.hardware.system import System
from diffperf.load import override
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.report.tables import as_dict, table


class Offer(eqx.Module):
    """What can be set where there is no model and no strategy."""

    system: System


@click.command()
@click.argument("system")
@options(system_options, json_option, plot_option)
def cost(system, devices, stack, calibration, settings, json_file, plot):
    """What SYSTEM costs: one accelerator package piece by piece, the purchase price, and an hour at full power."""
    offer = Offer(read_system(system, devices, stack, calibration)[0])
    values = {full_path(offer, path): text for path, text in settings.items()}
    bought = override(offer, values, "command line").system
    hour = jax.device_get(hourly_cost(bought))
    per_hour = {name: float(getattr(hour, name)) * 3600 for name in ("depreciation", "electricity")}

    title = f"[bold]{describe_system(bought)}[/bold]"
    package, bought_for = (
        table(hour.accelerator, "One accelerator"),
        table(hour.purchase, "The system: purchase price"),
    )
    console(json_file).print(title, "", package, "", bought_for, "", hour_table(per_hour), sep="\n")
    write_json(
        {
            "cost": as_dict(hour),
            "per_hour": per_hour | {"total": sum(per_hour.values())},
            "system": as_dict(bought),
        },
        json_file,
    )
    if plot:
        plot_cost(bought, hour, plot)


@jax.jit
def hourly_cost(system: System):
    """The cost of an hour in which every accelerator draws its power limit."""
    hour = 3600.0
    return run_cost(system, hour, system.n_devices * system.accelerator.power_limit * hour, Exact())


def hour_table(per_hour: dict[str, float]) -> Table:
    """What an hour costs."""
    title = "An hour at full power"
    rows = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )
    total = sum(per_hour.values())
    for name, value in {**per_hour, "total": total}.items():
        rows.add_row(name, units.show(value, "USD"), f"{value / total:6.1%}" if name != "total" else "")
    return rows


def plot_cost(system: System, hour, file: Path) -> None:
    from diffperf.report import plots

    area = float(system.accelerator.package.die_area)
    areas = np.linspace(min(50.0, area), max(RETICLE, area), 100)
    path = "accelerator.package.die_area"
    totals = jax.vmap(lambda area: hourly_cost(replace(system, {path: area})).manufacturing)(areas)
    plots.save(
        plots.package_cost(hour.accelerator, areas, np.asarray(totals), area, f"{system.accelerator.name}"),
        file,
    )
