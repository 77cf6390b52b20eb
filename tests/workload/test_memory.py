"""The memory footprint against Korthikanti et al. (arXiv 2205.05198) and ZeRO (arXiv 1910.02054), whose
formulas are written out here.
"""

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.activations import layer_activations
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import inference_memory, training_memory
from diffperf.workload.schedule import in_flight
from diffperf.workload.stage_parameters import stage_parameters

# Compiled once for each structure of models: their operations are many and small.
_training_memory = jax.jit(training_memory)
_stage_parameters = jax.jit(stage_parameters)

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
    strategy = dp.load_strategy(
        {"tp": t, "micro_batch": b, "sequence_length": s, "attention": "standard", **choices}
    )
    return float(layer_activations(gpt.layers[0], gpt, strategy).kept)


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
        assert _layer(gpt, b, s, t, recompute="selective", sequence_parallel=False) == pytest.approx(
            outside, rel=1e-12
        )

    def test_full_recomputation(self, gpt, b, s, t):
        """Only the layer's input, 2·s·b·h."""
        assert _layer(gpt, b, s, t, recompute="full", sequence_parallel=False) == pytest.approx(
            2 * s * b * H, rel=1e-12
        )
        assert _layer(gpt, b, s, t, recompute="full") == pytest.approx(2 * s * b * H / t, rel=1e-12)

    def test_flash_attention_keeps_no_scores(self, gpt, b, s, t):
        assert _layer(gpt, b, s, t, attention="flash") == _layer(gpt, b, s, t, recompute="selective")

    def test_weights_interpolate(self, gpt, b, s, t):
        mixed = _layer(gpt, b, s, t, recompute={"none": 0.25, "full": 0.75})
        expected = 0.25 * _layer(gpt, b, s, t) + 0.75 * _layer(gpt, b, s, t, recompute="full")
        assert mixed == pytest.approx(expected, rel=1e-12)


def test_a_softmax_that_is_not_fused_keeps_its_output_in_fp32(gpt):
    """Its gradient reads it: 4·a·s²·b/t bytes more, where sequences times heads are no multiple of four."""
    stack = dp.load_system("dgx-a100", n_devices=96, stack="megatron-lm").stack
    for t, further in ((24, 0), (32, 4), (48, 4)):
        strategy = dp.load_strategy({"tp": t, "sequence_length": 128, "attention": "standard"})
        fused, found = (layer_activations(gpt.layers[0], gpt, strategy, of) for of in (None, stack))
        expected = float(fused.kept) + further * 96 / t * 128**2
        assert float(found.kept) == pytest.approx(expected, rel=1e-12)


def test_gated_mlp_and_grouped_queries_by_tensor(llama):
    """Stored, 2 bytes each: inputs of norms, of QKV and of the MLP; Q, K, V and attention output; gate, up
    and their product.
    """
    layers = replace(llama.layers[0], {"kv_heads": 8})
    strategy = dp.load_strategy({"micro_batch": 3, "sequence_length": 100, "sequence_parallel": False})
    h, kv, ffn = 4096, 8 * 128, 11008
    elements = 4 * h + (h + 2 * kv + h) + 3 * ffn
    assert float(layer_activations(layers, llama, strategy).kept) == pytest.approx(
        300 * 2 * elements, rel=1e-12
    )


@pytest.mark.parametrize(
    ("table", "held"),
    [
        ({"pp": 1, "global_batch": 32}, 1),
        ({"pp": 8, "global_batch": 32}, 8),  # 1F1B: as many as stages
        ({"pp": 8, "global_batch": 3}, 3),  # never more than there are
        (
            {"pp": 8, "virtual_stages": 4, "global_batch": 32},
            8 + 7 / 4,
        ),  # L·(1 + (p − 1)/(p·m)): arXiv 2205.05198 §4.2.3
        ({"pp": 8, "virtual_stages": 2, "global_batch": 32}, 8 + 7 / 2),
    ],
)
def test_micro_batches_in_flight(table, held):
    assert float(in_flight(dp.load_strategy(table), Exact())) == pytest.approx(held)


