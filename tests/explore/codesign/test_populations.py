"""Populations of a search: their samples, how they begin, and which of their designs descend."""

import math

import numpy as np
import pytest

from diffperf.explore.codesign.cube import Cube, Reals
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.evolution import Evolution
from diffperf.explore.codesign.populations import GENERATIONS, Populations, evolve_in_chunks
from diffperf.explore.codesign.scoring import Goal, Ranking
from diffperf.explore.codesign.slots import CountSlot

# Two real variables between 0 and 1, and whole numbers from 1 to 4.
CUBE = Cube(
    Reals(np.array([0, 1]), np.zeros(2), np.ones(2), np.array([False, False])),
    (CountSlot("units", [2], 1, 4),),
    3,
)
GOAL = Goal((0,), ())


def score(points, goal):
    """The first coordinate, less is better; nothing is violated."""
    return Ranking(np.zeros(len(points)), points[:, 0].copy())


@pytest.fixture
def populations():
    return Populations(CUBE, score, 64, np.random.default_rng(0))


def test_a_sample_fills_the_cube_evenly_and_begins_with_the_starts(populations):
    starts = np.array([[0.25, 0.5, 3.0], [1.0, 0.0, 1.0]])
    points = populations.sobol_sample(1024, starts)
    np.testing.assert_allclose(CUBE.designs(points[:2]), starts)
    # Of 1,022 independent points, a sixteenth would hold 64 give or take 8.
    counts = np.histogram(points[2:, 0], 16, (0, 1))[0]
    assert np.all(np.abs(counts - 64) <= 2)


def test_a_global_population_is_the_baseline_and_the_best_of_its_sample(populations):
    baseline = np.array([[1.0, 1.0, 4.0]])  # the worst design
    evolution = populations.global_population(GOAL, baseline)
    assert len(evolution) == 64
    np.testing.assert_allclose(CUBE.designs(evolution.points[:1]), baseline)
    # The sample has eight times as many points, evenly: the best eighth of them is below 1/8.
    assert evolution.points[1:, 0].max() < 1 / 8 + 0.01
    np.testing.assert_array_equal(evolution.ranking.objective, evolution.points[:, 0])


def test_a_local_population_lies_around_its_first_design(populations):
    centre = np.array([0.5, 1.0, 2.0])
    evolution = populations.local_population(GOAL, centre)
    np.testing.assert_allclose(CUBE.designs(evolution.points[:1])[0], centre)
    assert np.all((evolution.points >= 0) & (evolution.points <= 1))
    distance = np.abs(evolution.points - evolution.points[0])
    assert np.mean(distance[1:] == 0) == pytest.approx(0.5, abs=0.1)
    # From the first half to the second the steps of real variables become longer: by √10 in the median.
    near, far = (half[half > 0].mean() for half in np.split(distance[:, :2], 2))
    assert 2 < far / near < 5
    # A whole number of four values takes steps that lead to others, in the nearest designs too.
    assert len(np.unique(CUBE.designs(evolution.points[:16])[:, 2])) > 1


def test_a_population_evolves_until_its_generations_are_done_or_something_is_satisfied():
    scored = []

    def counted(points, goal):
        scored.append(len(points))
        return Ranking(np.where(points[:, 0] < 0.5, 0.0, points[:, 0]), points[:, 0].copy())

    populations = Populations(CUBE, counted, 16, np.random.default_rng(0))
    start = np.array([[1.0, 1.0, 4.0]])
    populations.evolved_for(GOAL, start, satisfied=True)
    assert scored == [128]  # some point of the sample does
    scored.clear()
    populations.evolved_for(GOAL, start, satisfied=False)
    assert scored == [128] + [16] * GENERATIONS
    scored.clear()
    shares = list(evolve_in_chunks(populations.global_population(GOAL, start)))
    assert scored == [128] + [16] * GENERATIONS
    assert shares == pytest.approx(np.arange(1, 13) / 12)


def elites(populations, points, ended=None, most=8):
    points = CUBE.points(np.array(points))
    evolution = Evolution(lambda points: score(points, GOAL), populations.random, points, score(points, GOAL))
    return [x.tolist() for x in populations.elites(evolution, ended or {}, most=most, tolerance=1e-6)]


def test_elites_are_the_best_designs_that_differ(populations):
    best, close, another, farther = [0.1, 0.5, 2], [0.15, 0.55, 2], [0.16, 0.55, 3], [0.3, 0.5, 2]
    assert elites(populations, [farther, another, close, best]) == [best, another, farther]
    assert elites(populations, [farther, another, close, best], most=2) == [best, another]


def test_where_a_descent_has_ended_better_none_starts_again(populations):
    def ended(objective, violation=0.0):
        return {(2.0,): Descended(np.zeros(3), violation, objective, np.zeros(0), math.inf)}

    designs = [[0.1, 0.5, 2], [0.2, 0.5, 3], [0.4, 0.5, 2]]
    assert elites(populations, designs, ended(0.1)) == designs[1:2]
    assert elites(populations, designs, ended(0.1 + 5e-7)) == designs[1:2]
    assert elites(populations, designs, ended(0.3)) == designs[:2]
    assert elites(populations, designs, ended(0.0, violation=0.1)) == designs
