"""Cases of Chiplet Actuary (Feng and Ma, DAC 2022), computed by diffperf's cost of dies and packages.

A file of cases holds the parameters that the original ran with, its packaging parameters as the text of its
parameter.ini, and its results: dies (`kind` "die") and systems of equal chips in a package (`kind` "system").
"""

import configparser
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.cost.design_cost import chip_design, package_design
from diffperf.cost.package_cost import assembled_cost, carried_area, layer_area
from diffperf.cost.wafers import dies_per_wafer, raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.package import Die, Package
from diffperf.hardware.packaging import Bond, Layer, Packaging
from diffperf.hardware.process import Process
from diffperf.quantity import Scalar
from diffperf.relax import Exact

sys.path.append(str(Path(__file__).parents[1]))
from reporting import evaluate_cases, stack_cases

KINDS = ("die", "system")  # of cases
CARRIERS = {"OS": "organic", "FO": "fan_out", "SI": "interposer"}  # by the original's names
_SQUARE_CENTIMETRE = 100.0  # mm²
_DESIGN_AREA = 300.0  # mm² that the original's design costs are for: its parameter.ini
# The original designs interposers at 1.2 times the cost of a 55 nm chip, redistribution layers at half of
# their own: its spec.py.
_INTERPOSER_DESIGN, _LAYER_DESIGN = 1.2, 0.5
_INTERPOSER_NODE = "55"


class CaseFile:
    """Parameters and cases of a file, and the processes and packages that they describe."""

    def __init__(self, path: Path):
        content = json.loads(path.read_text(encoding="utf-8"))
        self.cases: list[dict[str, Any]] = content["cases"]
        self.nodes: dict[str, dict[str, float]] = content["params"]
        self.manufacture: dict[str, float] = content["manufacture"]
        self.packaging_text = configparser.ConfigParser(inline_comment_prefixes=";")
        self.packaging_text.read_string(content["packaging_parameters"])
        for index, case in enumerate(self.cases):
            if case["kind"] in KINDS:
                self._check(case, f"cases[{index}]")

    def _check(self, case: Mapping[str, Any], key: str) -> None:
        """Refuses a case whose node or packaging is unknown, and areas and counts that are none.

        **Raises:** `ValueError`, in one line.
        """
        known = (
            {"node": self.nodes, "packaging": CARRIERS} if case["kind"] == "system" else {"node": self.nodes}
        )
        for name, names in known.items():
            if case.get(name) not in names:
                found = repr(case.get(name))
                raise ValueError(f"{key}.{name}: found {found}; expected one of {', '.join(names)}")
        numbers = ("area_mm2",) if case["kind"] == "die" else ("total_module_area_mm2", "n_chips")
        for name in numbers:
            value = case.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{key}.{name}: found {value!r}; expected a number above 0")

    def number(self, section: str, key: str) -> float:
        """A number of the original's parameter.ini."""
        return self.packaging_text.getfloat(section, key)

    def process(self, wafer_price: float, defects: float, clustering: float, **design: float) -> Process:
        """A process with the geometry of the file's wafers; `defects` are per cm²."""
        return Process(
            name="",
            wafer_price=wafer_price,
            defect_density=defects / _SQUARE_CENTIMETRE,
            clustering=clustering,
            wafer_diameter=self.manufacture["wafer_diameter"],
            scribe_lane=self.manufacture["scribe_lane"],
            edge_loss=self.manufacture["edge_loss"],
            **design,
        )

    def node(self, name: str) -> Process:
        """The process of a node, whose design cost goes to modules and chips by area, and to a fixed part."""
        node, modules, chips = self.nodes[name], self.number("NRE", "module"), self.number("NRE", "chip")
        return self.process(
            node["wafer_cost"],
            node["defect_density_per_cm2"],
            self.manufacture["critical_level"],
            module_design=modules * node["NRE"] / _DESIGN_AREA,
            chip_design=chips * node["NRE"] / _DESIGN_AREA,
            masks=(1 - modules - chips) * node["NRE"],
        )

    def packaging(self, per_design: str) -> Packaging:
        """The packaging of the file; `per_design` "on" pays micro-bumps once a kind, as the original."""
        base = self.node(_INTERPOSER_NODE)
        layer_design = _LAYER_DESIGN * self.number("FO", "NRE") / _DESIGN_AREA
        interposer = self.process(
            self.nodes[_INTERPOSER_NODE]["wafer_cost"],
            self.number("SI", "defect_density"),
            self.number("SI", "critical_level"),
            chip_design=_INTERPOSER_DESIGN * float(base.chip_design),
            masks=_INTERPOSER_DESIGN * float(base.masks),
        )
        fan_out = self.process(
            self.number("FO", "wafer_cost"),
            self.number("FO", "defect_density"),
            self.number("FO", "critical_level"),
            chip_design=layer_design,
            masks=layer_design,
        )
        silicon = self._layer(interposer, "SI")
        bond = Bond(name="", price=0.0, bonding_yield=1.0)  # the original stacks no dies
        return Packaging(
            name="",
            substrate_price=self.number("OS", "RE_cost_factor"),
            package_area_factor=self.number("OS", "area_scale_factor"),
            c4_bump_price=self.number("OS", "bump_cost_factor"),
            micro_bump_price=self.number("SI", "bump_cost_factor"),
            organic_bonding_yield=self.number("OS", "bonding_yield"),
            interposer=silicon,
            fan_out=self._layer(fan_out, "FO"),
            bridge=silicon,
            micro_bumps=bond,
            hybrid_bonds=bond,
            bumps_per_design=per_design,
            substrate_design=self.number("OS", "NRE_cost_factor"),
            substrate_tooling=self.number("OS", "NRE_cost_fixed"),
        )

    def _layer(self, process: Process, section: str) -> Layer:
        """A layer of a process with the area and the bonding yield of a section of parameter.ini."""
        return Layer(
            name="",
            process=process,
            area_factor=self.number(section, "area_scale_factor"),
            bonding_yield=self.number(section, "bonding_yield"),
        )

    def package(self, case: Mapping[str, Any], packaging: Packaging) -> Package:
        """The package of a system of equal chips, without memory."""
        chip = Die(
            name="",
            process=self.node(case["node"]),
            count=case["n_chips"],
            area=case["total_module_area_mm2"] / case["n_chips"],
            d2d_share=case["d2d_area_fraction"],
        )
        return Package(
            dies=(chip,),
            packaging=packaging,
            carrier=CARRIERS[case["packaging"]],
            memory_stacks=0,
            stack_area=1,
            memory_price=0.0,
            order="chip_last" if case.get("chip_last", 1) else "chip_first",
        )


