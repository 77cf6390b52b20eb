"""Cost of a device of a system to buy, to own for an hour and to rent: one system, or two side by side."""

import dataclasses
from typing import Any

from rich.table import Table

from diffperf import units
from diffperf.cost.network_cost import tier_costs
from diffperf.cost.ownership import Cost, device_hour
from diffperf.hardware.system import System
from diffperf.relax import Exact
from diffperf.report.tables import as_dict, column_table
from diffperf.units import HOUR


@dataclasses.dataclass(frozen=True)
class Ownership:
    """The prices of one device of a system, in USD.

    - `purchase`: the purchase price by part, each network tier by its name.
    - `hour`: an hour at full power by part.
    - `rent`: an hour in a cloud, None where no rent of the accelerator is published.
    """

    system: str
    purchase: dict[str, float]
    hour: dict[str, float]
    rent: float | None

    @classmethod
    def of(cls, system: System, cost: Cost) -> "Ownership":
        """The prices of a device of a system whose devices and run cost `cost`."""
        devices = float(system.n_devices)
        purchase = {
            "accelerator": float(cost.purchase.accelerators) / devices,
            "host": float(cost.purchase.hosts) / devices,
            **_network_prices(system),
            "racks": float(cost.purchase.racks) / devices,
        }
        rent = float(system.accelerator.rent) * HOUR
        hour = as_dict(device_hour(system, cost))
        hour.pop("total")
        return cls(str(system.name), purchase, hour, rent or None)

    def sections(self) -> dict[str, dict[str, float]]:
        """USD by section of the table and by row."""
        sections = {
            "Purchase of a device": self.purchase | {"total": sum(self.purchase.values())},
            "An hour of a device at full power": self.hour | {"total": sum(self.hour.values())},
        }
        if self.rent is not None:
            sections["An hour of a device in a cloud"] = {"rent": self.rent}
        return sections

    def as_dict(self) -> dict[str, Any]:
        """The prices for JSON, in USD."""
        return {
            "system": self.system,
            "purchase": self.purchase | {"total": sum(self.purchase.values())},
            "hour": self.hour | {"total": sum(self.hour.values())},
            "rent": self.rent,
        }


def _network_prices(system: System) -> dict[str, float]:
    """USD per device by network tier and part, without the parts that cost nothing."""
    prices = {}
    for tier, cost in zip(system.network, tier_costs(system, Exact()), strict=True):
        parts = {
            ": adapters": cost.adapters,
            ": switches": cost.switches,
            ": links": cost.cables,
            "": cost.other,
        }
        prices |= {f"network {tier.name}{part}": float(price) for part, price in parts.items() if price > 0}
    return prices


def ownership_table(owners: list[Ownership]) -> Table:
    """The prices of a device of each system, a column each, and for two systems the first over the second."""
    columns = [owner.system for owner in owners]
    rows = column_table("", *columns, *(["ratio"] if len(owners) > 1 else []))
    sections = [owner.sections() for owner in owners]
    for section in dict.fromkeys(title for each in sections for title in each):
        rows.add_row(f"[bold]{section}[/bold]")
        prices = [each.get(section, {}) for each in sections]
        names = dict.fromkeys(name for each in prices for name in each if name != "total")
        for name in [*names, *(["total"] if any("total" in each for each in prices) else [])]:
            rows.add_row(f"  {name}", *_cells([each.get(name) for each in prices]))
    return rows


def _cells(prices: list[float | None]) -> list[str]:
    """The prices of a row as texts, and the first over the second where there are two."""
    cells = ["–" if price is None else units.show(price, "USD") for price in prices]
    if len(prices) > 1:
        first, second = prices[:2]
        cells.append(f"{first / second:.3g}" if first is not None and second else "–")
    return cells
