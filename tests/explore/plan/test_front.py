"""The front of layouts against all layouts, by the definition of a front."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.plan.front import layout_front
from diffperf.explore.plan.plan import Search, plan

CASES = {"training": {"global_batch": 16}, "generate": {"global_batch": 16, "sequence_length": 512}}


@pytest.mark.slow
@pytest.mark.parametrize("phase", CASES)
def test_no_layout_beats_one_of_the_front(llama, phase):
    system = dp.load_system("dgx-a100", n_devices=16)
    front = layout_front(llama, system, CASES[phase], phase)
    points = np.stack([front.time, front.peak], axis=-1)
    best = np.array([[float(report.time), float(report.memory.peak)] for _, report in front.best])
    assert front.searched >= len(points) > len(best) > 1
    for point in best:
        beats = (points <= point).all(axis=1) & (points < point).any(axis=1)
        assert not beats.any()
    for point in points:
        assert (best <= point).all(axis=1).any()


@pytest.mark.slow
def test_the_fastest_is_that_of_the_plan(llama):
    system = dp.load_system("dgx-a100", n_devices=16)
    search = Search.of(llama, system, CASES["training"])
    ranked, front = plan(search, top=1), layout_front(llama, system, CASES["training"])
    assert float(front.best[0][1].time) == float(ranked.best[0].report.time)
    assert len(front.time) == ranked.fitting
    assert front.searched == ranked.searched


@pytest.mark.slow
def test_an_impossible_layout_is_explained(llama):
    system = dp.load_system("dgx-a100", n_devices=16)
    with pytest.raises(ConfigError, match="product of the degrees"):
        layout_front(llama, system, {"tp": 8, "pp": 8, "dp": 1})