def test_activations_of_the_first_stage(gpt, system):
    """All p micro-batches of the layers of one stage: s·b·h·L/t·(34 + 5as/h)·(1 + (p − 1)/(p·m)) (Equation 5
    and §4.2.3).
    """
    t, p, m, s, b = 8, 8, 3, 2048, 1
    strategy = dp.load_strategy(
        {"tp": t, "pp": p, "virtual_stages": m, "global_batch": 64, "micro_batch": b, "attention": "standard"}
    )
    expected = s * b * H * LAYERS / t * (34 + 5 * A * s / H) * (1 + (p - 1) / (p * m))
    assert float(_training_memory(Configuration(gpt, system, strategy)).activations) == pytest.approx(
        expected, rel=1e-12
    )


def test_one_stage_holds_the_logits_as_well(gpt, system):
    """Activations of all layers, scores of the one that computes them again, and, on the same device, logits
    in 2 and 4 bytes.
    """
    s, v, t = 2048, 51200, 8
    strategy = dp.load_strategy({"tp": t, "recompute": "selective", "attention": "standard"})
    memory = _training_memory(Configuration(gpt, system, strategy))
    assert float(memory.activations) == pytest.approx(s * H * LAYERS * 34 / t + 5 * A * s**2 / t, rel=1e-12)
    assert float(memory.logits) == pytest.approx(s * v / t * 6, rel=1e-12)


def test_full_recomputation_works_on_one_layer_at_a_time(gpt, system):
    s, p, t = 2048, 8, 8
    strategy = dp.load_strategy(
        {
            "tp": t,
            "pp": p,
            "recompute": "full",
            "global_batch": 64,
            "attention": "standard",
            "sequence_parallel": False,
        }
    )
    kept = 2 * s * H * LAYERS  # p micro-batches of L/p layers
    working = s * H * (10 + 24 / t + 5 * A * s / (H * t))
    assert float(_training_memory(Configuration(gpt, system, strategy)).activations) == pytest.approx(
        kept + working, rel=1e-12
    )


# 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N with 2-byte weights and gradients and 12-byte optimizer state (arXiv
# 1910.02054 §5).
ZERO = {"0": lambda n: 16.0, "1": lambda n: 4 + 12 / n, "2": lambda n: 2 + 14 / n, "3": lambda n: 16 / n}
STATES = ("weights", "gradients", "optimizer")


def _states(model, system, strategy) -> float:
    memory = _training_memory(Configuration(model, system, strategy))
    return sum(float(getattr(memory, name)) for name in STATES)


@pytest.mark.parametrize("stage", ZERO)
@pytest.mark.parametrize("dp_degree", [1, 4, 64])
def test_zero_shards_model_states(gpt, system, dp_degree, stage):
    table = {"tp": 8, "dp": dp_degree, "global_batch": 64, "gradient_precision": "bf16"}
    strategy = dp.load_strategy({**table, "zero": stage})
    parameters = float(_stage_parameters(gpt, strategy, Exact()).total)
    assert _states(gpt, system, strategy) == pytest.approx(ZERO[stage](dp_degree) * parameters, rel=1e-12)


@pytest.mark.parametrize(("stage", "gigabytes"), [("0", 120), ("1", 31.4), ("2", 16.6), ("3", 1.88)])
def test_the_example_of_zero(system, stage, gigabytes):
    """Figure 1 of arXiv 1910.02054: 7.5 billion parameters on 64 devices."""
    model = dp.load_model("gpt-7.5b")
    assert float(model.parameters) == pytest.approx(7.5e9, rel=0.01)
    strategy = dp.load_strategy({"dp": 64, "global_batch": 64, "gradient_precision": "bf16", "zero": stage})
    parameters = float(_stage_parameters(model, strategy, Exact()).total)
    assert _states(model, system, strategy) * 7.5e9 / parameters / 1e9 == pytest.approx(gigabytes, rel=3e-3)


@pytest.mark.parametrize("ranks", [2, 8, 0])
def test_hybrid_sharding_shares_among_some_ranks(llama, system, ranks):
    """FSDP's hybrid shard (arXiv 2304.11277 §3.2.2): 16Ψ over as many ranks as share; context-parallel ranks
    share as well.
    """
    table = {
        "dp": 8,
        "cp": 2,
        "global_batch": 64,
        "gradient_precision": "bf16",
        "zero": "3",
        "zero_ranks": ranks,
    }
    strategy = dp.load_strategy(table)
    parameters = float(_stage_parameters(llama, strategy, Exact()).total)
    assert _states(llama, system, strategy) == pytest.approx(16 / (ranks or 16) * parameters, rel=1e-12)


