"""dp.cost: what a system costs to build, to buy and to run."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.cost_curve import CostCurve
from diffperf.api.die_table import die_rows, die_table
from diffperf.api.from_python import in_float64, read_settings, refuse_traced
from diffperf.api.input_values import plain, with_paths_and_units
from diffperf.api.network_table import network_rows, network_table
from diffperf.api.ownership_table import Ownership, ownership_table
from diffperf.api.price_notes import describe_prices
from diffperf.api.question import (
    Question,
    describe_system,
    described_change,
    described_overrides,
    read_system,
)
from diffperf.api.renting import rented
from diffperf.api.varied_ranges import InputRange
from diffperf.compiler import stored
from diffperf.cost.design_cost import DesignCost, Production, design_cost
from diffperf.cost.ownership import RATES, Cost, run_cost
from diffperf.errors import ConfigError
from diffperf.explore.inputs import check_phase
from diffperf.hardware.system import System
from diffperf.load import available, is_accelerator_file, load_model, override
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.report.tables import as_dict, table
from diffperf.units import HOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALLEST_DIE = 50.0  # mm², where the figure's curve of package costs starts


@answering("cost")
def cost(
    system: Any,
    *,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    volume: float | None = None,
    against: Any = None,
    rent: bool = False,
    model: Any = None,
    phase: str = "decode",
    over: InputRange | None = None,
) -> "CostAnswer":
    """Cost of a system: an accelerator piece by piece, the purchase, and an hour at full power.

    **Arguments:** `system`, `devices`, `stack`, `calibration` and `set` as of `dp.estimate`, and

    - `system` may name an accelerator: one device of it, by itself.
    - `volume`: divides the design of the package and its dies over so many accelerators.
    - `against`: another system as configured, to price beside it.
    - `rent`: refuses a system without a published rent.
    - `over`: an input and its range, such as `("network.nvlink.bandwidth", "100..900 GB/s")`: cost and
      performance of `phase` of `model` along it.

    **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("cost")
    settings = read_settings(set, asker)
    refuse_traced(asker, {"system": system, "devices": devices, "set": settings, "against": against})
    number = None if devices is None else str(plain(devices))
    priced = read_system(in_float64(priced_source(system)), number, stack, calibration, asker)[0]
    beside = in_float64(priced_source(against))
    other = None if against is None else read_system(beside, asker=asker, key="against")[0]
    changed, overrides = priced_with(priced, settings, asker, of_a_run=model is not None)
    curve = curve_over(changed, model=model, phase=phase, over=over, settings=settings, asker=asker)
    return CostAnswer.of(
        changed, volume=volume, other=other, rent=rent, asker=asker, curve=curve, overrides=overrides
    )


def priced_source(source: Any) -> Any:
    """The source of the system to price: for the name or the file of an accelerator, one device of it."""
    if not isinstance(source, str | Path):
        return source
    name, path = str(source), Path(source)
    if path.suffix == ".toml" and path.is_file():
        alone, name = is_accelerator_file(path), path.stem
    else:
        alone = name in available("accelerators") and name not in available("systems")
    return {"extends": "one-device", "accelerator": str(source), "name": name} if alone else source


_OF_A_RUN = ("strategy.", "model.")  # inputs of a curve alone


def curve_over(
    system: System,
    model: Any,
    phase: str,
    over: InputRange | None,
    settings: Mapping[str, Any],
    asker: str,
) -> CostCurve | None:
    """The curve of cost and performance along an input, None where none is asked for.

    **Raises:** `ConfigError` for a model without a range, and a range without a model.
    """
    if (model is None) != (over is None):
        found, missing = ("over", "model") if model is None else ("model", "over")
        raise ConfigError(asker, found, f"no {missing} beside it", "both or neither", f"give {missing} too")
    if over is None:
        return None
    question = Question.about(
        model=load_model(in_float64(model), asker, "model"),
        system=system,
        calibration=None,
        settings={path: value for path, value in settings.items() if path.startswith(_OF_A_RUN)},
        strategy={},
        gives_devices=True,
        asker=asker,
    )
    return CostCurve.of(question, check_phase(phase, asker, "phase"), over)


class _Inputs(eqx.Module):
    """Inputs that `set` can change where there is no model and no strategy."""

    system: System


def priced_with(
    system: System, settings: Mapping[str, Any], asker: str, *, of_a_run: bool = False
) -> tuple[System, dict[str, str]]:
    """A system with other values of some inputs, and their values and those before, as texts.

    Those `of_a_run`, of a model and a strategy, may be among the settings and are left to its curve.
    """
    before = _Inputs(system)
    if of_a_run:
        settings = {path: value for path, value in settings.items() if not path.startswith(_OF_A_RUN)}
    values = with_paths_and_units(before, settings, asker)
    after = override(before, values, asker)
    return after.system, {path: described_change(before, after, path) for path in values}


