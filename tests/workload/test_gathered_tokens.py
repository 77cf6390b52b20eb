"""Tokens that the tensor-parallel ranks of experts gather: a copy for each expert, or one for all."""

import itertools

import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import real
from diffperf.workload.configuration import Configuration
from diffperf.workload.expert_collectives import expert_parallel_collectives
from diffperf.workload.passes import TokenPass

RANKS, TOKENS = 8, 512


def gathered_tokens(model, ep, stack):
    """Tokens that each of eight ranks with attention of their own has after the gathering of a layer with
    experts, and sends in the all-to-all before it where every token is sent to each of its experts.
    """
    system = dp.load_system("dgx-h100", RANKS, stack=stack)
    layout = {"dp": RANKS, "ep": ep, "expert_tp": RANKS // ep, "global_batch": RANKS}
    # All experts are as popular, so that every device gets as many tokens.
    strategy = dp.load_strategy(layout | {"expert_popularity_spread": 0}, n_devices=RANKS)
    tokens = TokenPass(sequences=real(1), queries=real(TOKENS), context=real(TOKENS), serving=True)
    c = Configuration(model, system, strategy).for_inference()
    by_name = {one.name: one for one in expert_parallel_collectives(c, tokens)}
    gathering, exchange = by_name["gathering of experts' tokens"], by_name["dispatch to experts"]
    width = float(strategy.dispatch_width) * float(model.hidden)
    counts = [(float(kind.count), kind.mixture is not None) for kind in model.layers]
    layers = sum(count for count, _ in counts) / sum(count for count, routes in counts if routes)
    return float(gathering.volume) / width * layers, float(exchange.volume) / width * layers


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_engines_gather_a_token_once_by_enumeration(ep):
    """Every way that a token's two experts lie on the expert-parallel ranks of Mixtral."""
    model = dp.load_model("mixtral-8x7b")
    ways = itertools.product(range(ep), repeat=2)
    distinct = np.mean([len(set(way)) for way in ways])
    own = RANKS // ep  # ranks that share an expert, each of which brings its own tokens
    gathered, sent = gathered_tokens(model, ep, "vllm-0.16")
    assert gathered == pytest.approx(own * TOKENS * distinct, rel=1e-5)
    assert sent == pytest.approx(2 * TOKENS, rel=1e-5)
    # A dispatcher of training hands a copy for each expert to all ranks of it.
    copies, _ = gathered_tokens(model, ep, "megatron-core")
    assert copies == pytest.approx(own * TOKENS * 2, rel=1e-5)


def test_tokens_of_few_groups_are_gathered_by_few_ranks():
    """DeepSeek-V3 takes eight experts of four groups out of eight: with two groups on each of four ranks, a
    token reaches 3.6 of them.
    """
    model = dp.load_model("deepseek-v3")
    for ep, reached in ((4, 4 * (1 - 0.75**8)), (2, 2 * (1 - 0.5**8)), (1, 1)):
        gathered, _ = gathered_tokens(model, ep, "sglang")
        assert gathered == pytest.approx(RANKS // ep * TOKENS * reached, rel=1e-5)
