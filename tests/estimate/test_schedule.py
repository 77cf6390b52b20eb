"""The pipeline bubble against an event-by-event run of the schedules, as Megatron-LM orders them (arXiv 2104.04473 §2.2)."""

import pytest
from helpers import outputs, training

import diffperf as dp
from diffperf.relax import Exact


def _order(stage, stages, micro_batches, chunks):
    """What a stage runs, in order: ("F" or "B", micro-batch, chunk)."""
    total = micro_batches * chunks

    def unit(kind, k):
        if chunks == 1:
            return kind, k, 0
        chunk = k % (stages * chunks) // stages
        micro_batch = k // (stages * chunks) * stages + k % stages
        return kind, micro_batch, chunk if kind == "F" else chunks - 1 - chunk

    warm_up = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    warm_up = min(warm_up, total)
    order = [unit("F", k) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [unit("F", warm_up + k), unit("B", k)]
    return order + [unit("B", k) for k in range(total - warm_up, total)]


def _before(stage, stages, chunks, kind, micro_batch, chunk):
    """What must have run before a unit starts: (stage, kind, micro-batch, chunk)."""
    if kind == "F":
        if stage > 0:
            return [(stage - 1, "F", micro_batch, chunk)]
        return [(stages - 1, "F", micro_batch, chunk - 1)] if chunk > 0 else []
    own = [(stage, "F", micro_batch, chunk)]
    if stage < stages - 1:
        return [*own, (stage + 1, "B", micro_batch, chunk)]
    return [*own, (0, "B", micro_batch, chunk + 1)] if chunk < chunks - 1 else own


def simulate(stages, micro_batches, chunks, forward, backward):
    """Time until the last stage of the last micro-batch is done; `forward` and `backward` are of all chunks of a stage."""
    waiting = [_order(stage, stages, micro_batches, chunks) for stage in range(stages)]
    finished, free = {}, [0.0] * stages
    while any(waiting):
        moved = False
        for stage, queue in enumerate(waiting):
            while queue and all(unit in finished for unit in _before(stage, stages, chunks, *queue[0])):
                unit = queue.pop(0)
                start = max([free[stage], *(finished[other] for other in _before(stage, stages, chunks, *unit))])
                free[stage] = finished[(stage, *unit)] = start + (forward if unit[0] == "F" else backward) / chunks
                moved = True
        assert moved, "the schedule deadlocks"
    return max(free)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"),
    [(1, 4, 1), (2, 2, 1), (4, 4, 1), (4, 16, 1), (8, 32, 1), (2, 4, 2), (4, 8, 2), (4, 16, 3), (4, 16, 6), (8, 16, 3)],
)
def test_bubble_is_that_of_the_schedule(gpt, stages, micro_batches, chunks):
    table = {"tp": 8, "pp": stages, "virtual_stages": chunks, "global_batch": micro_batches, "recompute": "selective"}
    system = dp.load_system("dgx-a100", n_devices=8 * stages)
    report = outputs(training(gpt, system, dp.load_strategy(table), Exact()))
    parts = ("matmul", "attention", "elementwise", "recompute", "tensor_parallel")
    busy = sum(float(report[f"breakdown.{part}"]) for part in parts)
    one = busy / micro_batches  # forward and backward of one micro-batch through all layers of one stage
    simulated = simulate(stages, micro_batches, chunks, one / 3, 2 * one / 3)
    assert busy + float(report["breakdown.pipeline_bubble"]) == pytest.approx(simulated, rel=1e-9)


def test_the_simulation_knows_the_textbook():
    """(m + p − 1)·(f + b) for 1F1B, m·(f + b) + (p − 1)/v·(f + b) interleaved; a stage alone has no bubble."""
    assert simulate(4, 8, 1, 1.0, 2.0) == (8 + 3) * 3
    assert simulate(1, 5, 1, 1.0, 2.0) == 15
    assert simulate(4, 8, 2, 1.0, 2.0) == pytest.approx(8 * 3 + 3 / 2 * 3)


def test_layers_that_do_not_divide_wait_for_the_fullest_stage(gpt):
    """96 layers on 5 stages: the fullest has 20, and sets the pace."""
    system = dp.load_system("dgx-a100", n_devices=40)
    report = training(gpt, system, dp.load_strategy({"tp": 8, "pp": 5, "global_batch": 20}), Exact())
    even = training(gpt, system, dp.load_strategy({"tp": 8, "pp": 4, "global_batch": 20}), Exact())
    assert float(report.breakdown.matmul) == pytest.approx(float(even.breakdown.matmul) * 20 / 24, rel=1e-9)
