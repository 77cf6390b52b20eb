"""Parity with Chiplet Actuary (Feng and Ma, DAC 2022): with its parameters as input, its recurring costs
to 1e-6."""

import json
from pathlib import Path

import numpy as np
import pytest

from diffperf.cost.package_cost import interposer_area, package_cost
from diffperf.cost.silicon import die_yield, dies_per_wafer, raw_die_price
from diffperf.hardware.package import Package, Packaging, Process
from diffperf.quantity import real
from diffperf.relax import Exact

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "chiplet_actuary.json").read_text(encoding="utf-8"))
DIES = [case for case in GOLDEN["cases"] if case["kind"] == "die"]
SYSTEMS = [case for case in GOLDEN["cases"] if case["kind"] == "system"]
TOLERANCE = 1e-6
FREE = 1e-30


def _process(table):
    return Process("", table["wafer_cost"], table["defect_density_per_cm2"] / 100, table["clustering"])


def _package(case) -> Package:
    """The case without memory, test and assembly, which the original does not count."""
    packaging = Packaging("", **GOLDEN["packaging"], interposer=_process(GOLDEN["interposer"]))
    chip_area = case["total_module_area_mm2"] / case["n_chips"] * (1 + case["d2d_area_fraction"])
    return Package(
        process=_process(GOLDEN["processes"][case["node"]]),
        packaging=packaging,
        technology={"OS": "organic", "SI": "interposer"}[case["packaging"]],
        dies=case["n_chips"],
        die_area=chip_area,
        memory_stacks=0,
        stack_area=1,
        memory_price=FREE,
        assembly_price=FREE,
    )


def _name(case):
    return "-".join(
        str(case[key]) for key in ("node", "packaging", "n_chips", "total_module_area_mm2") if key in case
    )


@pytest.mark.parametrize("case", DIES, ids=lambda case: f"{case['node']}-{case['area_mm2']}")
def test_dies(case):
    area, process = real(case["area_mm2"]), _process(GOLDEN["processes"][case["node"]])
    count, works, price = dies_per_wafer(area), die_yield(area, process), raw_die_price(area, process)
    assert float(count) == pytest.approx(case["N_total"], rel=TOLERANCE)
    assert float(works) == pytest.approx(case["die_yield"], rel=TOLERANCE)
    assert float(count * works) == pytest.approx(case["N_KGD"], rel=TOLERANCE)
    assert float(price) == pytest.approx(case["cost_raw_die"], rel=TOLERANCE)
    assert float(price / works) == pytest.approx(case["cost_KGD"], rel=TOLERANCE)
    assert float(price / works - price) == pytest.approx(case["cost_defect"], rel=TOLERANCE)


def _published(case, package):
    """The original's breakdown, with micro-bumps paid for every chip on an interposer: it pays them once
    per design."""
    raw_chips, defective, carrier, lost_carriers, wasted = case["cost_RE"]
    if case["packaging"] == "SI":
        unpaid = (case["n_chips"] - 1) * float(package.die_area) * GOLDEN["packaging"]["micro_bump_price"]
        wasted += unpaid * wasted / (raw_chips + defective)  # a fixed share of what is assembled
        raw_chips += unpaid
    return raw_chips, defective, carrier, lost_carriers, wasted


@pytest.mark.parametrize("case", SYSTEMS, ids=_name)
def test_packages(case, system):
    package = _package(case)
    accelerator = type(system.accelerator)(**{**vars(system.accelerator), "package": package})
    cost = package_cost(accelerator, Exact())
    found = [cost.dies, cost.defective_dies, cost.package, cost.defective_packages, cost.wasted_pieces]
    np.testing.assert_allclose(np.array(found), _published(case, package), rtol=TOLERANCE)
    assert float(cost.total) == pytest.approx(sum(_published(case, package)), rel=TOLERANCE)
    carried = (
        float(interposer_area(package))
        if case["packaging"] == "SI"
        else case["n_chips"] * float(package.die_area)
    )
    assert GOLDEN["packaging"]["package_area_factor"] * carried == pytest.approx(
        case["package_area"], rel=TOLERANCE
    )


def test_every_kind_of_case_is_there():
    assert {case["packaging"] for case in SYSTEMS} == {"OS", "SI"}
    assert {case["n_chips"] for case in SYSTEMS} == {1, 2, 4, 8}
    assert {case["node"] for case in DIES} == {"5", "7", "14"}
