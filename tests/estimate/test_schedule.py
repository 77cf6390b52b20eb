"""Bubbles and micro-batches in flight against an event-by-event run of every schedule, in the order its
authors give.
"""

import itertools

import numpy as np
import pytest
from helpers import outputs, training
from pipeline_simulator import ORDERS, Run, dualpipe, gpipe, one_forward_one_backward, zero_bubble

import diffperf as dp
from diffperf.explore.bottlenecks import listing
from diffperf.quantity import real
from diffperf.relax import Exact, Smooth
from diffperf.workload.configuration import Configuration
from diffperf.workload.schedule import StagePass, bubble, in_flight

FEW = [(2, 1), (4, 1), (4, 3), (8, 2), (8, 5)]  # stages, and fewer micro-batches
MANY = [(1, 4), (2, 2), (3, 4), (4, 4), (4, 16), (6, 9), (8, 32)]
CASES = [(name, p, m, 1) for name in ("gpipe", "1f1b", "zero_bubble") for p, m in FEW + MANY]
CASES += [("1f1b", p, m, v) for p, m, v in [(2, 4, 2), (4, 8, 2), (4, 16, 3), (4, 16, 6), (8, 16, 3)]]
CASES += [
    ("dualpipe", p, m, 1) for p, m in [(2, 4), (2, 10), (4, 8), (4, 14), (6, 12), (8, 16), (8, 20), (12, 40)]
]


def _strategy(schedule, stages, micro_batches, chunks):
    return dp.load_strategy(
        {"schedule": schedule, "pp": stages, "virtual_stages": chunks, "global_batch": micro_batches}
    )


def _passes(count: int) -> np.ndarray:
    """Forward passes, input gradients and weight gradients, in every order of length: (passes, 3)."""
    drawn = np.sort(np.random.default_rng(0).uniform(0.1, 3, (count, 6, 3)))
    return np.concatenate(
        [drawn[:, i, list(order)] for i, order in enumerate(itertools.permutations(range(3)))]
    )


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), CASES)
def test_bubbles_and_micro_batches_in_flight(schedule, stages, micro_batches, chunks):
    strategy = _strategy(schedule, stages, micro_batches, chunks)
    for forward, inputs, weights in _passes(2):
        if schedule == "zero_bubble" and micro_batches < stages and inputs < min(forward, weights):
            continue  # a bound, says the docstring
        run = Run(ORDERS[schedule], stages, micro_batches, forward, inputs, weights, chunks)
        idle = float(bubble(StagePass(*map(real, (forward, inputs + weights, weights))), strategy, Exact()))
        assert micro_batches * (forward + inputs + weights) + idle == pytest.approx(run.time, rel=1e-9)
        for stage in {0, stages // 2, stages - 1}:
            position = stage / max(stages - 1, 1)
            assert float(in_flight(strategy, Exact(), position)) == pytest.approx(run.held(stage), rel=1e-9)


@pytest.mark.parametrize("schedule", ORDERS)
def test_smooth_bubbles_are_near(schedule):
    strategy = _strategy(schedule, 8, 32, 1)
    for forward, inputs, weights in _passes(2):
        stage = StagePass(*map(real, (forward, inputs + weights, weights)))
        smooth, exact = (float(bubble(stage, strategy, relax)) for relax in (Smooth(200.0), Exact()))
        assert smooth == pytest.approx(exact, rel=0.03)


def test_the_simulation_knows_the_textbook():
    """(m + p − 1)·(F + B) for 1F1B, m·(F + B) + (p − 1)/v·(F + B) interleaved; a stage alone has no bubble.

    Of equal passes, ZB-H1 leaves a third of 1F1B's bubble (arXiv 2401.10241 §2.1: F + B − 2W of F + B),
    DualPipe F + 2B − 3W for each of p/2 − 1 (arXiv 2412.19437, Table 2).
    """
    assert Run(one_forward_one_backward, 4, 8, 1.0, 1.5, 0.5).time == (8 + 3) * 3
    assert Run(gpipe, 4, 8, 1.0, 1.5, 0.5).time == (8 + 3) * 3
    assert Run(one_forward_one_backward, 1, 5, 1.0, 1.5, 0.5).time == 15
    assert Run(one_forward_one_backward, 4, 8, 1.0, 1.5, 0.5, 2).time == pytest.approx(8 * 3 + 3 / 2 * 3)
    assert Run(zero_bubble, 4, 8, 1.0, 1.0, 1.0).time == 8 * 3 + 3
    assert Run(dualpipe, 8, 20, 1.0, 1.0, 1.0).time == 20 * 3 + 3 * (1 + 2 * 2 - 3)
    assert Run(dualpipe, 8, 20, 1.0, 1.0, 0.5).time == 20 * 2.5 + 3 * (1 + 2 * 1.5 - 1.5)


def test_the_simulation_can_disagree():
    """Weight gradients right after input gradients are 1F1B, late ones that no stage waits for are not."""
    now, late = (Run(order, 4, 8, 1.0, 1.0, 1.0).time for order in (one_forward_one_backward, zero_bubble))
    assert late < now - 5


# --- in a training step

PARTS = ("matmul", "attention", "elementwise", "recompute", "host", "tensor_parallel")


def _step(gpt, table):
    strategy = dp.load_strategy(table)
    system = dp.load_system("dgx-a100", n_devices=float(strategy.devices))
    report = outputs(training(gpt, system, strategy, Exact()))
    busy = sum(float(report[f"breakdown.{part}"]) for part in PARTS) - float(system.stack.step_overhead)
    return busy, float(report["breakdown.pipeline_bubble"]), report


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "chunks"),
    [
        ("1f1b", 1, 4, 1),
        ("1f1b", 2, 2, 1),
        ("1f1b", 8, 32, 1),
        ("1f1b", 4, 16, 3),
        ("1f1b", 8, 16, 3),
        ("gpipe", 4, 16, 1),
    ],
)
def test_bubble_of_a_step(gpt, schedule, stages, micro_batches, chunks):
    table = {
        "tp": 8,
        "pp": stages,
        "virtual_stages": chunks,
        "global_batch": micro_batches,
        "recompute": "selective",
    }
    busy, idle, report = _step(gpt, table | {"schedule": schedule})
    # Beside four all-reduces a layer, those of the head's input gradients and of embedded tokens are outside
    # the passes through layers; the latter are on the first stage.
    outside, layers = (2 if stages == 1 else 1), 96 / stages
    reduction = float(report["breakdown.tensor_parallel"]) / (4 * layers + outside) / micro_batches
    busy -= micro_batches * outside * reduction
    third = np.full(stages, busy / micro_batches / 3)  # of both passes of a micro-batch on a stage
    third[[0, -1]] += reduction / 3 * (stages > 1)
    simulated = Run(ORDERS[schedule], stages, micro_batches, third, third, third, chunks).time
    simulated -= micro_batches * reduction * (stages > 1)  # the last stage has as much outside its layers
    assert busy + idle == pytest.approx(simulated, rel=1e-9)


