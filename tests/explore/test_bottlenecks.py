"""Operators of a step: their times are those of the estimate, and what bounds them is what speeds them up."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.bottlenecks import OVERHEAD, listing, memory_bound_share, resources, scaled
from diffperf.quantity import locate, replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration

CASES = {
    "gpt3-175b": ("dgx-a100", 64, {"tp": 8, "pp": 8, "global_batch": 64, "overlap_tensor": True}),
    "deepseek-v3": (
        "gb200-nvl72",
        256,
        {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8", "overlap_experts": True},
    ),
}
COMPUTE = ("matmul", "attention", "elementwise", "recompute", "head", "optimizer")
NETWORK = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfers", "data_parallel")


@pytest.fixture(scope="module", params=CASES)
def listed(request):
    """A configuration and the operators of its training step."""
    system, devices, table = CASES[request.param]
    configuration = Configuration(
        dp.load_model(request.param), dp.load_system(system, n_devices=devices), dp.load_strategy(table)
    )
    return configuration, listing(configuration).operators


def _breakdown(c):
    return training(c.model, c.system, c.strategy, Exact()).breakdown


@pytest.mark.slow
def test_times_add_up_to_those_of_the_report(listed):
    """Part by part, layers of modules that predict further tokens included; the longest operator first."""
    configuration, rows = listed
    breakdown = _breakdown(configuration)
    for part in COMPUTE:
        times = [row.time for row in rows if row.part == part]
        assert sum(times) == pytest.approx(float(getattr(breakdown, part)), rel=1e-9), part
    assert {row.part for row in rows} <= set(COMPUTE)
    assert np.all(np.diff([row.time for row in rows]) <= 0)


def test_no_operator_is_above_its_roofs(listed):
    """Neither the matrix units nor a memory level work faster than their peak; and the work is that of the
    model."""
    configuration, rows = listed
    accelerator = configuration.system.accelerator
    peak = float(accelerator.matrix_rate(configuration.strategy.precision))
    bandwidths = {str(level.name): float(level.bandwidth) for level in accelerator.memory[1:]}
    for row in rows:
        assert row.flops <= peak * row.time * (1 + 1e-9), row.name
        assert set(row.traffic) == set(bandwidths)
        for level, served in row.traffic.items():
            assert served <= bandwidths[level] * row.time * (1 + 1e-9), (row.name, level)
    products = sum(row.flops for row in rows if row.part in ("matmul", "head"))
    assert products > 0.5 * sum(row.flops for row in rows) > 0


def test_collectives_add_up_to_those_of_the_report(listed):
    """What no computation hides, part by part; a run hides at most the time that it takes."""
    configuration, _ = listed
    breakdown, rows = _breakdown(configuration), listing(configuration).collectives
    for part in NETWORK:
        exposed = sum(row.exposed for row in rows if row.part == part)
        assert exposed == pytest.approx(float(getattr(breakdown, part)), rel=1e-9, abs=1e-12), part
    assert all(0 <= row.exposed <= row.time * (1 + 1e-9) for row in rows)
    assert any(row.exposed < row.time for row in rows)


def test_bounds_are_what_a_faster_resource_saves(listed):
    """Against operators of systems whose memory is half a per cent faster and slower. A faster memory that
    draws more power lowers the clock of all operators: it bounds none of those that it slows.
    """
    configuration, rows = listed
    memory = configuration.system.accelerator.device_memory.name
    path, step = f"system.accelerator.memory.{memory}.bandwidth", 5e-3
    bandwidth = float(locate(configuration, path)[0])
    fast, slow = (
        {row.name: row.time for row in listing(replace(configuration, {path: bandwidth * factor})).operators}
        for factor in (np.exp(step), np.exp(-step))
    )
    for row in rows:
        saved = -np.log(fast[row.name] / slow[row.name]) / (2 * step)
        assert row.bounds[f"{memory} bandwidth"] == pytest.approx(max(saved, 0.0), abs=5e-3), row.name


def clock_lost(configuration: Configuration) -> dict[str, float]:
    """By resource, by how many per cent the clock of a training step falls, from differences, as the resource
    grows by one per cent. Latencies that shrink by one per cent do what all resources do that shrink so: the
    device waits for a smaller share of the step.
    """
    model, system, strategy = configuration.model, configuration.system, configuration.strategy
    names, step = resources(system), 1e-3

    def clock(growth: np.ndarray) -> float:
        return float(training(model, scaled(system, jnp.asarray(growth)), strategy, Exact()).clock)

    rises = [np.log(clock(growth) / clock(-growth)) / (2 * step) for growth in step * np.eye(len(names))]
    rises.append(-sum(rises))
    return {name: max(-rise, 0.0) for name, rise in zip([*names, OVERHEAD], rises, strict=True)}


def test_shares_add_up_and_name_the_largest(listed):
    """To 1, and beyond it where the step runs at the power limit: faster memory, matrix units or networks
    then lower the clock of all operators, and slow those that they do not bound by at most as much as the
    clock falls.
    """
    configuration, rows = listed
    lost = clock_lost(configuration)
    for row in rows:
        slowed = sum(fall for name, fall in lost.items() if row.bounds[name] == 0)
        assert 0.98 <= sum(row.bounds.values()) <= 1.005 + slowed, row.name
        assert row.bounds[row.bound] == max(row.bounds.values())
    by_name = {row.name.split(" (")[0]: row for row in rows}
    assert by_name["loss"].bound == "hbm bandwidth"
    assert by_name["vocabulary projection"].bound == "matrix units"
    assert 0 < memory_bound_share(rows) < 1
    assert OVERHEAD in rows[0].bounds
