"""Inference: the closed form over a growing context against the sum over its passes, and what a pass must at
least take.
"""

import jax
import jax.numpy as jnp
import pytest
from helpers import generate

import diffperf as dp
from diffperf.estimate.inference import timed_phase
from diffperf.estimate.phases import estimate, phase_tables
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

prefill, decode = jax.jit(dp.prefill), jax.jit(dp.decode)


def _agrees_with_its_passes(model, system, strategy):
    """Whether a generation takes the time and the energy of its passes, one after the other.

    The prefill gives the first token; each other token attends to the prompt and every output before it,
    itself included.
    """
    prompt, output = float(strategy.sequence_length), float(strategy.output_length)
    report = generate(model, system, strategy, Exact())

    def one_pass(context):
        # A generation of two tokens has one decode pass, over the prompt and one more.
        alone = replace(strategy, {"sequence_length": context - 1, "output_length": 2.0})
        report = decode(model, system, alone, Exact())
        return jnp.stack([report.time, report.energy.total])

    first = prefill(model, system, strategy, Exact())
    time, energy = float(first.time), float(first.energy.total)
    if output > 1:
        passes = jax.vmap(one_pass)(jnp.arange(prompt + 1.0, prompt + output)).sum(axis=0)
        time, energy = time + float(passes[0]), energy + float(passes[1])
    assert float(report.time) == pytest.approx(time, rel=1e-6)
    assert float(report.energy.total) == pytest.approx(energy, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "output", "batch"), [(200, 200, 1), (2000, 500, 16), (128, 2048, 64), (50, 2, 1), (50, 1, 1)]
)
def test_generation_is_the_sum_of_its_passes(llama, system, prompt, output, batch):
    strategy = dp.load_strategy({"sequence_length": prompt, "output_length": output, "global_batch": batch})
    _agrees_with_its_passes(llama, replace(system, {"n_devices": 1}), strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("deepseek-v2", 500, 300), ("mistral-7b", 4000, 300), ("nemotron-nano-9b-v2", 500, 300)],
    ids=["latent attention and experts", "a window that fills", "a hybrid with state spaces"],
)
def test_generations_of_other_models_are_the_sums_of_their_passes(system, name, prompt, output):
    lengths = {"sequence_length": prompt, "output_length": output}
    strategy = dp.load_strategy(lengths | {"tp": 8, "global_batch": 8})
    _agrees_with_its_passes(dp.load_model(name), replace(system, {"n_devices": 8}), strategy)


@pytest.mark.slow
def test_decode_at_batch_one_streams_the_weights(llama, system):
    """At batch 1 every weight but the input embedding is read once a token: the floor that no kernel
    beats.
    """
    strategy = dp.load_strategy({"sequence_length": 10, "output_length": 2})
    memory = system.accelerator.device_memory
    weights = 2 * float(llama.parameters - llama.embedding_parameters)
    floor = weights / float(memory.bandwidth * memory.efficiency)
    time = float(decode(llama, replace(system, {"n_devices": 1}), strategy, Exact()).time)
    accelerator, stack = system.accelerator, system.inference_stack
    starts = accelerator.kernel_latency + stack.kernel_overhead + memory.latency + accelerator.split_latency
    overheads = 32 * 12 * float(starts)
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


@pytest.mark.slow
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
    assert float(passes[0].time) == pytest.approx(first, rel=1e-12)
    assert float(passes[1].time) == pytest.approx(each, rel=1e-4)  # at the mean context, or over all of them
    assert float(passes[1].tokens_per_second) == pytest.approx(sequences / float(passes[1].time), rel=1e-12)


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


# --- number formats, experts, pipelines


def _decode(model, system, **table):
    strategy = dp.load_strategy({"output_length": 2, **table})
    return decode(dp.load_model(model), replace(system, {"n_devices": 1}), strategy, Exact())


def test_weights_in_four_bits_are_read_four_times_as_fast(system):
    """Without overheads a decode pass at batch 1 reads its weights: those of layers in a quarter of the time
    of 16 bits, the vocabulary projection, which quantization leaves out, in the same.
    """
    bare = dict.fromkeys(("accelerator.kernel_latency", "inference_stack.kernel_overhead"), 1e-08)
    bare |= {"accelerator.memory.hbm.latency": 1e-9, "accelerator.matrix.bf16.k_latency": 1e-12}
    fast = replace(system, bare)
    whole, packed = (
        _decode("llama-3-8b", fast, weight_precision=weights).breakdown for weights in ("operands", "int4")
    )
    assert float(whole.matmul) / float(packed.matmul) == pytest.approx(4, rel=0.1)
    assert float(whole.head) == pytest.approx(float(packed.head), rel=1e-6)


def test_converting_weights_takes_the_vector_units(system):
    """A device with slow vector units is bound by the conversion of stored weights, of which each takes
    `unpacking_operations`.
    """
    slow, model = replace(system, {"accelerator.vector": 1e11}), dp.load_model("llama-3-8b")
    packed, whole = (
        float(_decode("llama-3-8b", slow, weight_precision=weights).breakdown.matmul)
        for weights in ("int4", "operands")
    )
    matrices = sum(float(kind.count * kind.active_matrices(model.hidden)) for kind in model.layers)
    operations = float(system.inference_stack.unpacking_operations)
    assert packed == pytest.approx(matrices * operations / 1e11, rel=0.02)
    assert whole < packed / 2


