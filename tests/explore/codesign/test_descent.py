"""Descents, against optima and multipliers that are known by hand."""

import numpy as np
import pytest

from diffperf.explore.codesign.cube import Cube, Reals
from diffperf.explore.codesign.descent import Descent, lagrange_multipliers
from diffperf.explore.codesign.scoring import ExactScores, Goal, Scorer, Smoothed


class Analytic(Scorer):
    """Scores of min a·x² + b·y² under x + y ≥ 1, for 0 ≤ x, y ≤ 2: with a = 1, b = 3 at (3/4, 1/4).

    The Lagrangian's slope vanishes for λ = 2·a·x = 2·b·y = 3/2. Smooth scores are off by `bias`, as a smooth
    maximum is.
    """

    def __init__(self, bias=0.0, floor=0.0):
        low, high = np.array([0.0, floor]), np.array([2.0, 2.0])
        self.cube = Cube(Reals(np.arange(2), low, high, np.zeros(2, bool)), (), 2)
        self.bias = bias

    def values(self, x, limits):
        return np.array([x[0] ** 2 + 3 * x[1] ** 2, limits[0] - x[0] - x[1]])

    def exact(self, x, limits):
        return ExactScores(np.stack([self.values(row, limits) for row in x]), np.zeros(len(x)))

    def smooth(self, x, limits, sharpness):
        slopes = np.array([[2 * x[0], 6 * x[1]], [-1.0, -1.0]])
        return Smoothed(self.values(x, limits) - self.bias, slopes * self.cube.reals.slope(x))


GOAL, LIMITS = Goal((0,), (0,)), np.array([1.0])


@pytest.mark.parametrize("bias", [0.0, 0.01])
def test_the_optimum_and_its_multiplier_are_the_analytic_ones(bias):
    """Margins make up for a smooth constraint that holds where the exact one does not."""
    ended = Descent(Analytic(bias), LIMITS, GOAL)(np.array([1.9, 0.2]))
    assert ended.violation == 0
    np.testing.assert_allclose(ended.x, [0.75, 0.25], atol=1e-6)
    assert ended.objective == pytest.approx(0.75, abs=1e-6)
    assert ended.multipliers[0] == pytest.approx(1.5, rel=1e-5)
    assert ended.residual < 1e-5


def test_an_active_bound_bears_its_part():
    """With y ≥ 1/2 the optimum is (1/2, 1/2), where λ = 2·a·x = 1 and the bound bears 2·b·y − λ."""
    ended = Descent(Analytic(floor=0.5), LIMITS, GOAL)(np.array([1.9, 1.2]))
    np.testing.assert_allclose(ended.x, [0.5, 0.5], atol=1e-6)
    assert ended.multipliers[0] == pytest.approx(1.0, rel=1e-5)
    assert ended.residual < 1e-5


def test_a_slack_constraint_has_no_multiplier():
    ended = Descent(Analytic(), np.array([-1.0]), GOAL)(np.array([1.0, 1.0]))
    np.testing.assert_allclose(ended.x, 0, atol=1e-5)
    assert ended.multipliers[0] == 0


def test_what_cannot_be_met_is_violated_the_least():
    """x + y ≥ 5 is out of reach of bounds that end at 2 and 2, where it is missed by 1."""
    ended = Descent(Analytic(), np.array([5.0]), GOAL).least_violating(np.array([0.5, 0.5]))
    np.testing.assert_allclose(ended.x, [2, 2], atol=1e-6)
    assert ended.violation == pytest.approx(1, abs=1e-6)


def test_a_point_that_is_no_optimum_has_a_residual():
    smooth = Smoothed(np.array([1.0, 0.0]), np.array([[1.0, 2.0], [-1.0, -1.0]]))
    multipliers, residual = lagrange_multipliers(smooth, np.array([0.5, 0.5]), np.zeros(1))
    assert multipliers[0] == pytest.approx(1.5)
    assert residual == pytest.approx(0.5)
