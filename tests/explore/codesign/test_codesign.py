"""Co-design: against exhaustive search where that is possible, with infeasible budgets, interruptions, and
bad problems.
"""

import copy
import functools
import itertools
import json
import random
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problem_texts import NODE, problem_of

from diffperf.api.codesign_answer import conflict_lines, verdict
from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import ProblemReader, load_problem
from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.search import Search
from diffperf.load import available, load
from diffperf.relax import Exact

pytestmark = pytest.mark.slow  # every test needs a whole search

HEAD = f"""{NODE}
attention = "standard"
precision = "fp16"
"""
WHOLE = """
[[variable]]
path = "design.compute_units"
from = 40
to = 160
[[variable]]
path = "design.memory_stacks"
from = 2
to = 9
"""
BUDGET = """
[[constraint]]
quantity = "cost.manufacturing"
at_most = "BUDGET"
[[constraint]]
quantity = "memory.excess"
at_most = 0
[[constraint]]
quantity = "chip.power"
at_most = "400 W"
"""


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Search:
    """One compiled search of a problem with whole numbers alone; tests search again under other limits."""
    folder = tmp_path_factory.mktemp("problem")
    return Search(problem_of(folder, HEAD + WHOLE + BUDGET.replace("BUDGET", "0.8 baseline")), population=128)


@pytest.fixture(scope="module")
def whole(search) -> Codesign:
    return search.answer()


@pytest.mark.slow
def test_whole_design_is_the_exhaustive_optimum(whole):
    problem = whole.problem
    grid = np.array(list(itertools.product(range(40, 161), range(2, 10))), dtype=float)
    objective, excess = jax.jit(
        jax.vmap(lambda x: problem.score(problem.outcome(x, Exact()), jnp.asarray(problem.limits)))
    )(grid)
    feasible = np.asarray(excess).max(axis=1) <= 0
    best = np.asarray(objective)[feasible].min()
    assert whole.feasible
    assert np.log(whole.objective / whole.baseline_objective) == pytest.approx(best, abs=1e-9)
    assert whole.objective < whole.baseline_objective or best > 0


@pytest.mark.slow
def test_reported_numbers_are_those_of_the_exact_estimate(whole):
    text = json.dumps(whole.as_dict())
    report = json.loads(text)
    assert report["report"]["time"] == pytest.approx(whole.objective)
    assert all(c["excess"] <= 0 for c in report["constraints"])
    assert all(float(v).is_integer() for v in whole.x)


@pytest.mark.slow
def test_shadow_price_is_the_slope_of_the_optimum(tmp_path):
    """With real variables only, the budget's multiplier equals the finite difference of re-optimized
    designs.
    """
    continuous = """
[[variable]]
path = "design.network_bandwidth"
from = "20 GB/s"
to = "2 TB/s"
[[variable]]
path = "design.cache"
from = "2 MB"
to = "400 MB"
"""
    cost_and_memory = BUDGET.replace("BUDGET", "0.99 baseline").split("[[constraint]]")
    problem = problem_of(tmp_path, HEAD + continuous + "[[constraint]]".join(cost_and_memory[:3]))
    search = Search(problem, population=128)
    result = search.answer()
    assert result.feasible
    assert result.multipliers[0] > 1e-3
    optima = []
    for sign in (1, -1):
        search.reset(problem.limits * np.array([1 + sign * 2e-3, 1]))
        optima.append(search.answer().objective)
    slope = (optima[0] - optima[1]) / (4e-3 * problem.limits[0])
    assert result.shadow_price(0) == pytest.approx(slope, rel=0.05)


def grid_outputs(problem):
    """Memory excess, power and cost of the whole grid of designs."""
    grid = np.array(list(itertools.product(range(40, 161), range(2, 10))), dtype=float)
    with jax.enable_x64(True):
        outcomes = jax.jit(jax.vmap(lambda x: problem.outcome(x, Exact())))(grid)
    report = outcomes.report
    return [
        np.asarray(each) for each in (report.memory.excess, outcomes.chip.power, report.cost.manufacturing)
    ]


def cheapest_that_satisfies_the_rest(problem):
    """The cost of the cheapest design of the whole grid that the other constraints allow."""
    excess, power, cost = grid_outputs(problem)
    return cost[(excess <= 0) & (power <= 400)].min()


def test_infeasible_budget_names_what_cannot_be_met(search, whole):
    limits = whole.problem.limits
    limits[0] = 400.0
    search.reset(limits)
    result = search.answer()
    assert not result.feasible
    violated = [row.constraint.quantity for row in result.constraints() if row.excess > 0]
    assert "cost.manufacturing" in violated
    # The least-violating design is the smallest the memory allows, not the fastest.
    assert result.x[0] <= 60
    # The budget alone is too small: no design within the bounds costs as little.
    assert result.conflict.sets == ((0,),)
    (relief,) = result.conflict.reliefs
    assert relief.limits == pytest.approx([cheapest_that_satisfies_the_rest(result.problem)], rel=1e-9)
    # What breaks its limits has no prices.
    rows = result.constraints()
    assert all(row.price is None and row.multiplier is None and not row.active for row in rows)


