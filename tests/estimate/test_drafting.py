"""Generation with drafted tokens and with cached prompts: against the sum over its passes, the published
speed-up of speculative decoding, and a server with a single client.
"""

import jax
import jax.numpy as jnp
import pytest
from helpers import generate

import diffperf as dp
from diffperf.estimate.serving.serving_report import serve
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests
from diffperf.workload.rules import first_violation

prefill, decode = jax.jit(dp.prefill), jax.jit(dp.decode)
DRAFTS = {"draft_tokens": 3.0, "tokens_per_step": 2.5, "draft_share": 0.04}


def _strategy(**table):
    return dp.load_strategy({"sequence_length": 700, "output_length": 101, "global_batch": 4} | table)


@pytest.mark.parametrize("share", [0.04, 0.0])
def test_generation_is_the_sum_of_its_steps(llama, system, share):
    """40 steps add 2.5 tokens each. The last token of step k attends to the prompt, the first output, those
    of the steps before, and the three drafted ones.
    """
    strategy = replace(_strategy(), DRAFTS | {"draft_share": share})
    report = generate(llama, system, strategy, Exact())

    def step(context):
        # The middle step of a generation of two tokens attends to the prompt, one, and the drafts less 3/4.
        alone = {"sequence_length": context - 1 - 3 + 0.75, "output_length": 2.0}
        report = decode(llama, system, replace(strategy, alone), Exact())
        return jnp.stack([report.time, report.energy.total])

    first = prefill(llama, system, strategy, Exact())
    time, energy = jax.vmap(step)(700 + 1 + 2.5 * jnp.arange(40.0) + 3).sum(axis=0)
    assert float(report.time) == pytest.approx(float(first.time + time), rel=1e-6)
    assert float(report.energy.total) == pytest.approx(float(first.energy.total + energy), rel=1e-6)
    assert float(report.time_per_output_token) == pytest.approx(float(time) / 100, rel=1e-6)


def test_speed_up_is_that_of_speculative_decoding(llama, system):
    """A draft model that takes c of the time of a decode pass, and whose g tokens are accepted with a
    probability a each, makes generation (1 − a^(g + 1)) / ((1 − a)(g·c + 1)) times as fast, where verifying
    takes as long as decoding (Leviathan et al., arXiv 2211.17192, Theorem 3.8): for one sequence, whose
    weights are read.
    """
    accepted, drafts, cost = 0.8, 4, 0.05
    tokens = (1 - accepted ** (drafts + 1)) / (1 - accepted)
    plain = _strategy(global_batch=1)
    drafting = {"draft_tokens": drafts, "tokens_per_step": tokens, "draft_share": cost}
    slow, fast = (
        float(generate(llama, system, each, Exact()).time_per_output_token)
        for each in (plain, replace(plain, drafting))
    )
    assert slow / fast == pytest.approx(tokens / (drafts * cost + 1), rel=0.05)


def test_a_module_that_drafts_costs_a_layer_and_the_vocabulary_projection(llama, system):
    plain, drafting = (
        generate(llama, system, _strategy(**table), Exact()).decode
        for table in ({"global_batch": 1}, {"global_batch": 1, "draft_tokens": 1, "tokens_per_step": 1.8})
    )
    layer = (plain.total - plain.head - plain.host) / llama.depth
    stack = system.inference_stack
    host = float(stack.draft_step + stack.draft_sequence)
    assert float(drafting.drafting) - host == pytest.approx(float(layer + plain.head), rel=0.02)


def test_the_logits_of_drafted_tokens_are_computed_too(llama, system):
    """A step of 32 sequences that verifies 7 drafted tokens of each has the logits of 256 tokens."""
    drafting, plain = (
        decode(llama, system, _strategy(**table))
        for table in ({"global_batch": 32, "draft_tokens": 7, "tokens_per_step": 4}, {"global_batch": 256})
    )
    assert float(drafting.breakdown.head) == pytest.approx(float(plain.breakdown.head), rel=1e-9)
    assert float(drafting.memory.logits) == pytest.approx(float(plain.memory.logits), rel=1e-9)


def test_power_stays_when_tokens_are_drafted(llama, system):
    """A draft model reads weights as the model does: energy per token falls as its time does."""
    plain, drafting = (
        generate(llama, system, replace(_strategy(global_batch=1), table), Exact()) for table in ({}, DRAFTS)
    )
    assert float(drafting.power) == pytest.approx(float(plain.power), rel=0.05)
    assert float(drafting.tokens_per_joule) > 1.5 * float(plain.tokens_per_joule)


@pytest.mark.slow
def test_a_server_with_one_client_drafts_as_a_generation_does(llama, system):
    """Without spread of lengths, and in steps that hold the whole prompt."""
    alone = replace(system, {"n_devices": 1})
    strategy = replace(_strategy(global_batch=1), DRAFTS)
    requests = Requests(input_length=700, output_length=101, output_spread=0, **DRAFTS)
    served = jax.jit(lambda: serve(llama, alone, strategy, requests))()
    generated = jax.jit(lambda: generate(llama, alone, strategy, Exact()))()
    per_token = float(generated.time_per_output_token)
    assert float(served.time_per_output_token) == pytest.approx(per_token, rel=0.03)


def test_of_a_cached_prompt_the_rest_is_computed(llama, system):
    """Half of a prompt cached leaves half of the products, and of a causal triangle three quarters."""
    whole, rest = (
        prefill(llama, system, _strategy(sequence_length=16384, cached_share=share), Exact()).breakdown
        for share in (0.0, 0.5)
    )
    assert float(rest.matmul) / float(whole.matmul) == pytest.approx(0.5, rel=0.02)
    assert float(rest.attention) / float(whole.attention) == pytest.approx(0.75, rel=0.03)


def test_a_prompt_that_is_cached_whole_computes_its_last_token(llama, system):
    cached = prefill(llama, system, _strategy(cached_share=1.0), Exact())
    token = decode(llama, system, _strategy(), Exact())
    assert float(cached.breakdown.matmul) == pytest.approx(float(token.breakdown.matmul), rel=0.02)


def test_steps_add_no_more_than_is_drafted(llama, system):
    strategy = _strategy(tokens_per_step=2.5, draft_tokens=1)
    c = Configuration(model=llama, system=replace(system, {"n_devices": 1}), strategy=strategy, relax=Exact())
    violation = first_violation(c, "generate")
    assert violation is not None
    assert violation.key == "strategy.tokens_per_step"
    assert violation.expected.startswith("at most 2:")
    assert first_violation(c, "prefill") is None
