"""Estimates at many points are single estimates; whole numbers change by one, with what they bring."""

import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.points import BLOCK, outputs_at, point_blocks
from diffperf.explore.ranges import Range, swings, with_tied
from diffperf.explore.whole_steps import DEVICES, UNITS, changes_of, whole_numbers, whole_steps
from diffperf.quantity import locate, numeric, replace
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration

HBM = "system.accelerator.memory.hbm.bandwidth"


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    """A small step: the program of the points is compiled once for this module."""
    strategy = dp.load_strategy({"tp": 8, "global_batch": 4}, n_devices=8)
    return Configuration(dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", n_devices=8), strategy)


def estimated(c: Configuration, values: dict) -> dict[str, float]:
    changed = replace(c, values)
    report = training(changed.model, changed.system, changed.strategy)
    return {path: float(value) for path, (_, value) in outputs(report).items()}


def test_blocks_hold_all_inputs_of_every_point(configuration):
    values = np.linspace(1e12, 3e12, BLOCK + 3)
    blocks = point_blocks(configuration, {HBM: values}, BLOCK)
    assert blocks.shape[:2] == (2, BLOCK)
    column = np.flatnonzero(np.ptp(blocks[0], axis=0))
    assert len(column) == 1
    flat = blocks[..., column[0]].ravel()
    np.testing.assert_array_equal(flat[: BLOCK + 3], values)
    assert set(flat[BLOCK + 3 :]) == {values[-1]}
    with pytest.raises(KeyError):
        point_blocks(configuration, {"system.nothing": values}, BLOCK)


@pytest.mark.slow
def test_points_are_single_estimates(configuration):
    changes = {HBM: np.array([1e12, 2e12]), "strategy.micro_batch": np.array([1.0, 2.0])}
    found = outputs_at(configuration, changes, "training")
    for place in range(2):
        expected = estimated(configuration, {path: float(v[place]) for path, v in changes.items()})
        assert {path: values[place] for path, values in found.items()} == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_one_more_and_one_less_are_estimates(configuration):
    """Also of a compute unit, with what it brings by hand."""
    steps = {(step.path, step.step): step for step in whole_steps(configuration, "training", "time")}
    before = estimated(configuration, {})["time"]
    fewer = estimated(configuration, {"system.network.nvlink.size": 7.0})["time"]
    expected = np.log(fewer / before) / np.log(7 / 8)
    assert steps["system.network.nvlink.size", "−1"].elasticity == pytest.approx(expected, rel=1e-9)
    accelerator, ratio = configuration.system.accelerator, 109 / 108
    brought = {
        f"matrix.{name}.rate" for name in ("bf16", "fp16", "fp32", "tf32", "int8", "fp8", "int4", "fp4")
    }
    brought |= {f"matrix.{name}.rate" for name in ("mxfp8", "nvfp4", "mxfp4", "ternary")}
    brought |= {
        "compute_units",
        "vector",
        "memory.smem.capacity",
        "memory.smem.bandwidth",
        "memory.l2.bandwidth",
    }
    values = {f"system.accelerator.{p}": float(locate(accelerator, p)[0]) * ratio for p in brought}
    more = np.log(estimated(configuration, values)["time"] / before) / np.log(ratio)
    assert steps[UNITS, "+1"].elasticity == pytest.approx(more, rel=1e-9)
    assert all(step.declared.integer for step in steps.values())
    assert {step.path for step in steps.values()} <= set(whole_numbers(configuration))
    assert ("system.accelerator.package.dies.compute.count", "−1") not in steps  # below its bounds


def test_ranges_are_even_on_the_scale_of_their_input(configuration):
    bandwidth = Range(HBM, locate(configuration, HBM)[1], 1e12, 4e12)
    np.testing.assert_allclose(bandwidth.at(np.array([0.0, 0.5, 1.0])), [1e12, 2e12, 4e12])
    units = Range(UNITS, locate(configuration, UNITS)[1], 99.5, 103)
    np.testing.assert_array_equal(units.at(np.array([0.0, 0.26, 0.99, 1.0])), [100, 101, 103, 103])
    np.testing.assert_array_equal(units.grid(50), [100, 101, 102, 103])
    tied = with_tied(configuration, {UNITS: np.array([54.0])})
    assert tied["system.accelerator.vector"] == float(configuration.system.accelerator.vector) / 2
    assert "system.accelerator.vector" not in with_tied(configuration, {HBM: np.array([1e12])})


def test_lengths_change_by_tiles(configuration):
    """One token more than 2,048 is padded to 2,176 by kernels: only a whole tile more is worth its cost."""
    steps = {
        (step.path, step.step): step for step in whole_steps(configuration, "training", "time", ("strategy",))
    }
    assert ("strategy.sequence_length", "+1") not in steps
    assert ("strategy.micro_batch", "+1") in steps
    length = float(configuration.strategy.sequence_length)
    before, after = (
        estimated(configuration, {"strategy.sequence_length": tokens})["time"]
        for tokens in (length, length + 128)
    )
    expected = np.log(after / before) / np.log((length + 128) / length)
    more = steps["strategy.sequence_length", "+128"].elasticity
    assert more == pytest.approx(expected, rel=1e-9)
    assert 0.3 < more < 1.5
    padded = estimated(configuration, {"strategy.sequence_length": length + 1})["time"]
    assert np.log(padded / before) / np.log((length + 1) / length) > 3 * more  # what one token more would say
    assert changes_of("system.accelerator.compute_units", 2048.0) == {"+1": 1.0, "−1": -1.0}


def test_degrees_bring_their_devices(configuration):
    """Twice as many data-parallel replicas of half as many ranks are as many devices; given devices stay."""
    given = {path: float(numeric(configuration)[path][1]) for path in ("strategy.dp", "strategy.tp", DEVICES)}
    columns = {
        path: np.array([factor * given[path]]) for path, factor in (("strategy.dp", 2), ("strategy.tp", 0.5))
    }
    assert with_tied(configuration, columns)[DEVICES] == given[DEVICES]
    del columns["strategy.tp"]
    assert with_tied(configuration, columns)[DEVICES] == 2 * given[DEVICES]
    columns[DEVICES] = np.array([3.0])
    assert with_tied(configuration, columns)[DEVICES] == 3


@pytest.mark.slow
def test_a_replica_more_costs_what_its_devices_cost(configuration):
    """Capital of one replica more: that of an estimate with so many more devices."""
    dp_degree, devices = float(configuration.strategy.dp), float(configuration.system.n_devices)
    larger = replace(
        configuration, {"strategy.dp": dp_degree + 1, DEVICES: devices * (dp_degree + 1) / dp_degree}
    )
    before, after = (
        float(training(c.model, c.system, c.strategy).cost.capital) for c in (configuration, larger)
    )
    steps = whole_steps(configuration, "training", "cost.capital", ("strategy",))
    more = next(step for step in steps if (step.path, step.step) == ("strategy.dp", "+1"))
    assert more.elasticity == pytest.approx(
        np.log(after / before) / np.log((dp_degree + 1) / dp_degree), rel=1e-6
    )


@pytest.mark.slow
def test_swings_are_estimates_at_both_ends(configuration):
    ranges = [
        Range(path, locate(configuration, path)[1], low, high)
        for path, low, high in ((HBM, 1e12, 4e12), ("system.network.nvlink.bandwidth", 1e11, 6e11))
    ]
    found = swings(configuration, ranges, "training", "cost.run")
    assert [swing.size for swing in found] == sorted((swing.size for swing in found), reverse=True)
    for swing in found:
        for end, value in ((swing.range.low, swing.at_low), (swing.range.high, swing.at_high)):
            expected = estimated(configuration, {swing.range.path: end})["cost.run"]
            assert value == pytest.approx(expected, rel=1e-12)
        assert swing.before == pytest.approx(estimated(configuration, {})["cost.run"], rel=1e-12)