@dataclasses.dataclass(frozen=True, repr=False)
class CostAnswer(Answer):
    """The prices of a system.

    - `hour`: its purchase, and an hour in which every accelerator draws its power limit.
    - `design`: USD of designing an accelerator, divided over `volume` of them, where that is asked for.
    - `other`, `owners`: the system beside it, and the prices of a device of each.
    - `overrides`: the inputs that the user sets by path, with their values and those before, as texts.
    """

    system: System
    hour: Cost
    volume: float | str | None
    design: DesignCost | None
    other: System | None
    owners: list[Ownership]
    curve: CostCurve | None = None
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        system: System,
        volume: float | str | None,
        other: System | None,
        rent: bool,
        asker: str,
        curve: CostCurve | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> "CostAnswer":
        """Prices a system, and another one beside it."""
        of_run = {} if curve is None else curve.question.overrides
        if rent:
            for each in [system] if other is None else [system, other]:
                rented(each, asker)  # refuses a system without a rent
        hour = hourly_cost(system)
        design = None if volume is None else design_per_accelerator(system, volume, asker)
        owners = [Ownership.of(system, hour)]
        owners += [] if other is None else [Ownership.of(other, hourly_cost(other))]
        return cls(
            system=system,
            hour=hour,
            volume=volume,
            design=design,
            other=other,
            owners=owners,
            curve=curve,
            overrides={**(overrides or {}), **of_run},
        )

    @property
    def per_hour(self) -> dict[str, float]:
        """Cost of an hour at full power, in USD."""
        return {name: float(getattr(self.hour, name)) * HOUR for name in RATES}

    def lines(self) -> list[RenderableType]:
        lines: list[RenderableType] = [f"[bold]{describe_system(self.system)}[/bold]"]
        if self.other is not None:
            lines.append(f"[bold]against {describe_system(self.other)}[/bold]")
        lines += described_overrides(self.overrides)
        lines += describe_prices(self.overrides, self.system)
        lines += ["", die_table(self.system.accelerator.package), ""]
        lines += [table(self.hour.accelerator, "One accelerator"), ""]
        if self.design is not None and self.volume is not None:
            lines += [
                table(self.design, f"Its design, divided over {float(self.volume):,.0f} accelerators"),
                "",
            ]
        lines += [table(self.hour.purchase, "The system: purchase price"), "", hour_table(self.per_hour)]
        lines += ["", table(self.hour.node, "A device's share of a node, at the device's power limit")]
        if any(
            tier[name] for tier in network_rows(self.system) for name in ("price", "power", "switch_area")
        ):
            lines += ["", network_table(self.system)]  # not of one device by itself
        lines += ["", ownership_table(self.owners)]
        lines += ["", _describe_emissions(self.system, self.hour)]
        return lines if self.curve is None else [*lines, "", *self.curve.lines()]

    def to_dict(self) -> dict[str, Any]:
        answer = {
            "cost": as_dict(self.hour),
            "dies": die_rows(self.system.accelerator.package),
            "per_hour": self.per_hour | {"total": sum(self.per_hour.values())},
            "ownership": self.owners[0].as_dict(),
            "network": network_rows(self.system),
            **({} if self.other is None else {"against": self.owners[1].as_dict()}),
            **({} if self.curve is None else {"curve": self.curve.as_dict()}),
            "system": as_dict(self.system),
            **({"overrides": self.overrides} if self.overrides else {}),
        }
        return answer if self.design is None else answer | {"design": as_dict(self.design)}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each price of a device, with a column for each system."""
        sections = {owner.system: owner.sections() for owner in self.owners}
        keys = {
            (title, name): None
            for each in sections.values()
            for title, prices in each.items()
            for name in prices
        }
        return [
            {"section": title, "price": name}
            | {system: each.get(title, {}).get(name) for system, each in sections.items()}
            for title, name in keys
        ]

    def figure(self) -> "Figure":
        """Figure of the price of a package, its growth with the area of a die, and the price of a device
        to buy and to own for an hour, beside another system where there is one; with `over`, of
        performance over cost.
        """
        if self.curve is not None:
            return self.curve.figure()
        from diffperf.report import plots

        system, hour = self.system, self.hour
        die = system.accelerator.package.dies[0]  # the die that computes, where there are several kinds
        area = float(die.area)
        areas = np.linspace(min(_SMALLEST_DIE, area), max(float(die.process.reticle), area), 100)

        def package_cost(area: jax.Array) -> jax.Array:
            return hourly_cost(
                replace(system, {f"accelerator.package.dies.{die.name}.area": area})
            ).manufacturing

        totals = np.asarray(jax.vmap(package_cost)(real(areas)))
        title = str(system.accelerator.name)
        owners = {owner.system: {"buy": owner.purchase, "hour": owner.hour} for owner in self.owners}
        return plots.package_cost(
            hour.accelerator, areas=areas, totals=totals, die_area=area, owners=owners, title=title
        )


def _describe_emissions(system: System, hour: Cost) -> str:
    """A sentence about the CO2e of making a device and of an hour at full power."""
    embodied = float(hour.package_carbon + system.prices.embodied_carbon)
    per_hour = 1e3 * float(hour.emissions) / float(system.n_devices)  # g
    made = 1e3 * float(hour.embodied_emissions) / float(system.n_devices)  # g
    return (
        f"CO2e of a device: {embodied:.0f} kg to make, {float(hour.package_carbon):.0f} kg of them for its "
        f"package; {per_hour:.0f} g an hour at full power, {made:.0f} g of them for making it"
    )


@stored()
def hourly_cost(system: System) -> Cost:
    """The cost of an hour in which every accelerator draws its power limit."""
    energy = system.n_devices * system.accelerator.power_limit * HOUR
    return run_cost(system, real(HOUR), energy, Exact())


def design_per_accelerator(system: System, volume: str | float, asker: str) -> DesignCost:
    """USD of designing the package and its dies per accelerator, of as many as the user says.

    **Raises:** `ConfigError` that names `asker`, where that is not a number of at least 1.
    """
    production = override(Production(volume=real(1.0)), {"volume": volume}, asker)
    design = design_cost(system.accelerator.package, Exact())
    return jax.tree.map(lambda price: price / production.volume, design)


def hour_table(per_hour: dict[str, float]) -> Table:
    """Cost of an hour, by purpose; `per_hour` is in USD."""
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