def test_zero_three_gathers_layers(llama, system):
    """The weights of two layers and the gradients of one, at 2 bytes; those of a single layer where
    the next is not fetched early. FSDP's root module keeps embeddings and vocabulary projection, and the
    gradients of the latter come first.
    """
    layer, ends = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096, 3 * 32000 * 4096
    table = {"dp": 8, "global_batch": 8, "zero": "3", "gradient_precision": "bf16"}
    for early, layers in ((True, 3), (False, 2)):
        strategy = dp.load_strategy(table | {"overlap_weights": early})
        assert float(_training_memory(Configuration(llama, system, strategy)).gathered) == pytest.approx(
            2 * (layers * layer + ends), rel=1e-12
        )
    assert float(_training_memory(Configuration(llama, system, dp.load_strategy({}))).gathered) == 0


def test_tied_embeddings_are_gathered_once(llama, system):
    table = {"dp": 8, "global_batch": 8, "zero": "3", "gradient_precision": "bf16"}
    alone, sharing = (
        float(_training_memory(Configuration(model, system, dp.load_strategy(table))).gathered)
        for model in (llama, replace(llama, {"tied_embeddings": True}))
    )
    assert alone - sharing == pytest.approx(2 * 32000 * 4096, rel=1e-12)


def test_experts_are_shared_by_ranks_of_their_own(system):
    """Mixtral on 8 ranks of two experts' tensor parallelism and four of expert parallelism, ZeRO-1 over what
    holds the same.
    """
    model = dp.load_model("mixtral-8x7b")
    table = {
        "tp": 4,
        "dp": 8,
        "ep": 4,
        "expert_tp": 2,
        "global_batch": 64,
        "zero": "1",
        "gradient_precision": "bf16",
    }
    strategy = dp.load_strategy(table)
    experts = 32 * 8 * 3 * 4096 * 14336 / (2 * 4)
    attention = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096
    routers = 32 * 4096 * 8  # whole on every rank
    dense = (32 * (attention + 2 * 4096) + 2 * 32000 * 4096) / 4 + routers
    parts = _stage_parameters(model, strategy, Exact())
    assert (float(parts.dense), float(parts.experts)) == pytest.approx((dense, experts), rel=1e-12)
    # 8 data-parallel ranks hold the same of all but the experts, 4·8 / (2·4) the same experts.
    expected = 4 * (dense + experts) + 12 * (dense / 8 + experts / 4)
    assert _states(model, system, strategy) == pytest.approx(expected, rel=1e-12)


# --- stages, offloading, recomputation in part

T, P, S = 8, 8, 2048
BASE = {"tp": T, "pp": P, "global_batch": 64}
FLASH = S * H * 34 / T  # bytes a layer keeps without scores
RESIDUAL = S * H * 2


def _memory(gpt, system, **choices):
    return _training_memory(Configuration(gpt, system, dp.load_strategy(BASE | choices)))


def test_stages_by_hand(gpt, system):
    """First: embeddings, p micro-batches; middle: 1 + (p − 1)/2; last: the tied embedding again, one, and
    logits in 2 + 4 bytes.
    """
    layers = LAYERS / P * (12 * H**2 + 13 * H) / T
    tables = 51200 * H / T, 2048 * H
    buffers = RESIDUAL + 2 * RESIDUAL / T  # the gathered input; received activations and gradients
    parameters = [layers + sum(tables), layers, layers + tables[0]]
    logits = [0, 0, S * 51200 / T * 6]
    reserve = float(system.stack.memory_reserve)
    for schedule, held in (
        ("1f1b", (P, 1 + (P - 1) / 2, 1)),
        ("gpipe", (64, 64, 64)),
        ("zero_bubble", (P, P, P)),
    ):
        stages = _memory(gpt, system, schedule=schedule).stages
        expected = [
            18 * own + FLASH * LAYERS / P * many + buffers + last
            for own, many, last in zip(parameters, held, logits, strict=True)
        ]
        assert [float(getattr(stages, name)) for name in ("first", "middle", "last")] == pytest.approx(
            expected, rel=1e-12
        )
        assert float(_memory(gpt, system, schedule=schedule).peak) == pytest.approx(
            max(expected) + reserve, rel=1e-12
        )


