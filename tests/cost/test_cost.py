"""Costs beyond the published tool: memory stacks, limits, dimensions, and what owning and running adds up
to."""

import jax
import numpy as np
import pytest
from helpers import in_other_units, outputs
from hypothesis import given
from hypothesis import strategies as st

import diffperf as dp
from diffperf.cost import silicon
from diffperf.cost.ownership import purchase, run_cost
from diffperf.cost.package_cost import carried_area, interposer_area, package_cost
from diffperf.cost.silicon import die_yield, dies_per_wafer, raw_die_price
from diffperf.hardware.package import Process
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth

PROCESS = Process("", 10000, 0.001, 10)


def test_yield_without_clustering_is_poisson():
    """(1 + DA/c)^(−c) → exp(−DA) as c grows, and is Seeds' 1/(1 + DA) at c = 1."""
    assert float(die_yield(real(500), Process("", 1, 0.001, 1e9))) == pytest.approx(np.exp(-0.5), rel=1e-6)
    assert float(die_yield(real(500), Process("", 1, 0.001, 1))) == pytest.approx(1 / 1.5, rel=1e-12)
    assert float(die_yield(real(1e-9), PROCESS)) == pytest.approx(1)


@given(st.floats(1, 2000), st.floats(1.001, 3))
def test_larger_dies_are_fewer_dearer_and_work_less_often(area, factor):
    small, large = real(area), real(area * factor)
    assert float(dies_per_wafer(large)) < float(dies_per_wafer(small))
    assert float(die_yield(large, PROCESS)) < float(die_yield(small, PROCESS))
    assert float(raw_die_price(large, PROCESS)) > float(raw_die_price(small, PROCESS))


def test_dies_never_cover_more_than_the_wafer():
    for area in (10.0, 100.0, 858.0):
        assert float(dies_per_wafer(real(area))) * area < np.pi * 150**2


@pytest.mark.parametrize("area", [1e4, 1e5, 1e6])
def test_what_does_not_fit_a_wafer_costs_a_finite_fortune(area):
    assert np.isfinite(float(raw_die_price(real(area), PROCESS)))
    assert float(raw_die_price(real(area), PROCESS)) > 100 * float(raw_die_price(real(800.0), PROCESS))
    assert float(die_yield(real(area), Process("", 1, 0.1, 100))) > 0


def test_memory_stacks_are_pieces_that_can_be_lost(system):
    """An A100: one die and five stacks; what six bonds and the substrate lose takes good dies and stacks
    with it."""
    accelerator = system.accelerator
    package, rules = accelerator.package, accelerator.package.packaging
    cost = package_cost(accelerator, Exact())
    memory = float(accelerator.device_memory.capacity * package.memory_price)
    assert float(cost.memory) == pytest.approx(memory, rel=1e-12)
    survive = float(rules.interposer_bonding_yield) ** float(package.dies + package.memory_stacks) * float(
        rules.organic_bonding_yield
    )
    stake = float(cost.dies + cost.defective_dies) + memory
    assert float(cost.wasted_pieces) == pytest.approx(stake * (1 / survive - 1), rel=1e-12)
    assert float(cost.assembly) == float(package.assembly_price)
    assert float(carried_area(package)) == float(package.die_area * package.dies + 5 * package.stack_area)
    assert float(interposer_area(package)) == pytest.approx(
        float(carried_area(package) * rules.interposer_area_factor)
    )


@pytest.mark.parametrize(
    ("dies", "substrate_area", "layers"),
    [(1, 200, 1), (1, 2000, 1), (2, 288, 1.5), (2, 290, 1.75), (4, 899, 1.75), (4, 901, 2), (8, 2000, 2)],
)
def test_substrates_of_several_pieces_have_more_layers(system, dies, substrate_area, layers):
    """Chiplet Actuary's thresholds of 17 mm × 17 mm and 30 mm × 30 mm; its cases in `test_chiplet_actuary`
    are all larger."""
    rules = system.accelerator.package.packaging
    area = substrate_area / float(rules.package_area_factor) / dies
    changes = {"technology": "organic", "dies": dies, "memory_stacks": 0, "die_area": f"{area} mm^2"}
    changes = {f"accelerator.package.{name}": value for name, value in changes.items()}
    cost = package_cost(dp.override(system, changes).accelerator, Exact())
    assert float(cost.package) == pytest.approx(
        substrate_area * float(rules.substrate_price) * layers, rel=1e-12
    )


