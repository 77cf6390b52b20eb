"""Whole searches of a problem with real variables: seeds, stops, checkpoints, conflicts, unpaid variables."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problem_texts import NODE, problem_of

from diffperf.api.front_answer import FrontAnswer, front_range
from diffperf.errors import ConfigError
from diffperf.explore.codesign.against import bought_systems
from diffperf.explore.codesign.checkpoint import Checkpoint
from diffperf.explore.codesign.limit_front import front
from diffperf.explore.codesign.neighbours import changes, merits, pairs
from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.slots import CountSlot
from diffperf.relax import Exact

pytestmark = pytest.mark.slow  # the programs of a search take ten seconds to compile

PROBLEM = f"""{NODE}
[[variable]]
path = "design.compute_units"
from = 40
to = 200
[[variable]]
path = "design.voltage"
from = "0.55 V"
to = "1 V"
[[variable]]
path = "design.network_bandwidth"
from = "20 GB/s"
to = "2 TB/s"
[[variable]]
path = "system.accelerator.kernel_latency"
from = "1 us"
to = "9 us"
[[constraint]]
quantity = "cost.manufacturing"
at_most = "0.9 baseline"
[[constraint]]
quantity = "chip.power"
at_most = "400 W"
[[constraint]]
quantity = "memory.excess"
at_most = 0
"""


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    return Search(problem_of(tmp_path_factory.mktemp("problem"), PROBLEM), population=256)


def as_new(search):
    """The search as it was before its first run."""
    search.seed, search.checkpoint, search.budget_seconds = 0, None, float("inf")
    search.progress = lambda stage, done: None
    search.reset(search.problem.limits)
    return search


@pytest.fixture
def fresh(search):
    return as_new(search)


@pytest.fixture(scope="module")
def best(search):
    return as_new(search).answer()


def test_the_design_satisfies_everything_and_is_an_optimum(best):
    assert best.feasible
    assert best.stationarity < 1e-5


def test_no_random_design_is_better(fresh, best):
    points = np.random.default_rng(1).random((20_000, fresh.cube.size))
    with jax.enable_x64(True):
        ranking = fresh.score(points)
        ours = fresh.scorer.exact(best.x[None], fresh.problem.limits).ranking(fresh.goal)
    assert ranking.objective[ranking.violation == 0].min() > ours.objective[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_come_to_the_same_design(fresh, best, seed):
    fresh.seed = seed
    fresh.reset(fresh.problem.limits)
    again = fresh.answer()
    assert again.objective == pytest.approx(best.objective, rel=1e-5)


def test_a_shadow_price_is_what_another_dollar_buys(fresh, best):
    """Whole numbers held: the optimum under a budget that is 0.1 % larger and smaller."""
    assert best.multipliers[0] > 1e-3
    optima = []
    with jax.enable_x64(True):
        for sign in (1, -1):
            limits = fresh.problem.limits
            limits[0] *= 1 + sign * 1e-3
            fresh.reset(limits)
            optima.append(np.exp(fresh.descent(best.x).objective) * best.baseline_objective)
    slope = (optima[0] - optima[1]) / (2e-3 * best.problem.limits[0])
    assert best.shadow_price(0) == pytest.approx(slope, rel=0.02)


def descended_with(search, x, units):
    """The log objective of the optimum with a number of compute units, infinite where it is not feasible."""
    design = x.copy()
    design[search.cube.slots[0].indices] = units
    ended = search.descent(design)
    return ended.objective if ended.violation == 0 else np.inf


def test_neighbours_lead_to_the_best_number_of_compute_units(fresh, best):
    """From 60 compute units, without any evolution, to the number that descents from all of them find: from
    all within twelve of the best, and every fifth beyond."""
    with jax.enable_x64(True):
        start = best.x.copy()
        column = fresh.cube.slots[0].indices[0]
        start[column] = 60
        fresh.descend_from(start)
        assert fresh.visit_neighbours("neighbours")
        near = best.x[column] + np.arange(-12, 13)
        brute = min(descended_with(fresh, best.x, units) for units in {*range(40, 201, 5), *near})
    assert fresh.best.objective == pytest.approx(brute, abs=1e-6)


def test_the_merit_of_a_neighbour_is_what_a_descent_comes_to(fresh, best):
    """To second order in the change: a change of half the size is foretold four times as well."""
    with jax.enable_x64(True):
        x, column = best.x, fresh.cube.slots[0].indices
        ended = fresh.descent.ended(x)
        errors = {}
        for change in (2, 4, 8):
            design = x.copy()
            design[column] -= change
            merit = merits(fresh.scorer.exact(design[None], fresh.limits), ended.multipliers, fresh.goal)
            errors[change] = abs(merit[0] - descended_with(fresh, x, design[column]))
    print(errors)
    assert errors[4] < 0.5 * errors[8]


def test_pairs_are_all_couples_of_changes(fresh):
    """Of two slots with three and four values, counted by hand."""
    first, second = CountSlot("first", [0], 1, 3), CountSlot("second", [1], 1, 4)
    cube = dataclasses.replace(fresh.cube, slots=(first, second), entries=2)
    x = np.array([2.0, 4.0])
    values = [changes(slot, x) for slot in cube.slots]
    expected = {(a, b) for a in (1, 3) for b in (1, 2, 3)}
    assert {tuple(row) for row in pairs(cube, x, values).tolist()} == expected


def test_out_of_time_the_best_so_far_is_the_answer(fresh, best):
    fresh.budget_seconds = 0.05
    result = fresh.answer()
    assert result.stopped == "out of time"
    assert result.evaluations < best.evaluations
    assert np.all(np.isfinite(result.x))


def test_derivatives_are_not_compiled_where_there_is_no_time_for_it(search, monkeypatch):
    """Whoever gives one second does not wait for a compiler: the population's best design is the answer."""
    monkeypatch.setattr(Scorer, "slopes_are_stored", lambda scorer: False)
    monkeypatch.setattr(Scorer, "compile_slopes", lambda scorer: pytest.fail("compiles"))
    hurried = Search(search.problem, population=256, budget_seconds=1.0)
    result = hurried.answer()
    assert result.stopped == "out of time"
    assert np.all(np.isfinite(result.x))
    assert not result.priced


