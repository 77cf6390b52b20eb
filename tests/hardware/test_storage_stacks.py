"""Stacks of storage beside memory stacks: what they take and bring by hand, slopes, and bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.cost.package_cost import assembled_cost, package_cost
from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.hardware.chip import chip, stacks_power
from diffperf.hardware.designed_accelerator import accelerator_of, design_of, system_of
from diffperf.load import load_system, load_technology
from diffperf.quantity import replace
from diffperf.relax import Exact


@pytest.fixture(scope="module")
def parts():
    """The H100's technology with storage, a system of 16, and the design of two stacks of HBM and four of
    storage."""
    technology, system = load_technology("n4-hbm3", storage="hbs"), load_system("dgx-h100", 16)
    design = replace(design_of(system, technology), {"memory_stacks": 2.0, "storage_stacks": 4.0})
    return technology, system, design


def test_a_shipped_technology_has_the_storage(parts):
    assert str(load_technology("n4-hbm3-hbs").storage.name) == str(parts[0].storage.name) == "hbs"
    assert load_technology("n4-hbm3").storage is None
    assert float(load_technology("n4-hbm3-hbs", node="n7").storage.phy_area) == pytest.approx(10.45 * 1.2)


def test_storage_takes_area_edge_power_bumps_and_carrier(parts):
    technology, system, design = parts
    without = dataclasses.replace(technology, storage=None)
    ours, theirs = (chip(design, made, system.accelerator) for made in (technology, without))
    assert float(ours.memory_area - theirs.memory_area) == pytest.approx(4 * 10.45, rel=1e-6)
    assert float(ours.die_area - theirs.die_area) == pytest.approx(4 * 10.45 / 0.75, rel=1e-5)
    carried = 4 * 121 + float(ours.die_area - theirs.die_area)
    assert float(ours.carried_area - theirs.carried_area) == pytest.approx(carried, rel=1e-5)
    watts = float(stacks_power(design, technology) - stacks_power(design, without))
    assert watts == pytest.approx(4 * 520e9 * 32e-12, rel=1e-5)
    edges = [float(made.shoreline) * 3 * np.sqrt(float(made.die_area)) for made in (ours, theirs)]
    assert edges[0] - edges[1] == pytest.approx(4 * 10, rel=1e-4)
    assert float(ours.bumps) > float(theirs.bumps)


def test_storage_is_a_memory_level_that_costs(parts):
    technology, system, design = parts
    made = accelerator_of(design, technology, system.accelerator)
    level = made.memory[-1]
    assert made.memory_kinds[-1] == "storage"
    assert float(level.bandwidth) == pytest.approx(4 * 520e9)
    assert float(made.storage_capacity) == pytest.approx(4 * 64e9)
    cost = float(package_cost(made, Exact()).memory)
    assert cost == pytest.approx(2 * 16 * 2**30 * 16.9e-9 + 4 * 64e9 * 0.5e-9, rel=1e-6)
    memory = made.device_memory.capacity * made.package.memory_price
    assert cost - float(memory) == pytest.approx(4 * 64 * 0.5, rel=1e-4)
    bare = replace(made.package, {"storage_stacks": 0.0})
    prices = (memory, jnp.zeros(()), Exact())
    placed = assembled_cost(made.package, *prices).total - assembled_cost(bare, *prices).total
    assert float(placed) > 4 * float(made.package.packaging.placement_price)


STRATEGY = dp.load_strategy({"tp": 2, "global_batch": 64, "sequence_length": 2048}, n_devices=16)


def time_and_cost(parts, memory, storage):
    """Seconds of a pass of a model that two stacks of HBM do not hold, and USD of the package."""
    technology, system, design = parts
    design = dataclasses.replace(design, memory_stacks=memory, storage_stacks=storage)
    report = dp.decode(
        dp.load_model("llama-2-70b"),
        system_of(design, technology, system),
        STRATEGY,
    )
    return report.time + 1e-5 * report.cost.manufacturing, report.memory.excess


def test_slopes_are_finite_differences_and_finite_without_storage(parts):
    both = jax.jit(jax.value_and_grad(lambda m, s: time_and_cost(parts, m, s), (0, 1), has_aux=True))
    (value, excess), slopes = both(jnp.asarray(2.0), jnp.asarray(1.5))
    assert float(excess) < 1e-9
    for axis, step in ((0, jnp.array([1e-5, 0.0])), (1, jnp.array([0.0, 1e-5]))):
        above, below = (float(both(2.0 + sign * step[0], 1.5 + sign * step[1])[0][0]) for sign in (1.0, -1.0))
        assert float(slopes[axis]) == pytest.approx((above - below) / 2e-5, rel=1e-5)
    (nothing, missing), slopes = both(jnp.asarray(2.0), jnp.asarray(0.0))
    assert float(missing) > 0
    assert np.all(np.isfinite([nothing, *slopes]))
    assert float(value) < float(nothing)


def test_storage_without_a_technology_is_one_line():
    problem = {
        "model": "llama-3-8b", "system": "dgx-h100", "n_devices": 1, "technology": "n4-hbm3",
        "minimize": "time",
        "variable": [{"path": "design.storage_stacks", "from": 0, "to": 4}],
        "constraint": [{"quantity": "chip.bumps", "at_most": 1}],
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"technology: found n4-hbm3, without storage") as caught:
        load_problem(problem)
    assert "\n" not in str(caught.value)
