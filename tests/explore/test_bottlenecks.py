"""Operators of a step: their times are those of the estimate, and what bounds them is what speeds them up."""

import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.bottlenecks import OVERHEAD, memory_bound_share, operators
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration

CASES = {
    "gpt3-175b": ("dgx-a100", 64, {"tp": 8, "pp": 8, "global_batch": 64}),
    "deepseek-v3": (
        "gb200-nvl72",
        256,
        {"pp": 4, "dp": 64, "ep": 64, "global_batch": 1024, "precision": "fp8"},
    ),
}


def _inputs(name: str) -> Configuration:
    system, devices, table = CASES[name]
    return Configuration(
        dp.load_model(name), dp.load_system(system, n_devices=devices), dp.load_strategy(table)
    )


@pytest.fixture(scope="module", params=CASES)
def found(request):
    inputs = _inputs(request.param)
    return inputs, operators(inputs)


def test_times_add_up_to_those_of_the_report(found):
    inputs, listed = found
    breakdown = training(inputs.model, inputs.system, inputs.strategy, Exact()).breakdown
    expected = float(breakdown.matmul + breakdown.attention + breakdown.elementwise + breakdown.head)
    times = np.array([one.time for one in listed])
    # Modules that predict further tokens repeat layers and head, of which the list shows the model's own.
    ahead = float(inputs.model.mtp_layers)
    assert times.sum() == pytest.approx(expected, rel=1e-6 if ahead == 0 else 0.15)
    assert np.all(np.diff(times) <= 0)


def test_bounds_are_what_a_faster_resource_saves(found):
    """Against operators of a system whose memory is half a per cent faster."""
    inputs, listed = found
    path = f"accelerator.memory.{inputs.system.accelerator.device_memory.name}.bandwidth"
    step = 5e-3
    moved = []
    for sign in (1, -1):
        value = float(inputs.system.accelerator.device_memory.bandwidth) * np.exp(sign * step)
        system = replace(inputs.system, {path: value})
        moved.append(
            {one.name: one.time for one in operators(Configuration(inputs.model, system, inputs.strategy))}
        )
    for one in listed:
        saved = -np.log(moved[0][one.name] / moved[1][one.name]) / (2 * step)
        assert one.bounds[f"{inputs.system.accelerator.device_memory.name} bandwidth"] == pytest.approx(
            saved, abs=5e-3
        ), one.name


def test_shares_add_up_and_name_the_largest(found):
    _, listed = found
    for one in listed:
        assert sum(one.bounds.values()) == pytest.approx(1.0, abs=0.02), one.name
        assert one.bounds[one.bound] == max(one.bounds.values())
    by_name = {one.name.split(" (")[0]: one for one in listed}
    assert by_name["loss"].bound == "hbm bandwidth"
    assert by_name["vocabulary projection"].bound == "matrix units"
    assert 0 < memory_bound_share(listed) < 1
    assert OVERHEAD in listed[0].bounds
