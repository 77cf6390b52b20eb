"""Attention kernels on machines and shapes of any size: their order, their gradients, and their extremes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    GROUP_LATENCY,
    HBM,
    L2,
    RATE,
    ROW_LATENCY,
    SPLIT_LATENCY,
    TILE_LATENCY,
    UNITS,
    VECTOR,
    attention_works,
    core_of,
    machine_of,
)

import diffperf as dp
from diffperf.estimate.kernels.machine import Machine
from diffperf.relax import Exact, Smooth
from diffperf.workload.operators import NO_WINDOW, AttentionCore

HARDWARE = {
    "memory.hbm.bandwidth": HBM,
    "memory.l2.bandwidth": L2,
    "memory.smem.capacity": UNITS * 262144.0,
    "matrix.bf16.rate": RATE,
    "vector": VECTOR,
    "compute_units": UNITS,
    "attention.bf16.tile_latency": TILE_LATENCY,
    "attention.bf16.group_latency": GROUP_LATENCY,
    "attention.row_latency": ROW_LATENCY,
    "attention.split_latency": SPLIT_LATENCY,
}
PROMPT = {
    "queries": 3000.0,
    "context": 3000.0,
    "heads": 12.0,
    "kv_heads": 4.0,
    "sequences": 5.0,
    "window": NO_WINDOW,
}
SHAPES = {
    "prompt": PROMPT,
    "decode": PROMPT | {"queries": 1.0, "sequences": 50.0},
    "split": PROMPT | {"queries": 1.0, "context": 30000.0, "sequences": 1.0},
    "window": PROMPT | {"context": 9000.0, "window": 2000.0},
}
DIFFERENTIATED = (
    "sequences",
    "context",
    "heads",
    "kv_heads",
    "memory.hbm.bandwidth",
    "matrix.bf16.rate",
    "vector",
    "attention.bf16.tile_latency",
    "attention.bf16.group_latency",
    "attention.row_latency",
    "attention.split_latency",
)


def _time(system, relax, values):
    """Seconds of a core's forward pass, and of its backward pass unless it is generated."""
    core = core_of(**{name: values[name] for name in PROMPT})
    machine = machine_of(system, {path: values[path] for path in HARDWARE}, relax)
    trained = jnp.where(core.queries > 1, 1.0, 0.0)
    works = attention_works(core, machine)
    return works["forward"].time + trained * works["backward"].time


def _log_time(steps, system, relax, values):
    """The logarithm of the time at `steps` in the logarithms of the inputs that are differentiated."""
    moved = {name: values[name] * jnp.exp(steps[i]) for i, name in enumerate(DIFFERENTIATED)}
    return jnp.log(_time(system, relax, values | moved))


_compiled_time = jax.jit(_time)
_slopes = jax.jit(jax.grad(_log_time))
_log_times = jax.jit(jax.vmap(_log_time, in_axes=(0, None, None, None)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_better_hardware_and_less_work_are_faster(system, relax, shape):
    """In the order of more units, bandwidth and rate, and of fewer sequences, tokens and heads."""
    values = SHAPES[shape] | HARDWARE

    def time(*doubled):
        changed = {name: 2 * values[name] for name in doubled}
        return float(_compiled_time(system, relax, values | changed))

    base = time()
    for name in ("memory.hbm.bandwidth", "memory.l2.bandwidth", "matrix.bf16.rate", "vector"):
        assert time(name) <= base * (1 + 1e-12), name
    for name in ("sequences", "context"):
        assert time(name) >= base * (1 - 1e-12), name
    # A smooth staircase may lie lower just before a step than on it.
    staircase = 1.0 if isinstance(relax, Exact) else 1.05
    larger = time("compute_units", "memory.smem.capacity", "matrix.bf16.rate", "vector")
    assert larger <= base * staircase * (1 + 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_agree_with_differences(system, shape):
    inputs = system, Smooth(20.0), SHAPES[shape] | HARDWARE
    slopes = _slopes(jnp.zeros(len(DIFFERENTIATED)), *inputs)
    step = 1e-6
    units = step * jnp.eye(len(DIFFERENTIATED))
    differences = (_log_times(units, *inputs) - _log_times(-units, *inputs)) / (2 * step)
    np.testing.assert_allclose(slopes, differences, rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("smooth", [False, True], ids=["exact", "smooth"])
def test_finite_at_extremes(smooth):
    """From one token of one head to ten million tokens: days in one kernel; float32, values and gradients."""
    relax = Smooth(20.0) if smooth else Exact()
    machine = Machine.of(jax.tree.map(jnp.float32, dp.load_system("dgx-a100")), dp.load_strategy({}), relax)

    def time(sizes):
        works = attention_works(AttentionCore(*sizes), machine)
        return works["forward"].time + works["backward"].time

    value_and_slope = jax.jit(jax.value_and_grad(time))
    for sizes in itertools.product((1.0, 64.0), (1.0, 1e6), (1.0, 1e7), (1.0, 128.0), (1.0,), (1.0, 576.0)):
        if sizes[2] >= sizes[1]:
            value, slope = value_and_slope(jnp.array(sizes, jnp.float32))
            assert value.dtype == jnp.float32
            assert 0 < value < np.inf, sizes
            assert np.all(np.isfinite(slope)), sizes