def die_results(area: Scalar, process: Process) -> dict[str, Scalar]:
    """The results of a die, under the original's names."""
    count, works = dies_per_wafer(area, process), die_yield(area, process)
    raw = raw_die_price(area, process)
    return {
        "die_yield": works,
        "N_total": count,
        "N_KGD": count * works,
        "cost_raw_die": raw,
        "cost_KGD": raw / works,
        "cost_defect": raw / works - raw,
        "NRE": chip_design(area, process),
    }


def system_results(package: Package) -> dict[str, Array]:
    """The results of a system, under the original's names."""
    cost = assembled_cost(package, jnp.zeros(()), jnp.zeros(()), Exact())
    weights = package.carrier
    under = carried_area(package) * (weights.organic + weights.bridge)
    under += weights.fan_out * layer_area(package, "fan_out")
    under += weights.interposer * layer_area(package, "interposer")
    parts = (cost.dies, cost.defective_dies, cost.package, cost.defective_packages, cost.wasted_pieces)
    return {
        "cost_RE": jnp.stack(parts),
        "cost_RE_total": cost.total,
        "package_area": package.packaging.package_area_factor * under,
        "NRE_package": package_design(package, Exact()),
    }


def differences(file: CaseFile, per_design: str = "on") -> dict[str, dict[str, float]]:
    """Largest relative difference from the original, by kind of case and packaging, and by result."""
    packaging = file.packaging(per_design)
    dies = [case for case in file.cases if case["kind"] == "die"]
    systems = [case for case in file.cases if case["kind"] == "system"]
    found: dict[str, dict[str, float]] = {}
    if dies:
        areas = np.array([float(case["area_mm2"]) for case in dies])
        results = evaluate_cases(die_results, areas, stack_cases([file.node(case["node"]) for case in dies]))
        _record(found, ["die"] * len(dies), dies, results)
    if systems:
        packages = stack_cases([file.package(case, packaging) for case in systems])
        results = evaluate_cases(system_results, packages)
        _record(found, [case["packaging"] for case in systems], systems, results)
    return found


def not_compared(file: CaseFile) -> dict[str, int]:
    """Numbers in the cases that are neither inputs nor results computed here: how many cases have each."""
    known = {"chip_last", "d2d_area_fraction", "area_mm2", "total_module_area_mm2", "n_chips", "die_yield"}
    known |= {"N_total", "N_KGD", "cost_raw_die", "cost_KGD", "cost_defect", "NRE"}
    known |= {"cost_RE", "cost_RE_total", "package_area", "NRE_package"}
    names = [
        name
        for case in file.cases
        for name, value in case.items()
        if name not in known and isinstance(value, int | float | list)
    ]
    return dict(Counter(names))


def _record(
    found: dict[str, dict[str, float]],
    groups: Sequence[str],
    cases: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Float[np.ndarray, "..."]]],
) -> None:
    """Raises the differences in `found` to those between the cases of a group and their results."""
    for group, case, result in zip(groups, cases, results, strict=True):
        for name in set(result) & set(case):
            theirs = np.asarray(case[name], float)
            scale = np.maximum(np.abs(theirs), np.finfo(float).tiny)
            worst = float(np.max(np.abs(np.asarray(result[name]) - theirs) / scale))
            by_result = found.setdefault(group, {})
            by_result[name] = max(by_result.get(name, 0.0), worst)
