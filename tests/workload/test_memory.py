"""The memory footprint against Korthikanti et al. (arXiv 2205.05198) and ZeRO (arXiv 1910.02054), written out again here."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.memory import (
    inference_memory,
    kv_cache_bytes,
    layer_activation_bytes,
    stage_parameters,
    training_memory,
)
from diffperf.workload.schedule import in_flight

A, H, LAYERS = 96, 12288, 96  # heads, hidden, layers of GPT-3 175B
PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "gathered",
    "buffers",
    "kv_cache",
    "fragmentation",
    "reserve",
)
SHAPES = [(1, 2048, 1), (4, 2048, 8), (2, 1024, 4)]  # micro-batch b, sequence s, tensor parallel t


def _layer(gpt, b, s, t, **choices):
    strategy = dp.load_strategy({"tp": t, "micro_batch": b, "sequence_length": s, "attention": "standard", **choices})
    return float(layer_activation_bytes(gpt.layers[0], gpt, strategy))


@pytest.mark.parametrize(("b", "s", "t"), SHAPES)
class TestActivationsOfOneLayer:
    """Table 2 of arXiv 2205.05198."""

    def test_tensor_parallel(self, gpt, b, s, t):
        expected = s * b * H * (10 + 24 / t + 5 * A * s / (H * t))
        assert _layer(gpt, b, s, t, sequence_parallel=False) == pytest.approx(expected, rel=1e-12)

    def test_sequence_parallel(self, gpt, b, s, t):
        expected = s * b * H / t * (34 + 5 * A * s / H)
        assert _layer(gpt, b, s, t) == pytest.approx(expected, rel=1e-12)

    def test_selective_recomputation(self, gpt, b, s, t):
        assert _layer(gpt, b, s, t, recompute="selective") == pytest.approx(34 * s * b * H / t, rel=1e-12)
        outside = s * b * H * (10 + 24 / t)
        assert _layer(gpt, b, s, t, recompute="selective", sequence_parallel=False) == pytest.approx(outside, rel=1e-12)

    def test_full_recomputation(self, gpt, b, s, t):
        """Only the layer's input, 2·s·b·h."""
        assert _layer(gpt, b, s, t, recompute="full", sequence_parallel=False) == pytest.approx(2 * s * b * H, rel=1e-12)
        assert _layer(gpt, b, s, t, recompute="full") == pytest.approx(2 * s * b * H / t, rel=1e-12)

    def test_flash_attention_keeps_no_scores(self, gpt, b, s, t):
        assert _layer(gpt, b, s, t, attention="flash") == _layer(gpt, b, s, t, recompute="selective")

    def test_weights_interpolate(self, gpt, b, s, t):
        mixed = _layer(gpt, b, s, t, recompute={"none": 0.25, "full": 0.75})
        expected = 0.25 * _layer(gpt, b, s, t) + 0.75 * _layer(gpt, b, s, t, recompute="full")
        assert mixed == pytest.approx(expected, rel=1e-12)


def test_gated_mlp_and_grouped_queries_by_tensor(llama):
    """Stored, 2 bytes each: inputs of norms, of QKV and of the MLP; Q, K, V and attention output; gate, up and their product."""
    layers = replace(llama.layers[0], {"kv_heads": 8})
    strategy = dp.load_strategy({"micro_batch": 3, "sequence_length": 100, "sequence_parallel": False})
    h, kv, ffn = 4096, 8 * 128, 11008
    elements = 4 * h + (h + 2 * kv + h) + 3 * ffn
    assert float(layer_activation_bytes(layers, llama, strategy)) == pytest.approx(300 * 2 * elements, rel=1e-12)


@pytest.mark.parametrize(
    ("table", "held"),
    [
        ({"pp": 1, "global_batch": 32}, 1),
        ({"pp": 8, "global_batch": 32}, 8),  # 1F1B: as many as stages
        ({"pp": 8, "global_batch": 3}, 3),  # never more than there are
        ({"pp": 8, "virtual_stages": 4, "global_batch": 32}, 8 + 7 / 4),  # L·(1 + (p − 1)/(p·m)): arXiv 2205.05198 §4.2.3
        ({"pp": 8, "virtual_stages": 2, "global_batch": 32}, 8 + 7 / 2),
    ],
)
def test_micro_batches_in_flight(table, held):
    assert float(in_flight(dp.load_strategy(table), Exact())) == pytest.approx(held)


def test_activations_of_the_first_stage(gpt, system):
    """All p micro-batches of the layers of one stage: s·b·h·L/t·(34 + 5as/h)·(1 + (p − 1)/(p·m)) (Equation 5 and §4.2.3)."""
    t, p, m, s, b = 8, 8, 3, 2048, 1
    strategy = dp.load_strategy(
        {"tp": t, "pp": p, "virtual_stages": m, "global_batch": 64, "micro_batch": b, "attention": "standard"}
    )
    expected = s * b * H * LAYERS / t * (34 + 5 * A * s / H) * (1 + (p - 1) / (p * m))
    assert float(training_memory(gpt, system, strategy, Exact()).activations) == pytest.approx(expected, rel=1e-12)