@pytest.mark.slow
def test_split_backward_passes_of_a_step(gpt):
    """Zero-bubble H1 fills 1F1B's bubble with the weight gradients of the stages before the last, twice."""
    table = {"tp": 8, "pp": 8, "global_batch": 32}
    steps = {name: _step(gpt, table | {"schedule": name}) for name in ("1f1b", "zero_bubble", "dualpipe")}
    system = dp.load_system("dgx-a100", n_devices=64)
    configuration = Configuration(gpt, system, dp.load_strategy(table, n_devices=64), Exact())
    listed = listing(configuration).operators
    weights = (
        sum(row.time for row in listed if row.part == "matmul" and "gradient of weights" in row.name) / 32
    )
    # The first stage's exchange of embedded tokens fills the pipeline as if all passes before the last stage
    # were longer, their weight gradients too.
    busy, idle, report = steps["1f1b"]
    passes = busy - float(report["breakdown.tensor_parallel"]) / (4 * 12 + 1)  # through layers
    longer = idle / (7 * passes / 32)
    assert 1 < longer < 1.001
    assert steps["zero_bubble"][1] == pytest.approx(idle - longer * 7 * 2 * weights, rel=1e-9)
    assert weights == pytest.approx(float(steps["1f1b"][2]["breakdown.matmul"]) / 32 / 3, rel=0.1)
    assert steps["dualpipe"][1] < steps["zero_bubble"][1]
    assert steps["dualpipe"][0] == steps["1f1b"][0]


def test_layers_that_do_not_divide_wait_for_the_fullest_stage(gpt):
    """96 layers on 5 stages: the fullest has 20, and sets the pace."""
    five, four = (
        float(_step(gpt, {"tp": 8, "pp": pp, "global_batch": 20})[2]["breakdown.matmul"]) for pp in (5, 4)
    )
    assert five == pytest.approx(four * 20 / 24, rel=1e-9)