def test_independent_conflicts_are_all_named_with_one_way_out(search, whole):
    """The way out moves both limits to the design of the whole grid for which that is least in total."""
    limits = whole.problem.limits
    limits[0], limits[2] = 400.0, 50.0
    search.reset(limits)
    result = search.answer()
    assert result.conflict.sets == ((2,), (0,))  # the last constraints first
    (relief,) = result.conflict.reliefs
    assert relief.constraints == (2, 0)
    memory, power, cost = grid_outputs(result.problem)
    total = (cost / 400 + power / 50)[memory <= 0]
    assert relief.limits[1] / 400 + relief.limits[0] / 50 == pytest.approx(total.min(), rel=1e-9)
    lines = conflict_lines(result)
    assert [line.split(":")[0] for line in lines] == [
        "in conflict",
        "also in conflict, without these",
        "  the cheapest way out",
    ]
    assert "chip.power ≤" in lines[2]
    assert " and cost.manufacturing ≤" in lines[2]


def test_a_stopped_search_proves_nothing(search, whole, monkeypatch):
    limits = whole.problem.limits
    limits[0] = 400.0
    search.reset(limits)
    with monkeypatch.context() as patched:
        patched.setattr(search, "enumerate", interrupted)
        said = verdict(search.answer())
    assert "No design that satisfies every constraint was found in 0." in said
    assert "the search had not ended" in said


def interrupted():
    raise KeyboardInterrupt


def test_interruption_keeps_the_best_so_far(search, whole, monkeypatch):
    def interrupt(stage, fraction):
        if stage == "every combination":
            raise KeyboardInterrupt

    search.reset(whole.problem.limits)
    monkeypatch.setattr(search, "progress", interrupt)
    result = search.answer()
    assert result.stopped == "interrupted"
    assert np.all(np.isfinite(result.x))
    assert all(float(v).is_integer() for v in result.x)


def test_a_search_repeats_itself(search, whole):
    search.reset(whole.problem.limits)
    np.testing.assert_array_equal(search.answer().x, whole.x)


BAD = [
    ('minimize = "time"', 'minimize = "tyme"', "time"),
    ('path = "design.compute_units"', 'path = "design.compute_unit"', "compute_units"),
    ("from = 40", 'from = "40 GB"', "plain number"),
    ("from = 40", "from = 400", "less than"),
    ('quantity = "chip.power"', 'quantity = "chip.powr"', "power"),
    ('at_most = "400 W"', 'at_most = "400 GB"', "400 GB"),
    ('at_most = "400 W"', "at_most = 400", "bare number"),
    ('technology = "n7-hbm2e"', 'technology = "n7-hbm2"', "n7-hbm2e"),
    ("tp = 8", "tp = 5", "divisor"),
    ('system = "dgx-a100"', 'systm = "dgx-a100"', "system"),
    ('quantity = "memory.excess"\nat_most = 0', 'quantity = "chip.power"\nat_least = "500 W"', "400 W"),
    ('path = "design.memory_stacks"', 'path = "design.compute_units"', "again"),
    ('minimize = "time"', 'minimize = "time"\nphase = "decode"', "strategy.micro_batch"),
]


@pytest.mark.parametrize(("old", "new", "hint"), BAD, ids=lambda value: str(value)[:40])
def test_bad_problems_give_one_clear_line(tmp_path, old, new, hint):
    text = HEAD + WHOLE + BUDGET.replace("BUDGET", "baseline")
    assert old in text
    with pytest.raises(ConfigError) as caught:
        problem_of(tmp_path, text.replace(old, new))
    line = str(caught.value)
    assert "\n" not in line
    assert "problem.toml" in line
    assert hint in line


def leaves(node, path=()):
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))


def test_mutated_problems_fail_in_one_line_or_load(tmp_path, monkeypatch):
    """Every place of a problem replaced by things that do not belong there, or removed: never anything but
    a `ConfigError`.
    """
    # Most problems name the same configs, which are loaded once.
    monkeypatch.setattr("diffperf.explore.reader.load", functools.cache(load))
    table = tomllib.loads(HEAD + WHOLE + BUDGET.replace("BUDGET", "baseline"))
    junk = [
        3,
        -1,
        float("nan"),
        "",
        "x",
        "80 Gb",
        True,
        [],
        [1],
        {},
        {"a": 1},
        "1e9 GB",
        "-5 baseline",
        "7 W",
        0,
        None,
    ]
    cases = random.Random(0).sample(list(itertools.product(leaves(table), junk)), 120)
    lines = []
    with jax.enable_x64(True):
        for path, value in cases:
            mutated = copy.deepcopy(table)
            node = mutated
            for key in path[:-1]:
                node = node[key]
            if value is None:
                del node[path[-1]]
            else:
                node[path[-1]] = value
            try:
                ProblemReader("problem.toml", tmp_path, mutated).problem("problem")
            except ConfigError as error:
                lines.append(str(error))
    assert len(lines) > 100
    assert all("\n" not in line and line.startswith("problem.toml") for line in lines)


@pytest.mark.parametrize("name", [name for name in available("problems") if "budget" in name])
def test_shipped_problems_load(name):
    problem = load_problem(name)
    with jax.enable_x64(True):
        objective, excess = problem.score(problem.baseline_outcome, jnp.asarray(problem.limits))
    assert float(objective) == 0.0
    assert np.all(np.isfinite(excess))
