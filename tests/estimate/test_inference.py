"""Inference: the closed form over a growing context against the sum over its passes, and what a pass must at
least take.
"""

import jax
import jax.numpy as jnp
import pytest
from helpers import generate

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact

prefill, decode = jax.jit(dp.prefill), jax.jit(dp.decode)


@pytest.mark.parametrize(
    ("prompt", "output", "batch"), [(200, 200, 1), (2000, 500, 16), (128, 2048, 64), (50, 2, 1), (50, 1, 1)]
)
def test_generation_is_the_sum_of_its_passes(llama, system, prompt, output, batch):
    """The prefill gives the first token; each other token attends to the prompt and every output before it,
    itself included.
    """
    strategy = dp.load_strategy({"sequence_length": prompt, "output_length": output, "global_batch": batch})
    system = replace(system, {"n_devices": 1})
    report = generate(llama, system, strategy, Exact())

    def one_pass(context):
        # A generation of two tokens has one decode pass, over the prompt and one more.
        alone = replace(strategy, {"sequence_length": context - 1, "output_length": 2.0})
        report = decode(llama, system, alone, Exact())
        return jnp.stack([report.time, report.energy.total])

    first = prefill(llama, system, strategy, Exact())
    time, energy = float(first.time), float(first.energy.total)
    if output > 1:
        passes = jax.vmap(one_pass)(jnp.arange(prompt + 1.0, prompt + output)).sum(axis=0)
        time, energy = time + float(passes[0]), energy + float(passes[1])
    assert float(report.time) == pytest.approx(time, rel=0.005)
    assert float(report.energy.total) == pytest.approx(energy, rel=0.005)


def test_decode_at_batch_one_streams_the_weights(llama, system):
    """At batch 1 every weight but the input embedding is read once a token: the floor that no kernel
    beats.
    """
    strategy = dp.load_strategy({"sequence_length": 10, "output_length": 2})
    memory = system.accelerator.device_memory
    weights = 2 * float(llama.parameters - llama.embedding_parameters)
    floor = weights / float(memory.bandwidth * memory.efficiency)
    time = float(decode(llama, replace(system, {"n_devices": 1}), strategy, Exact()).time)
    overheads = (
        32
        * 12
        * float(system.accelerator.kernel_latency + system.inference_stack.kernel_overhead + memory.latency)
    )
    # Near the ridge of a roofline, parts do not hide each other whole.
    assert floor < time < 1.1 * floor + overheads


def test_prefill_is_bound_by_compute_when_long(llama, system):
    strategy = dp.load_strategy({"sequence_length": 4096, "global_batch": 8})
    report = prefill(llama, replace(system, {"n_devices": 1}), strategy, Exact())
    accelerator = system.accelerator
    flops = 2 * 8 * 4096 * float(llama.layer_parameters)
    units = accelerator.matrix.bf16
    floor = flops / float(units.rate * units.efficiency * system.inference_stack.matrix_efficiency)
    assert floor < float(report.breakdown.matmul) < 1.2 * floor


def test_reports_are_consistent(llama, system, strategy):
    report = generate(llama, system, strategy, Exact())
    sequences, length = float(strategy.global_batch), float(strategy.output_length)
    first, each, time = (
        float(x) for x in (report.time_to_first_token, report.time_per_output_token, report.time)
    )
    assert time == pytest.approx(first + (length - 1) * each, rel=1e-12)
    assert first == pytest.approx(float(report.prefill.total), rel=1e-12)
    assert each == pytest.approx(float(report.decode.total), rel=1e-12)
    assert float(report.tokens_per_second) == pytest.approx(sequences * length / time, rel=1e-12)
    assert float(report.tokens_per_joule) == pytest.approx(
        sequences * length / float(report.energy.total), rel=1e-12
    )
    assert float(report.power) == pytest.approx(
        float(report.energy.total) / time / float(system.n_devices), rel=1e-12
    )
    assert float(report.cost_per_million_tokens) == pytest.approx(
        float(report.cost.run) / sequences / length * 1e6, rel=1e-12
    )
    passes = (prefill(llama, system, strategy, Exact()), decode(llama, system, strategy, Exact()))
    assert [float(alone.time) for alone in passes] == pytest.approx([first, each], rel=1e-12)
    assert float(passes[0].tokens_per_second) == pytest.approx(
        sequences * float(strategy.sequence_length) / first, rel=1e-12
    )
    assert float(passes[1].tokens_per_second) == pytest.approx(sequences / each, rel=1e-12)


def test_longer_costs_more(llama, system):
    base = {"sequence_length": 200, "output_length": 200, "global_batch": 8}
    before = generate(llama, system, dp.load_strategy(base), Exact())
    for name in base:
        after = generate(llama, system, dp.load_strategy({**base, name: 2 * base[name]}), Exact())
        assert float(after.time) > float(before.time)
        assert float(after.energy.total) > float(before.energy.total)
        assert float(after.memory.kv_cache) > float(before.memory.kv_cache)


def test_replicas_share_the_batch(llama, system):
    alone = dp.load_strategy({"global_batch": 8})
    shared = dp.load_strategy({"global_batch": 32, "dp": 4})
    times = [float(generate(llama, system, strategy, Exact()).time) for strategy in (alone, shared)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)
