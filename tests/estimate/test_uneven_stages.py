"""Steps of pipelines whose stages are not alike, against event-by-event runs and each other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import training
from pipeline_simulator import Run, dualpipe, one_forward_one_backward

import diffperf as dp
from diffperf.estimate.training import timed_step
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.schedule import StagePass, bubble, unpaired_micro_batches

BUSY = ("matmul", "attention", "elementwise", "recompute", "host", "head", "tensor_parallel")


def _step(model, table, relax=None, stack=None):
    strategy = dp.load_strategy(table)
    options = {} if stack is None else {"stack": stack}
    system = dp.load_system("dgx-a100", n_devices=float(strategy.devices), **options)
    return training(model, system, strategy, Exact() if relax is None else relax)


def _pipelined(report, system_overhead: float) -> float:
    """Seconds of a step's passes and its bubble."""
    parts = [float(getattr(report.breakdown, part)) for part in (*BUSY, "pipeline_bubble")]
    return sum(parts) - system_overhead


@pytest.mark.parametrize(
    ("stages", "micro_batches", "first", "last"),
    [
        *[(8, 64, *ends) for ends in ((0, 0), (9, 0), (0, 9), (6, 6), (15, 11), (2, 13))],
        *[(7, 64, *ends) for ends in ((0, 0), (0, 10), (15, 5))],
        *[(64, 64, *ends) for ends in ((0, 0), (0, 1), (1, 1))],
        *[(8, few, *ends) for few in (1, 4, 8, 9) for ends in ((0, 0), (26, 0), (0, 26), (2, 13))],
    ],
)
def test_one_forward_one_backward_with_uneven_stages(gpt, stages, micro_batches, first, last):
    """Stages of GPT-3 with their own numbers of layers, the head on the last, event by event, where a third
    of the work is forward: exact where the last stage is the slowest, and within 0.1 % where the middle ones
    are alike and micro-batches fill the pipeline. Where layers do not divide evenly, the last of the middle
    stages hold one less.
    """
    ends = {"first_stage_layers": first, "last_stage_layers": last}
    table = {"tp": 8, "pp": stages, "global_batch": micro_batches} | ends
    program = "maxtext"  # a host that launches a whole program: waits for launches are no third forward
    report = _step(gpt, table, stack=program)
    # One layer's time, from a model in a single stage.
    alone = _step(gpt, {"tp": 8, "global_batch": 1}, stack=program)
    overhead = float(dp.load_system("dgx-a100", stack=program).stack.step_overhead)
    layer = sum(float(getattr(alone.breakdown, part)) for part in BUSY if part != "head") - overhead
    # Four all-reduces a layer, and as long ones of the embedded tokens and of the head's input gradients.
    outside = float(alone.breakdown.tensor_parallel) / (4 * 96 + 2)
    head, layer = float(alone.breakdown.head) + outside, (layer - 2 * outside) / 96
    middle = np.ceil((96 - first - last) / (stages - (first > 0) - (last > 0)))
    layers = np.array([first or middle, *[middle] * (stages - 2), last or middle])
    lighter = int(layers.sum() - 96)
    layers[-1 - lighter : -1] -= 1
    passes = layers * layer + np.array([outside, *[0.0] * (stages - 2), head])
    run = Run(one_forward_one_backward, stages, micro_batches, passes / 3, passes / 3, passes / 3)
    last_is_slowest = passes[-1] == passes.max()
    alike = 1e-3 if micro_batches > stages + 1 else 2e-2
    tolerance = 1e-9 if last_is_slowest else 1e-2 if lighter else alike
    assert _pipelined(report, overhead) == pytest.approx(run.time, rel=tolerance)


def test_dualpipe_hides_nothing_while_it_fills_and_drains():
    """Passes that run alone take longer by c: (p/2 + 2)·2c beside the bubble of passes that are so longer."""
    for stages, micro_batches in ((2, 4), (4, 8), (4, 20), (8, 16), (12, 40)):
        strategy = dp.load_strategy({"schedule": "dualpipe", "pp": stages, "global_batch": micro_batches})
        for forward, inputs, weights, alone in (
            (1.0, 1.2, 0.9, 0.3),
            (1.0, 2.0, 0.8, 0.7),
            (1.0, 0.5, 1.0, 0.1),
        ):
            run = Run(dualpipe, stages, micro_batches, forward, inputs, weights, alone=alone)
            longer = StagePass(*map(real, (forward + alone, inputs + weights + alone, weights)))
            busy = micro_batches * (forward + inputs + weights)
            uncovered = 2 * alone * float(unpaired_micro_batches(strategy))
            expected = busy + uncovered + float(bubble(longer, strategy, Exact()))
            assert expected == pytest.approx(run.time, rel=1e-9)


def test_both_ends_of_dualpipe_share_a_device():
    """Where the last stage alone takes longer, both devices at the ends take half as much longer."""
    stages, micro_batches, extra = 8, 512, 0.5
    each = np.full(stages, 1.0)
    each[-1] += extra
    uneven = Run(dualpipe, stages, micro_batches, each, each, each)
    even = Run(dualpipe, stages, micro_batches, 1.0, 1.0, 1.0)
    assert (uneven.time - even.time) / (3 * micro_batches) == pytest.approx(extra / 2, rel=0.02)


