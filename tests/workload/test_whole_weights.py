"""What tensor parallelism and ZeRO do not split, counted by hand from the models' matrices."""

import pytest

import diffperf as dp
from diffperf.quantity import real
from diffperf.relax import Exact
from diffperf.workload.activations import layer_activations
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import training_memory
from diffperf.workload.stage_parameters import stage_parameters


def _gathered(model, system, **table):
    strategy = dp.load_strategy({"zero": "3", "global_batch": 64, **table}, n_devices=64)
    return float(training_memory(Configuration(model, system, strategy)).gathered)


def test_key_and_value_heads_are_repeated_where_ranks_outnumber_them():
    """Llama 3.1 405B has 8 key and value heads of 128: on 16 ranks each has one of them, not a half."""
    model = dp.load_model("llama-3.1-405b")
    layers = model.layers[0]
    split, repeated = (float(layers.dense_parameters_on_rank(model.hidden, real(tp))) for tp in (8, 16))
    assert split == pytest.approx(float(layers.dense_parameters(model.hidden)) / 8, rel=1e-12)
    missing = 2 * 16384 * 128 / 2
    assert repeated == pytest.approx(float(layers.dense_parameters(model.hidden)) / 16 + missing, rel=1e-12)


def test_projections_down_to_latents_and_routers_are_whole_on_every_rank():
    """DeepSeek-V3: 7,168 to 1,536 + 512 + 64 in each of 61 layers, and to 256 experts in 58 of them."""
    model = dp.load_model("deepseek-v3")
    strategy = dp.load_strategy({"tp": 8, "expert_tp": 1}, n_devices=8)
    whole = 7168 * (61 * (1536 + 512 + 64) + 58 * 256)
    split = sum(float(kind.count * kind.dense_parameters(model.hidden)) for kind in model.layers) - whole
    # One stage has the embeddings and, untied, the vocabulary projection; its module has a layer of its own.
    tables = 2 * float(model.embedding_parameters)
    last = model.layers[-1]
    module = 7168 * (1536 + 512 + 64 + 256)
    of_module = (float(last.dense_parameters(model.hidden)) - module + 2 * 7168**2) / 8 + module
    parameters = stage_parameters(model, strategy, Exact())
    expected = whole + (split + tables) / 8 + of_module
    assert float(parameters.dense) == pytest.approx(expected, rel=1e-9)


def test_nothing_is_gathered_where_no_other_rank_holds_the_same(llama, system):
    assert _gathered(llama, system, tp=8, pp=8) == 0
    assert _gathered(llama, system, tp=8, pp=4) > 0


def test_experts_that_a_single_rank_holds_are_not_gathered(system):
    """With eight data-parallel ranks, each has an eighth of the experts, or all share them."""
    mixtral = dp.load_model("mixtral-8x7b")
    alone, shared = (_gathered(mixtral, system, pp=8, ep=ep, expert_tp=1) for ep in (8, 1))
    # Weights of two layers and gradients of one, in 16 bits.
    assert shared - alone == pytest.approx(3 * 2 * 8 * 3 * 4096 * 14336, rel=1e-9)


def test_ranks_that_split_an_expert_gather_its_tokens():
    """Each of eight ranks keeps the inputs of all tokens of the group, two experts each, in 16 bits."""
    mixtral = dp.load_model("mixtral-8x7b")

    def kept(**table):
        strategy = dp.load_strategy({"tp": 8, "sequence_length": 4096, **table}, n_devices=8)
        return float(layer_activations(mixtral.layers[0], mixtral, strategy).kept)

    routed = 2 * 4096 * 4096 * 2  # bytes: two experts for each of 4,096 tokens
    assert kept(expert_tp=8, ep=1) - kept(expert_tp=1, ep=8) == pytest.approx(routed * (1 - 1 / 8), rel=1e-9)