def test_dualpipe_holds_two_stages(gpt, system):
    """Twice the weights and gradients, p + 1 micro-batches on every stage (arXiv 2412.19437, Table 2).

    The two devices at the ends hold the first and the last stage, and share the optimizer states.
    """
    memory = _memory(gpt, system, schedule="dualpipe")
    layers, activations = LAYERS / P * (12 * H**2 + 13 * H) / T, (P + 1) * FLASH * LAYERS / P
    ends = 2 * layers + 2 * 51200 * H / T + 2048 * H  # with the embedding, its tied copy, and positions
    for name, expected in (
        ("weights", 2 * ends),
        ("gradients", 4 * ends),
        ("optimizer", 6 * ends),
        ("activations", activations),
        ("logits", S * 51200 / T * 6),
    ):
        assert float(getattr(memory, name)) == pytest.approx(expected, rel=1e-12), name
    buffers = RESIDUAL + 2 * RESIDUAL / T
    middle = 24 * layers + activations + buffers  # 2·(2 + 4) and 12 bytes
    assert float(memory.stages.middle) == pytest.approx(middle, rel=1e-12)
    assert float(memory.stages.first) == pytest.approx(float(memory.stages.last), rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_offloading_keeps_one_layer_at_work(gpt, system, share):
    """What is not on the host, and of one layer what comes back from there."""
    memory = _memory(gpt, system, offload_activations=share)
    assert float(memory.activations) == pytest.approx((1 - share) * FLASH * LAYERS + share * FLASH, rel=1e-12)
    memory = _memory(gpt, system, offload_optimizer=share)
    assert float(memory.optimizer) == pytest.approx(
        (1 - share) * float(_memory(gpt, system).optimizer), rel=1e-12
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_recomputation_of_some_layers(gpt, system, share):
    """A share keeps its input alone (full) or all but scores (selective), the others everything; one layer is
    at work.
    """
    scores = 5 * A * S**2 / T
    memory = _memory(gpt, system, recompute="full", recompute_share=share)
    kept = share * RESIDUAL / T + (1 - share) * FLASH
    assert float(memory.activations) == pytest.approx(LAYERS * kept + share * FLASH, rel=1e-12)
    memory = _memory(gpt, system, recompute="selective", recompute_share=share, attention="standard")
    kept = FLASH + (1 - share) * scores
    assert float(memory.activations) == pytest.approx(LAYERS * kept + share * scores, rel=1e-12)


def test_parameters_of_a_stage(gpt):
    alone = dp.load_strategy({})
    # All but the final norm: the fullest device of many stages has the embeddings, and one stage has
    # everything.
    assert float(_stage_parameters(gpt, alone, Exact()).total) == pytest.approx(
        float(gpt.parameters), rel=1e-6
    )
    split = dp.load_strategy({"tp": 8, "pp": 8})
    layers, embedding = 12 * LAYERS * H**2 + 13 * LAYERS * H, 51200 * H
    assert float(_stage_parameters(gpt, split, Exact()).total) == pytest.approx(
        (layers / 8 + embedding) / 8 + 2048 * H, rel=1e-12
    )


def test_untied_embeddings_count_twice_on_one_stage(llama):
    alone = dp.load_strategy({})
    assert float(_stage_parameters(llama, alone, Exact()).total) == pytest.approx(
        float(llama.parameters), rel=1e-6
    )


def test_footprints_add_up(gpt, llama, system, strategy):
    for memory in (
        _training_memory(Configuration(gpt, system, strategy)),
        inference_memory(Configuration(llama, system, dp.load_strategy({"global_batch": 16}))),
    ):
        parts = [getattr(memory, name) for name in PARTS]
        assert float(memory.peak) == pytest.approx(sum(map(float, parts)), rel=1e-12)
        assert float(memory.capacity) == float(system.accelerator.device_memory.capacity)
        assert float(memory.excess) == pytest.approx(float(memory.peak) / float(memory.capacity) - 1)
        assert all(float(part) >= 0 for part in parts)


def test_more_parallelism_never_needs_more_memory_per_device(gpt, system):
    peaks = []
    for t in (1, 2, 4, 8):
        strategy = dp.load_strategy({"tp": t, "pp": 8, "global_batch": 64})
        peaks.append(float(_training_memory(Configuration(gpt, system, strategy)).peak))
    assert np.all(np.diff(peaks) < 0)