@pytest.mark.parametrize("technology", ["organic", "interposer"])
def test_total_is_the_sum_of_its_parts(system, technology):
    accelerator = dp.override(system, {"accelerator.package.technology": technology}).accelerator
    cost = package_cost(accelerator, Exact())
    assert float(cost.total) == pytest.approx(
        sum(float(value) for value in outputs(cost).values()), rel=1e-12
    )


def test_splitting_a_large_die_pays(system):
    """Four quarters yield better than one reticle-sized die where assembly loses little (Feng and Ma, DAC
    2022, §4)."""
    base = {
        "accelerator.package.technology": "organic",
        "accelerator.package.process.defect_density": "0.3 1/cm^2",
    }
    good_silicon = []
    for dies, area in ((1, 800), (4, 200)):
        changes = {**base, "accelerator.package.dies": dies, "accelerator.package.die_area": f"{area} mm^2"}
        cost = package_cost(dp.override(system, changes).accelerator, Exact())
        good_silicon.append(float(cost.dies + cost.defective_dies))
    assert good_silicon[1] < 0.5 * good_silicon[0]


def _in_millimetres_over(factor, monkeypatch):
    """The wafer's constants, which have the dimension of a length, in the other unit."""
    for name in ("WAFER_DIAMETER", "SCRIBE_LANE", "EDGE_LOSS"):
        monkeypatch.setattr(silicon, name, getattr(silicon, name) * factor)


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_dollars_do_not_depend_on_the_unit_of_length(system, relax, monkeypatch):
    """On an interposer; an organic substrate's layers follow areas in mm² that are constants of the
    published model."""
    before = outputs(package_cost(system.accelerator, relax))
    _in_millimetres_over(10.0, monkeypatch)
    after = outputs(package_cost(in_other_units(system, "mm", 10.0).accelerator, relax))
    np.testing.assert_allclose(list(after.values()), list(before.values()), rtol=1e-12)
    assert before.keys() == after.keys()


def test_organic_substrates_do_not_either_below_the_first_threshold(system, monkeypatch):
    changes = {
        "accelerator.package.technology": "organic",
        "accelerator.package.memory_stacks": 0,
        "accelerator.package.die_area": "500 mm^2",
    }
    system = dp.override(system, changes)
    before = outputs(package_cost(system.accelerator, Exact()))
    _in_millimetres_over(10.0, monkeypatch)
    after = outputs(package_cost(in_other_units(system, "mm", 10.0).accelerator, Exact()))
    np.testing.assert_allclose(list(after.values()), list(before.values()), rtol=1e-12)


def test_owning_and_running_by_hand(system):
    prices = system.prices
    time, joules = 3600.0, 64 * 300.0 * 3600
    cost = run_cost(system, real(time), real(joules), Exact())
    device = float(cost.manufacturing * prices.accelerator_markup + prices.host) + sum(
        float(tier.price) for tier in system.network
    )
    assert float(cost.capital) == pytest.approx(64 * device, rel=1e-12)
    assert float(cost.depreciation) == pytest.approx(
        64 * device / float(prices.lifetime * prices.utilization), rel=1e-12
    )
    watts = 64 * (300 + float(prices.host_power)) * float(prices.pue)
    assert float(cost.electricity) == pytest.approx(watts * float(prices.electricity), rel=1e-12)
    assert float(cost.run) == pytest.approx(time * float(cost.depreciation + cost.electricity), rel=1e-12)


def test_capital_scales_with_devices(system):
    twice = replace(system, {"n_devices": 2 * system.n_devices})
    assert float(purchase(twice, real(1000)).total) == 2 * float(purchase(system, real(1000)).total)


def test_cost_is_differentiable_in_every_choice(system):
    """Between organic and interposer lies a mixture, and its slope is the difference of the two."""

    def total(weight):
        mixed = replace(system, {"accelerator.package.technology": [1 - weight, weight]})
        return package_cost(mixed.accelerator, Exact()).total

    slope = jax.grad(total)(0.5)
    assert float(slope) == pytest.approx(float(total(1.0) - total(0.0)), rel=1e-9)
