"""What a serving stack adds to kernels and to requests, against answers worked out by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import tables

import diffperf as dp
from diffperf.estimate.serving.engine_passes import passes, prompt_chunk_pass, running_sequences
from diffperf.estimate.serving.serving_report import serve
from diffperf.quantity import real, replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests

served = jax.jit(serve)


def with_stack(system, **fields):
    """The system with other numbers of its inference stack."""
    return replace(system, {f"inference_stack.{name}": value for name, value in fields.items()})


def kernels(model, system):
    """The table of the kernels of a decode pass on one device."""
    strategy = dp.load_strategy({"sequence_length": 512, "output_length": 2, "global_batch": 8})
    c = Configuration(model, replace(system, {"n_devices": 1}), strategy)
    return tables(c, "decode")["breakdown"].operators


@pytest.mark.slow
def test_kernels_that_start_early_save_a_share_of_their_start(llama, system):
    before, after = kernels(llama, system), kernels(llama, with_stack(system, exposed_start=0.6))
    start = {"attention": float(system.accelerator.kernel_latency + system.accelerator.attention.latency)}
    saved = [0.4 * start.get(part, float(system.accelerator.kernel_latency)) for part in before.parts]
    runs = np.asarray(before.runs) > 0
    np.testing.assert_allclose(
        np.asarray(before.run_time - after.run_time)[runs], np.array(saved)[runs], rtol=1e-9
    )


@pytest.mark.slow
def test_routing_takes_more_kernels(system):
    """Ten kernels for two cost eight starts more in every layer of experts."""
    mixtral, none = dp.load_model("mixtral-8x7b"), {"elementwise_kernels": 1.0, "elementwise_traffic": 1.0}
    counted = [kernels(mixtral, with_stack(system, routing_kernels=count, **none)) for count in (2.0, 10.0)]
    accelerator, stack = system.accelerator, system.inference_stack
    # The copies of eight tokens come from the shared cache.
    each = accelerator.kernel_latency + stack.kernel_overhead + accelerator.memory[1].latency
    before, after = (float(table.time.sum()) for table in counted)
    assert after - before == pytest.approx(32 * 8 * float(each), rel=1e-6)


def emptied_pipeline(stages: list[float], parts: int, at_once: int) -> float:
    """When the last of some parts has left the stages, where so many enter at once and those after them enter
    when the pipeline is empty: a loop over parts and stages.
    """
    free, start = [0.0] * len(stages), 0.0
    for part in range(parts):
        if part % at_once == 0:
            start = max(free)
        at = start
        for index, stage in enumerate(stages):
            at = free[index] = max(at, free[index]) + stage
    return max(free)


@pytest.mark.parametrize("at_once", [1, 2, 4, 8])
def test_prompts_that_are_not_submitted_together_wait_for_an_empty_pipeline(llama, system, at_once):
    """Eight parts of a prompt pass four stages, so many of them at once."""
    one = with_stack(system, pass_tokens=512, submitted_tokens=512 * at_once)
    strategy = dp.load_strategy({"pp": 4, "sequence_length": 4096, "output_length": 2})
    prefill = dp.prefill(llama, replace(one, {"n_devices": 4}), strategy).breakdown
    host = float(prefill.host)
    per_layer = (
        float(prefill.total - prefill.pipeline_queue - prefill.head - prefill.pipeline_transfers) - host
    )
    # Stages of eight layers; the last has the vocabulary projection. Transfers take no stage's time.
    last = per_layer / 4 + float(prefill.head) + host
    assert float(prefill.pipeline_transfers) < 0.01 * last
    stages = [per_layer / 4] * 3 + [last]
    expected = emptied_pipeline(stages, 8, at_once) + float(prefill.pipeline_transfers) * 8 / at_once
    assert float(prefill.total) == pytest.approx(expected, rel=2e-3)


def test_kernels_that_unpack_weights_reach_a_share_of_the_efficiency(llama, system):
    """That is as if the stack reached this share of the efficiency in all its products."""
    one = with_stack(replace(system, {"n_devices": 1}), unpacking_operations=0.1)
    narrow = dp.load_strategy({"sequence_length": 8192, "output_length": 2, "weight_precision": "int4"})

    def matmul(strategy, **stack):
        return float(dp.prefill(llama, with_stack(one, **stack), strategy).breakdown.matmul)

    efficiency = float(one.inference_stack.matrix_efficiency)
    slower = matmul(narrow, matrix_efficiency=0.5 * efficiency)
    assert slower > 1.5 * matmul(narrow)
    assert matmul(narrow, unpacking_efficiency=0.5) == pytest.approx(slower, rel=1e-9)
    wide = dp.load_strategy({"sequence_length": 8192, "output_length": 2})
    assert matmul(wide, unpacking_efficiency=0.5) == matmul(wide)


def test_prompts_take_at_least_their_launches(llama, system):
    strategy = dp.load_strategy({"sequence_length": 64, "output_length": 2})
    one = with_stack(replace(system, {"n_devices": 1}), engine_step=1e-9, engine_sequence=1e-9)
    device = float(dp.prefill(llama, one, strategy).time)
    slow, fast = (2 * device / 32, 0.5 * device / 32)
    times = [float(dp.prefill(llama, with_stack(one, prompt_launch=t), strategy).time) for t in (slow, fast)]
    assert times == pytest.approx([2 * device, device], rel=1e-6)
    decode = [dp.decode(llama, with_stack(one, prompt_launch=t), strategy).time for t in (slow, fast)]
    assert float(decode[0]) == float(decode[1])  # decode passes replay a recorded graph


@pytest.fixture(scope="module")
def engine(llama, system):
    """A function of the numbers of a stack and of requests that serves 32 clients on one device."""
    one, strategy = replace(system, {"n_devices": 1}), dp.load_strategy({})
    spread = {"input_spread": 0.5, "output_spread": 0.5, "concurrency": 32.0, "rate": 4.0}

    def report(load="concurrency", **fields):
        return served(llama, with_stack(one, **fields), strategy, Requests(load=load, **spread))

    return report


@pytest.mark.slow
@pytest.mark.parametrize("load", ["concurrency", "rate"])
def test_tokens_that_are_sent_together(engine, load):
    """The first of eight tokens waits for seven steps; the answer ends when it did."""
    singly, together = engine(load), engine(load, stream_interval=8.0)
    step = float(singly.time_per_output_token)
    later = float(together.time_to_first_token - singly.time_to_first_token)
    assert later == pytest.approx(7 * step, rel=1e-9)
    assert float(together.latency) == pytest.approx(float(singly.latency), rel=1e-12)
    assert float(together.time_per_output_token) == pytest.approx(step * (1 - 7 / 255), rel=1e-9)


@pytest.mark.slow
def test_the_host_verifies_drafts_after_each_step(llama, system):
    """Of one sequence at a time; without drafts nothing is verified."""
    one, strategy = replace(system, {"n_devices": 1}), dp.load_strategy({})

    def per_token(drafts: float, tokens: float, **fields) -> float:
        requests = Requests(load="rate", rate=1e-5, draft_tokens=drafts, tokens_per_step=tokens)
        return float(served(llama, with_stack(one, **fields), strategy, requests).time_per_output_token)

    none, both = {"draft_step": 1e-9, "draft_sequence": 1e-9}, {"draft_step": 2e-3, "draft_sequence": 5e-4}
    assert per_token(2.0, 2.2, **both) - per_token(2.0, 2.2, **none) == pytest.approx(2.5e-3 / 2.2, rel=1e-3)
    assert per_token(0.0, 1.0, **both) == per_token(0.0, 1.0, **none)


def test_requests_that_wait_outside_the_engine(engine):
    """Under a rate, what a request waits outside adds to its first token alone. In a closed loop clients who
    wait outside leave fewer in the engine: the rate times the latency stays the number of clients.
    """
    before, after = engine("rate"), engine("rate", request_overhead=0.25)
    later = float(after.time_to_first_token - before.time_to_first_token)
    assert later == pytest.approx(0.25, rel=1e-6)
    assert float(after.time_per_output_token) == pytest.approx(float(before.time_per_output_token), rel=1e-9)
    before, after = engine(), engine(request_overhead=0.25)
    assert float(after.running) < float(before.running)
    assert float(after.requests_per_second * after.latency) == pytest.approx(32, rel=1e-3)


def test_an_engine_that_polls_waits_half_an_interval(engine):
    """A request is noticed after 0 to 9 further steps, 4.5 on average."""
    before, after = engine("rate"), engine("rate", poll_interval=10.0)
    later = float(after.time_to_first_token - before.time_to_first_token)
    assert later == pytest.approx(4.5 * float(before.time_per_output_token), rel=1e-6)


def test_clients_who_begin_at_once_wait_for_each_other(engine, llama, system):
    """32 prompts of 1,024 tokens in steps of 8,192 take four steps, half of them on average."""
    report = engine()
    step = replace(system, {"n_devices": 1, "inference_stack.pass_tokens": 8192.0})
    strategy = dp.load_strategy({"sequence_length": 1024, "global_batch": 8})
    full = float(dp.prefill(llama, step, strategy).time)
    assert float(report.time_to_first_token_at_start) == pytest.approx(33 / 32 * 2 * full, rel=0.1)


def test_first_tokens_of_the_start_are_later_by_steps(engine):
    """Those of the steady state are not."""
    before, after = engine(), engine(start_steps=50.0)
    later = float(after.time_to_first_token_at_start - before.time_to_first_token_at_start)
    assert later == pytest.approx(50 * float(before.time_per_output_token), rel=1e-6)
    assert float(after.time_to_first_token) == pytest.approx(float(before.time_to_first_token), rel=1e-9)


def expert_time(system, stack: dict, **formats: str) -> float:
    """Seconds of the products of gpt-oss-20b's experts for 8,192 prompt tokens on one device."""
    one = with_stack(replace(system, {"n_devices": 1}), **stack)
    strategy = dp.load_strategy({"sequence_length": 8192, "output_length": 2, **formats})
    c = Configuration(dp.load_model("gpt-oss-20b"), one, strategy)
    table = tables(c, "prefill")["breakdown"].operators
    return sum(
        float(time)
        for name, part, time in zip(table.names, table.parts, table.time, strict=True)
        if part == "matmul" and "expert" in name
    )


