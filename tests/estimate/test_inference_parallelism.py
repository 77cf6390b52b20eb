"""Inference over several devices: what parallel blocks, experts and context parallelism take, and its
gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import generate

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth

# A context of whole blocks of the KV cache on each of four ranks.
LONG = {"tp": 8, "global_batch": 64, "sequence_length": 32766, "output_length": 2}


def _generation(model, system, **table):
    return generate(model, system, dp.load_strategy(table), Exact())


@pytest.mark.parametrize("name", ["gpt-neox-20b", "falcon-40b"])
def test_parallel_blocks_pay_half_the_reductions(system, name):
    """Attention and the MLP beside it share an all-reduce, in prompts and in generated tokens; what ranks
    exchange around the vocabulary stays.
    """
    model = dp.load_model(name)
    assert float(model.layers[0].parallel.on) == 1
    sequential = replace(model, {"layers.0.parallel": False})
    table = {"tp": 8, "global_batch": 16}
    shallow = replace(sequential, {"layers.0.count": sequential.layers[0].count / 2})
    beside, after, shallower = (
        _generation(chosen, system, **table) for chosen in (model, sequential, shallow)
    )
    for phase in ("prefill", "decode"):
        half, whole, of_half = (
            float(getattr(report, phase).tensor_parallel) for report in (beside, after, shallower)
        )
        assert 0 < half < whole
        assert half == pytest.approx(of_half, rel=1e-12), phase


def test_prompts_of_a_mixture_are_sent_to_its_experts(system):
    """Of experts over all data-parallel ranks and on every rank; those on a rank need no sending."""
    model, table = dp.load_model("mixtral-8x7b"), {"dp": 8, "global_batch": 8}
    spread, local = (_generation(model, system, ep=ep, **table) for ep in (8, 1))
    for phase in ("prefill", "decode"):
        assert float(getattr(spread, phase).expert_parallel) > 0
        assert float(getattr(local, phase).expert_parallel) == 0
    assert float(spread.memory.weights) < float(local.memory.weights)


def test_experts_among_tensor_parallel_ranks_get_no_tokens_sent(system):
    """Each of 8 ranks has all tokens of the group, and one expert: what the ranks add up is all that they
    send.
    """
    model = dp.load_model("mixtral-8x7b")
    report = _generation(model, system, tp=8, ep=8, expert_tp=1, global_batch=8)
    assert float(report.prefill.expert_parallel) == 0
    assert float(report.prefill.tensor_parallel) > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_context_parallel_ranks_share_a_prompt(system, overlap):
    """Of four ranks each has a quarter of the tokens, and passes its keys and values around."""
    model = dp.load_model("llama-2-70b")
    alone, shared = (
        _generation(model, system, **LONG, cp=cp, overlap_context=overlap).prefill for cp in (1, 4)
    )
    for part in ("matmul", "attention", "elementwise"):
        assert float(getattr(shared, part)) == pytest.approx(float(getattr(alone, part)) / 4, rel=0.1), part
    assert float(alone.context_parallel) == 0
    # Keys and values of a quarter of 8 KV heads on 8 ranks, to 3 others, 80 layers: 128 elements of 2 bytes.
    moved = 80 * 3 * 64 * 32768 / 4 * 2 * 128 * 2
    outer = system.network[1]
    least = moved / float(outer.bandwidth * outer.efficiency)
    if overlap:  # a ring of long blocks hides under attention
        assert float(shared.context_parallel) < 0.01 * least
    else:
        assert least < float(shared.context_parallel) < 2 * least


def test_context_parallel_ranks_share_a_generations_context(system):
    """A quarter of the keys and values, and of the time to read them, but all of the weights."""
    model = dp.load_model("llama-2-70b")
    alone, shared = (_generation(model, system, **LONG, cp=cp) for cp in (1, 4))
    assert float(shared.memory.kv_cache) == pytest.approx(float(alone.memory.kv_cache) / 4, rel=1e-12)
    assert float(shared.decode.attention) == pytest.approx(float(alone.decode.attention) / 4, rel=0.15)
    assert float(shared.decode.matmul) == pytest.approx(float(alone.decode.matmul), rel=1e-12)
    assert float(shared.memory.weights) == pytest.approx(float(alone.memory.weights), rel=1e-12)
    assert float(shared.decode.context_parallel) > 0 == float(alone.decode.context_parallel)


# --- gradients, at one point where every choice has weight

INPUTS = {  # experts lie beyond the tensor-parallel group in part: 1.7 · 3.8 / 4.6 times
    "tp": 4.6,
    "dp": 5.7,
    "cp": 2.3,
    "pp": 1.6,
    "ep": 3.8,
    "expert_tp": 1.7,
    "global_batch": 43.3,
    "sequence_length": 2931.7,
    "output_length": 117.3,
    "parallel": 0.4,
    "standard attention": 0.3,
    "ring": 0.6,
}
STEPS = (1e-4, 1e-5, 1e-6)


def _with_weight(weight):
    """Weights over two alternatives, by the weight of the second."""
    return jnp.stack([1 - weight, weight])


@pytest.mark.slow
def test_gradients_agree_with_differences(system):
    """Of the times of both phases and of the memory, for a mixture of experts in two kinds of layers."""
    model = dp.load_model("gpt-oss-120b")
    base = dp.load_strategy({"overlap_context": True})
    degrees = [name for name in INPUTS if name not in ("parallel", "standard attention", "ring")]

    def score(values):
        at = dict(zip(INPUTS, values, strict=True))
        chosen = {
            "attention": _with_weight(1 - at["standard attention"]),
            "context_parallel": _with_weight(1 - at["ring"]),
        }
        strategy = replace(base, {name: at[name] for name in degrees} | chosen)
        blocks = {f"layers.{kind}.parallel": _with_weight(at["parallel"]) for kind in (0, 1)}
        report = dp.generate(replace(model, blocks), system, strategy, Smooth(20.0))
        parts = jnp.stack([report.prefill.total, report.decode.total, report.memory.peak])
        # One sum, whose gradient takes one pass: no error in a part is likely to cancel in it.
        return jnp.sum(jnp.array([1.0, 0.7, 0.3]) * jnp.log(parts))

    score_and_slopes = jax.jit(jax.value_and_grad(score))
    here = np.array(list(INPUTS.values()))
    slopes = np.asarray(score_and_slopes(here)[1])
    assert np.all(slopes != 0)
    for position, name in enumerate(INPUTS):
        errors = []
        for step in STEPS:
            move = np.eye(len(here))[position] * step * here[position]
            above, below = (float(score_and_slopes(point)[0]) for point in (here + move, here - move))
            errors.append(abs((above - below) / (2 * step * here[position]) - slopes[position]))
        assert min(errors) <= 1e-5 * abs(slopes[position]) + 1e-8 / here[position], name
