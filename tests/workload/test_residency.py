"""Where tensors live: given shares, filling by heat, overflow of device memory, room left for reuse."""

import dataclasses

import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.hardware.memory_level import TENSOR_CLASSES, Holdings, MemoryLevel
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import inference_residency, tensor_bytes
from diffperf.workload.residency import residency

BYTES = {
    "activations": 1e9,
    "attention_weights": 2e9,
    "mlp_weights": 4e9,
    "kv_cache": 3e9,
    "expert_weights": 0.0,
    "embeddings": 1e9,
}


def level(name: str, capacity: float, kind: str = "", **holds) -> MemoryLevel:
    return MemoryLevel(
        name=name, capacity=capacity, bandwidth=1e12, latency=1e-7, energy=1e-11, kind=kind,
        holds=Holdings(**holds) if holds else None,
    )  # fmt: skip


def placed(*storage: MemoryLevel, hbm: float = 100e9, l2: MemoryLevel | None = None, relax=None):
    """Shares by level and class on a device with more levels, and the residency itself."""
    system = dp.load_system("dgx-h100", n_devices=1)
    memory = (level("smem", 3e7), l2 or level("l2", 5e7), level("hbm", hbm), *storage)
    system = dataclasses.replace(system, accelerator=dataclasses.replace(system.accelerator, memory=memory))
    system = replace(system, {"stack.memory_reserve": 1e6, "stack.fragmentation": 1.0})
    found = residency(system, {name: jnp.asarray(bytes_) for name, bytes_ in BYTES.items()}, relax or Exact())
    shares = {
        str(level.name): dict(zip(TENSOR_CLASSES, map(float, row), strict=True))
        for level, row in zip(memory, found.shares, strict=True)
    }
    return shares, found, system


def test_device_memory_holds_what_no_level_holds():
    shares, found, _ = placed(level("hbs", 1e12, "storage", mlp_weights=0.75, embeddings=1.0))
    assert shares["hbs"]["mlp_weights"] == 0.75
    assert shares["hbm"]["mlp_weights"] == 0.25
    assert shares["hbs"]["embeddings"] == 1.0
    assert shares["hbm"]["embeddings"] == 0.0
    assert shares["hbm"]["kv_cache"] == 1.0
    assert shares["l2"]["kv_cache"] == 0.0
    assert float(found.stored[3].sum()) == pytest.approx(0.75 * 4e9 + 1e9)
    assert found.shares.sum(axis=0) == pytest.approx(1.0)


def test_levels_that_claim_more_than_all_share_it():
    shares, _, _ = placed(
        level("a", 1e12, "storage", kv_cache=1.0), level("b", 1e12, "storage", kv_cache=0.5)
    )
    assert shares["a"]["kv_cache"] == pytest.approx(2 / 3)
    assert shares["b"]["kv_cache"] == pytest.approx(1 / 3)
    assert shares["hbm"]["kv_cache"] == pytest.approx(0.0)


def test_filling_by_heat():
    """5 GB take the 2 GB of attention weights and three of the 4 GB of the MLPs, and no activations."""
    shares, found, _ = placed(level("sram", 5e9, "storage", fill="heat"))
    expected = {"activations": 0, "attention_weights": 1, "mlp_weights": 0.75, "kv_cache": 0, "embeddings": 0}
    assert {name: shares["sram"][name] for name in expected} == pytest.approx(expected)
    assert float(found.stored[3].sum()) == pytest.approx(5e9)


def test_filling_by_heat_takes_what_given_shares_and_inner_levels_leave():
    first = level("first", 2e9, "storage", fill="heat")
    second = level("second", 1e12, "storage", fill="heat", room=0.002)
    given = level("given", 1e12, "storage", activations=1.0)
    shares, _, _ = placed(first, second, given)
    assert shares["first"]["attention_weights"] == pytest.approx(1.0)
    assert shares["second"]["mlp_weights"] == pytest.approx(0.5)
    assert shares["given"]["activations"] == 1.0


def test_overflow_takes_the_coldest_tensors_that_device_memory_has_no_room_for():
    """Of 11 GB, 8 GB stay: the embeddings (1 GB) leave, and two of three gigabytes of the KV cache."""
    shares, found, _ = placed(level("host", 1e12, "storage", fill="overflow"), hbm=8e9 + 1e6)
    assert shares["host"]["embeddings"] == pytest.approx(1.0)
    assert shares["host"]["kv_cache"] == pytest.approx(2 / 3)
    assert shares["host"]["mlp_weights"] == pytest.approx(0.0)
    assert float(found.stored[2].sum()) == pytest.approx(8e9)


def test_smooth_filling_approaches_the_exact():
    buffer = level("sram", 5e9, "storage", fill="heat")
    exact = placed(buffer)[1].shares
    errors = [
        float(jnp.abs(placed(buffer, relax=Smooth(sharpness))[1].shares - exact).max())
        for sharpness in (8.0, 100.0)
    ]
    assert errors[1] < 0.005 < errors[0] < 0.1


def test_a_cache_that_holds_tensors_has_less_room_for_reuse():
    _, found, system = placed(l2=level("l2", 4e9, attention_weights=0.5))
    free = found.free_capacities(system.accelerator, Exact())
    assert [float(bytes_) for bytes_ in free[:2]] == pytest.approx([3e7, 3e9])
    _, found, system = placed(l2=level("l2", 4e9, mlp_weights=1.0))
    assert float(found.free_capacities(system.accelerator, Exact())[1]) == pytest.approx(0.05 * 4e9)


@pytest.mark.parametrize("model", ["llama-3.2-3b", "mixtral-8x7b", "deepseek-v2"])
def test_classes_of_weights_are_all_weights(model):
    """In 16 bits every parameter is two bytes, whichever class it belongs to."""
    c = Configuration(dp.load_model(model), dp.load_system("dgx-h100", n_devices=1), dp.load_strategy({}))
    classes = tensor_bytes(c)
    weights = sum(float(classes[name]) for name in classes if "weights" in name or name == "embeddings")
    assert weights == pytest.approx(2 * float(c.model.parameters), rel=1e-3)
    assert (float(classes["expert_weights"]) > 0) == (model != "llama-3.2-3b")
    assert inference_residency(c) is None
