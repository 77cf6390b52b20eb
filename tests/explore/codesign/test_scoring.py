"""Exact scores of any number of designs."""

import jax
import numpy as np
import pytest

from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.scoring import Goal, Scorer
from diffperf.explore.codesign.slots import slots

PROBLEM = {
    "model": "llama-3-8b",
    "system": "dgx-a100",
    "n_devices": 1,
    "technology": "n7-hbm2e",
    "minimize": "time",
    "phase": "decode",
    "variable": [{"path": "design.memory_stacks", "from": 2, "to": 6}],
    "constraint": [{"quantity": "cost.manufacturing", "at_most": "baseline"}],
}


@pytest.fixture(scope="module")
def scorer():
    problem = load_problem(PROBLEM)
    return Scorer(problem, Cube.of(problem.vector, slots(problem.vector, problem.layouts)), block=4)


def test_no_design_has_no_score(scorer):
    """scipy's differential evolution asks for that where no member of a population is feasible."""
    scores = scorer.exact(np.empty((0, 1)), scorer.problem.limits)
    assert scores.values.shape == (0, 1 + len(scorer.problem.constraints))
    assert scores.ranking(Goal.of(scorer.problem)).order.shape == (0,)
    assert scorer.evaluations == 0


@pytest.mark.slow
def test_scores_do_not_depend_on_how_many_are_asked_for(scorer):
    designs = np.arange(2.0, 7.0)[:, None]
    with jax.enable_x64(True):
        together = scorer.exact(designs, scorer.problem.limits)
        alone = [scorer.exact(design[None], scorer.problem.limits) for design in designs]
    np.testing.assert_array_equal(together.values, np.concatenate([each.values for each in alone]))
    assert np.ptp(together.values[:, 0]) > 0
