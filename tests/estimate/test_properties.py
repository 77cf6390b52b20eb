"""What must hold for all hardware: better parts are never slower, more silicon is never cheaper, sharper is
closer to exact.
"""

import numpy as np
import pytest
from helpers import draw, generate, leaves, outputs, training, with_leaves
from hypothesis import given
from hypothesis import strategies as st

from diffperf.quantity import locate, replace
from diffperf.relax import Exact, Smooth

BETTER = {  # what the estimate may only profit from, and in which direction
    "accelerator.matrix.bf16.rate": 1,
    "accelerator.matrix.bf16.efficiency": 1,
    "accelerator.attention.bf16.efficiency": 1,
    "accelerator.attention.softmax_flops": -1,
    "accelerator.attention.bf16.tile_latency": -1,
    "accelerator.attention.bf16.group_latency": -1,
    "accelerator.memory.smem.capacity": 1,
    "accelerator.memory.l2.capacity": 1,
    "accelerator.memory.l2.bandwidth": 1,
    "accelerator.memory.l2.latency": -1,
    "accelerator.memory.hbm.bandwidth": 1,
    "accelerator.memory.hbm.efficiency": 1,
    "accelerator.memory.hbm.latency": -1,
    "network.nvlink.bandwidth": 1,
    "network.nvlink.efficiency": 1,
    "network.nvlink.latency": -1,
    "network.infiniband.bandwidth": 1,
    "network.infiniband.latency": -1,
    "stack.kernel_overhead": -1,
    "stack.collective_overhead": -1,
    "inference_stack.kernel_overhead": -1,
    "inference_stack.collective_overhead": -1,
}
DEARER = (
    "accelerator.package.dies.compute.area",
    "accelerator.package.stack_area",
    "accelerator.package.dies.compute.count",
    "accelerator.package.memory_stacks",
    "accelerator.package.memory_price",
    "accelerator.package.dies.compute.process.wafer_price",
    "accelerator.package.dies.compute.process.defect_density",
    "accelerator.memory.hbm.capacity",
    "network.nvlink.price",
    "prices.host",
    "prices.accelerator_markup",
)


# An accelerator so frugal that its power limit never binds.
FRUGAL = {
    "accelerator.power_limit": 1e5,
    "accelerator.static_power": 0.1,
    "accelerator.active_power": 0.1,
    "accelerator.compute_energy": 1e-14,
    "accelerator.vector_energy": 1e-14,
    "accelerator.memory.l2.energy": 1e-14,
    "accelerator.memory.hbm.energy": 1e-14,
}


# What makes a memory level faster when it grows, or when it shrinks.
SPEEDS = {"bandwidth": 1, "efficiency": 1, "latency": -1}


def _orderly(system):
    """The system with a last-level cache that is no slower than device memory, at the clock of the cache.

    What a larger cache serves would otherwise take longer than what device memory serves.
    """
    cache, memory = system.accelerator.memory[-2:]
    clock = system.accelerator.clock_limit
    at_peak = {"bandwidth": 1 / clock, "efficiency": 1.0, "latency": clock}
    faster = {
        f"accelerator.memory.l2.{key}": max(
            getattr(cache, key), getattr(memory, key) * at_peak[key], key=lambda number: power * float(number)
        )
        for key, power in SPEEDS.items()
    }
    return replace(system, faster)


@pytest.fixture(scope="module")
def anywhere(system):
    """A random system of the documented ranges by number."""
    paths, _ = leaves(system)
    return lambda seed: with_leaves(
        system, paths, draw(system, np.random.default_rng(seed), 1, shrink=0.5)[0]
    )


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from(sorted(BETTER)), st.floats(1.001, 100.0))
def test_better_hardware_is_never_slower(gpt, anywhere, strategy, seed, path, factor):
    # At one clock: faster memory raises the power of the same work, which the power limit may answer with a
    # lower clock.
    before = replace(_orderly(anywhere(seed)), FRUGAL)
    after = replace(before, {path: locate(before, path)[0] * factor ** BETTER[path]})
    for phase in (training, generate):
        assert float(phase(gpt, after, strategy, Exact()).time) <= float(
            phase(gpt, before, strategy, Exact()).time
        ) * (1 + 1e-12)


@pytest.mark.slow
@given(
    st.integers(0, 10**6),
    st.sampled_from(DEARER),
    st.floats(1.001, 10.0),
    st.sampled_from(["organic", "interposer"]),
)
def test_more_is_never_cheaper(gpt, anywhere, strategy, seed, path, factor, technology):
    drawn, carrier = anywhere(seed), "accelerator.package.carrier"
    before = replace(drawn, {carrier: locate(drawn, carrier)[1].one_hot(technology)})
    after = replace(before, {path: locate(before, path)[0] * factor})
    costs = [training(gpt, system, strategy, Exact()).cost for system in (before, after)]
    assert float(costs[1].capital) >= float(costs[0].capital) * (1 - 1e-12)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(1.001, 100.0))
def test_faster_memory_shows_in_its_own_rows(gpt, anywhere, strategy, seed, factor):
    before = anywhere(seed)
    after = replace(
        before, {"accelerator.memory.hbm.bandwidth": before.accelerator.device_memory.bandwidth * factor}
    )
    slow, fast = (outputs(training(gpt, system, strategy, Exact())) for system in (before, after))
    assert float(fast["breakdown.optimizer"]) < float(slow["breakdown.optimizer"])
    for path in ("breakdown.tensor_parallel", "breakdown.pipeline_transfers", "memory.peak", "cost.capital"):
        assert float(fast[path]) == float(slow[path])


@pytest.mark.slow
@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_smooth_becomes_exact(gpt, anywhere, strategy, phase):
    for seed in range(5):
        exact = phase(gpt, anywhere(seed), strategy, Exact())
        gaps = []
        for sharpness in (10.0, 100.0, 1e4, 1e6):
            smooth = phase(gpt, anywhere(seed), strategy, Smooth(sharpness))
            gaps.append(
                [
                    abs(float(getattr(smooth, n)) / float(getattr(exact, n)) - 1)
                    for n in ("time", "tokens_per_second")
                ]
            )
        assert max(gaps[2]) <= max(max(gaps[0]), 1e-3)
        assert max(gaps[3]) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_smooth_is_near_exact_where_it_optimizes(gpt, system, strategy, phase):
    smooth, exact = (float(phase(gpt, system, strategy, relax).time) for relax in (Smooth(64.0), Exact()))
    assert smooth == pytest.approx(exact, rel=0.05)
