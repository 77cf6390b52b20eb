"""Parity with Chiplet Actuary (Feng and Ma, DAC 2022): with its parameters as input, its costs to 1e-6."""

import json

import numpy as np
import pytest
from helpers import STUDIES, study_module

from diffperf.cost.design_cost import amortized

CASES = STUDIES / "chiplet_cost" / "published_cases.json"
TOLERANCE = 1e-6
actuary = study_module("chiplet_cost", "actuary")


@pytest.fixture(scope="module")
def published():
    return actuary.CaseFile(CASES)


def test_every_result_of_every_case(published):
    found = actuary.differences(published)
    assert set(found) == {"die", "OS", "FO", "SI"}
    results = {"die_yield", "N_total", "N_KGD", "cost_raw_die", "cost_KGD", "cost_defect", "NRE"}
    assert set(found["die"]) == results
    for packaging in ("OS", "FO", "SI"):
        assert set(found[packaging]) == {"cost_RE", "cost_RE_total", "package_area", "NRE_package"}
    assert max(worst for group in found.values() for worst in group.values()) < TOLERANCE


def test_every_kind_of_case_is_there(published):
    systems = [case for case in published.cases if case["kind"] == "system"]
    assert {case["packaging"] for case in systems} == {"OS", "FO", "SI"}
    assert {case["n_chips"] for case in systems} == {1, 2, 4, 8}
    assert {case["node"] for case in published.cases} == {"5", "7", "14"}


def test_physical_micro_bumps_are_paid_for_every_chip(published):
    """The published tool pays them once per kind of chip: 0.01 USD/mm² of each further chip is missing."""
    case = next(case for case in published.cases if case.get("packaging") == "SI" and case["n_chips"] == 4)
    packages = [published.package(case, published.packaging(switch)) for switch in ("on", "off")]
    theirs, ours = (actuary.system_results(package)["cost_RE"] for package in packages)
    chip = float(packages[0].dies[0].area) * (1 + case["d2d_area_fraction"])
    assert float(ours[0] - theirs[0]) == pytest.approx(3 * chip * 0.01, rel=1e-9)
    np.testing.assert_allclose(ours[1:4], theirs[1:4], rtol=1e-12)


def test_chip_first_loses_chips_with_the_layer(published):
    """y1 in place of y2 (class Advanced of the original's package.py)."""
    case = next(case for case in published.cases if case.get("packaging") == "FO" and case["n_chips"] == 2)
    packaging = published.packaging("on")
    first = actuary.system_results(published.package(case | {"chip_last": 0}, packaging))["cost_RE"]
    area = case["total_module_area_mm2"] * (1 + case["d2d_area_fraction"]) * 1.2
    works = (1 + 0.05 / 100 * area / 3) ** -3
    chips = case["cost_RE"][0] + case["cost_RE"][1]
    assert float(first[4]) == pytest.approx(chips * (1 / (works * 0.99) - 1), rel=1e-9)
    assert float(first[0]) == pytest.approx(case["cost_RE"][0], rel=1e-9)


def test_a_wrong_reference_fails(published, tmp_path):
    content = json.loads(CASES.read_text(encoding="utf-8"))
    content["cases"][0]["die_yield"] *= 1 + 1e-5
    wrong = tmp_path / "cases.json"
    wrong.write_text(json.dumps(content), encoding="utf-8")
    assert actuary.differences(actuary.CaseFile(wrong))["die"]["die_yield"] > 5 * TOLERANCE


def test_reuse_divides_designs_over_all_uses():
    """The original's amortization, use by use: `single_chiplet_multiple_systems` of its exploration.py.

    One chiplet of 220 mm² on N7 (module 200 mm²) serves systems of 1, 2 and 4; the systems sell equally.
    """
    nre, volume, counts = 298e6, 500_000.0, np.array([1.0, 2.0, 4.0])
    module, chip = 0.5 * nre / 300 * 200, 0.3 * nre / 300 * 220 + 0.2 * nre
    packages = 4 * 220 * counts * 3e3 * np.array([1, 2, 2]) + 3e5
    prices = np.array([module, chip, *packages])
    uses = np.vstack([counts, counts, np.eye(3)])
    per_unit = np.asarray(amortized(prices, uses, np.full(3, volume)))
    shared = (module + chip) / (counts.sum() * volume)
    np.testing.assert_allclose(per_unit, counts * shared + packages / volume, rtol=1e-12)
    # All of the money is recovered.
    assert float(per_unit.sum() * volume) == pytest.approx(prices.sum(), rel=1e-12)
