"""From which area, and from which volume, chiplets are cheaper than one die, by node, package and number."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from actuary import CARRIERS, CaseFile
from jaxtyping import Array, Float
from reporting import evaluate_cases, stack_cases

from diffperf.cost.design_cost import amortized, chip_design, interface_design, module_design, package_design
from diffperf.cost.package_cost import assembled_cost
from diffperf.hardware.package import Package, total_area
from diffperf.quantity import Scalar
from diffperf.relax import Exact

NODES = ("14", "7", "5")
CHIPS = (2, 3, 5)  # chiplets that one die is split into: Chiplet Actuary, Fig. 4
AREAS = np.arange(50.0, 901.0, 25.0)  # mm² of modules
D2D_SHARE = 0.1  # of a chiplet's area: Chiplet Actuary, §4
# Systems of the volumes that Chiplet Actuary amortizes design over (exploration.py), at the largest die.
VOLUMES = (500_000.0, 2_000_000.0, 10_000_000.0)
LARGE_SYSTEM = 800.0  # mm² of modules


@dataclasses.dataclass(frozen=True)
class Split:
    """Systems of chiplets against one die, at every area.

    - relative: USD of a system of chiplets over that of one die on an organic substrate, (areas,).
    """

    node: str
    packaging: str
    chips: int
    relative: Float[np.ndarray, " areas"]

    @property
    def crossover(self) -> float | None:
        """mm² from which on the chiplets are cheaper, between the areas; `None` where they never are."""
        cheaper = self.relative < 1
        if not cheaper[-1]:
            return None
        first = int(np.argmin(cheaper[::-1]))  # areas from the end on that are cheaper
        if first == 0:
            return float(AREAS[0])
        low = len(AREAS) - first - 1
        ends = self.relative[low : low + 2]
        return float(np.interp(1.0, ends[::-1], AREAS[low : low + 2][::-1]))


def system(file: CaseFile, node: str, packaging: str, chips: int, area: float) -> Package:
    """A system of `area` mm² of modules on so many chips; one chip has no die-to-die interface."""
    case = {
        "node": node,
        "packaging": packaging,
        "n_chips": chips,
        "total_module_area_mm2": area,
        "d2d_area_fraction": D2D_SHARE if chips > 1 else 0.0,
    }
    return file.package(case, file.packaging("off"))


def manufacturing(package: Package) -> Scalar:
    """USD of making a system, which has no memory."""
    return assembled_cost(package, jnp.zeros(()), Exact()).total


def splits(file: CaseFile) -> list[Split]:
    """Systems of every node, packaging and number of chips at every area."""
    kinds = [(node, "OS", 1) for node in NODES]
    kinds += [(node, packaging, chips) for node in NODES for packaging in CARRIERS for chips in CHIPS]
    cases = [system(file, *kind, area) for kind in kinds for area in AREAS]
    results = evaluate_cases(manufacturing, stack_cases(cases))
    totals = np.reshape(results, (len(kinds), len(AREAS)))
    whole = {kind[0]: totals[index] for index, kind in enumerate(kinds[: len(NODES)])}
    return [
        Split(*kind, relative=totals[index] / whole[kind[0]])
        for index, kind in enumerate(kinds)
        if index >= len(NODES)
    ]


def unit_cost(package: Package, volume: Float[Array, ""], alike: bool) -> dict[str, Scalar]:
    """USD of a system in production, its design divided over `volume`, by parts.

    `alike` chips share one design; otherwise each is a design of its own, as in Chiplet Actuary.
    """
    die = package.dies[0]
    designs = jnp.ones(()) if alike else die.count
    prices = {
        "modules": designs * module_design(die.area, die.process) + interface_design(die),
        "chips": designs * chip_design(total_area(die), die.process),
        "package": package_design(package, Exact()),
    }
    per_unit = {
        name: amortized(price[None], jnp.ones((1, 1)), volume[None])[0] for name, price in prices.items()
    }
    return {"manufacturing": manufacturing(package)} | per_unit


def volume_rows(file: CaseFile, node: str = "5", chips: int = 2) -> list[dict[str, float | str]]:
    """Rows of the table of volumes: one die and chiplets of a large system, with their design."""
    kinds = [("OS", 1), *((packaging, chips) for packaging in CARRIERS)]
    cases = [(kind, volume) for volume in VOLUMES for kind in kinds]
    packages = stack_cases([system(file, node, *kind, LARGE_SYSTEM) for kind, _ in cases])
    volumes = np.array([volume for _, volume in cases])

    def both(package: Package, volume: Scalar) -> dict[str, dict[str, Scalar]]:
        return {"own": unit_cost(package, volume, False), "alike": unit_cost(package, volume, True)}

    results = evaluate_cases(both, packages, volumes)
    return [
        {
            "system": "one die"
            if kind[1] == 1
            else f"{kind[1]} chiplets, {CARRIERS[kind[0]].replace('_', '-')}",
            "volume": volume,
            **{name: float(usd) for name, usd in result["own"].items()},
            "total": float(sum(result["own"].values())),
            "alike": float(sum(result["alike"].values())),
        }
        for (kind, volume), result in zip(cases, results, strict=True)
    ]


def crossover_rows(all_splits: Sequence[Split]) -> list[dict[str, float | str | None]]:
    """Rows of the table of crossovers: a row for each node and package, a column for each number of chips."""
    rows = []
    for node in NODES:
        for packaging in CARRIERS:
            group = [split for split in all_splits if (split.node, split.packaging) == (node, packaging)]
            crossings = {f"chips_{split.chips}": split.crossover for split in group}
            best = min(group, key=lambda split: split.relative[-1])
            row = {"node": f"{node} nm", "package": CARRIERS[packaging].replace("_", "-")} | crossings
            rows.append(row | {"best": float(best.relative[-1]), "best_chips": float(best.chips)})
    return rows
