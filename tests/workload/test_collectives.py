"""What devices send each other, byte by byte, and where their groups lie, by counting devices."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.network.transfers import Transfer, transfers
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.collective import PARTS
from diffperf.workload.collectives import (
    boundary_transfer,
    gradient_collectives,
    inference_collectives,
    layer_collectives,
    tied_embedding_reduction,
    training_collectives,
    weight_collectives,
)
from diffperf.workload.configuration import Configuration
from diffperf.workload.passes import TokenPass, training_pass
from diffperf.workload.stage_parameters import stage_parameters
from diffperf.workload.strategy import ORDERS

AT_ENDS = ("embeddings", "vocabulary projection")  # purposes of collectives outside layers
NODE = 8  # devices of the innermost tier


@jax.jit
def _timed_step(c):
    """The collectives of a training step, with one transfer across a boundary between pipeline stages."""
    parameters, tokens = stage_parameters(c.model, c.strategy, c.relax), training_pass(c.strategy)
    collectives = [
        *(group for group in training_collectives(c, tokens, parameters) if group.per == "layer"),
        boundary_transfer(c, tokens, real(1)),
        *gradient_collectives(c, parameters),
        *weight_collectives(c, parameters),
        tied_embedding_reduction(c),
    ]
    return transfers(collectives, c.system, c.relax)


@jax.jit
def _timed_pass(c, tokens):
    """The collectives of an average layer in one pass."""
    return transfers(layer_collectives(c, tokens), c.system, c.relax)


def step_transfers(model, system, **table) -> dict[str, Transfer]:
    """What a device sends in a training step by purpose: for an average layer and micro-batch, or in all."""
    c = Configuration(model, system, dp.load_strategy(table))
    totals = dict.fromkeys(PARTS, Transfer.nothing(system))
    for timed in _timed_step(c):
        per_layer = timed.collective.per == "layer"
        runs = timed.collective.in_layer if per_layer else timed.collective.forward
        totals[timed.collective.purpose] += timed.transfer * runs
    return totals


def pass_transfers(model, system, tokens, **table) -> dict[str, Transfer]:
    """What a device sends in a pass through an average layer, by purpose."""
    totals = dict.fromkeys(PARTS, Transfer.nothing(system))
    for timed in _timed_pass(Configuration(model, system, dp.load_strategy(table)), tokens):
        totals[timed.collective.purpose] += timed.transfer * timed.collective.forward
    return totals


def sent(transfer) -> float:
    """Bytes that a device sends on all tiers."""
    return float(transfer.sent.sum())


def parameters_of(model, **table):
    """The parameters on a device of the fullest stage."""
    return stage_parameters(model, dp.load_strategy(table), Exact())


# --- where groups lie


@pytest.mark.parametrize("order", ORDERS)
def test_strides_by_numbering_devices(order):
    """Devices numbered with the innermost group first: how far apart the neighbours of every group are."""
    degrees = {"tp": 2, "cp": 3, "dp": 5, "pp": 7}
    names = order.split("-")
    # The last axis is the innermost.
    number = np.arange(2 * 3 * 5 * 7).reshape([degrees[name] for name in reversed(names)])
    strategy = dp.load_strategy(degrees | {"order": order, "global_batch": 5})
    for axis, name in enumerate(reversed(names)):
        assert set(np.diff(number, axis=axis).ravel()) == {float(strategy.stride_of(name))}


def _across(visited: list[int]) -> list[int]:
    """Of the hops from one device to the next: how many stay in a node, how many leave it."""
    leave = sum(a // NODE != b // NODE for a, b in itertools.pairwise(visited))
    return [len(visited) - 1 - leave, leave]


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-pp-cp-dp", "dp-tp-cp-pp"])
@pytest.mark.parametrize("name", ["pp", "cp"])
def test_neighbours_send_over_the_tier_that_connects_them(gpt, system, order, name):
    """Shares of a message that stay in a node and leave it are those of the hops along the group, which a
    context-parallel ring closes by a hop from its last rank to its first.
    """
    degrees = {"tp": 2, "cp": 4, "dp": 2, "pp": 4}
    table = degrees | {"order": order, "global_batch": 2, "sequence_length": 2048}
    stride = int(dp.load_strategy(table).stride_of(name))
    ranks = [*range(degrees[name])] + [0] * (name == "cp")
    hops = _across([rank * stride for rank in ranks])
    purpose = {"pp": "pipeline", "cp": "context parallelism"}[name]
    transfer = step_transfers(gpt, system, **table)[purpose]
    np.testing.assert_allclose(transfer.sent / transfer.sent.sum(), np.array(hops) / sum(hops), rtol=1e-9)


def test_a_tied_embedding_lies_on_the_first_and_the_last_stage(gpt, system):
    """Stages next to each other in a node share it there, stages in different nodes across them: one
    all-reduce in fp32.
    """
    bytes_ = 51200 * 12288 / 2 * 4
    table = {"tp": 2, "pp": 4, "dp": 8, "global_batch": 8}
    for order, expected in (("tp-pp-cp-dp", [bytes_, 0]), ("tp-cp-dp-pp", [0, bytes_])):
        embedding = step_transfers(gpt, system, order=order, **table)["tied embedding"]
        np.testing.assert_allclose(embedding.sent, expected, rtol=1e-9)


def test_ranks_that_share_the_vocabulary_by_hand(gpt, system):
    """Training, the residual stream of a micro-batch is added up once for its embedded tokens and once for
    the inputs of the projection, whose gradients every rank has a part of. Serving, it is once for a pass,
    and the logits of the sampled tokens are gathered: of a prompt the last one's, of a decode pass all.
    """
    c = Configuration(gpt, system, dp.load_strategy({"tp": 4, "micro_batch": 2, "global_batch": 2}))
    tokens, parameters = training_pass(c.strategy), parameters_of(gpt, tp=4)
    trained = [one for one in training_collectives(c, tokens, parameters) if one.per == "micro-batch"]
    assert [(one.kind, float(one.forward), float(one.volume)) for one in trained] == [
        ("all_reduce", 1, 2 * 2048 * 12288 * 2)
    ] * 2
    for sequences, queries, generating, logits in ((3, 100, False, 3), (3, 2, True, 6)):
        of_pass = TokenPass(
            sequences=real(sequences),
            queries=real(queries),
            context=real(500),
            generating=generating,
            serving=True,
        )
        served = {one.kind: one for one in inference_collectives(c, of_pass) if one.purpose in AT_ENDS}
        assert float(served["all_reduce"].volume) == sequences * queries * 12288 * 2
        assert float(served["all_gather"].volume) == logits * 51200 * 2


def test_collectives_of_the_same_numbers_are_timed_once(gpt, system):
    """The all-reduce around the vocabulary is that of layers, with the same time as one of its own."""
    c = Configuration(gpt, system, dp.load_strategy({"tp": 4, "global_batch": 1}))
    tokens, parameters = training_pass(c.strategy), parameters_of(gpt, tp=4)
    timed = transfers(training_collectives(c, tokens, parameters), c.system, c.relax)
    of_streams = [one for one in timed if one.collective.degree == 4]
    assert len(of_streams) >= 3
    assert len({id(one.transfer) for one in of_streams if one.collective.kind == "all_reduce"}) == 1
    (alone,) = transfers(
        [dataclasses.replace(of_streams[0].collective, volume=real(2048 * 12288 * 2))], c.system, c.relax
    )
    assert float(alone.transfer.time) == pytest.approx(float(of_streams[0].transfer.time), rel=1e-12)


# --- data parallelism


@pytest.mark.parametrize(("stage", "volumes"), [("0", 2), ("1", 2), ("2", 2), ("3", 3)])
def test_communication_of_zero(system, stage, volumes):
    """2Ψ, 2Ψ, 2Ψ and 3Ψ of (N − 1)/N each (arXiv 1910.02054 §7), with gradients and weights of 2 bytes and
    one micro-batch.
    """
    model, n = dp.load_model("gpt-7.5b"), 64
    table = {"dp": n, "global_batch": n, "gradient_precision": "bf16", "zero": stage}
    parameters = float(parameters_of(model, **table).total)
    by_purpose = step_transfers(model, system, **table)
    assert sent(by_purpose["gradients"]) + sent(by_purpose["weights"]) == pytest.approx(
        volumes * 2 * parameters * (n - 1) / n, rel=1e-9
    )


@pytest.mark.parametrize(
    ("stage", "gradients", "weights"), [("0", 2, 0), ("1", 1, 1), ("2", 4, 1), ("3", 4, 2 * 4)]
)
def test_accumulation_repeats_what_is_sharded(llama, system, stage, gradients, weights):
    """Of four micro-batches: ZeRO-2 scatters the gradients of each, ZeRO-3 gathers the weights for both
    passes of each.
    """
    n = 64
    table = {"dp": n, "global_batch": 4 * n, "zero": stage}
    part = float(parameters_of(llama, **table).total) * (n - 1) / n
    by_purpose = step_transfers(llama, system, **table)
    assert sent(by_purpose["gradients"]) == pytest.approx(gradients * 4 * part, rel=1e-9)
    assert sent(by_purpose["weights"]) == pytest.approx(weights * 2 * part, rel=1e-9)


@pytest.mark.parametrize(("stage", "gradients", "weights"), [("0", 2, 0), ("1", 2, 1), ("2", 4, 1)])
def test_software_may_reduce_whole_gradients_at_stage_1(llama, system, stage, gradients, weights):
    """Nanotron's stage 1 all-reduces gradients in fp32 (its trainer.py passes `reduce_scatter=False`) and
    gathers weights of 2 bytes; other stages move what they move elsewhere.
    """
    n = 64
    table = {"dp": n, "global_batch": 4 * n, "zero": stage}
    part = float(parameters_of(llama, **table).total) * (n - 1) / n
    whole = replace(system, {"stack.whole_gradients": True})
    by_purpose = step_transfers(llama, whole, **table)
    assert sent(by_purpose["gradients"]) == pytest.approx(gradients * 4 * part, rel=1e-9)
    assert sent(by_purpose["weights"]) == pytest.approx(weights * 2 * part, rel=1e-9)


def test_hybrid_sharding_by_hand(llama, system):
    """Nodes of 8 that share everything inside: weights twice and gradients once in the node, an 8th of the
    gradients between.
    """
    table = {"dp": 64, "global_batch": 64, "zero": "3", "zero_ranks": 8}
    parameters = float(parameters_of(llama, **table).total)
    by_purpose = step_transfers(llama, system, **table)
    np.testing.assert_allclose(by_purpose["weights"].sent, [2 * 2 * parameters * 7 / 8, 0], rtol=1e-9)
    np.testing.assert_allclose(
        by_purpose["gradients"].sent, [4 * parameters * 7 / 8, 2 * 4 * parameters / 8 * 7 / 8], rtol=1e-9
    )
    among_all = step_transfers(llama, system, **table | {"zero_ranks": 0})
    assert float(among_all["weights"].time) > float(by_purpose["weights"].time)


def test_context_parallel_ranks_reduce_gradients_as_well(llama, system):
    """A ring of 2·(n − 1)/n over all ranks that hold the same weights."""
    parameters = float(parameters_of(llama).total)
    for table in ({"dp": 16, "cp": 4}, {"dp": 4, "cp": 16}):
        by_purpose = step_transfers(llama, system, global_batch=table["dp"], **table)
        assert sent(by_purpose["gradients"]) == pytest.approx(2 * 63 / 64 * 4 * parameters, rel=1e-9)


def test_experts_are_reduced_among_their_own_replicas(system):
    """Mixtral, tp 2, dp 32, experts over 8: 8 ranks hold the same experts, 32 the same of all else."""
    model = dp.load_model("mixtral-8x7b")
    table = {"tp": 2, "dp": 32, "ep": 8, "expert_tp": 1, "global_batch": 32}
    parts = parameters_of(model, **table)
    by_purpose = step_transfers(model, system, **table)
    expected = 2 * 4 * (float(parts.dense) * 31 / 32 + float(parts.experts) * 7 / 8)
    assert sent(by_purpose["gradients"]) == pytest.approx(expected, rel=1e-9)


# --- tensor, context and expert parallelism, of one layer and micro-batch


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("selective", 2), ("full", 3)])
def test_tensor_parallelism_by_hand(gpt, system, recompute, passes):
    """Two all-reduces a pass of s·b·h at 2 bytes; full recomputation runs the forward ones again (arXiv
    2205.05198 §4.2.2).
    """
    by_purpose = step_transfers(gpt, system, tp=8, micro_batch=2, global_batch=2, recompute=recompute)
    assert sent(by_purpose["tensor parallelism"]) == pytest.approx(
        passes * 2 * 2 * 7 / 8 * 2 * 2048 * 12288 * 2, rel=1e-9
    )


def test_stages_send_their_share_of_the_residual_stream(gpt, system):
    by_purpose = step_transfers(gpt, system, tp=8, pp=8, cp=2, micro_batch=2, global_batch=2)
    assert sent(by_purpose["pipeline"]) == pytest.approx(2 * 1024 * 12288 * 2 / 8, rel=1e-9)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 3), ("full", 4)])
def test_the_ring_by_hand(system, recompute, passes):
    """Llama-2 70B, 8 KV heads of 128 over tp 4: keys and values past cp − 1 others, back with their
    gradients.
    """
    model, cp, s = dp.load_model("llama-2-70b"), 4, 8192
    by_purpose = step_transfers(
        model, system, tp=4, cp=cp, sequence_length=s, micro_batch=2, global_batch=2, recompute=recompute
    )
    keys_and_values = 2 * (s / cp) * 2 * (8 / 4) * 128 * 2  # of a micro-batch of two
    assert sent(by_purpose["context parallelism"]) == pytest.approx(
        passes * (cp - 1) * keys_and_values, rel=1e-9
    )


def test_all_to_all_context_parallelism_by_hand(system):
    """Queries, keys, values before attention and outputs after it, to (cp − 1)/cp elsewhere, both passes
    (arXiv 2309.14509).
    """
    model, cp, s = dp.load_model("llama-2-70b"), 2, 8192
    by_purpose = step_transfers(model, system, tp=4, cp=cp, sequence_length=s, context_parallel="all_to_all")
    elements = (s / cp) * (64 + 8 + 8 + 64) / 4 * 128
    assert sent(by_purpose["context parallelism"]) == pytest.approx(
        2 * elements * 2 * (cp - 1) / cp, rel=1e-9
    )


def test_heads_of_keys_and_values_go_to_all_ranks_that_have_their_queries(system):
    """Two heads of keys and values on a tensor-parallel rank, exchanged among eight: each goes to four ranks,
    as far as they are others, where the sixteen query heads go to one.
    """
    model, cp, s = dp.load_model("llama-2-70b"), 8, 8192
    by_purpose = step_transfers(model, system, tp=4, cp=cp, sequence_length=s, context_parallel="all_to_all")
    elements = (s / cp) * (64 + 4 * 8 + 4 * 8 + 64) / 4 * 128
    assert sent(by_purpose["context parallelism"]) == pytest.approx(
        2 * elements * 2 * (cp - 1) / cp, rel=1e-9
    )


def test_latent_attention_passes_keys_and_values_of_all_heads(system):
    """DeepSeek-V3: 128 heads of 192 and 128 (arXiv 2405.04434 §2.1: the latent is projected before attention
    in training).
    """
    by_purpose = step_transfers(dp.load_model("deepseek-v3"), system, cp=4, sequence_length=4096)
    assert sent(by_purpose["context parallelism"]) == pytest.approx(
        3 * 3 * 1024 * 128 * (192 + 128) * 2, rel=1e-9
    )


@pytest.mark.parametrize(("tp", "ep", "expert_tp"), [(1, 64, 0), (4, 16, 1), (4, 8, 2), (8, 8, 0)])
def test_tokens_to_experts_and_back_by_hand(system, tp, ep, expert_tp):
    """DeepSeek-V3: 8 experts a token, there and back, both passes, in 58 of 61 layers; tensor-parallel ranks
    of experts gather.
    """
    model, ways = dp.load_model("deepseek-v3"), expert_tp or tp
    by_purpose = step_transfers(
        model,
        system,
        tp=tp,
        dp=64 / tp,
        ep=ep,
        expert_tp=expert_tp,
        sequence_length=4096,
        global_batch=64 / tp,
    )
    routed = 4096 / tp * 8 * 7168 * 2  # bytes
    there = routed * (ep - 1) / ep + routed * ways * (ways - 1) / ways
    assert sent(by_purpose["expert parallelism"]) == pytest.approx(58 / 61 * 4 * there, rel=1e-9)


@pytest.mark.parametrize(
    ("table", "load"),
    [({"capacity_factor": 1.25}, 1.25), ({"capacity_factor": 0.5}, 0.5), ({"expert_imbalance": 2}, 2)],
)
def test_buffers_to_experts_are_as_large_as_their_capacity_or_as_the_busiest_device_needs(
    system, table, load
):
    model, layout = dp.load_model("mixtral-8x7b"), {"dp": 64, "ep": 8, "global_batch": 64}
    assert sent(step_transfers(model, system, **layout, **table)["expert parallelism"]) == pytest.approx(
        load * sent(step_transfers(model, system, **layout)["expert parallelism"]), rel=1e-9
    )


def test_dualpipe_reduces_the_gradients_of_both_stages_that_a_device_holds(llama, system):
    layout = {"dp": 8, "pp": 4, "global_batch": 64}
    dualpipe, single = (
        sent(step_transfers(llama, system, **layout, schedule=name)["gradients"])
        for name in ("dualpipe", "1f1b")
    )
    assert dualpipe == pytest.approx(2 * single, rel=1e-9)


def test_experts_in_a_node_stay_in_it(system):
    """Of 8 expert-parallel ranks next to each other none is elsewhere; of 16, half."""
    near = step_transfers(dp.load_model("mixtral-8x7b"), system, dp=64, ep=8, global_batch=64)[
        "expert parallelism"
    ]
    assert float(near.sent[1]) == 0
    wide = step_transfers(dp.load_model("deepseek-v3"), system, dp=64, ep=16, global_batch=64)[
        "expert parallelism"
    ]
    np.testing.assert_allclose(wide.sent / wide.sent.sum(), [7 / 15, 8 / 15], rtol=1e-9)


@pytest.mark.parametrize(("order", "nodes"), [("tp-cp-dp-pp", 1), ("dp-tp-cp-pp", 1), ("tp-pp-cp-dp", 8)])
def test_experts_lie_where_the_data_parallel_ranks_do(system, order, nodes):
    """Eight data-parallel ranks share out the experts of eight stages: in a node each, or one in every node
    where the stages of a pipeline lie side by side.
    """
    table = {"pp": 8, "dp": 8, "ep": 8, "global_batch": 64, "order": order}
    transfer = step_transfers(dp.load_model("mixtral-8x7b"), system, **table)["expert parallelism"]
    np.testing.assert_allclose(transfer.sent[1] / transfer.sent.sum(), float(nodes > 1), atol=1e-9)
    strategy = dp.load_strategy(table)
    assert float(strategy.expert_stride) == float(strategy.stride_of("dp"))


def test_a_group_of_one_sends_nothing(gpt, system):
    for transfer in step_transfers(gpt, system).values():
        assert sent(transfer) == 0
        assert float(transfer.time) == 0


# --- inference, of an average layer and one pass


def _pass(sequences, queries, context, generating=False):
    return TokenPass(
        sequences=real(sequences),
        queries=real(queries),
        context=real(context),
        generating=generating,
        serving=True,
    )


PROMPTS = _pass(2, 2048, 2048)


@pytest.mark.parametrize(("parallel", "reductions"), [(False, 2), (True, 1)])
def test_parallel_blocks_reduce_once_a_layer(system, parallel, reductions):
    """GPT-NeoX, hidden 6144: attention and the MLP beside it add up before their one all-reduce."""
    model = replace(dp.load_model("gpt-neox-20b"), {"layers.0.parallel": parallel})
    tensor = pass_transfers(model, system, PROMPTS, tp=8)["tensor parallelism"]
    assert sent(tensor) == pytest.approx(reductions * 2 * 7 / 8 * 2 * 2048 * 6144 * 2, rel=1e-9)


@pytest.mark.parametrize(
    ("table", "share"),
    [
        ({"ep": 1}, 0),
        ({"ep": 8}, 1),
        ({"ep": 8, "tp": 8, "expert_tp": 1, "dp": 1}, 0),
        ({"ep": 8, "tp": 4, "expert_tp": 1, "dp": 2}, 1),
        ({"ep": 2, "tp": 4, "expert_tp": 2, "dp": 1}, 0),
    ],
)
def test_prompts_go_to_experts_beyond_the_tensor_parallel_group(system, table, share):
    """Mixtral, whose experts are as popular as each other here: all ranks of a tensor-parallel group have its
    tokens, and experts among them get none sent.
    """
    model, degrees = dp.load_model("mixtral-8x7b"), {"tp": 1, "dp": 8, "global_batch": 8} | table
    alike = {"expert_popularity_spread": 0}
    experts = pass_transfers(model, system, PROMPTS, **degrees, **alike)["expert parallelism"]
    ep = degrees["ep"]
    routed = 2 * 2048 / degrees["tp"] * 2 * 4096 * 2  # bytes: two experts a token
    assert sent(experts) == pytest.approx(share * 2 * routed * (ep - 1) / ep, rel=1e-9)


def test_prompts_are_passed_around_the_ring(system):
    """Llama-2 70B, 8 KV heads of 128 over tp 4: keys and values past cp − 1 other ranks."""
    context = pass_transfers(dp.load_model("llama-2-70b"), system, PROMPTS, tp=4, cp=4)["context parallelism"]
    assert sent(context) == pytest.approx(3 * 2 * (2048 / 4) * 2 * (8 / 4) * 128 * 2, rel=1e-9)


def test_generated_tokens_reduce_their_attention_outputs(system):
    """Llama-2 70B, 16 of 64 heads: outputs of 128 with the maximum and the sum of their softmax (arXiv
    2408.04093 §5).
    """
    tokens = _pass(8, 1, 4096, generating=True)
    context = pass_transfers(dp.load_model("llama-2-70b"), system, tokens, tp=4, cp=4)["context parallelism"]
    assert sent(context) == pytest.approx(2 * 3 / 4 * 8 * 16 * (128 + 2) * 2, rel=1e-9)