def test_one_stage_holds_the_logits_as_well(gpt, system):
    """Activations of all layers, scores of the one that computes them again, and, on the same device, logits in 2 and 4 bytes."""
    s, v, t = 2048, 51200, 8
    strategy = dp.load_strategy({"tp": t, "recompute": "selective", "attention": "standard"})
    memory = training_memory(gpt, system, strategy, Exact())
    assert float(memory.activations) == pytest.approx(s * H * LAYERS * 34 / t + 5 * A * s**2 / t, rel=1e-12)
    assert float(memory.logits) == pytest.approx(s * v / t * 6, rel=1e-12)


def test_full_recomputation_works_on_one_layer_at_a_time(gpt, system):
    s, p, t = 2048, 8, 8
    strategy = dp.load_strategy(
        {"tp": t, "pp": p, "recompute": "full", "global_batch": 64, "attention": "standard", "sequence_parallel": False}
    )
    kept = 2 * s * H * LAYERS  # p micro-batches of L/p layers
    working = s * H * (10 + 24 / t + 5 * A * s / (H * t))
    assert float(training_memory(gpt, system, strategy, Exact()).activations) == pytest.approx(kept + working, rel=1e-12)


@pytest.mark.parametrize("dp_degree", [1, 4, 64])
def test_zero_shards_the_optimizer(gpt, system, dp_degree):
    """16Ψ without ZeRO and 4Ψ + 12Ψ/N at stage 1, with 2-byte gradients (arXiv 1910.02054 §5)."""
    table = {"tp": 8, "pp": 8, "dp": dp_degree, "global_batch": 64, "gradient_precision": "bf16"}
    for stage, bytes_ in (("0", 16), ("1", 4 + 12 / dp_degree)):
        strategy = dp.load_strategy({**table, "zero": stage})
        memory = training_memory(gpt, system, strategy, Exact())
        parameters = float(stage_parameters(gpt, strategy, Exact()).total)
        states = float(memory.weights + memory.gradients + memory.optimizer)
        assert states == pytest.approx(bytes_ * parameters, rel=1e-12)


def test_parameters_of_a_stage(gpt):
    one = dp.load_strategy({})
    # All but the final norm: the fullest device of many stages has the embeddings, and one stage has everything.
    assert float(stage_parameters(gpt, one, Exact()).total) == pytest.approx(float(gpt.parameters), rel=1e-6)
    split = dp.load_strategy({"tp": 8, "pp": 8})
    layers, embedding = 12 * LAYERS * H**2 + 13 * LAYERS * H, 51200 * H
    assert float(stage_parameters(gpt, split, Exact()).total) == pytest.approx((layers / 8 + embedding) / 8 + 2048 * H, rel=1e-12)


def test_untied_embeddings_count_twice_on_one_stage(llama):
    one = dp.load_strategy({})
    assert float(stage_parameters(llama, one, Exact()).total) == pytest.approx(float(llama.parameters), rel=1e-6)


def test_kv_cache(llama):
    """2·layers·heads·dim·2 bytes a token: 512 KiB for Llama-2 7B in 16 bits, over tensor- and pipeline-parallel devices."""
    strategy = dp.load_strategy({"global_batch": 4})
    assert float(kv_cache_bytes(llama, strategy, real(1000))) == 4 * 1000 * 512 * 1024
    split = dp.load_strategy({"tp": 2, "pp": 4, "dp": 2, "global_batch": 4, "kv_precision": "fp8"})
    assert float(kv_cache_bytes(llama, split, real(1000))) == 4 * 1000 * 512 * 1024 / 2 / 2 / 8


def test_grouped_queries_shrink_the_kv_cache():
    """Llama-2 70B: 80 layers, 8 KV heads of 128."""
    model = dp.load_model("llama-2-70b")
    assert float(kv_cache_bytes(model, dp.load_strategy({}), real(1))) == 2 * 80 * 8 * 128 * 2


def test_footprints_add_up(gpt, llama, system, strategy):
    for memory in (
        training_memory(gpt, system, strategy, Exact()),
        inference_memory(llama, system, dp.load_strategy({"global_batch": 16}), Exact()),
    ):
        parts = [getattr(memory, name) for name in PARTS]
        assert float(memory.peak) == pytest.approx(sum(map(float, parts)), rel=1e-12)
        assert float(memory.capacity) == float(system.accelerator.device_memory.capacity)
        assert float(memory.excess) == pytest.approx(float(memory.peak) / float(memory.capacity) - 1)
        assert all(float(part) >= 0 for part in parts)


def test_inference_holds_weights_and_cache_at_the_end(llama, system):
    strategy = dp.load_strategy({"global_batch": 16, "sequence_length": 200, "output_length": 300})
    memory = inference_memory(llama, system, strategy, Exact())
    assert float(memory.weights) == pytest.approx(2 * float(llama.parameters), rel=1e-6)
    assert float(memory.kv_cache) == 16 * 500 * 512 * 1024
    assert float(memory.gradients) == float(memory.optimizer) == 0


def test_more_parallelism_never_needs_more_memory_per_device(gpt, system):
    peaks = []
    for t in (1, 2, 4, 8):
        strategy = dp.load_strategy({"tp": t, "pp": 8, "global_batch": 64})
        peaks.append(float(training_memory(gpt, system, strategy, Exact()).peak))
    assert np.all(np.diff(peaks) < 0)