def test_a_stopped_search_goes_on_to_the_same_design(fresh, tmp_path):
    """To the same bits, by the same compiled programs: other tests may have changed where they are stored."""
    whole = fresh.answer()
    fresh.reset(fresh.problem.limits)
    fresh.checkpoint = tmp_path / "search.json"

    def stop(stage, done):
        if stage.startswith("round 2") and "evolution" in stage:
            raise KeyboardInterrupt

    fresh.progress = stop
    assert fresh.answer().stopped == "interrupted"
    assert json.loads(fresh.checkpoint.read_text())["number"] == 1
    fresh.reset(fresh.problem.limits)
    fresh.progress = lambda stage, done: None
    resumed = fresh.answer()
    np.testing.assert_array_equal(resumed.x, whole.x)
    assert not fresh.checkpoint.exists()


def test_checkpoints_of_something_else_are_refused(fresh, tmp_path):
    fresh.checkpoint = tmp_path / "search.json"
    for damaged in ("{}", '{"version": 1, "descended": []}', "[]"):
        fresh.checkpoint.write_text(damaged)
        with pytest.raises(ConfigError, match=r"search\.json: found no checkpoint"):
            fresh.answer()
    fresh.checkpoint.unlink()
    fresh.progress = _stop_after_first_round
    fresh.answer()
    fresh.seed = 5
    with pytest.raises(ConfigError, match="another problem, seed"):
        fresh.answer()


def test_a_checkpoint_needs_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="no folder") as raised:
        Checkpoint.read(tmp_path / "missing" / "search.json", "")
    assert "\n" not in str(raised.value)


def _stop_after_first_round(stage, done):
    if stage.startswith("round 2"):
        raise KeyboardInterrupt


