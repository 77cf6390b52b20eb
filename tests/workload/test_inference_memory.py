"""The memory of inference: weights and KV cache of the fullest stage, by hand and from published files."""

import pytest

import diffperf as dp
from diffperf.quantity import real
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import inference_memory, kv_cache_bytes


def _kv_cache_bytes(model, system, context, **strategy):
    """Bytes of the KV cache of sequences of `context` tokens."""
    return float(kv_cache_bytes(Configuration(model, system, dp.load_strategy(strategy)), real(context)))


def test_kv_cache(llama, system):
    """2·layers·heads·dim·2 bytes a token: 512 KiB for Llama-2 7B in 16 bits, over tensor- and
    pipeline-parallel devices.
    """
    token = 512 * 1024
    assert _kv_cache_bytes(llama, system, 1008, global_batch=4) == 4 * 1008 * token
    split = {"tp": 2, "pp": 4, "dp": 2, "global_batch": 4, "kv_precision": "fp8"}
    assert _kv_cache_bytes(llama, system, 1008, **split) == 4 * 1008 * token / 2 / 2 / 8


def test_a_sequence_takes_whole_blocks_of_the_kv_cache(llama, system):
    """Blocks of 16 tokens: 1,000 tokens take 63 of them."""
    assert _kv_cache_bytes(llama, system, 1000) == 63 * 16 * 512 * 1024


def test_grouped_queries_shrink_the_kv_cache(system):
    """Llama-2 70B: 80 layers, 8 KV heads of 128."""
    assert _kv_cache_bytes(dp.load_model("llama-2-70b"), system, 16) == 16 * 2 * 80 * 8 * 128 * 2


def test_inference_holds_weights_and_cache_at_the_end(llama, system):
    strategy = dp.load_strategy({"global_batch": 16, "sequence_length": 200, "output_length": 300})
    memory = inference_memory(Configuration(llama, system, strategy))
    assert float(memory.weights) == pytest.approx(2 * float(llama.parameters), rel=1e-6)
    assert float(memory.kv_cache) == 16 * 512 * 512 * 1024  # 500 tokens in blocks of 16
    assert float(memory.gradients) == float(memory.optimizer) == 0


@pytest.mark.parametrize(("pp", "layers"), [(1, 32), (2, 16), (5, 7), (6, 6), (31, 2), (32, 1)])
def test_inference_holds_what_the_fullest_stage_holds(system, pp, layers):
    """Llama-3 8B, of 32 alike layers: those of the first stage and its embedding, whose size the head has."""
    model = dp.load_model("llama-3-8b")
    strategy = dp.load_strategy({"pp": pp, "sequence_length": 4095, "output_length": 1})
    memory = inference_memory(Configuration(model, system, strategy))
    tables = (2 if pp == 1 else 1) * float(model.embedding_parameters)
    layer = float(model.layers[0].dense_parameters(model.hidden))
    assert float(memory.weights) == pytest.approx(2 * (layers * layer + tables), rel=1e-12)
    assert float(memory.kv_cache) == pytest.approx(4096 * layers * 2 * 8 * 128 * 2, rel=1e-12)


def test_the_last_stage_of_serving_software_has_none_of_the_remaining_layers(system):
    """Kimi K2 in fp8: of eight stages the first and the last have 7 of 61 layers, and a middle one has 8, all
    with experts.
    """
    model = dp.load_model("kimi-k2")
    strategy = dp.load_strategy({"pp": 8, "precision": "fp8"})
    weights = float(inference_memory(Configuration(model, system, strategy)).weights)
    layer = model.layers[-1]
    parameters = float(layer.dense_parameters(model.hidden) + layer.routed_parameters(model.hidden))
    assert weights == pytest.approx(8 * parameters, rel=1e-12)


def test_the_last_of_equal_stages_holds_as_many_layers_as_the_others(system):
    """Its module of multi-token prediction makes it the fullest one."""
    plain = dp.load_model("llama-3-8b")
    predicting = dp.override(plain, {"mtp_layers": 1})

    def weights(model, pp):
        layout = dp.load_strategy({"pp": pp})
        return float(inference_memory(Configuration(model, system, layout)).weights)

    module = weights(predicting, 1) - weights(plain, 1)
    assert module > 2 * float(plain.layers[0].dense_parameters(plain.hidden))
    for pp in (2, 4):
        assert weights(predicting, pp) - weights(plain, pp) == pytest.approx(module, rel=1e-9)


def test_cached_tokens_of_prompts_take_no_activations(llama, system):
    """A prefill of 2048 tokens of which 1536 are cached is as wide as one of 512, but caches all of them."""
    whole, cached, short = (
        inference_memory(Configuration(llama, system, dp.load_strategy({"global_batch": 2} | prompt)))
        for prompt in (
            {"sequence_length": 2048},
            {"sequence_length": 2048, "cached_share": 0.75},
            {"sequence_length": 512},
        )
    )
    assert float(cached.activations) == float(short.activations)
    assert float(whole.activations) == 4 * float(cached.activations)
    assert float(cached.kv_cache) == float(whole.kv_cache)


@pytest.mark.parametrize(
    ("stored", "gibibytes"), [("q4_k_m", 4.58), ("q5_k_m", 5.33), ("q6_k", 6.14), ("q8_0", 7.95)]
)
def test_files_of_llama_cpp_quantize_every_matrix(system, stored, gibibytes):
    """The files of Llama-3.1-8B (tools/quantize/README.md of github.com/ggml-org/llama.cpp), token embedding
    and vocabulary projection included, unless the user keeps these in 16 bits.
    """
    model, alone = dp.load_model("llama-3.1-8b"), {"weight_precision": stored, "tp": 1}
    whole, wide = (
        float(inference_memory(Configuration(model, system, dp.load_strategy(alone | head))).weights)
        for head in ({}, {"head_precision": "unquantized"})
    )
    assert whole == pytest.approx(gibibytes * 2**30, rel=0.005)
    assert wide > whole + float(model.hidden * model.vocabulary)
