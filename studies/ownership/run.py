"""What an hour of an accelerator costs its owner, part by part, beside published models of ownership.

Clusters of 1,024 devices of every shipped system of a data centre are priced at full power and all hours of
the year: depreciation, interest, repairs, facility with its staff, and electricity
(`diffperf.cost.ownership`). An hour at the utilization of the price list, the CO2e of making a device, and by
how much an hour changes with the interest, the lifetime, the price of the facility and of electricity stand
beside it.

`--cases FILE` compares with published figures: a table with the columns `hardware` (an accelerator of
`configs/`), `tco_usd_per_gpu_hour`, `tco_neocloud_usd_per_gpu_hour`, `source` and `date`; hardware without a
system in the table below is left out.

    python studies/ownership/run.py [--quick] [--out DIR] [--cases FILE]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.cost.ownership import DeviceHour, device_hour, run_cost
from diffperf.errors import ConfigError
from diffperf.hardware.system import System
from diffperf.quantity import locate, real, replace
from diffperf.relax import Exact
from diffperf.report.plots import BLUE, FAINT, GREY, ORANGE, RED
from diffperf.units import HOUR

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish, read_rows

SYSTEMS = {
    "a100-sxm4-80gb": "dgx-a100",
    "h100-sxm5-80gb": "dgx-h100",
    "h200-sxm-141gb": "hgx-h200",
    "b200-sxm-180gb": "hgx-b200",
    "b300-sxm": "hgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "mi300x": "mi300x-8",
    "mi325x": "mi325x-8",
    "mi355x": "mi355x-8",
}
QUICK = ("h100-sxm5-80gb", "mi300x")
DEVICES = 1024  # of a cluster: its network has two levels of switches
# The inputs whose effect on an hour is shown: elasticities of the hour's price.
INPUTS = {
    "interest": "prices.interest",
    "lifetime": "prices.lifetime",
    "facility": "prices.facility",
    "electricity": "prices.electricity",
}
PARTS = {
    "accelerator": BLUE,
    "host": ORANGE,
    "network": RED,
    "racks": "#c9b458",
    "interest": GREY,
    "repair": "#8f6f94",
    "facility": "#7a9e7e",
    "electricity": FAINT,
}


def hour_of(system: System) -> tuple[DeviceHour, Any]:
    """The parts of an hour of a device at its power limit, and the cost that they are from."""
    energy = system.n_devices * system.accelerator.power_limit * HOUR
    cost = run_cost(system, real(HOUR), energy, Exact())
    return device_hour(system, cost), cost


@jax.jit
def priced(system: System) -> tuple[DeviceHour, Any, dict[str, Any], Any]:
    """An hour of all hours of the year, its cost, its elasticities, and an hour at the list's utilization."""
    always = replace(system, {"prices.utilization": real(1.0)})

    def total(values: dict[str, Any]) -> Any:
        return hour_of(replace(always, values))[0].total

    values = {path: locate(always, path)[0] for path in INPUTS.values()}
    slopes = jax.grad(total)(values)
    hour, cost = hour_of(always)
    elasticities = {name: slopes[path] * values[path] / hour.total for name, path in INPUTS.items()}
    return hour, cost, elasticities, hour_of(system)[0].total


def row_of(hardware: str) -> dict[str, Any]:
    """The table's row of an accelerator."""
    system = dp.load_system(SYSTEMS[hardware], n_devices=DEVICES)
    hour, cost, elasticities, utilized = priced(system)
    parts = {name: float(getattr(hour, name)) for name in PARTS}
    return {
        "hardware": hardware,
        "hour": float(hour.total),
        **parts,
        "utilized": float(utilized),
        "carbon": float(cost.package_carbon + system.prices.embodied_carbon),
        **{f"by_{name}": float(value) for name, value in elasticities.items()},
    }


COLUMNS = {
    "hardware": ("accelerator", ""),
    "hour": ("$ an hour, all hours", ".2f"),
    **{name: (name, ".2f") for name in PARTS},
    "utilized": ("$ at the list's utilization", ".2f"),
    "carbon": ("kg CO2e to make", ".0f"),
    **{f"by_{name}": (f"elasticity by {name}", "+.2f") for name in INPUTS},
}
COMPARED = {
    "hardware": ("accelerator", ""),
    "ours": ("ours, $ an hour", ".2f"),
    "hyperscaler": ("hyperscaler", ".2f"),
    "neocloud": ("smaller cloud", ".2f"),
    "place": ("ours, 0 at the one and 1 at the other", ".2f"),
    "date": ("of", ""),
    "source": ("source", ""),
}


