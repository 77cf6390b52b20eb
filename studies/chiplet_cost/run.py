"""One die or several chiplets: where splitting a die pays, and diffperf's costs beside published tools'.

Without arguments: systems of Chiplet Actuary (Feng and Ma, DAC 2022) with its parameters, on one die and on
chiplets, over area, node and package; design divided over volumes; harvested dies of shipped accelerators;
and how many systems a second a core prices.

`--cases FILE` computes the cases of a file in the schema of `published_cases.json` (Chiplet Actuary's inputs
and results) and prints the largest relative difference. Micro-bumps are paid once for each kind of chip
there, as in the original; `--physical` pays them for each chip.

`--catch FILE` prices dies of the layers of CATCH (Graening et al., arXiv 2503.15753) in a file with the
columns of its layer_definitions.xml. Such a file has parameters without results: it can show that the layers
are read and priced, not that the prices are CATCH's. Parity is checked against the values that CATCH's own
tests assert (`published_catch.csv`), and against results in the file where it has any.

    python studies/chiplet_cost/run.py [--quick] [--out DIR] [--cases FILE [--physical]] [--catch FILE]
"""

import argparse
import configparser
import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import actuary
import catch
import crossovers
import speed
from reporting import Table, figure_style, parse_options, publish, read_rows

from diffperf.cost.die_cost import known_good_price
from diffperf.cost.harvesting import shipping_shares
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.load import load
from diffperf.report.plots import BLUE, GREY, ORANGE, RED, bare

