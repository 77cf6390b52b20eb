"""diffperf's costs of dies and packages beside those of published tools.

Without arguments: harvested dies of shipped accelerators, and how many systems a second a core prices. Where
splitting a die pays is the question of `studies/monolithic_or_chiplets`.

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

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import actuary
import catch
import speed
import systems
from reporting import Table, parse_options, publish, read_rows

from diffperf.cost.die_cost import known_good_price
from diffperf.cost.harvesting import shipping_shares
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.load import load

PUBLISHED = Path(__file__).parent / "published_cases.json"
TOLERANCE = 1e-6
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
    for name, count in actuary.not_compared(cases).items():
        print(f"not compared: {name}, in {count} cases")
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


def speed_table(cases: actuary.CaseFile, count: int) -> Table:
    """How many systems a second a core prices; Chiplet Actuary prices 165,000, one at a time."""
    package = systems.system(cases, "5", "SI", 4, 800.0)
    rates = speed.systems_per_second(package, count)
    rows = [{"what": name, "rate": rate / 1e6} for name, rate in rates.items()]
    columns = {"what": ("computed", ""), "rate": ("million systems a second of a core", ".1f")}
    return Table("speed", "Random systems of chiplets in float32", columns, rows)


def finding(harvest: Table, speeds: Table) -> str:
    """What the study shows, in a few sentences."""
    shares = [(float(row["whole"]), float(row["ships"]), row["accelerator"]) for row in harvest.rows]
    whole, ships, name = min(shares)
    cost, gradient = (float(row["rate"]) for row in speeds.rows)
    return (
        f"The largest share of defective dies is {name}'s: {whole:.0%} have no defect, {ships:.0%} ship. "
        f"A core prices {cost:.1f} million systems a second, {gradient:.1f} million with the gradient."
    )


# --- command line


def run_study(options: argparse.Namespace) -> None:
    """Runs the study without a file of cases."""
    speeds = speed_table(actuary.CaseFile(PUBLISHED), QUICK_SYSTEMS if options.quick else SYSTEMS)
    harvest = harvest_table()
    publish(options.out, [harvest, speeds], finding(harvest, speeds))


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
        schema = PUBLISHED.name if options.cases else "CATCH's layers, as of published_catch.csv"
        what = f"no {problem}" if isinstance(problem, KeyError) else str(problem)
        sys.exit(f"Error: {file}: {what}; see the schema of {schema}")


if __name__ == "__main__":
    main()