def test_decode_of_a_mixture_reads_the_experts_that_tokens_visit(system):
    """Mixtral at batch 1: two of eight experts, 12.9 of 46.7 billion parameters (arXiv 2401.04088), and all
    of them from some tens of sequences on.
    """
    one, many = (float(_decode("mixtral-8x7b", system, global_batch=b).breakdown.matmul) for b in (1, 64))
    assert 2.9 < many / one < 3.7


def test_stages_of_a_pipeline_work_at_the_same_time(system):
    """Four stages process prompts nearly four times as fast, less the filling of the pipeline; a sequence
    alone does not gain.
    """
    model = dp.load_model("llama-3-70b")

    def passes(function, pp, batch):
        table = {"pp": pp, "global_batch": batch, "sequence_length": 1024, "output_length": 2}
        strategy = dp.load_strategy(table)
        return function(model, replace(system, {"n_devices": float(pp)}), strategy, Exact())

    one, four = (passes(prefill, pp, 16) for pp in (1, 4))
    assert float(four.tokens_per_second) == pytest.approx(4 * float(one.tokens_per_second), rel=0.05)
    # Four micro-batches in four stages take seven turns of a stage.
    assert float(four.time) == pytest.approx(7 / 16 * float(one.time), rel=0.05)

    # Four devices do the work of one; for 3 of 7 turns each of them waits.
    def work(report):
        return float(report.energy.compute + report.energy.memory)

    assert work(four) == pytest.approx(work(one), rel=0.02)
    share = float(system.accelerator.waiting_share)
    assert float(four.energy.active / one.energy.active) == pytest.approx(1 + share * 3 / 4, rel=0.05)
    alone = [float(passes(decode, pp, 1).tokens_per_second) for pp in (1, 4)]
    assert alone[1] == pytest.approx(alone[0], rel=0.05)
    filled = [float(passes(decode, pp, 512).tokens_per_second) for pp in (1, 4)]
    assert filled[1] > 2 * filled[0]


def test_norms_are_whole_on_every_rank(system):
    """Serving software has no sequence parallelism: a strategy's default does not divide norms and
    residuals.
    """
    model = dp.load_model("llama-2-70b")
    on, off = (
        float(
            prefill(
                model, system, dp.load_strategy({"tp": 8, "sequence_parallel": split}), Exact()
            ).breakdown.elementwise
        )
        for split in (True, False)
    )
    assert on == off


def test_prompts_lie_in_memory_a_pass_at_a_time(llama, system):
    """64 prompts of 2,048 tokens take no more room for activations than the 8,192 tokens of a pass."""
    few, many = (
        float(
            prefill(
                llama,
                system,
                dp.load_strategy({"global_batch": batch, "sequence_length": 2048}),
                Exact(),
            ).memory.activations
        )
        for batch in (4, 64)
    )
    assert few == many > 0


@pytest.mark.parametrize("function", [timed_phase, estimate, phase_tables])
def test_a_phase_that_does_not_exist_is_refused(llama, system, function):
    with pytest.raises(KeyError, match="prefil"):
        function(Configuration(llama, system, Strategy()), "prefil")


@pytest.mark.parametrize(
    ("name", "share", "prompt", "prompts"),
    [
        ("hgx-b200", 1.0, 2048, 4),
        ("hgx-b200", 1.0, 8192, 1),
        ("hgx-b200", 0.6, 1024, 4),
        ("dgx-h100", 0.5, 1024, 1),
        ("dgx-h100", 0.7, 2048, 4),
    ],
)
def test_prefill_beside_its_collectives_keeps_the_power_limit(name, share, prompt, prompts):
    """At the clock that the limit leaves, products hide more of the collectives than at the peak clock."""
    system = dp.load_system(name, n_devices=8)
    limit = share * float(system.accelerator.power_limit)
    laid = {"tp": 8, "overlap_tensor": "on", "sequence_length": prompt, "global_batch": prompts}
    strategy = dp.load_strategy(laid, n_devices=8)
    limited = replace(system, {"accelerator.power_limit": limit})
    report = prefill(dp.load_model("llama-3-8b"), limited, strategy, Exact())
    assert float(report.clock) < 0.95
    assert float(report.power) == pytest.approx(limit, rel=0.003)


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
def test_waits_for_launches_count_in_the_power_that_is_limited(share):
    """A prompt of 512 tokens waits for its launches most of the time, and is throttled only as far as its
    power reaches the limit.
    """
    system = dp.load_system("hgx-b200", n_devices=8)
    limit = share * float(system.accelerator.power_limit)
    strategy = dp.load_strategy({"tp": 8, "overlap_tensor": "on", "sequence_length": 512}, n_devices=8)
    limited = replace(system, {"accelerator.power_limit": limit})
    report = prefill(dp.load_model("llama-3.1-70b"), limited, strategy, Exact())
    assert float(report.breakdown.host) > 0.4 * float(report.time)
    throttled = float(report.clock) < 1
    assert throttled == (share < 0.8)
    assert float(report.power) == pytest.approx(limit, rel=0.003) if throttled else report.power < limit
