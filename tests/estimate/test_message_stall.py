"""Messages between pipeline stages that stall both of them, as those of nanotron did before a fix."""

from pathlib import Path

import jax
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import read_measurements
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.schedule import stage_messages

DATA = Path(__file__).parents[1] / "data"
STALL = 1e3  # s, longer than all else in a step


def messages_event_by_event(stages: int, micro_batches: int) -> int:
    """Messages of a step, one after the other: at each time a stage takes part in one, and sends gradients
    rather than activations. A stage sends no more activations than 1F1B has in flight.
    """
    arrived = [micro_batches] + [0] * (stages - 1)  # micro-batches whose inputs a stage has
    returned = [0] * (stages - 1)  # micro-batches whose gradients a stage has
    count = 0
    while returned[0] < micro_batches:
        inputs, gradients = [*arrived], [*returned, arrived[-1]]
        last_busy = stages
        for stage in reversed(range(stages - 1)):
            if stage + 1 == last_busy:
                continue
            in_flight = inputs[stage + 1] - gradients[stage]
            if gradients[stage + 1] > gradients[stage]:
                returned[stage] += 1
            elif inputs[stage] > inputs[stage + 1] and in_flight < stages - stage:
                arrived[stage + 1] += 1
            else:
                continue
            last_busy = stage
        count += 1
    return count


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("micro_batches", [1, 2, 8, 33])
def test_messages_are_those_of_an_event_by_event_run(stages, micro_batches):
    strategy = dp.load_strategy({"pp": stages, "global_batch": micro_batches}, n_devices=stages)
    expected = messages_event_by_event(stages, micro_batches)
    assert float(stage_messages(strategy, Exact())) == expected


def test_one_stage_has_no_messages():
    strategy = dp.load_strategy({"global_batch": 8})
    assert float(stage_messages(strategy, Exact())) == 0


def test_a_stage_of_several_chunks_has_the_messages_of_each():
    """Two stages of two chunks: three boundaries between chunks, in both directions."""
    strategy = dp.load_strategy({"pp": 2, "virtual_stages": 2, "global_batch": 8}, n_devices=2)
    assert float(stage_messages(strategy, Exact())) == 8 * 2 * 3


def step(gpt, system, devices: int, **table):
    """A step of GPT-3 whose messages between stages stall them."""
    stalled = replace(system, {"stack.message_stall": STALL, "n_devices": devices})
    strategy = dp.load_strategy({"global_batch": 16, **table}, n_devices=devices)
    return training(gpt, stalled, strategy, Exact())


def test_messages_stall_pipelines_that_lie_on_several_nodes(gpt, system):
    """Of four stages on two nodes all messages stall, also those between the stages of one node; of a node's
    own pipeline none do.
    """
    beyond = step(gpt, system, 16, tp=4, pp=4)
    assert float(beyond.time) == pytest.approx((4 * 16 + 2) * STALL, rel=1e-2)
    assert float(beyond.breakdown.pipeline_transfers) == pytest.approx((4 * 16 + 2) * STALL, rel=1e-6)
    inside = step(gpt, system, 8, tp=2, pp=4)
    assert float(inside.breakdown.pipeline_transfers) < 1


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_slopes_by_the_number_of_stages_are_those_towards_more(gpt, system, stages):
    """Also of two and three stages, beyond which stages have further messages."""
    stalled = replace(system, {"stack.message_stall": STALL, "n_devices": 8 * stages})
    strategy = dp.load_strategy({"tp": 8, "pp": stages, "global_batch": 16}, n_devices=8 * stages)

    def seconds(pp):
        return training(gpt, stalled, replace(strategy, {"pp": pp}), Exact()).breakdown.pipeline_transfers

    slope, more = float(jax.grad(seconds)(float(stages))), 1e-6
    difference = float(seconds(stages + more) - seconds(float(stages))) / more
    assert slope == pytest.approx(difference, rel=1e-4, abs=1e-4 * STALL)


def test_runs_of_nanotron_before_its_fix_take_as_long_as_measured():
    """Twelve runs of the Ultra-Scale Playbook on 16 to 512 devices, of 2 to 16 stages: 2 to 159 s a step."""
    rows = read_measurements(DATA / "nanotron-stalled-runs.csv").rows
    assert len(rows) == 12
    assert {row["framework"] for row in rows} == {"nanotron-stalled-pipeline"}
    errors = [
        predicted.values["step_time_s"] / row["step_time_s"] - 1
        for row, predicted in zip(rows, predict("training", rows), strict=True)
    ]
    assert max(map(abs, errors)) < 0.15
