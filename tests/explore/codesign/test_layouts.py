"""Co-design of strategy degrees: every answer is a layout of the devices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from problem_texts import problem_of

from diffperf.cli.codesign_command import codesign as command
from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.search import Search
from diffperf.relax import Exact

pytestmark = pytest.mark.slow  # every test needs a whole search

HEAD = """
model = "gpt3-22b"
system = "dgx-a100"
n_devices = 256
technology = "n7-hbm2e"
minimize = "time"
[strategy]
tp = 8
pp = 4
global_batch = 256
"""
DEGREES = """
[[variable]]
path = "strategy.tp"
from = 1
to = 8
[[variable]]
path = "strategy.pp"
from = 1
to = 16
[[variable]]
path = "strategy.dp"
from = 1
to = 256
"""
UNITS = """
[[variable]]
path = "design.compute_units"
from = 80
to = 110
"""
LIMITS = """
[[constraint]]
quantity = "cost.manufacturing"
at_most = "baseline"
[[constraint]]
quantity = "memory.excess"
at_most = 0
"""


def layouts_of(problem: DesignProblem) -> set[tuple[float, ...]]:
    (layouts,) = problem.layouts
    return {tuple(map(float, row)) for row in layouts.values}


@pytest.fixture(scope="module")
def commanded(tmp_path_factory) -> tuple[Codesign, str]:
    """The design that the command line comes to, and what it prints."""
    path, designs = tmp_path_factory.mktemp("problem") / "layouts.toml", []
    path.write_text(HEAD + DEGREES + UNITS + LIMITS)
    answer = Search.answer

    def recorded(search: Search) -> Codesign:
        designs.append(answer(search))
        return designs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "answer", recorded)
        printed = CliRunner().invoke(command, [str(path), "--population", "128"]).output
    (design,) = designs
    return design, printed


@pytest.fixture(scope="module")
def designed(commanded) -> Codesign:
    return commanded[0]


@pytest.mark.slow
def test_degrees_multiply_to_the_devices(designed):
    strategy = designed.design.strategy
    assert designed.feasible
    assert np.prod(designed.x[:3]) == 256
    assert float(strategy.tp * strategy.pp * strategy.dp) == 256
    assert tuple(designed.x[:3]) in layouts_of(designed.problem)


@pytest.mark.slow
def test_the_layout_is_the_exhaustive_optimum(designed):
    problem = designed.problem
    grid = np.array([(*row, units) for row in layouts_of(problem) for units in range(80, 111)])
    with jax.enable_x64(True):
        objective, excess = jax.jit(
            jax.vmap(lambda x: problem.score(problem.outcome(x, Exact()), jnp.asarray(problem.limits)))
        )(jnp.asarray(grid))
    best = np.asarray(objective)[np.asarray(excess).max(axis=1) <= 0].min()
    assert np.log(designed.objective / designed.baseline_objective) == pytest.approx(best, abs=1e-9)


def test_layouts_are_all_that_obey_the_rules(designed):
    """gpt3-22b has 64 heads and 48 layers; a batch of 256 is divided among at most 256 ranks."""
    ways = [2**power for power in range(9)]
    expected = {
        (tp, pp, dp)
        for tp, pp, dp in itertools.product(ways, ways, ways)
        if tp * pp * dp == 256 and tp <= 8 and pp <= 16
    }
    assert layouts_of(designed.problem) == expected


def test_dp_that_nobody_gives_follows_from_the_others(tmp_path):
    without_dp = DEGREES[: DEGREES.index('[[variable]]\npath = "strategy.dp"')]
    problem = problem_of(tmp_path, HEAD + without_dp + LIMITS)
    for tp, pp in layouts_of(problem):
        strategy = problem.vector.candidate(jnp.array([tp, pp])).strategy
        assert float(strategy.tp * strategy.pp * strategy.dp) == 256


def test_dp_that_is_given_stays(tmp_path):
    without_dp = DEGREES[: DEGREES.index('[[variable]]\npath = "strategy.dp"')]
    problem = problem_of(tmp_path, HEAD.replace("pp = 4", "pp = 4\ndp = 8") + without_dp + LIMITS)
    assert layouts_of(problem) == {(2, 16), (4, 8), (8, 4)}


def test_a_choice_and_batches_are_part_of_the_layout(tmp_path):
    """dualpipe asks for an even number of stages, and for two micro-batches each."""
    more = """
[[variable]]
path = "strategy.micro_batch"
from = 1
to = 12
[[variable]]
path = "strategy.schedule"
"""
    problem = problem_of(tmp_path, HEAD + DEGREES + more + LIMITS)
    schedules = problem.variables[-1].declared.alternatives
    rows = layouts_of(problem)
    dualpipe = [row for row in rows if row[4 + schedules.index("dualpipe")] == 1]
    assert dualpipe
    assert all(pp % 2 == 0 and 256 / (dp * micro) >= 2 * pp for _, pp, dp, micro, *_ in dualpipe)
    assert all(256 % (dp * micro) == 0 for _, _, dp, micro, *_ in rows)


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("from = 1\nto = 8\n", "from = 5\nto = 7\n", "n_devices = 256"),
        ("from = 1\nto = 16", "from = 64\nto = 256", "48 layers"),
    ],
)
def test_a_problem_without_a_layout_says_so_in_one_line(tmp_path, old, new, hint):
    text = HEAD + DEGREES + LIMITS
    assert old in text
    with pytest.raises(ConfigError) as caught:
        problem_of(tmp_path, text.replace(old, new))
    line = str(caught.value)
    assert "\n" not in line
    assert "problem.toml: variable" in line
    assert hint in line


def test_too_many_layouts_to_list_say_so(tmp_path):
    wide = '[[variable]]\npath = "system.n_devices"\n[[variable]]\npath = "strategy.sequence_length"\n'
    with pytest.raises(ConfigError, match="closer together"):
        problem_of(tmp_path, HEAD + DEGREES + wide + LIMITS)


def test_a_broken_layout_is_never_feasible(designed):
    """The test of the test: the same design on other degrees breaks a rule, and says which."""
    with jax.enable_x64(True):
        broken = designed.problem.broken_rules(jnp.array([8.0, 16.0, 64.0, 94.0]))
    assert int(broken) > 0


def test_the_command_prints_the_layout_of_the_design(commanded):
    designed, printed = commanded
    tp, pp, dp = (f"{value:g}" for value in designed.x[:3])
    assert f"tp {tp} · pp {pp} · dp {dp}" in printed


@pytest.mark.slow
def test_real_variables_are_polished_beside_layouts(tmp_path):
    voltage = '[[variable]]\npath = "design.voltage"\nfrom = "0.6 V"\nto = "0.9 V"\n'
    power = '[[constraint]]\nquantity = "chip.power"\nat_most = "400 W"\n'
    limits = LIMITS.replace('"baseline"', '"1.01 baseline"') + power
    problem = problem_of(tmp_path, HEAD + DEGREES + voltage + limits)
    result = Search(problem, population=128).answer()
    assert result.feasible
    assert tuple(result.x[:3]) in layouts_of(problem)
    assert result.objective < result.baseline_objective
    # A price is left where something real is left to give way.
    assert any(row.active for row in result.constraints())
