"""Cost of each kind of die of a package: dies of a wafer, sellable dies, and a known-good die."""

from typing import Any

from rich.table import Table

from diffperf import units
from diffperf.cost.die_cost import known_good_price
from diffperf.cost.harvesting import shipping_shares
from diffperf.cost.wafers import dies_per_wafer, raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.package import Die, Package, total_area
from diffperf.report.tables import column_table


def die_rows(package: Package) -> list[dict[str, Any]]:
    """A row for each kind of die: counts, shares, mm² and USD of one die."""
    return [_row(die, package) for die in package.dies]


def _row(die: Die, package: Package) -> dict[str, Any]:
    area = total_area(die)
    return {
        "die": str(die.name),
        "process": str(die.process.name),
        "count": float(die.count),
        "area": float(area),
        "dies_per_wafer": float(dies_per_wafer(area, die.process, die.aspect)),
        "without_defect": float(die_yield(area, die.process)),
        "ship": float(shipping_shares(die).full),
        "raw": float(raw_die_price(area, die.process, die.aspect, die.exposure.wafer)),
        "known_good": float(known_good_price(die, package.packaging)),
    }


def die_table(package: Package) -> Table:
    """Table with a row for each kind of die: counts, shares, mm² and USD of one die."""
    columns = ("dies/wafer", "defect-free", "sellable", "raw die", "known-good die")
    rows = column_table("Dies", "process", "in a package", "area", *columns)
    for row in die_rows(package):
        shares = [f"{row[name]:.1%}" for name in ("without_defect", "ship")]
        prices = [units.show(row[name], "USD") for name in ("raw", "known_good")]
        counts = f"{row['count']:g}", units.show(row["area"], "mm^2"), f"{row['dies_per_wafer']:.1f}"
        rows.add_row(row["die"], row["process"], *counts, *shares, *prices)
    return rows
