"""Differential evolution and the unit cube it moves in."""

import numpy as np
import pytest

from diffperf.explore.codesign.cube import Cube, Reals
from diffperf.explore.codesign.evolution import Evolution
from diffperf.explore.codesign.scoring import ExactScores, Goal, Ranking
from diffperf.explore.codesign.slots import CountSlot, ListedSlot


def evolved(score, size, generations, seed=0, population=200):
    random = np.random.default_rng(seed)
    evolution = Evolution.of(score, random, random.random((population, size)))
    evolution.run(generations)
    first = evolution.ranking.order[0]
    return evolution.points[first], evolution.ranking.violation[first], evolution.ranking.objective[first]


@pytest.mark.parametrize("seed", range(3))
def test_it_escapes_the_local_optima_of_rastrigins_function(seed):
    """Rastrigin's function of five variables has about 10⁵ local optima; its least is 0."""

    def score(points):
        x = 10.24 * (points - 0.37)
        value = (x**2 - 10 * np.cos(2 * np.pi * x) + 10).sum(axis=1)
        return Ranking(np.zeros(len(points)), value)

    point, _, objective = evolved(score, 5, 500, seed)
    assert objective == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(point, 0.37, atol=1e-3)


def test_it_meets_constraints_that_only_a_corner_satisfies():
    """min −x − y − z under x + y ≤ 0.5 and z ≤ x: by hand, x = 0.5, y = 0, z = 0.5 with −1."""

    def score(points):
        x, y, z = points.T
        excess = np.stack([x + y - 0.5, z - x], axis=1)
        return Ranking(np.linalg.norm(np.maximum(excess, 0), axis=1), -x - y - z)

    point, violation, objective = evolved(score, 3, 150)
    assert violation == 0
    assert objective == pytest.approx(-1, abs=1e-3)
    np.testing.assert_allclose(point, [0.5, 0, 0.5], atol=5e-3)


def test_designs_compare_by_violation_first():
    scores = ExactScores(np.array([[1.0, -1.0], [0.0, 0.1], [2.0, -1.0], [np.nan, -1.0]]), np.zeros(4))
    assert scores.ranking(Goal((0,), (0,))).order.tolist()[:2] == [0, 2]
    assert scores.ranking(Goal((0,), (0,))).order[-1] == 1
    # Without the constraint the second is the best, and what has no score the worst.
    assert scores.ranking(Goal((0,), ())).order.tolist() == [1, 0, 2, 3]


def a_cube():
    layouts = np.array([[8.0, 1.0], [4.0, 2.0], [2.0, 4.0]])
    reals = Reals(np.array([0, 4]), np.array([1.0, 0.0]), np.array([1e4, 3.0]), np.array([True, False]))
    slots = (
        CountSlot("units", [1], 16, 512),
        CountSlot("dies", [5], 0, 3),
        ListedSlot("layout", [2, 3], layouts, by_rank=True),
    )
    return Cube(reals, slots, 6)


def test_designs_and_points_of_a_cube_are_each_others_inverse():
    cube = a_cube()
    points = np.random.default_rng(0).random((500, cube.size))
    designs = cube.designs(points)
    np.testing.assert_allclose(cube.designs(cube.points(designs)), designs, rtol=1e-12)
    assert designs[:, 0].min() < 2  # by decades
    assert designs[:, 0].max() > 5e3
    assert np.all(designs[:, [1, 5]] % 1 == 0)
    assert {tuple(row) for row in designs[:, 2:4]} == {(8.0, 1.0), (4.0, 2.0), (2.0, 4.0)}
    assert set(designs[:, 5]) == {0.0, 1.0, 2.0, 3.0}


def test_every_whole_number_has_a_share_of_its_coordinate():
    for slot in a_cube().slots:
        values = slot.values()
        np.testing.assert_array_equal(slot.at(slot.share(values)), values)
        np.testing.assert_array_equal(slot.at(np.array([0.0, 1.0])), values[[0, -1]])


def test_only_numbers_that_are_many_relax():
    """Behind the reals, and laid out by decades like them; a single one trades with no other."""
    single = a_cube()
    assert not single.relaxes
    cube = Cube(single.reals, (*single.slots, CountSlot("batch", [6], 60, 100)), 7)
    assert cube.relaxes
    np.testing.assert_array_equal(cube.relaxed.entries, [0, 4, 1, 6])
    np.testing.assert_array_equal(cube.relaxed.log, [True, False, True, False])
    x = np.array([37.0, 30.7, 8, 1, 1.3, 2, 80.4])
    assert cube.relaxed.moved(x, cube.relaxed.share(x)) == pytest.approx(x)
    np.testing.assert_array_equal(cube.rounded(x)[[1, 6]], [31, 80])
    np.testing.assert_array_equal(cube.rounded(x, down=True)[[1, 6]], [30, 80])
    np.testing.assert_array_equal(np.delete(cube.rounded(x), [1, 6]), np.delete(x, [1, 6]))
    ends = [cube.rounded(np.array([37.0, units, 8, 1, 1.3, 2, 60]), down=True)[1] for units in (16.0, 512.0)]
    assert ends == [16, 512]


def test_slopes_by_shares_are_finite_differences():
    reals = a_cube().reals
    x, step = np.array([37.0, 0, 0, 0, 1.3, 0]), 1e-6
    share = reals.share(x)
    difference = (reals.at(share + step) - reals.at(share - step)) / (2 * step)
    np.testing.assert_allclose(reals.slope(x), difference, rtol=1e-6)
