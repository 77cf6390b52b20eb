"""The study of the constant-cost frontier: its optima against a grid, finite differences and each other."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import study_module

from diffperf.hardware.technology import MemoryTechnology
from diffperf.load import load
from diffperf.relax import Smooth

BUDGETS = (2970.0, 3000.0, 3030.0)
pytestmark = pytest.mark.slow


frontier = study_module("constant_cost_frontier", "frontier")


@pytest.fixture(scope="module")
def tracer():
    return frontier.Tracer(frontier.load_workload("decode"), ("hbm3", "hbm4"), (2,))


@pytest.fixture(scope="module")
def traced(tracer):
    """The designs of HBM3 along the budgets, and that of HBM4 at the last."""
    found = tracer.trace(BUDGETS)
    return [at_budget[0] for at_budget in found], found[-1][1]


def net_values(design):
    return np.array([net for _, net in design.marginal_values().values()])


def test_marginal_values_are_equal(traced):
    """A dollar buys as much speed through compute, SRAM, stacks and links, net of the edge they take."""
    design = traced[0][1]
    np.testing.assert_allclose(net_values(design), design.value_of_budget, rtol=0.01)
    assert design.binding_limits() == ["chip.shoreline"]
    gross = [value for value, _ in design.marginal_values().values()]
    assert max(gross) > 1.05 * min(gross)


def limits_of(design):
    limits = design.problem.limits
    limits[frontier.constraint_of(design.problem, "cost.manufacturing")] = design.budget
    return jnp.asarray(limits)


def slopes_of(tracer, x, limits):
    """Scores and slopes of a few designs, by the program that the tracer compiled."""
    return tracer.slopes(np.asarray(x), np.asarray(limits))


def test_another_design_of_that_cost_has_unequal_values(tracer, traced):
    """The test above can fail: with a fifth more stacks in place of compute units, values differ."""
    design, x = traced[0][1], traced[0][1].x.copy()
    stacks, units = (frontier.RESOURCES[name] for name in ("stacks", "compute"))
    paid = 0.2 * design.amount("stacks") * design.cost_slope(stacks)
    x[frontier.index_of(design.problem, units)] -= paid / design.cost_slope(units)
    x[frontier.index_of(design.problem, stacks)] *= 1.2
    slopes = jax.tree.map(lambda leaf: leaf[0], slopes_of(tracer, x[None], limits_of(design)))
    other = dataclasses.replace(design, x=x, slopes=slopes)
    assert np.ptp(net_values(other)) > 0.1 * design.value_of_budget


def test_value_of_budget_is_the_slope_of_the_optimum(traced):
    less, design, more = traced[0]
    slope = np.log(more.speed / less.speed) / np.log(more.budget / less.budget)
    assert design.value_of_budget == pytest.approx(slope, rel=0.02)


def test_no_design_of_a_grid_is_better(tracer, traced):
    """A dense grid of the four resources, within every limit, comes near the optimum and not beyond."""
    design = traced[0][1]
    limits, spans = limits_of(design), (0.6, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.6)
    indices = [frontier.index_of(design.problem, path) for path in frontier.RESOURCES.values()]
    x = np.repeat(design.x[None], len(spans) ** len(indices), axis=0)
    x[:, indices] *= np.array(list(itertools.product(spans, repeat=len(indices))))
    problem, relax = design.problem, Smooth(tracer.sharpness)

    def score(row):
        return problem.score(problem.outcome(row, relax), limits)

    scores = jax.jit(lambda x: jax.lax.map(score, x, batch_size=729))
    objective, excess = map(np.asarray, scores(jnp.asarray(x)))
    allowed = excess.max(axis=1) <= 1e-4
    assert 20 < allowed.sum() < len(x)
    best = float(np.exp(-objective[allowed].min()))
    assert 0.98 * design.speed < best < 1.0005 * design.speed
    # Without the limit of the budget, the grid has better designs.
    assert np.exp(-objective.min()) > 1.05 * design.speed


def test_slopes_are_finite_differences(tracer, traced):
    design = traced[0][1]
    limits, step = limits_of(design), 1e-5
    index = frontier.index_of(design.problem, "design.memory_stacks")
    x = np.repeat(design.x[None], 2, axis=0)
    x[:, index] *= (1 + step, 1 - step)
    both = slopes_of(tracer, x, limits)
    width = x[0, index] - x[1, index]
    by_difference = float(both.objective[0] - both.objective[1]) / width
    assert design.slopes.objective_slopes[index] == pytest.approx(by_difference, rel=1e-4)
    cost = design.budget * float(both.excess[0, 0] - both.excess[1, 0]) / width
    assert design.cost_slope("design.memory_stacks") == pytest.approx(cost, rel=1e-6)


def test_generations_are_held_at_their_files(traced):
    (*_, old), new = traced
    for design in (old, new):
        memory = load(MemoryTechnology, design.generation)
        for name in ("stack_bandwidth", "stack_capacity", "phy_area", "price"):
            index = frontier.index_of(design.problem, f"technology.memory.{name}")
            assert design.x[index] == pytest.approx(float(getattr(memory, name)), rel=1e-12)
    assert new.generation == "hbm4"
    assert new.speed > old.speed
