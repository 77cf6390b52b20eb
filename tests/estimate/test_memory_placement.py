"""Where tensors live: time follows the bandwidth of their level, and shares have derivatives."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.estimate.serving.engine_passes import engine_memory
from diffperf.estimate.serving.traffic import Traffic
from diffperf.hardware.memory_level import Holdings, MemoryLevel, Prefetch
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests

WEIGHTS = {"attention_weights": 1.0, "mlp_weights": 1.0, "expert_weights": 1.0, "embeddings": 1.0}
BANDWIDTH, EFFICIENCY, CAPACITY = 30e12, 0.92, 8e9
STRATEGY = dp.load_strategy({"sequence_length": 1024, "output_length": 2})
MODEL = dp.load_model("llama-3.2-3b")

decode = jax.jit(dp.decode)


def level(holds: Holdings | None = None, **changes) -> MemoryLevel:
    """An SRAM buffer of 8 GB and 30 TB/s that holds tensors."""
    given = {
        "name": "buffer",
        "capacity": CAPACITY,
        "bandwidth": BANDWIDTH,
        "latency": 100e-9,
        "energy": 5e-12,
        "efficiency": EFFICIENCY,
        "kind": "storage",
    }
    return MemoryLevel(**(given | changes), holds=holds)


def with_level(system, buffer: MemoryLevel, position: int = 1):
    """The system with one more memory level; at position 1 nothing but private memory lies inside it."""
    levels = list(system.accelerator.memory)
    levels.insert(position, buffer)
    return dataclasses.replace(
        system, accelerator=dataclasses.replace(system.accelerator, memory=tuple(levels))
    )


@pytest.fixture(scope="module")
def hopper():
    return dp.load_system("dgx-h100", n_devices=1)


@pytest.fixture(scope="module")
def streaming(hopper):
    """An H100 whose products wait for memory alone: no launches, no latency of tiles, no power limit."""
    values = {
        "accelerator.kernel_latency": 1e-9,
        "accelerator.split_latency": 1e-9,
        "inference_stack.kernel_overhead": 1e-9,
        "accelerator.matrix.bf16.k_latency": 1e-13,
        "accelerator.power_limit": 1e6,
    }
    latencies = {f"accelerator.memory.{name}.latency": 1e-9 for name in ("l2", "hbm")}
    return replace(hopper, values | latencies)


# --- time


def products(report) -> float:
    return float(report.breakdown.matmul + report.breakdown.head)


@pytest.mark.slow
def test_weights_in_a_fast_level_are_read_at_its_bandwidth(streaming):
    """A buffer of nine times the bandwidth of HBM that holds all weights: products run nine times as fast."""
    hbm = streaming.accelerator.device_memory
    ratio = BANDWIDTH * EFFICIENCY / float(hbm.bandwidth * hbm.efficiency)
    assert ratio > 8.9
    plain = products(decode(MODEL, streaming, STRATEGY))
    empty = products(decode(MODEL, with_level(streaming, level(Holdings(), latency=1e-9)), STRATEGY))
    full = products(decode(MODEL, with_level(streaming, level(Holdings(**WEIGHTS), latency=1e-9)), STRATEGY))
    assert empty == pytest.approx(plain, rel=1e-12)
    assert plain / full == pytest.approx(ratio, rel=0.05)


def test_a_calibrated_device_decodes_faster_with_weights_in_the_buffer(hopper):
    """On the calibrated H100 launches and the pipelines of tiles remain, and the level's report adds up.

    The weights' time in device memory is what a step can save.
    """
    plain = decode(MODEL, hopper, STRATEGY)
    placed = decode(MODEL, with_level(hopper, level(Holdings(**WEIGHTS))), STRATEGY)
    hbm = hopper.accelerator.device_memory
    streamed = 2 * float(MODEL.parameters - MODEL.embedding_parameters)
    saved = streamed / float(hbm.bandwidth * hbm.efficiency) - streamed / (BANDWIDTH * EFFICIENCY)
    assert 0.5 * saved < float(plain.time - placed.time) < saved
    assert float(placed.energy.memory) < 0.3 * float(plain.energy.memory)  # 5 pJ/byte instead of HBM's 31

    (buffer,) = placed.memory.elsewhere
    assert float(buffer.peak) == pytest.approx(float(plain.memory.weights), rel=1e-12)
    assert float(placed.memory.weights) == 0.0
    assert float(placed.memory.peak + buffer.peak) == pytest.approx(float(plain.memory.peak), rel=1e-12)
    assert float(placed.memory.excess) == pytest.approx(float(buffer.peak) / CAPACITY - 1, rel=1e-12)
    assert "elsewhere: buffer" in str(placed)
    assert "elsewhere" not in str(plain)


def test_a_level_that_holds_more_than_its_capacity_is_out_of_memory(hopper):
    small = with_level(hopper, level(Holdings(**WEIGHTS), capacity=3e9))
    memory = decode(MODEL, small, STRATEGY).memory
    assert float(memory.peak) < float(memory.capacity)
    assert float(memory.excess) == pytest.approx(float(memory.elsewhere[0].peak) / 3e9 - 1)
    assert memory.excess > 1


def test_an_engine_is_out_of_memory_where_any_level_is(hopper):
    """The KV cache of an engine lives in device memory, and the fullest memory level counts."""
    requests = Requests(rate=1.0)
    traffic = Traffic.of(requests, jnp.asarray(1.0))
    small = with_level(hopper, level(Holdings(**WEIGHTS), capacity=3e9))
    c = Configuration(MODEL, small, STRATEGY).for_inference()
    few, many = (engine_memory(c, requests, traffic, jnp.asarray(float(n))) for n in (1, 2000))
    elsewhere = float(few.elsewhere[0].peak) / 3e9 - 1
    assert elsewhere > 1
    assert float(few.peak) < float(few.capacity)
    assert float(few.excess) == pytest.approx(elsewhere)
    # Device memory is the fullest where there are sequences enough.
    assert float(many.peak) / float(many.capacity) - 1 > elsewhere
    assert float(many.excess) == pytest.approx(float(many.peak) / float(many.capacity) - 1)
    assert float(many.kv_cache) == pytest.approx(2000 * float(few.kv_cache))


@pytest.mark.slow
def test_training_leaves_storage_alone(hopper):
    """Tensors of training live in device memory, whatever levels hold in inference."""
    strategy = dp.load_strategy({"sequence_length": 1024, "global_batch": 4})
    train = jax.jit(dp.training_step)
    plain = train(MODEL, hopper, strategy)
    beside = train(MODEL, with_level(hopper, level(Holdings(**WEIGHTS)), position=3), strategy)
    assert float(beside.time) == pytest.approx(float(plain.time), rel=1e-9)
    assert float(beside.energy.memory) == pytest.approx(float(plain.energy.memory), rel=1e-9)
    assert float(beside.memory.excess) == pytest.approx(float(plain.memory.excess), rel=1e-9)


def test_requests_in_flight_bound_the_bandwidth(streaming):
    """By Little's law 64 requests of 4 KiB in 10 µs move 26 GB/s, whatever the level's bandwidth is."""
    slow = level(Holdings(**WEIGHTS), latency=10e-6, prefetch=Prefetch(tile=4096, depth=64))
    time = products(decode(MODEL, with_level(streaming, slow), STRATEGY))
    weights = float(decode(MODEL, streaming, STRATEGY).memory.weights)
    assert time == pytest.approx(weights / (64 * 4096 / 10e-6), rel=0.02)


# --- derivatives

CLASSES = ("attention_weights", "mlp_weights", "embeddings", "kv_cache", "activations")


def time_of_shares(system, relax):
    """Decode time as a function of the shares of `CLASSES` in the buffer, compiled, with its gradient."""
    placed = with_level(system, level(Holdings(), prefetch=Prefetch(tile=4096, depth=1e5)), position=2)

    def time(shares):
        paths = (f"accelerator.memory.buffer.holds.{name}" for name in CLASSES)
        return dp.decode(MODEL, replace(placed, dict(zip(paths, shares, strict=True))), STRATEGY, relax).time

    return jax.jit(jax.value_and_grad(time))


@pytest.mark.parametrize("relax", [Exact(), Smooth(30.0)], ids=["exact", "smooth"])
def test_derivatives_by_the_shares(hopper, relax):
    """They are central differences inside, and finite where all or nothing of a class lives in the buffer."""
    time, step = time_of_shares(hopper, relax), 1e-5
    middle = jnp.array([0.3, 0.4, 0.5, 0.6, 0.2])
    _, slopes = time(middle)
    for index, slope in enumerate(slopes):
        above, below = (float(time(middle.at[index].add(sign * step))[0]) for sign in (1, -1))
        assert float(slope) == pytest.approx((above - below) / (2 * step), rel=1e-5)
    for shares in (jnp.zeros(5), jnp.ones(5)):
        assert jnp.all(jnp.isfinite(time(shares)[1]))


@pytest.mark.slow
def test_shares_within_float32(hopper):
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (MODEL, hopper, STRATEGY))
    model, system, strategy = single
    buffer = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32), level(Holdings(fill={"heat": 0.5, "overflow": 0.5}))
    )

    def time(capacity):
        placed = with_level(system, dataclasses.replace(buffer, capacity=capacity))
        return dp.decode(model, placed, strategy, Smooth(jnp.float32(30.0))).time

    value, slope = jax.jit(jax.value_and_grad(time))(jnp.float32(4e9))
    assert jnp.isfinite(value)
    assert slope < 0


@pytest.mark.slow
def test_host_memory_holds_what_device_memory_lacks_room_for():
    """GH200: what 96 GB of HBM lack for Llama 70B's 141 GB and its cache is read over NVLink-C2C."""
    asked = {"phase": "decode", "devices": 1, "global_batch": 1}
    alone, with_host = (
        dp.estimate("llama-3.3-70b", name, **asked) for name in ("gh200-4", "gh200-host-memory")
    )
    assert (alone.fits, with_host.fits) == (False, True)
    (level,) = with_host.report.memory.elsewhere
    excess = float(alone.report.memory.peak - alone.report.memory.capacity)
    assert float(level.peak) == pytest.approx(excess, rel=0.01)
    # The token embedding, a look-up, is among what is read least: the rest takes its time on the link.
    embedding = 2 * 8192 * 128256
    slowest = (excess - embedding) / (0.9 * 450e9)
    assert slowest < float(with_host.report.time) < 1.2 * excess / (0.9 * 450e9)
    small = [
        float(dp.estimate("llama-3.1-8b", name, **asked).report.time)
        for name in ("gh200-4", "gh200-host-memory")
    ]
    # The cache that holds activations between kernels is counted only where all tensors live in one level.
    assert small[0] < small[1] < 1.01 * small[0]