@pytest.mark.slow
def test_stacks_narrow_the_operands_of_experts_in_four_bits():
    """Products then take as long as those whose strategy has 8 bits and whose weights need no unpacking,
    without kernels that convert activations: those that sort tokens by experts do it on the way.

    Here, where arithmetic binds, that is half as long as in 16 bits, and the latency of their main loops.
    """
    system, stored = dp.load_system("hgx-b200", calibration="none"), {"expert_weight_precision": "mxfp4"}
    wide = {"narrows_expert_operands": False}
    free = {**wide, "unpacking_operations": 1e-9, "unpacking_efficiency": 1.0}
    narrows = {"narrows_expert_operands": True}
    fused = {**free, "separate_conversion": 0.0}
    narrowed = expert_time(system, narrows, **stored)
    assert narrowed == pytest.approx(expert_time(system, fused, **stored, expert_precision="fp8"), rel=1e-6)
    assert 0.5 < narrowed / expert_time(system, free, **stored) < 0.65
    # Nothing changes where weights have 8 bits, or operands do.
    for formats in ({"expert_weight_precision": "fp8"}, {**stored, "expert_precision": "fp8"}):
        assert expert_time(system, narrows, **formats) == expert_time(system, wide, **formats)


def test_engines_without_grouped_queries_repeat_key_and_value_heads(system):
    """As a model runs that has a key and value head for every query head."""
    llama = dp.load_model("llama-3-8b")  # a key and value head for four query heads
    one, strategy = replace(system, {"n_devices": 2}), dp.load_strategy({"tp": 2, "global_batch": 4})
    repeating = with_stack(one, repeats_kv_heads=True)
    layers = dataclasses.replace(llama.layers[0], kv_heads=llama.layers[0].heads)
    whole = dataclasses.replace(llama, layers=(layers,))
    repeated, expected = dp.generate(llama, repeating, strategy), dp.generate(whole, one, strategy)
    assert float(repeated.time) == pytest.approx(float(expected.time), rel=1e-9)
    assert float(repeated.memory.peak) == pytest.approx(float(expected.memory.peak), rel=1e-9)
    assert float(dp.generate(llama, one, strategy).time) < 0.98 * float(repeated.time)


def test_energy_of_prompts_does_not_grow_with_pipeline_stages():
    """Long prompts pass in chunks. Whatever lengths the strategy has, two stages take about the energy of one
    for the same work: some more, because tensor-parallel groups of half the devices have smaller products.
    """
    requests = Requests(input_length=real(65536.0), output_length=real(128.0))
    model, system = dp.load_model("llama-3-70b"), dp.load_system("dgx-h100", n_devices=8)

    @jax.jit
    def of_a_token(c):
        chunk = prompt_chunk_pass(requests)
        return passes(running_sequences(c, real(1.0)), {"prompt": chunk})["prompt"].energy / chunk.queries

    def joules(tp, pp, length):
        table = {"tp": tp, "pp": pp, "global_batch": 1, "sequence_length": length}
        return float(of_a_token(Configuration(model, system, dp.load_strategy(table, 8)).for_inference()))

    alone = joules(8, 1, 65536)
    assert alone < joules(4, 2, 65536) < 1.2 * alone
    assert joules(4, 2, 65536) == pytest.approx(joules(4, 2, 2048), rel=1e-9)
