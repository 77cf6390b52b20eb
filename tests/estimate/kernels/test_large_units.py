"""Accelerators of few large matrix units work on many tiles at a time."""

import pytest
from helpers import tables

import diffperf as dp
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.operators import Gemms

SYSTEMS = (
    *("tpu-v3-pod", "tpu-v4-pod", "tpu-v5e-pod", "tpu-v5p-pod", "tpu-v6e-pod", "tpu-v7x-pod"),
    *("trn2", "gaudi2-8", "gaudi3-8"),
)


def _rate(system, size):
    """FLOP/s of a square product in bf16."""
    machine = Machine.of(system, dp.load_strategy({}, n_devices=1), Exact())
    product = Gemms.table({"product": (real(size), real(size), real(size), real(1.0))})
    return 2 * size**3 / float(gemm_work(product, machine.for_roles(("linear",))).time[0])


@pytest.mark.parametrize("name", SYSTEMS)
def test_large_products_reach_the_rate_of_their_units(name):
    """Products of 16,384 reach what large GEMMs do, less the part that runs beside memory. With one tile at a
    time the pipeline of a tile would hold TPU v6e at 374 TFLOP/s, while whole training steps of MaxText reach
    413 to 456 (AI-Hypercomputer/tpu-recipes, training/trillium).
    """
    system = dp.load_system(name, n_devices=1)
    bf16 = system.accelerator.matrix.bf16
    assert _rate(system, 16384.0) > 0.7 * float(bf16.rate * bf16.efficiency)
    if name == "tpu-v6e-pod":
        one = replace(system, {"accelerator.tiles_at_once": real(1.0)})
        assert _rate(one, 16384.0) < 375e12
        assert _rate(system, 16384.0) > 600e12


@pytest.mark.parametrize("name", SYSTEMS)
def test_attention_of_generated_tokens_takes_the_time_of_its_cache(name):
    """2,048 pairs of a sequence and a KV head of Llama 3 8B: their cache streams through, and the latency of
    a tile does not stand before each.
    """
    strategy = {"global_batch": 256, "sequence_length": 256, "output_length": 2}
    c = Configuration(
        dp.load_model("llama-3-8b"),
        dp.load_system(name, n_devices=1),
        dp.load_strategy(strategy, n_devices=1),
    )
    operators = tables(c, "decode")["breakdown"].operators
    place = next(index for index, each in enumerate(operators.names) if "attention core" in each)
    memory = c.system.accelerator.device_memory
    bytes_ = operators.traffic[c.system.accelerator.device_level - 1][place]
    stream = float(bytes_ / (memory.bandwidth * memory.efficiency))
    assert stream < float(operators.run_time[place]) < 1.25 * stream
