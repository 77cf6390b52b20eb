"""Which memory level serves which bytes of a kernel, where tensors live in several levels."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.hardware.memory_level import TENSOR_CLASSES, Holdings, MemoryLevel
from diffperf.relax import Exact
from diffperf.workload.operators import AttentionCore, Gemms, Streams, operators_of
from diffperf.workload.residency import Residency

M, N, K = 4.0, 4096.0, 2048.0
A, B, C = 2 * M * K, 2 * K * N, 2 * M * N  # bytes, of 16-bit elements
LEVELS = ("smem", "l2", "hbm", "storage")


def level(name: str, kind: str = "", latency: float = 1e-7) -> MemoryLevel:
    holds = Holdings() if kind == "storage" else None
    return MemoryLevel(
        name=name, capacity=1e9, bandwidth=1e12, latency=latency, energy=1e-11, kind=kind, holds=holds
    )


def machine(shares: dict[str, dict[str, float]]) -> Machine:
    """A device with storage beside HBM; `shares` of a class by the name of the level, the rest in HBM."""
    system = dp.load_system("dgx-h100", n_devices=1)
    memory = (level("smem"), level("l2"), level("hbm"), level("storage", "storage", latency=1e-3))
    system = dataclasses.replace(system, accelerator=dataclasses.replace(system.accelerator, memory=memory))
    table = np.zeros((4, len(TENSOR_CLASSES)))
    for name, by_class in shares.items():
        for of_what, share in by_class.items():
            table[LEVELS.index(name), TENSOR_CLASSES.index(of_what)] = share
    table[LEVELS.index("hbm")] = 1 - table.sum(axis=0)
    residency = Residency(shares=jnp.asarray(table), stored=jnp.zeros_like(jnp.asarray(table)))
    return Machine.of(system, dp.load_strategy({}), Exact(), serving=True, residency=residency)


def work(table, shares):
    return evaluate([operators_of(table, part="matmul", names=("kernel",))], machine(shares)).total()


@pytest.mark.parametrize(
    ("role", "of_what"),
    [
        ("attention", "attention_weights"),
        ("linear", "mlp_weights"),
        ("expert", "expert_weights"),
        ("head", "embeddings"),
        ("cache", "kv_cache"),
    ],
)
def test_every_level_serves_the_part_of_a_product_that_lives_in_it(role, of_what):
    """A quarter of B in storage, half in the L2 cache: HBM serves the rest, and A and C."""
    gemm = Gemms.table({"kernel": (M, N, K, 1.0)}, {"kernel": role})
    l2, hbm, storage = work(gemm, {"storage": {of_what: 0.25}, "l2": {of_what: 0.5}}).traffic
    assert float(storage) == pytest.approx(0.25 * B)
    assert float(hbm) == pytest.approx(0.25 * B + A + C)
    # The cache passes on all but what lives in storage beside it or beyond: here everything.
    assert float(l2) >= A + B + C
    other = "linear" if role == "attention" else "attention"
    elsewhere = Gemms.table({"kernel": (M, N, K, 1.0)}, {"kernel": other})
    assert float(work(elsewhere, {"storage": {of_what: 0.25}}).traffic[2]) == 0.0


def test_a_cache_does_not_serve_what_lives_inside_it():
    gemm = Gemms.table({"kernel": (M, N, K, 1.0)})
    l2, hbm, _ = work(gemm, {"smem": {"mlp_weights": 1.0}}).traffic
    assert float(hbm) == pytest.approx(A + C)
    assert float(l2) < B


def test_streams_move_at_the_bandwidth_of_the_levels_that_hold_activations():
    """Two levels of one bandwidth share a stream: each takes half the time, together 2^(1/4) of that."""
    stream = Streams.table({"kernel": 1e9})
    time = float(work(stream, {}).time)
    halved = work(stream, {"storage": {"activations": 0.5}})
    overhead = float(machine({}).kernel_overhead)
    assert list(halved.traffic) == pytest.approx([1e9, 0.5e9, 0.5e9])
    per_level = 1e9 / (0.85 * 1e12) / 2
    latency = (1e-7 + 1e-3) / 2
    assert float(halved.time) == pytest.approx(2**0.25 * per_level + latency + overhead, rel=1e-6)
    assert time == pytest.approx(2 * per_level + 1e-7 + overhead, rel=1e-6)


def test_a_kernel_does_not_wait_for_a_level_that_it_reads_nothing_from():
    """Storage of 1 ms latency beside HBM: only the product whose weights live there takes a millisecond."""
    rows = {"kernel": (M, N, K, 1.0)}
    here = work(Gemms.table(rows, {"kernel": "attention"}), {"storage": {"mlp_weights": 1.0}})
    there = work(Gemms.table(rows), {"storage": {"mlp_weights": 1.0}})
    assert float(here.time) < 1e-4 < 9e-4 < float(there.time)


def test_attention_reads_its_cache_from_where_it_lives():
    core = AttentionCore(
        sequences=jnp.array([1.0]), queries=jnp.array([1.0]), context=jnp.array([4096.0]),
        heads=jnp.array([32.0]), kv_heads=jnp.array([8.0]), head_dim=jnp.array([128.0]),
    )  # fmt: skip
    operators = operators_of(core, part="attention", kernel="generation attention", names=("kernel",))
    traffic = [
        evaluate([operators], machine(shares)).total().traffic
        for shares in ({}, {"storage": {"kv_cache": 1.0}})
    ]
    kv_bytes = 2 * 2 * 8 * 128 * 4096
    assert float(traffic[1][2]) == pytest.approx(kv_bytes)
    assert float(traffic[0][1] - traffic[1][1]) == pytest.approx(kv_bytes)
