"""Bubbles and micro-batches in flight against an event-by-event run of every schedule, in the order its
authors give.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers import outputs, training

import diffperf as dp
from diffperf.quantity import real
from diffperf.relax import Exact, Smooth
from diffperf.workload.schedule import StagePass, bubble, in_flight

# A part of the work on one device: (kind, micro-batch, chunk), chunks counted along a micro-batch's way
# through the device. "F" is a forward pass, "B" a whole backward pass, "I" its input gradients alone (with
# recomputation), "W" its weight gradients. Parts of one unit run together and end together.
Part = tuple[str, int, int]
Unit = tuple[Part, ...]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Unit]:
    """As Megatron-LM orders it, interleaved with more chunks than one (arXiv 2104.04473 §2.2)."""
    total = micro_batches * chunks

    def part(kind, k):
        if chunks == 1:
            return kind, k, 0
        chunk = k % (stages * chunks) // stages
        micro_batch = k // (stages * chunks) * stages + k % stages
        return kind, micro_batch, chunk if kind == "F" else chunks - 1 - chunk

    warm_up = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    warm_up = min(warm_up, total)
    order = [part("F", k) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [part("F", warm_up + k), part("B", k)]
    return [(part,) for part in order + [part("B", k) for k in range(total - warm_up, total)]]


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """All forward passes, then all backward passes (arXiv 1811.06965 §2.3)."""
    return [(("F", k, 0),) for k in range(micro_batches)] + [(("B", k, 0),) for k in range(micro_batches)]


def zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """ZB-H1 (arXiv 2401.10241 §2.1): 1F1B, and stage i does a weight gradient after every backward pass from
    its i-th on.
    """
    order, waiting = [], []
    for (part,) in one_forward_one_backward(stage, stages, micro_batches):
        if part[0] == "F":
            order.append((part,))
            continue
        order.append((("I", *part[1:]),))
        waiting.append(("W", *part[1:]))
        draining = part[1] >= micro_batches - min(stages - 1 - stage, micro_batches)
        if part[1] >= stage or draining:
            order.append((waiting.pop(0),))
    return order + [(part,) for part in waiting]


def dualpipe(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """In the eight steps of github.com/deepseek-ai/DualPipe (Figure 5 of arXiv 2412.19437).

    A chunk is one end's micro-batches: those of the first stage's end for 0, of the last's for 1. Of a
    device in the first half, near micro-batches come from the first end.
    """
    half, rank = stages // 2, min(stage, stages - 1 - stage)
    near, far = (0, 1) if stage < half else (1, 0)
    middle = stage in (half - 1, half)
    done, order, waiting = Counter(), [], []

    def part(kind, end):
        done[kind, end] += 1
        return kind, done[kind, end] - 1, end

    def backward(end, whole):
        _, k, _ = part("B", end)
        if not whole:
            waiting.append(("W", k, end))
        return "B" if whole else "I", k, end

    def run(*parts):
        order.append(parts)

    def weights():
        run(waiting.pop(0))

    for _ in range(2 * (half - rank - 1)):
        run(part("F", near))
    for _ in range(rank + 1):
        run(part("F", near))
        run(part("F", far))
    for _ in range(half - rank - 1):
        run(backward(far, whole=False))
        weights()
        run(part("F", far))
    for i in range(micro_batches // 2 - stages + rank + 1):
        if i == 0 and middle:
            run(part("F", near))
            run(backward(far, whole=True))
        else:
            run(part("F", near), backward(far, whole=True))
        run(part("F", far), backward(near, whole=True))
    for _ in range(half - rank - 1):
        run(backward(far, whole=True))
        run(part("F", far), backward(near, whole=True))
    whole = [
        2 * i + end < rank + 1 for i in range(rank + 1) for end in (0, 1)
    ]  # the second half of the last backward passes splits
    for i in range(rank + 1):
        run(backward(far, whole[2 * i]))
        run(backward(near, whole[2 * i + 1]))
    for _ in range(half - rank - 1):
        weights()
        run(backward(near, whole=False))
    while waiting:
        weights()
    return order


def _next_to(
    stage: int, stages: int, chunk: int, chunks: int, both_ways: bool, step: int
) -> tuple[int, int] | None:
    """Device and chunk before (step −1) or after (step 1) a device's chunk on a micro-batch's way."""
    if both_ways:
        other = stage + (step if chunk == 0 else -step)
        return (other, chunk) if 0 <= other < stages else None
    place = chunk * stages + stage + step
    return (place % stages, place // stages) if 0 <= place < stages * chunks else None


class Run:
    """What an event-by-event run of a schedule finds; `forward`, `inputs` and `weights` are seconds of all of
    a stage's chunks.
    """

    def __init__(self, order, stages, micro_batches, forward, inputs, weights, chunks=1):
        both_ways = order is dualpipe
        more = (chunks,) if chunks > 1 else ()
        waiting = [order(stage, stages, micro_batches, *more) for stage in range(stages)]
        seconds = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
        self.started, self.finished, free = {}, {}, [0.0] * stages

        def ready(stage, part):
            """What must be finished before a part may start, as (stage, kind, micro-batch, chunk) under any
            of some kinds.
            """
            kind, micro_batch, chunk = part
            if kind == "W":
                return [(stage, "I", micro_batch, chunk)]
            own = [] if kind == "F" else [(stage, "F", micro_batch, chunk)]
            other = _next_to(stage, stages, chunk, chunks, both_ways, -1 if kind == "F" else 1)
            return (
                own
                if other is None
                else [*own, (other[0], "F" if kind == "F" else "input", micro_batch, other[1])]
            )

        while any(waiting):
            moved = False
            for stage, queue in enumerate(waiting):
                while queue:
                    needed = [unit for part in queue[0] for unit in ready(stage, part)]
                    if not all(unit in self.finished for unit in needed):
                        break
                    parts = queue.pop(0)
                    start = max([free[stage], *(self.finished[unit] for unit in needed)])
                    free[stage] = start + sum(seconds[kind] for kind, _, _ in parts) / chunks
                    for kind, micro_batch, chunk in parts:
                        self.started[stage, kind, micro_batch, chunk] = start
                        for name in (kind, "input") if kind in "BI" else (kind,):
                            self.finished[stage, name, micro_batch, chunk] = free[stage]
                    moved = True
            assert moved, "the schedule deadlocks"
        self.time, self.chunks = max(free), chunks

    def held(self, stage: int) -> float:
        """Most micro-batches that a stage holds: those that have started, and have gradients to compute."""
        begun = [(time, 1) for (at, kind, *_), time in self.started.items() if at == stage and kind == "F"]
        ended = [(time, -1) for (at, kind, *_), time in self.finished.items() if at == stage and kind in "BW"]
        return max(itertools.accumulate(change for _, change in sorted(begun + ended))) / self.chunks


ORDERS = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero_bubble": zero_bubble, "dualpipe": dualpipe}
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
    busy, idle, _ = _step(gpt, table | {"schedule": schedule})
    third = busy / micro_batches / 3  # of both passes of a micro-batch through all layers of a stage
    simulated = Run(ORDERS[schedule], stages, micro_batches, third, third, third, chunks).time
    assert busy + idle == pytest.approx(simulated, rel=1e-9)


def test_split_backward_passes_of_a_step(gpt):
    """Of GPT-3's layers weight gradients are a third of the matrix products: what the schedules leave of
    1F1B's bubble.
    """
    table = {"tp": 8, "pp": 8, "global_batch": 32}
    steps = {name: _step(gpt, table | {"schedule": name}) for name in ("1f1b", "zero_bubble", "dualpipe")}
    weights = float(steps["1f1b"][2]["breakdown.matmul"]) / 32 / 3
    assert steps["zero_bubble"][1] == pytest.approx(steps["1f1b"][1] - 7 * 2 * weights, rel=0.05)
    assert steps["dualpipe"][1] < steps["zero_bubble"][1]
    assert steps["dualpipe"][0] == steps["1f1b"][0]


def test_layers_that_do_not_divide_wait_for_the_fullest_stage(gpt):
    """96 layers on 5 stages: the fullest has 20, and sets the pace."""
    five, four = (
        float(_step(gpt, {"tp": 8, "pp": pp, "global_batch": 20})[2]["breakdown.matmul"]) for pp in (5, 4)
    )
    assert five == pytest.approx(four * 20 / 24, rel=1e-9)
