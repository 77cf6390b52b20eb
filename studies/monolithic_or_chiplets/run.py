"""One die or several chiplets: from which area and from which volume on, on which node and in which package?

Systems of 100 to 900 mm² of modules on one die, and on 2, 3 or 5 equal chiplets whose die-to-die interfaces
add 10 % of area, on 14, 7 and 5 nm, on an organic substrate, a fan-out layer or a silicon interposer, with
the parameters of Chiplet Actuary (Feng and Ma, DAC 2022, arXiv 2203.12268). Crossovers are roots of the
difference in cost, exact to 1e-10 mm². Exact gradients give the cost of one more mm² on either side, and how
a crossover moves with prices, defects and losses. The findings of the paper stand beside ours.

    python studies/monolithic_or_chiplets/run.py [--quick] [--out DIR]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import economics
from economics import FACTORS, LARGEST, ONE_DIE, PARTS, SMALLEST, SPLITS, Kind, Price, Production
from reporting import Table, evaluate_cases, figure_style, parse_options, publish, read_rows, stack_cases

from diffperf.report.plots import BLUE, FAINT, GREY, ORANGE, RED

PUBLISHED = Path(__file__).parent / "published.csv"
NAMES = {"OS": "organic", "FO": "fan-out", "SI": "interposer"}
COLOURS = {"OS": BLUE, "FO": ORANGE, "SI": RED}
DASHES = {2: ":", 3: "-", 5: "--"}
NODES = tuple(kind.node for kind in ONE_DIE)
VOLUMES = tuple(economics.systems.VOLUMES)
LARGE = 800.0  # mm² of modules: the system of Chiplet Actuary's §4.2
SPLIT = 3  # chiplets whose slopes at the crossover, and whose way between nodes, are tabulated


class Results(NamedTuple):
    """All prices at all areas, and the crossovers of every kind of chiplets by volume, in mm²."""

    areas: np.ndarray
    prices: Mapping[Kind, Price]
    crossovers: Mapping[Kind, Mapping[float, float | None]]

    def at(self, kind: Kind, area: float = LARGE) -> Price:
        """The price of a kind at one of the areas."""
        index = int(np.argmin(np.abs(self.areas - area)))
        return jax.tree.map(lambda values: values[index], self.prices[kind])


def compute(step: float, volumes: Sequence[float]) -> Results:
    """Prices every kind at areas `step` mm² apart in one program, and finds all crossovers."""
    areas, kinds = np.arange(SMALLEST, LARGEST + step / 2, step), ONE_DIE + SPLITS
    computed = jax.device_get(economics.prices(stack_cases([kind.package() for kind in kinds]), areas))
    prices = {
        kind: jax.tree.map(lambda values, index=index: values[index], computed)
        for index, kind in enumerate(kinds)
    }
    crossings = {
        split: {
            volume: economics.crossover(economics.pair_of(split), Production(1 / volume))
            for volume in volumes
        }
        for split in SPLITS
    }
    return Results(areas, prices, crossings)


def one_die(split: Kind) -> Kind:
    """One die on the node of a kind of chiplets."""
    return Kind(split.node, "OS", 1)


def described(split: Kind) -> dict[str, Any]:
    """The cells that name a kind of chiplets."""
    return {"node": f"{split.node} nm", "package": NAMES[split.packaging], "chips": split.chips}


NAMED = {"node": ("node", ""), "package": ("package", ""), "chips": ("chiplets", ".0f")}


# --- tables


def crossover_table(results: Results, volumes: Sequence[float]) -> Table:
    """Crossovers by volume, and how the crossover of manufacturing alone moves with prices and losses."""
    rows = []
    for split, by_volume in results.crossovers.items():
        row = described(split) | {f"volume_{volume:g}": area for volume, area in by_volume.items()}
        area = by_volume[np.inf]
        if area is not None:
            moves = economics.elasticities(economics.pair_of(split), area)
            row |= dict(zip(FACTORS, map(float, moves), strict=True))
        rows.append(row)
    columns = NAMED | {
        f"volume_{volume:g}": (
            "made only: mm²" if volume == np.inf else f"{volume / 1e6:g} million",
            ".1f",
        )
        for volume in volumes
    }
    columns |= {factor: (f"% by {factor}", "+.2f") for factor in FACTORS}
    title = (
        "Area from which on chiplets are cheaper than one die, by systems made, each chip being a design of "
        "its own; and per cent by which it moves where an input rises by 1 % (no volume)"
    )
    return Table("crossovers", title, columns, rows)


def slope_table(results: Results) -> Table:
    """What one more mm² of modules costs at the crossover, on one die and on chiplets."""
    crossed = [split for split in SPLITS if split.chips == SPLIT and results.crossovers[split][np.inf]]
    cases = [(split, kind) for split in crossed for kind in (one_die(split), split)]
    areas = np.array([results.crossovers[split][np.inf] for split, _ in cases])
    packages = stack_cases([kind.package() for _, kind in cases])
    rows = []
    slopes = evaluate_cases(economics.slopes, packages, areas)
    for (split, kind), area, of_parts in zip(cases, areas, slopes, strict=True):
        cents = 100 * of_parts
        system = "one die" if kind.chips == 1 else f"{kind.chips} chiplets"
        row = described(split) | {"system": system, "area": area, "total": cents.sum()}
        rows.append(row | dict(zip(PARTS, cents, strict=True)))
    columns = {
        "node": ("node", ""),
        "package": ("package", ""),
        "system": ("system", ""),
        "area": ("at mm²", ".0f"),
    }
    columns |= {name: (name, ".1f") for name in (*PARTS, "total")}
    return Table("slopes", "What one more mm² of modules costs at the crossover, US cents", columns, rows)


def node_table(results: Results) -> Table:
    """How much of the way from 14 to 5 nm the crossover owes to the wafer price and to the defects."""
    rows = []
    for packaging in NAMES:
        pair = economics.pair_of(Kind("14", packaging, SPLIT))
        row = {"package": NAMES[packaging], "from": results.crossovers[Kind("14", packaging, SPLIT)][np.inf]}
        row["wafer"] = economics.crossover(economics.with_process(pair, "5", "wafer_price"))
        row["defects"] = economics.crossover(economics.with_process(pair, "5", "defect_density"))
        rows.append(row | {"to": results.crossovers[Kind("5", packaging, SPLIT)][np.inf]})
    columns = {
        "package": ("package", ""),
        "from": ("14 nm: mm²", ".0f"),
        "defects": ("with the defects of 5 nm", ".0f"),
        "wafer": ("with the wafer price of 5 nm", ".0f"),
        "to": ("with both: 5 nm", ".0f"),
    }
    title = f"Why crossovers fall with the node: {SPLIT} chiplets, manufacturing alone"
    return Table("nodes", title, columns, rows)


def volume_table(results: Results) -> Table:
    """From how many systems on chiplets pay back their design, and what one design for all chips changes."""
    rows = []
    for split in SPLITS:
        whole, parts = results.at(one_die(split)), results.at(split)
        row = described(split) | {"saving": 1 - float(parts.manufacturing / whole.manufacturing)}
        volume = float(economics.break_even_volume(whole, parts))
        row["own"] = volume / 1e6 if np.isfinite(volume) else None
        row["made_only"] = results.crossovers[split][np.inf]
        alike = Production(per_unit=1 / max(VOLUMES), shared=1.0)
        row["alike"] = economics.crossover(economics.pair_of(split), alike)
        rows.append(row)
    columns = NAMED | {
        "saving": ("saving in manufacturing", ".0%"),
        "own": ("million systems, own designs", ".2f"),
        "made_only": ("crossover, made only: mm²", ".0f"),
        "alike": (f"one design, {max(VOLUMES) / 1e6:g} million: mm²", ".0f"),
    }
    title = (
        f"Saving at {LARGE:.0f} mm² of modules, systems from which on it pays for a design of every chip, "
        "and the crossover where all chips share one design (– never)"
    )
    return Table("volumes", title, columns, rows)


def computed_findings(results: Results) -> dict[str, tuple[float, float]]:
    """Our numbers beside the published findings, by their keys, from the least to the greatest of a range.

    Interfaces and packaging are what chiplets cost beyond dies without interfaces and their defects.
    """
    whole, mature = results.at(Kind("5", "OS", 1)), {}
    for packaging in ("OS", "SI"):
        shares = []
        for chips in economics.systems.CHIPS:
            parts = results.at(Kind("14", packaging, chips))
            silicon = economics.dies_without_interfaces("14", chips, LARGE)
            shares.append(1 - silicon / float(parts.manufacturing))
        mature[packaging] = (min(shares), max(shares))
    saved = []
    for area in (LARGE, LARGEST):
        one = results.at(Kind("14", "OS", 1), area)
        finest = results.at(Kind("14", "OS", max(economics.systems.CHIPS)), area)
        saved.append(float((one.parts[1] - finest.parts[1]) / one.manufacturing))
    coarse, fine = (results.at(Kind("5", "OS", chips)) for chips in (3, 5))
    gains = [float((coarse.parts[1] - fine.parts[1]) / whole.manufacturing)]
    gains.append(float((coarse.manufacturing - fine.manufacturing) / whole.manufacturing))
    paybacks = [
        float(economics.break_even_volume(whole, results.at(Kind("5", "OS", chips))))
        for chips in economics.systems.CHIPS
    ]
    share = float(whole.parts[1] / whole.manufacturing)
    return {
        "defects": (share, share),
        "saved": (min(saved), max(saved)),
        "organic": mature["OS"],
        "interposer": mature["SI"],
        "granularity": (min(gains), max(gains)),
        "payback": (min(paybacks), max(paybacks)),
    }


def published_table(results: Results) -> Table:
    """The findings of the paper, and the same numbers by our costs."""
    ours = computed_findings(results)

    def text(key: str) -> str:
        low, high = ours[key]
        if key == "payback":
            return f"{low / 1e6:.2f} to {high / 1e6:.2f} million"
        return f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{low:.0%} to {high:.0%}"

    rows = [row | {"ours": text(row["key"])} for row in read_rows(PUBLISHED)]
    columns = {"finding": ("finding", ""), "published": ("published", ""), "ours": ("ours", "")}
    return Table("published", "Findings of Feng and Ma (DAC 2022), and ours", columns, rows)


# --- figure and finding


def draw(results: Results) -> Figure:
    """Cost over that of one die, and break-even volumes, over area: a column for each node."""
    with figure_style():
        figure = Figure(figsize=(12, 7.2), layout="constrained")
        panels = figure.subplots(2, len(NODES), sharex=True, sharey="row")
        for column, node in zip(panels.T, NODES, strict=True):
            own = [split for split in SPLITS if split.node == node]
            _draw_costs(column[0], results, own)
            _draw_volumes(column[1], results, own)
            column[0].set_title(f"{node} nm", loc="left")
            column[1].set_xlabel("area of modules (mm²)")
        panels[0, 0].set_ylabel("manufacturing cost of chiplets\nover that of one die")
        panels[1, 0].set_ylabel("systems from which on\nchiplets are cheaper")
        panels[0, 2].legend(frameon=False, fontsize=8, ncols=3)
    return figure


def _draw_costs(axes: Axes, results: Results, splits: Sequence[Kind]) -> None:
    """A line for each package and number of chiplets, a dot where it crosses the cost of one die."""
    axes.axhline(1.0, color=GREY, linewidth=1.2)
    for split in splits:
        relative = results.prices[split].manufacturing / results.prices[one_die(split)].manufacturing
        colour, label = COLOURS[split.packaging], f"{split.chips} {NAMES[split.packaging]}"
        axes.plot(results.areas, relative, DASHES[split.chips], color=colour, linewidth=1.6, label=label)
        area = results.crossovers[split][np.inf]
        if area is not None:
            axes.plot([area], [1.0], "o", color=colour, markersize=5)
    axes.set_ylim(0.45, 2.0)
    axes.grid(color=FAINT, linewidth=0.8)


def _draw_volumes(axes: Axes, results: Results, splits: Sequence[Kind]) -> None:
    """A line for each package and number of chiplets, every chip being a design of its own."""
    for split in splits:
        volumes = economics.break_even_volume(results.prices[one_die(split)], results.prices[split])
        drawn = np.where(np.isfinite(volumes), volumes, np.nan)
        axes.plot(results.areas, drawn, DASHES[split.chips], color=COLOURS[split.packaging], linewidth=1.6)
    for volume in VOLUMES:
        axes.axhline(volume, color=GREY, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(3e5, 1e8)
    axes.grid(color=FAINT, linewidth=0.8)


def finding(results: Results) -> str:
    """What the study shows, in a few sentences."""

    def areas(packaging: str) -> str:
        by_node = [(node, results.crossovers[Kind(node, packaging, SPLIT)][np.inf]) for node in NODES]
        return ", ".join(f"{area:.0f} mm² on {node} nm" for node, area in by_node if area is not None)

    ours = computed_findings(results)
    moves = economics.elasticities(
        economics.pair_of(Kind("5", "OS", SPLIT)), results.crossovers[Kind("5", "OS", SPLIT)][np.inf] or LARGE
    )
    by = dict(zip(FACTORS, moves, strict=True))
    savings = []
    for node in ("5", "14"):
        chiplets, whole = results.at(Kind(node, "OS", 5)), results.at(Kind(node, "OS", 1))
        savings.append(1 - float(chiplets.manufacturing / whole.manufacturing))
    few, many = (volume / 1e6 for volume in ours["payback"])
    return (
        f"To make, {SPLIT} chiplets are cheaper than one die from {areas('OS')} on organic substrates, from "
        f"{areas('FO')} on fan-out layers, from {areas('SI')} on interposers. 5 chiplets of {LARGE:.0f} mm² "
        f"on organic substrates save {savings[0]:.0%} on 5 nm and {savings[1]:.0%} on 14 nm. Where "
        f"every chip is a design of its own they pay back from {few:.1f} to {many:.1f} million systems of "
        f"{LARGE:.0f} mm² on 5 nm, by their number. On 5 nm 1 % more defects move the organic crossover by "
        f"{by['defect density']:+.2f} %, 1 % dearer wafers by {by['wafer price']:+.2f} %, 1 % larger "
        f"interfaces by {by['interface area']:+.2f} %."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "monolithic_or_chiplets", "prices fewer areas, and fewer volumes")
    volumes = (np.inf, VOLUMES[-1]) if options.quick else (np.inf, *VOLUMES[::-1])
    results = compute(20.0 if options.quick else 5.0, volumes)
    tables = [published_table(results), crossover_table(results, volumes), slope_table(results)]
    tables += [node_table(results), volume_table(results)]
    publish(options.out, tables, finding(results), {"crossovers": draw(results)})


if __name__ == "__main__":
    main()
