"""Accelerators from node, die area, memory and power limit: by hand, slopes, bad input, and the study."""

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.errors import ConfigError
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import chip
from diffperf.hardware.floorplan import (
    Blueprint,
    ComputeUnit,
    Family,
    Floorplan,
    accelerator_of_blueprint,
    design_of_blueprint,
    with_unit,
)
from diffperf.hardware.node import Node, node_at
from diffperf.hardware.technology import LinkTechnology, MemoryTechnology
from diffperf.load import load, load_nodes
from diffperf.quantity import numeric, replace

STUDY = Path(__file__).parents[2] / "studies" / "published_chips"
FAMILY = load(Family, "nvidia-datacenter")
HOPPER = ComputeUnit(
    matrix_flops=4096, vector_flops=256 + 2 * 256, private_memory=512 * 1024, working_share=132 / 144
)
H100 = Floorplan(
    die_area=814,
    dies=1,
    cache=60 * 2**20,
    memory_stacks=5,
    network_bandwidth=450e9,
    power_limit=700,
)


def parts(node="n4", memory="hbm3", link="nvlink4", template="h100-sxm5-80gb"):
    return (
        load(Node, node),
        load(MemoryTechnology, memory),
        load(LinkTechnology, link),
        load(Accelerator, template),
    )


def blueprint_of(plan, unit=HOPPER, **names):
    """The blueprint of a package, and the template accelerator."""
    node, memory, link, template = parts(**names)
    die_to_die = load(LinkTechnology, "ucie-advanced")
    blueprint = Blueprint(plan=plan, unit=unit, node=node, memory=memory, link=link, die_to_die=die_to_die)
    return blueprint, template


def designed(plan, unit=HOPPER, family=FAMILY, **names):
    """The template with the family's units, the design, its technology, and its chip."""
    blueprint, template = blueprint_of(plan, unit, **names)
    template = with_unit(template, unit, family)
    design, technology = design_of_blueprint(blueprint, family, template)
    return template, design, technology, chip(design, technology, template)


def test_units_of_an_h100_by_hand():
    _, design, _, made = designed(H100)
    node = parts()[0]
    logic = 4096 * float(FAMILY.matrix_transistors) + 768 * float(FAMILY.vector_transistors)
    unit = logic / float(node.logic_density) + 512 * 1024 / float(node.sram_density)
    left = 814 * 0.75 - 60 * 2**20 / 1e6 - 5 * 10.45 - 450 / 25.9
    assert float(design.compute_units) == pytest.approx(left / unit * 132 / 144, rel=1e-6)
    assert float(made.compute_area) == pytest.approx(left, rel=1e-6)


@pytest.mark.parametrize("dies", [1.0, 2.0])
def test_the_dies_are_filled(dies):
    made = designed(replace(H100, {"dies": dies}))[-1]
    assert float(made.die_area) == pytest.approx(814, rel=1e-9)


def test_the_power_limit_sets_the_clock():
    """Power by hand at the voltage and the clock that come out: units, static, memory and links."""
    _, design, _, made = designed(H100)
    node = parts()[0]
    assert float(made.power) == pytest.approx(700, rel=1e-9)
    relative = float(made.voltage) / 0.75
    hertz = float(made.clock) * float(FAMILY.clock)
    energy = 4096 * float(FAMILY.matrix_energy) + 768 * float(FAMILY.vector_energy)
    units = float(design.compute_units) * hertz * energy * float(node.switching_energy) * relative**2
    others = 814 * 0.11 * relative + 5 * 670e9 * 31.2e-12 + 450e9 * 88e-12
    assert units + others == pytest.approx(700, rel=1e-6)


def test_the_accelerator_has_the_designs_figures():
    blueprint, template = blueprint_of(H100)
    made = accelerator_of_blueprint(blueprint, FAMILY, template)
    _, design, _, made_chip = designed(H100)
    rate = float(design.compute_units) * 4096 * float(FAMILY.clock) * float(made_chip.clock)
    assert float(made.matrix.bf16.rate) == pytest.approx(rate, rel=1e-9)
    assert float(made.matrix.fp8.rate) == pytest.approx(2 * rate, rel=1e-3)
    assert float(made.power_limit) == pytest.approx(700, rel=1e-9)
    assert float(made.device_memory.bandwidth) == 3.35e12
    assert float(made.device_memory.capacity) == 80 * 2**30


def test_io_dies_leave_the_compute_dies_to_compute():
    compute_die = designed(replace(H100, {"io_share": 0.0}))[-1]
    assert float(compute_die.compute_area) == pytest.approx(814 - 60 * 2**20 / 1e6, rel=1e-6)
    assert float(compute_die.shoreline) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["die_area", "cache", "memory_stacks", "network_bandwidth", "power_limit"])