def test_dualpipe_charges_half_of_the_head(gpt):
    one_way, both_ways = (
        _step(gpt, {"tp": 8, "pp": 8, "global_batch": 64, "schedule": name}) for name in ("1f1b", "dualpipe")
    )
    assert float(both_ways.breakdown.head) == pytest.approx(float(one_way.breakdown.head) / 2, rel=1e-12)
    assert float(both_ways.energy.compute) == pytest.approx(float(one_way.energy.compute), rel=1e-12)


def _time(model, **table) -> float:
    return float(_step(model, {"tp": 8, "pp": 8, "global_batch": 64} | table).time)


def test_rounding_does_not_say_which_end_of_dualpipe_is_slower():
    """Steps whose inputs differ in the last digits differ in the last digits: the first and the last device
    do the same, and a step that took one for the slower was 0.7 % longer."""
    model, system = dp.load_model("qwen3-30b-a3b"), dp.load_system("dgx-h100", n_devices=128)
    layout = {"pp": 4, "ep": 8, "global_batch": 256, "sequence_length": 4096, "schedule": "dualpipe"}
    strategy = dp.load_strategy(layout | {"precision": "fp8", "overlap_experts": True}, n_devices=128)

    @jax.jit
    def time(factor):
        vector = system.accelerator.vector * factor
        return dp.training_step(model, replace(system, {"accelerator.vector": vector}), strategy).time

    times = np.array([time(1 + 1e-12 * step) for step in range(24)])
    assert np.ptp(times) < 1e-9 * times[0]


def test_a_lighter_last_stage_makes_up_for_the_head():
    """A head of four layers' work: 16 layers as 5, 5, 5 and 1 rather than 4 on each stage."""
    model, table = dp.load_model("llama-3.2-1b"), {"pp": 4, "global_batch": 64}
    even = float(_step(model, table).time)
    lighter = _step(model, table | {"last_stage_layers": 1})
    assert float(lighter.time) < 0.75 * even
    same = _step(model, table | {"last_stage_layers": 1, "first_stage_layers": 5})
    assert float(lighter.time) == pytest.approx(float(same.time), rel=1e-12)
    assert float(_step(model, table | {"first_stage_layers": 10}).time) > 1.2 * float(lighter.time)


@pytest.mark.slow
def test_every_kind_counts_where_it_is():
    """Dense layers that lead make the first stage slower, where a dense MLP is the larger; spread evenly, all
    stages alike.
    """
    model = dp.load_model("deepseek-v2")
    heavy = dataclasses.replace(model.layers[0], ffn=real(60000.0), count=real(4.0))
    table = {"pp": 4, "dp": 8, "ep": 8, "global_batch": 64, "sequence_length": 4096}

    def step(leading):
        kinds = (dataclasses.replace(heavy, leading=leading), model.layers[1])
        return float(_step(dataclasses.replace(model, layers=kinds), table).time)

    assert step(True) > 1.02 * step(False)


@pytest.mark.slow
def test_tables_count_the_layers_of_the_slowest_stage():
    """Fifteen layers of the last stage, one of them that of multi-token prediction; or as many layers as the
    last stage waits for, beside its head.
    """
    model, system = dp.load_model("deepseek-v3"), dp.load_system("dgx-h100", n_devices=32)
    table = {"pp": 4, "dp": 8, "ep": 8, "global_batch": 64}
    strategy = dp.load_strategy(table | {"first_stage_layers": 15, "last_stage_layers": 14})
    timed = jax.jit(timed_step)
    step = timed(Configuration(model, system, strategy))
    np.testing.assert_allclose(step.layer_passes / 8, [0, 15], atol=1e-9)
    strategy = dp.load_strategy(table | {"first_stage_layers": 15, "last_stage_layers": 2})
    waiting = timed(Configuration(model, system, strategy))
    passes = float(step.report.breakdown.matmul) / 15
    assert float(waiting.report.breakdown.matmul + waiting.report.breakdown.head) > 22 * passes


@pytest.mark.slow
@pytest.mark.parametrize("relax", [Exact(), Smooth(16.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_slopes_of_the_step(relax, schedule):
    """Between whole numbers, against central differences."""
    model, system = dp.load_model("deepseek-v3"), dp.load_system("dgx-h100", n_devices=256)
    table = {
        "pp": 16,
        "dp": 16,
        "ep": 16,
        "global_batch": 1024,
        "first_stage_layers": 3,
        "schedule": schedule,
    }
    strategy = replace(dp.load_strategy(table | {"last_stage_layers": 2}), {"last_stage_layers": 2.3})
    names = ("first_stage_layers", "last_stage_layers", "sequence_length", "pp")

    def time(values):
        chosen = replace(strategy, dict(zip(names, values, strict=True)))
        report = dp.training_step(model, system, chosen, relax)
        return report.time

    at = jnp.array([3.2, 2.3, 4000.5, 15.3])
    slope, value = jax.jit(jax.grad(time)), jax.jit(time)
    gradient = slope(at)
    assert np.isfinite(gradient).all()
    for index in range(len(names)):
        change = 1e-6 * at[index] * jnp.eye(len(names))[index]
        difference = (value(at + change) - value(at - change)) / (2e-6 * at[index])
        assert float(gradient[index]) == pytest.approx(float(difference), rel=1e-3, abs=1e-7)
