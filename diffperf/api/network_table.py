"""Price, power and silicon of the network of a system: a row for each tier."""

from typing import Any

from rich.table import Table

from diffperf import units
from diffperf.cost.network_cost import tier_costs
from diffperf.hardware.system import System
from diffperf.relax import Exact
from diffperf.report.tables import column_table

_SHOWN = {"price": "USD", "power": "W", "switch_area": "mm^2"}


def network_rows(system: System) -> list[dict[str, Any]]:
    """A row for each network tier, innermost first: bytes/s, mm of the mean link, and for one
    device USD, W and mm² of switches."""
    costs = tier_costs(system, Exact())
    return [
        {
            "tier": str(tier.name),
            "topology": tier.topology.likeliest(),
            "bandwidth": float(tier.bandwidth),
            "reach": float(tier.reach),
            "price": float(cost.price),
            "power": float(cost.power),
            "switch_area": float(cost.area),
        }
        for tier, cost in zip(system.network, costs, strict=True)
    ]


def network_table(system: System) -> Table:
    """Table with a row for each network tier, innermost first."""
    columns = ("bandwidth", "mean link", "price", "power", "silicon of switches")
    rows = column_table("Network, per device", "topology", *columns, left=2)
    for row in network_rows(system):
        rows.add_row(
            row["tier"],
            row["topology"].replace("_", " "),
            units.show(row["bandwidth"], "byte/s"),
            f"{row['reach'] / 1e3:g} m" if row["reach"] else "–",
            *(units.show(row[name], unit) for name, unit in _SHOWN.items()),
        )
    return rows