def test_slopes_match_finite_differences(name):
    blueprint, template = blueprint_of(H100)

    def rate(value):
        changed = replace(blueprint, {f"plan.{name}": value})
        made = accelerator_of_blueprint(changed, FAMILY, template)
        return made.matrix.bf16.rate * 1e-12

    value = float(getattr(H100, name))
    step = 1e-5 * value
    central = (rate(value + step) - rate(value - step)) / (2 * step)
    assert float(jax.grad(rate)(value)) == pytest.approx(float(central), rel=1e-5)
    assert float(central) * (1 if name in ("die_area", "power_limit") else -1) > 0


@pytest.mark.slow
def test_the_slope_along_nodes_matches_finite_differences():
    blueprint, template = blueprint_of(H100)
    nodes = load_nodes()

    def rate(feature):
        on_node = dataclasses.replace(blueprint, node=node_at(nodes, jnp.asarray(feature)))
        made = accelerator_of_blueprint(on_node, FAMILY, template)
        return made.matrix.bf16.rate * 1e-12

    rate, slope = jax.jit(rate), jax.jit(jax.grad(rate))
    rates = [float(rate(feature)) for feature in (28.0, 16.0, 10.0, 7.0, 5.0, 3.0, 2.0)]
    assert np.all(np.diff(rates) > 0)
    for feature in (13.0, 6.0, 2.5):
        central = (rate(feature + 1e-5) - rate(feature - 1e-5)) / 2e-5
        assert float(slope(feature)) == pytest.approx(float(central), rel=1e-5)


def test_no_room_for_units_stays_finite(float32):
    """More cache than die: hardly any unit is left, and every number and slope is finite."""
    blueprint, template = blueprint_of(H100)
    blueprint, family = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf, np.float32)), (blueprint, FAMILY)
    )

    def rate(cache):
        changed = replace(blueprint, {"plan.cache": cache})
        return accelerator_of_blueprint(changed, family, template).matrix.bf16.rate

    value, slope = jax.value_and_grad(rate)(5e9)
    assert np.isfinite(value)
    assert np.isfinite(slope)
    assert 0 < float(value) < 20e12


@pytest.mark.slow
def test_a_limit_below_the_power_without_a_clock_is_one_line():
    plan = replace(H100, {"power_limit": 60.0})
    blueprint, template = blueprint_of(plan)
    with pytest.raises(
        ConfigError, match=r"arguments: power_limit: found 60 W; expected more than the \d+ W"
    ) as caught:
        accelerator_of_blueprint(blueprint, FAMILY, template)
    assert "\n" not in str(caught.value)
    assert float(designed(plan)[-1].power) > 60


# --- the study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The tables of the study in its quick mode, by name and the first column."""
    out = tmp_path_factory.mktemp("study")
    subprocess.run(
        [sys.executable, STUDY / "run.py", "--quick", "--out", out], check=True, capture_output=True
    )

    def table(name):
        with (out / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return {next(iter(row.values())): row for row in csv.DictReader(file)}

    return {name: table(name) for name in ("rates", "memory", "families")}


FITTED = ["V100", "A100", "H100", "B200", "MI250X", "MI300X"]


@pytest.mark.slow
def test_published_gpus_come_out(study):
    """V100 +2 %, A100 +8 %, H100 −8 %, B200 −1 %, MI250X +13 %, MI300X −12 % as shipped."""
    for name in FITTED:
        row = study["rates"][name]
        assert abs(float(row["error"])) < 0.15, name
        assert abs(float(row["power"])) < 1e-6, name
    median = np.median([abs(float(study["rates"][name]["error"])) for name in FITTED])
    assert median < 0.1


@pytest.mark.slow
def test_published_memory_comes_out(study):
    for name, row in study["memory"].items():
        assert abs(float(row["bandwidth_error"])) < 0.155, name
        assert abs(float(row["capacity_error"])) < 0.08, name


@pytest.mark.slow
def test_chips_without_published_dies_are_only_predicted(study):
    for name, row in study["rates"].items():
        unknown = row["role"] == "predicted" and "die area" in row["unpublished"]
        assert bool(row["implied"]) == unknown, name
        assert bool(row["error"]) == (not unknown), name
    # Not fitted, with the published die: GB10 within the 15 % that published chips are held to.
    assert study["rates"]["GB10"]["role"] == "predicted"
    assert abs(float(study["rates"]["GB10"]["error"])) < 0.15


@pytest.mark.slow
def test_shipped_families_are_those_of_the_study(study):
    for name, row in study["families"].items():
        family = load(Family, name)
        figures = {
            "matrix": family.matrix_transistors,
            "vector": family.vector_transistors,
            "matrix_energy": family.matrix_energy * 1e12,
            "vector_energy": family.vector_energy * 1e12,
            "clock": family.clock * 1e-9,
        }
        for key, value in figures.items():
            assert float(value) == pytest.approx(float(row[key]), rel=0.01), (name, key)
        assert set(numeric(family)) == {field.name for field in dataclasses.fields(Family)} - {"name"}
