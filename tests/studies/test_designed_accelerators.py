"""The problems of the study are physical, and its technologies reproduce the accelerators they are of."""

import tomllib
from pathlib import Path

import jax
import pytest

import diffperf as dp
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import design_of
from diffperf.hardware.technology import Technology
from diffperf.load import load
from diffperf.quantity import replace

STUDY = Path(__file__).parents[2] / "studies" / "designed_accelerators"
PROBLEMS = sorted((STUDY / "problems").glob("*.toml"))
LIMITED = {"cost.manufacturing", "chip.power", "chip.reticle", "chip.shoreline", "memory.excess"}


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_a_design_has_limits_of_cost_power_reticle_edge_and_memory(path):
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    limits = {constraint["quantity"]: constraint["at_most"] for constraint in table["constraint"]}
    assert set(limits) >= LIMITED
    assert limits["cost.manufacturing"] == "baseline"
    stacks = any("hbm" in str(variable.get("values")) for variable in table["variable"])
    assert not stacks or {"chip.carried_area", "cost.capital"} <= set(limits)


def test_every_problem_has_sold_systems_beside_it():
    text = (STUDY / "run.py").read_text(encoding="utf-8")
    assert all(f'"{path.stem}": (' in text for path in PROBLEMS)


@pytest.mark.parametrize(
    ("technology", "system", "stacks", "die_area", "power"),
    [("n4-hbm3e", "hgx-b200", 8, 800, 1000), ("n7-lpddr5", "jetson-agx-orin", 8, 455, 60)],
)
def test_a_technology_reproduces_its_accelerator(technology, system, stacks, die_area, power):
    """Areas and TDPs of the datasheets, from the numbers of units, caches, stacks and links."""
    with jax.enable_x64(True):
        loaded, sold = load(Technology, str(STUDY / f"{technology}.toml")), dp.load_system(system)
        design = replace(design_of(sold, loaded), {"memory_stacks": float(stacks)})
        made = chip(design, loaded, sold.accelerator)
    assert float(made.die_area) == pytest.approx(die_area, rel=0.01)
    assert float(made.power) == pytest.approx(power, rel=0.025)