def compared(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ours beside the published figures of a table.

    **Raises:** `ConfigError` for a table that cannot be read or lacks a column.
    """
    expected = ("hardware", "tco_usd_per_gpu_hour", "tco_neocloud_usd_per_gpu_hour", "source", "date")
    try:
        published = read_rows(path)
    except OSError as error:
        raise ConfigError(str(path), "--cases", "no table", "a CSV file", str(error)) from None
    missing = [name for name in expected if published and name not in published[0]]
    if missing or not published:
        found = f"no column {missing[0]}" if missing else "no row"
        raise ConfigError(str(path), "--cases", found, ", ".join(expected), "give all of these columns")
    ours = {row["hardware"]: row["hour"] for row in rows}
    result = []
    for case in published:
        low, high = case["tco_usd_per_gpu_hour"], case["tco_neocloud_usd_per_gpu_hour"]
        if case["hardware"] in ours and low and high:
            own, least, most = ours[case["hardware"]], float(low), float(high)
            place = (own - least) / (most - least)
            figures = {"ours": own, "hyperscaler": least, "neocloud": most, "place": place}
            named = {name: case[name] for name in ("hardware", "date", "source")}
            result.append(named | figures)
    return result


def describe(rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> str:
    """What the study finds, in sentences."""
    h100 = next(row for row in rows if row["hardware"] == "h100-sxm5-80gb")
    bought = sum(h100[name] for name in ("accelerator", "host", "network"))
    bought_share = bought / h100["hour"]
    text = (
        f"An hour of an H100 costs its owner ${h100['hour']:.2f} where it works all hours of the year and "
        f"${h100['utilized']:.2f} at the utilization of the price list; {bought_share:.0%} of the former is "
        f"the depreciation of what is bought and {h100['electricity'] / h100['hour']:.0%} electricity."
    )
    if not beside:
        return text
    middle = [(case["hyperscaler"] + case["neocloud"]) / 2 for case in beside]
    errors = [case["ours"] / each - 1 for case, each in zip(beside, middle, strict=True)]
    return text + (
        f" Beside {len(beside)} published figures the median error to the middle of hyperscaler and smaller "
        f"cloud is {float(np.median(np.abs(errors))):.0%}, the mean {float(np.mean(errors)):+.0%}."
    )


def draw(rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> Figure:
    """The parts of an hour of each accelerator, and the published range where there is one."""
    figure = Figure(figsize=(8.5, 0.45 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots()
    names = [row["hardware"] for row in rows]
    left = np.zeros(len(rows))
    for part, colour in PARTS.items():
        widths = np.array([row[part] for row in rows])
        axes.barh(names, widths, left=left, color=colour, label=part)
        left += widths
    for index, case in enumerate(beside):
        place = names.index(case["hardware"]) + (-0.15 if case["date"] == beside[0]["date"] else 0.15)
        label = "published: hyperscaler to smaller cloud" if index == 0 else None
        axes.plot([case["hyperscaler"], case["neocloud"]], [place, place], "|-", color="black", label=label)
    axes.invert_yaxis()
    axes.set_xlabel("$ for an hour of a device at full power, working all hours of the year")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.16))
    return figure


def main() -> None:
    cases: dict[str, Any] = {"type": Path, "help": "table of published costs of ownership"}
    options = parse_options(__doc__, "ownership", "two accelerators", cases=cases)
    rows = [row_of(hardware) for hardware in (QUICK if options.quick else SYSTEMS)]
    try:
        beside = [] if options.cases is None else compared(options.cases, rows)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    tables = [Table("hours", "An hour of a device at full power, in USD", COLUMNS, rows)]
    if beside:
        tables.append(Table("published", "Beside published models of ownership", COMPARED, beside))
    with figure_style():
        figure = draw(rows, beside)
    publish(options.out, tables, describe(rows, beside), {"ownership": figure})


if __name__ == "__main__":
    main()
