"""Engines whose running sequences are known: steps with prompts among decoding sequences."""

import dataclasses

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.serving.known_batch import known_batch
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration

PROMPT, ANSWER = 512, 128
TABLE = {"tp": 4, "sequence_length": PROMPT, "output_length": ANSWER}


@pytest.fixture(scope="module")
def served():
    model, system = dp.load_model("llama-3.1-70b"), dp.load_system("dgx-h100", 4, stack="vllm-0.8")
    return Configuration(model, system, dp.load_strategy(TABLE, n_devices=4), Exact())


def at(c, batch):
    return dataclasses.replace(c, strategy=replace(c.strategy, {"global_batch": real(batch)}))


compiled = jax.jit(lambda c, answer: known_batch(c.for_inference(), answer))


def steps(c, batch, answer=ANSWER):
    return compiled(at(c, batch), real(answer))


def report(phase, c, batch):
    return dp.PHASES[phase](c.model, c.system, at(c, batch).strategy)


def throttled(phase, c, batch):
    """Seconds by which the power limit lengthens linear layers and elementwise work of a phase."""
    unlimited = replace(c.system, {"accelerator.power_limit": real(1e6)})
    limited, free = (
        report(phase, dataclasses.replace(c, system=system), batch).breakdown
        for system in (c.system, unlimited)
    )
    return float(limited.matmul + limited.elementwise - free.matmul - free.elementwise)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, 256])
def test_a_step_with_prompts_reads_weights_once(served, batch):
    """From the reports of passes: linear layers as of a decode pass with the tokens of both, everything else
    of decoding sequences as without prompts, and the attention of the prompts. Under the power limit the
    prompts' linear layers take as much longer as in a pass of their own.
    """
    found = steps(served, batch)
    begun = batch / ANSWER
    prompts = begun / (1 - np.exp(-begun))
    decode, both = report("decode", served, batch), report("decode", served, batch + prompts * PROMPT)
    prefill = report("prefill", served, prompts)

    def of_sequences(part):
        return float(part.attention + part.head + part.host)

    expected = float(both.breakdown.total) - of_sequences(both.breakdown) + of_sequences(decode.breakdown)
    expected += float(prefill.breakdown.attention)
    of_both = throttled("decode", served, batch + prompts * PROMPT) - throttled("decode", served, batch)
    expected += max(throttled("prefill", served, prompts) - max(of_both, 0.0), 0.0)
    assert float(found.decode_time) == pytest.approx(float(decode.time), rel=1e-12)
    assert float(found.prompts_time) == pytest.approx(expected, rel=1e-9)
    assert found.decode_time < found.prompts_time < decode.time + prefill.time
    assert float(found.decode_energy) == pytest.approx(float(decode.energy.total), rel=1e-12)
    # The prompts add all that their pass takes but reading weights, as a pass of one sequence does.
    added = prefill.energy.dynamic - report("decode", served, 1).energy.dynamic
    idle = 4 * served.system.accelerator.static_power * (found.prompts_time - found.decode_time)
    joules = float(decode.energy.total + added + idle)
    assert float(found.prompts_energy) == pytest.approx(joules, rel=1e-12)
    assert decode.energy.total < found.prompts_energy < decode.energy.total + prefill.energy.total


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-h200"])
def test_steps_with_prompts_keep_the_power_limit(name):
    limit = 490
    system = dp.override(dp.load_system(name, n_devices=8), {"accelerator.power_limit": limit})
    lengths = {"sequence_length": 1000, "output_length": 1000, "global_batch": 64}
    strategy = dp.load_strategy({"tp": 8, **lengths}, n_devices=8)
    found = compiled(Configuration(dp.load_model("llama-3.1-70b"), system, strategy, Exact()), real(1000.0))
    assert 0.95 * 8 * limit < float(found.prompts_energy / found.prompts_time) <= 1.003 * 8 * limit


@pytest.mark.parametrize(("batch", "answer"), [(8, 100), (64, 128), (512, 256)])
def test_the_share_of_steps_with_prompts_is_that_of_a_run(served, batch, answer):
    """Counted in a run of sequences that end at any step with the same probability, each followed by a new
    one.
    """
    generator = np.random.default_rng(0)
    left = generator.geometric(1 / answer, batch)
    some = 0
    for _ in range(20_000):
        left -= 1
        ended = left == 0
        some += ended.any()
        left[ended] = generator.geometric(1 / answer, ended.sum())
    assert float(steps(served, batch, answer).with_prompts) == pytest.approx(some / 20_000, rel=0.04)


def test_the_mean_step_is_between_both(served):
    """It is a step of decoding alone where answers hardly end, and one with prompts where all end at once."""
    endless, short = steps(served, 64, 1e7), steps(served, 64, 1.0)
    assert float(endless.mean_time) == pytest.approx(float(endless.decode_time), rel=1e-4)
    assert float(endless.mean_energy) == pytest.approx(float(endless.decode_energy), rel=1e-4)
    assert float(short.mean_time) == pytest.approx(float(short.prompts_time), rel=1e-9)
    assert float(short.mean_energy) == pytest.approx(float(short.prompts_energy), rel=1e-9)


def test_the_host_launches_steps_with_prompts(served):
    """0.1 s for each of 80 layers, which a step of decoding alone does not wait for."""
    slow = dataclasses.replace(served, system=replace(served.system, {"inference_stack.prompt_launch": 0.1}))
    found = steps(slow, 64)
    assert float(found.prompts_time) == pytest.approx(8.0, rel=1e-9)
    assert float(found.decode_time) < 0.1