def test_a_conflict_is_named_with_what_would_make_room(fresh, best):
    """Each of cost and time can be had, but not both: the relief is the least cost of that time."""
    problem = fresh.problem
    cost = dataclasses.replace(problem.constraints[0], limit=0.98 * problem.limits[0])
    time = dataclasses.replace(
        cost, quantity="time", declared=problem.objective_declared, limit=best.objective
    )
    constraints = (cost, time)
    conflicting = Search(dataclasses.replace(problem, constraints=constraints), population=256)
    result = conflicting.answer()
    assert not result.feasible
    assert result.conflict.sets == ((0, 1),)
    for relief in result.conflict.reliefs:
        (index,), (limit,) = relief.constraints, relief.limits
        assert limit > constraints[index].limit
        # The relieved limit is met, and by no more than it has to be.
        outcome = problem.outcome(jnp.asarray(relief.x), Exact())
        values = [float(outcome.report.cost.manufacturing), float(outcome.report.time)]
        assert values[index] == pytest.approx(limit, rel=1e-9)
        assert values[1 - index] <= constraints[1 - index].limit * (1 + 1e-9)
    least = result.conflict.reliefs[0]
    assert 1 < least.limits[0] / constraints[least.constraints[0]].limit < 1.1


def test_a_variable_that_nothing_pays_for_is_named(fresh):
    (unpaid,) = fresh.unpaid()
    assert unpaid.variable.path == "system.accelerator.kernel_latency"
    assert unpaid.end == 1e-6


def test_a_front_improves_with_its_limit_and_has_its_slope(fresh):
    """The objective along the budget falls, at the rate of its shadow prices (by the trapezoid rule)."""
    limits = fresh.problem.limits[0] * np.array([0.98, 1.0, 1.002])
    along = front(fresh, 0, limits)
    objectives = np.array([design.objective for design in along.designs])
    assert all(design.feasible for design in along.designs)
    assert np.all(np.diff(objectives) <= 1e-9 * objectives[0])
    # Each price is one of the limit of its own design.
    row = along.designs[0].constraints()[0]
    assert row.as_dict()["limit"] == limits[0]
    assert row.price == pytest.approx(row.percent * objectives[0] / limits[0], rel=1e-9)
    slope = (objectives[2] - objectives[1]) / (limits[2] - limits[1])
    first, second = along.designs[1], along.designs[2]
    assert first.x[0] == second.x[0]
    assert slope == pytest.approx((first.shadow_price(0) + second.shadow_price(0)) / 2, rel=0.02)
    printed = str(FrontAnswer(along))
    assert f"Rests on rates, areas and powers of {fresh.problem.baseline.technology.name}" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cost.manufacturing", "give both ends"),
        ("cost.manufacturin=1x..2x", "cost.manufacturing"),
        ("cost.manufacturing=2x..1x", "swap the ends"),
        ("cost.manufacturing=1 mm..2 mm", "USD"),
    ],
)
def test_ranges_of_fronts_are_checked(fresh, text, message):
    with pytest.raises(ConfigError, match=message) as raised:
        front_range(fresh.problem, text, "here")
    assert "\n" not in str(raised.value)


def test_ends_of_a_front_are_multiples_or_quantities(fresh):
    limit = fresh.problem.limits[0]
    span = front_range(fresh.problem, "cost.manufacturing=0.5x..$4000", "here")
    assert (span.low, span.high) == (pytest.approx(0.5 * limit), 4000)
    for text in ("0.5..1.5x", "0.5x..1.5x"):  # the unit of the high end counts for both
        span = front_range(fresh.problem, f"cost.manufacturing={text}", "here")
        assert (span.low, span.high) == (pytest.approx(0.5 * limit), pytest.approx(1.5 * limit))


def test_the_baselines_own_system_is_as_good_as_the_baseline(fresh):
    (bought,) = bought_systems(fresh.problem, ["dgx-a100"], "here")
    assert bought.relative == pytest.approx(0, abs=1e-9)
    with pytest.raises(ConfigError, match="dgx-a100"):
        bought_systems(fresh.problem, ["dgx-a10"], "here")
