"""The augmented Lagrangian on problems with known solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.explore.codesign.lagrangian import Bounds, Fixed, Schedule, Solver, State

COST, WORK, BUDGET = np.array([2.0, 3.0, 0.5]), np.array([1.0, 5.0, 0.2]), 10.0
SCHEDULE = Schedule(outer=25, inner=80, sharpness=(1.0, 1.0), penalty=(5.0, 100.0), step=(0.1, 1e-5))
BOUNDS = Bounds(jnp.full(3, 1e-2), jnp.full(3, 1e2), jnp.ones(3, dtype=bool))


def budget_problem(x, sharpness, limits):
    """min log Σ w/x subject to Σ c·x ≤ budget."""
    return jnp.log(jnp.sum(WORK / x)), jnp.stack([jnp.sum(COST * x) / limits[0] - 1])


def start(count, n, m, seed=0):
    return State(jnp.asarray(np.random.default_rng(seed).normal(size=(count, n))), jnp.zeros((count, m)))


def free(count, n):
    return Fixed(jnp.zeros((count, n), dtype=bool), jnp.ones((count, n)))


def test_solution_and_multiplier_are_the_analytic_ones():
    solver = Solver(budget_problem, BOUNDS, inner=80)
    state = solver.solve(start(8, 3, 1), free(8, 3), jnp.array([BUDGET]), SCHEDULE)
    # Cauchy-Schwarz: x ∝ √(w/c), and the log objective falls by one per unit of log budget.
    expected = BUDGET * np.sqrt(WORK / COST) / np.sum(np.sqrt(WORK * COST))
    np.testing.assert_allclose(jax.vmap(BOUNDS.decode)(state.z), np.tile(expected, (8, 1)), rtol=1e-4)
    np.testing.assert_allclose(state.multipliers, 1.0, rtol=1e-4)
    assert solver.stationarity(state, free(8, 3), jnp.array([BUDGET]), 1.0).max() < 1e-4


def test_held_variables_stay_and_the_rest_is_optimal():
    solver = Solver(budget_problem, BOUNDS, inner=80)
    held = Fixed(jnp.array([[True, False, False]]), jnp.array([[1.5, 1.0, 1.0]]))
    state = solver.solve(start(1, 3, 1), held, jnp.array([BUDGET]), SCHEDULE)
    x = np.asarray(held.apply(jax.vmap(BOUNDS.decode)(state.z)))[0]
    left = BUDGET - COST[0] * 1.5
    expected = left * np.sqrt(WORK[1:] / COST[1:]) / np.sum(np.sqrt(WORK[1:] * COST[1:]))
    assert x[0] == 1.5
    np.testing.assert_allclose(x[1:], expected, rtol=1e-3)


def test_an_inactive_constraint_has_no_price():
    def problem(x, sharpness, limits):
        return jnp.sum((jnp.log(x) - 1.0) ** 2), jnp.stack([jnp.sum(x) / limits[0] - 1])

    solver = Solver(problem, BOUNDS, inner=80)
    state = solver.solve(start(4, 3, 1), free(4, 3), jnp.array([100.0]), SCHEDULE)
    np.testing.assert_allclose(jax.vmap(BOUNDS.decode)(state.z), np.e, rtol=1e-3)
    np.testing.assert_allclose(state.multipliers, 0.0, atol=1e-9)


def test_a_simplex_stays_a_simplex_and_finds_its_vertex():
    bounds = Bounds(jnp.zeros(3), jnp.ones(3), jnp.zeros(3, dtype=bool), simplexes=((0, 3),))

    def problem(x, sharpness, limits):
        return x @ jnp.array([3.0, 1.0, 2.0]), jnp.stack([x[0] - limits[0]])

    solver = Solver(problem, bounds, inner=80)
    state = solver.solve(start(4, 3, 1), free(4, 3), jnp.array([1.0]), SCHEDULE)
    x = jax.vmap(bounds.decode)(state.z)
    np.testing.assert_allclose(x.sum(axis=1), 1.0, rtol=1e-6)
    assert np.all(np.asarray(x).argmax(axis=1) == 1)
    assert np.asarray(x)[:, 1].min() > 0.99


def test_bounds_round_trip():
    bounds = Bounds(jnp.array([1e-3, -5.0]), jnp.array([1e6, 5.0]), jnp.array([True, False]))
    for x in ([1.0, 0.0], [3e5, -4.0], [2e-3, 4.9]):
        np.testing.assert_allclose(bounds.decode(bounds.encode(jnp.array(x))), x, rtol=1e-6, atol=1e-9)


def test_a_wrong_optimum_is_noticed():
    """The test of the test: stationarity is far from zero away from the optimum."""
    solver = Solver(budget_problem, BOUNDS, inner=80)
    state = start(4, 3, 1)
    assert solver.stationarity(state, free(4, 3), jnp.array([BUDGET]), 1.0).min() > 1e-2


def test_infeasible_limits_give_the_least_violation():
    solver = Solver(
        lambda x, s, limits: (jnp.sum(x), jnp.stack([1 - x[0] / 200.0, x[1] / limits[0] - 1])),
        BOUNDS,
        inner=80,
    )
    state = solver.solve(start(4, 3, 2), free(4, 3), jnp.array([1.0]), SCHEDULE, weight=0.0)
    x = np.asarray(jax.vmap(BOUNDS.decode)(state.z))
    # x[0] ≥ 200 cannot be: its bound is 100, and the search runs up to it.
    assert x[:, 0] == pytest.approx(100.0, rel=1e-2)
    assert np.all(x[:, 1] <= 1.0 + 1e-3)
