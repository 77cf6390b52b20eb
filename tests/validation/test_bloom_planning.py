"""The runs that planned BLOOM on Jean Zay: what heads that are not aligned cost, and all runs of a layout."""

from pathlib import Path

import numpy as np
import pytest

from diffperf.explore.measured.validate import validate

TABLE = Path(__file__).parents[2] / "studies" / "stacks" / "data" / "bloom-planning.csv"


@pytest.fixture(scope="module")
def runs() -> dict[tuple[int, int, int], tuple[float, float]]:
    """Measured and estimated seconds of runs of 8 tensor-parallel ranks and 12 stages, by hidden size, layers
    and micro-batch; the first run of each.
    """
    conditions = ("tp=8", "pp=12", "global_batch=2048", "zero_stage=1")
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    for run in validate(TABLE, where=conditions).evaluations:
        names = ("hidden", "layers", "micro_batch")
        hidden, layers, micro_batch = (int(float(run.cells[name])) for name in names)
        pair = run.measured["step_time_s"], run.predicted["step_time_s"]
        found.setdefault((hidden, layers, micro_batch), pair)
    return found


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_heads_of_150_cost_what_was_measured(runs, micro_batch):
    """Models of 14,336 and of 14,400 are as large within 1 %, but 64 heads of 224 are aligned and 96 of 150
    are not: steps took 28 to 40 s longer.
    """
    aligned, others = (np.array(runs[hidden, 72, micro_batch]) for hidden in (14336, 14400))
    measured, estimated = others - aligned
    assert measured > 25
    assert estimated == pytest.approx(measured, rel=0.3)


def test_runs_of_eight_ranks_and_twelve_stages(runs):
    measured, estimated = np.array(list(runs.values())).T
    assert len(runs) >= 10
    assert np.mean(np.abs(estimated / measured - 1)) < 0.08