PUBLISHED = Path(__file__).parent / "published_cases.json"
TOLERANCE = 1e-6
COLOURS = {"OS": BLUE, "FO": ORANGE, "SI": RED}
DRAWN_CHIPS = 3
HARVESTED = ("v100-sxm2-32gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "mi300x")
SYSTEMS, QUICK_SYSTEMS = 2**21, 2**18  # priced to measure the speed


# --- parity


def check_cases(file: Path, physical: bool) -> None:
    """Prints the largest relative difference from a file of Chiplet Actuary's cases; exits 1 above 1e-6."""
    cases = actuary.CaseFile(file)
    found = actuary.differences(cases, "off" if physical else "on")
    for group, by_result in found.items():
        worst = ", ".join(f"{name} {difference:.1e}" for name, difference in sorted(by_result.items()))
        print(f"{group}: {worst}")
    unknown = [case["kind"] for case in cases.cases if case["kind"] not in actuary.KINDS]
    if unknown:
        print(f"not checked: {len(unknown)} cases of the kinds {', '.join(sorted(set(unknown)))}")
    _conclude(
        len(cases.cases) - len(unknown), [worst for group in found.values() for worst in group.values()]
    )


def check_catch(file: Path, out: Path) -> None:
    """Prices the layers of a file, prints the largest differences; exits 1 above 1e-6."""
    layers = read_rows(file)
    columns = {
        "layer": ("layer", ""),
        "area": ("die mm²", ".0f"),
        "layer_yield": ("yield", ".4f"),
        "dies_per_wafer": ("whole dies", ".0f"),
        "smooth_dies": ("by formula", ".1f"),
        "layer_cost": ("USD a die", ".3f"),
        "good_die_cost": ("USD a good die", ".3f"),
    }
    rows = catch.table_rows(layers)
    publish(out, [Table("catch_layers", "Dies of CATCH's layers, one layer each", columns, rows)])
    published, stated = catch.published_rows(), [row for row in layers if row.get("area_mm2")]
    print(f"{len(stated)} of {len(layers)} rows of the file state results")
    worst = [*catch.compared(published).values(), *catch.compared(stated).values()]
    _conclude(len(published) + len(stated), worst)


def _conclude(count: int, worst: list[float]) -> None:
    """Prints the largest difference of `count` cases; exits 1 where it is too large or there are no cases."""
    largest = max(worst, default=float("inf"))
    print(f"{count} cases: largest relative error {largest:.2e}")
    if not largest < TOLERANCE:
        sys.exit(1)


# --- tables


def crossover_table(splits: list[crossovers.Split]) -> Table:
    """The area from which on chiplets are cheaper than one die."""
    columns = {"node": ("node", ""), "package": ("package", "")}
    columns |= {f"chips_{chips}": (f"{chips} chiplets: mm²", ".0f") for chips in crossovers.CHIPS}
    columns |= {"best": ("cost at 900 mm², of one die's", ".0%"), "best_chips": ("with chiplets", ".0f")}
    title = "Area of modules from which on chiplets are cheaper than one die"
    return Table("crossovers", title, columns, crossovers.crossover_rows(splits))


def volume_table(cases: actuary.CaseFile) -> Table:
    """What a system costs with its design, by volume."""
    columns = {
        "system": ("system", ""),
        "volume": ("volume", ",.0f"),
        "manufacturing": ("made: USD", ".0f"),
        "modules": ("modules", ".0f"),
        "chips": ("chips", ".0f"),
        "package": ("package", ".1f"),
        "total": ("total", ".0f"),
        "alike": ("if chips are alike", ".0f"),
    }
    title = "800 mm² on 5 nm with design divided over a volume, USD a unit"
    return Table("volumes", title, columns, crossovers.volume_rows(cases))


def harvest_table() -> Table:
    """How many dies of shipped accelerators work whole, ship, and what a known-good one costs."""
    columns = {
        "accelerator": ("accelerator", ""),
        "die": ("die", ""),
        "units": ("units", ""),
        "whole": ("without defect", ".0%"),
        "ships": ("ship", ".0%"),
        "raw": ("a die: USD", ".0f"),
        "good": ("known good: USD", ".0f"),
    }
    rows = []
    for name in HARVESTED:
        package = load(Accelerator, name).package
        for die in package.dies:
            working = float(die.units - die.spare_units)
            row = {"accelerator": name, "die": str(die.name)}
            row["units"] = f"{working:.0f} of {float(die.units):.0f}" if die.units > 1 else None
            row["whole"] = float(die_yield(die.area, die.process))
            row["ships"] = float(shipping_shares(die).full)
            row["raw"] = float(raw_die_price(die.area, die.process))
            rows.append(row | {"good": float(known_good_price(die, package.packaging))})
    return Table("harvesting", "Dies that ship with spare units and memory channels defective", columns, rows)


def speed_table(cases: actuary.CaseFile, systems: int) -> Table:
    """How many systems a second a core prices; Chiplet Actuary prices 165,000, one at a time."""
    package = crossovers.system(cases, "5", "SI", 4, 800.0)
    found = speed.systems_per_second(package, systems)
    rows = [{"what": name, "rate": rate / 1e6} for name, rate in found.items()]
    columns = {"what": ("computed", ""), "rate": ("million systems a second of a core", ".1f")}
    return Table("speed", "Random systems of chiplets in float32", columns, rows)


# --- figure and finding


def draw(splits: list[crossovers.Split]) -> Figure:
    """The cost of chiplets over that of one die, by area: a panel for each node."""
    with figure_style():
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        axes = figure.subplots(1, len(crossovers.NODES), sharey=True)
        for panel, node in zip(axes, crossovers.NODES, strict=True):
            _draw_node(panel, node, [s for s in splits if (s.node, s.chips) == (node, DRAWN_CHIPS)])
        axes[0].set_ylabel(f"cost of {DRAWN_CHIPS} chiplets over one die")
        axes[0].legend(frameon=False)
    return figure


def _draw_node(axes: Axes, node: str, splits: list[crossovers.Split]) -> None:
    """One panel: a line for each package, a dot where it crosses the cost of one die."""
    axes.axhline(1.0, color=GREY, linewidth=1.2)
    for split in splits:
        colour, name = COLOURS[split.packaging], actuary.CARRIERS[split.packaging].replace("_", "-")
        axes.plot(crossovers.AREAS, split.relative, color=colour, linewidth=2, label=name)
        if split.crossover is not None:
            axes.plot([split.crossover], [1.0], "o", color=colour, markersize=7)
    axes.set_ylim(0.5, 2.5)
    axes.set_title(f"{node} nm", loc="left")
    axes.set_xlabel("area of modules, mm²")
    bare(axes, keep="both")


def finding(splits: list[crossovers.Split], speeds: Table) -> str:
    """What the study shows, in a few sentences."""
    organic = {s.node: s.crossover for s in splits if (s.packaging, s.chips) == ("OS", DRAWN_CHIPS)}
    areas = ", ".join(
        f"{area:.0f} mm² on {node} nm" if area else f"no area on {node} nm" for node, area in organic.items()
    )
    young = next(s for s in splits if (s.node, s.packaging, s.chips) == ("5", "OS", DRAWN_CHIPS))
    cost, gradient = (float(row["rate"]) for row in speeds.rows)
    return (
        f"On organic substrates {DRAWN_CHIPS} chiplets are cheaper than one die from {areas} on; at 900 mm² "
        f"of 5 nm they cost {young.relative[-1]:.0%} of it. A core prices {cost:.1f} million systems a "
        f"second, {gradient:.1f} million with the gradient."
    )


# --- command line


def run_study(options: argparse.Namespace) -> None:
    """Runs the study without a file of cases."""
    cases = actuary.CaseFile(PUBLISHED)
    splits = crossovers.splits(cases)
    speeds = speed_table(cases, QUICK_SYSTEMS if options.quick else SYSTEMS)
    tables = [crossover_table(splits), volume_table(cases), harvest_table(), speeds]
    publish(options.out, tables, finding(splits, speeds), {"figure": draw(splits)})


def main() -> None:
    """Runs the study, or compares with a file of published cases."""
    options = parse_options(
        __doc__,
        "chiplet_cost",
        "measures the speed on fewer systems",
        cases={"type": Path, "metavar": "FILE", "help": "cases of Chiplet Actuary to compute"},
        catch={"type": Path, "metavar": "FILE", "help": "layers of CATCH to price"},
        physical={"action": "store_true", "help": "with --cases: pay micro-bumps for each chip"},
    )
    if options.cases is None and options.catch is None:
        run_study(options)
        return
    try:
        if options.cases is not None:
            check_cases(options.cases, options.physical)
        if options.catch is not None:
            check_catch(options.catch, options.out)
    except OSError as problem:
        sys.exit(f"Error: {problem}")
    except (ValueError, KeyError, TypeError, configparser.Error) as problem:
        file = options.cases or options.catch
        sys.exit(
            f"Error: {file}: {type(problem).__name__}: {problem}; expected the schema of {PUBLISHED.name}"
        )


if __name__ == "__main__":
    main()
