"""Several workloads, each laid out in its own way: the rules of every one hold in every answer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.errors import ConfigError
from diffperf.explore.codesign.layouts import broken_rule
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.search import Search
from diffperf.relax import Exact
from diffperf.workload.rules import broken

PROBLEM = {
    "system": "dgx-a100",
    "technology": "n7-hbm2e",
    "n_devices": 16,
    "minimize": "time",
    "workload": [
        {"name": "training", "model": "gpt3-22b", "strategy": {"tp": 8, "pp": 2, "global_batch": 32}},
        {"name": "chat", "model": "llama-3-8b", "phase": "decode", "strategy": {"tp": 8, "global_batch": 32}},
    ],
    "variable": [
        {"path": "strategy.tp", "from": 1, "to": 8},
        {"path": "strategy.pp", "from": 1, "to": 4},
        {"path": "chat.strategy.tp", "from": 1, "to": 16},
        {"path": "chat.strategy.pp", "from": 1, "to": 2},
    ],
    "constraint": [{"quantity": "memory.excess", "at_most": 0}],
}
DEVICES = {"path": "system.n_devices", "values": [8, 16, 32]}
DATA_PARALLEL = {"path": "chat.strategy.dp", "from": 1, "to": 16}


def obeyed(problem, rows) -> np.ndarray:
    """Which vectors of variables break no rule of any workload, by the rules themselves."""

    def of_one(x):
        candidate = problem.vector.candidate(x)
        pairs = zip(candidate.configurations(candidate.system), problem.workloads, strict=True)
        return sum(broken(configuration, workload.phase) for configuration, workload in pairs) == 0

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(of_one))(jnp.asarray(rows)))


def possible(problem) -> set[tuple[float, ...]]:
    """Every vector of variables that the problem's layouts allow together."""
    found = np.array([problem.vector.start])
    for layouts in problem.layouts:
        found = np.concatenate([layouts.applied(x) for x in found])
    return set(map(tuple, found.tolist()))


def test_variables_and_broken_rules_name_the_workload_as_the_file_does():
    problem = load_problem(PROBLEM)
    assert [variable.name for variable in problem.vector.variables] == [
        variable["path"] for variable in PROBLEM["variable"]
    ]
    assert broken_rule(problem.vector, problem.phases, np.array([8.0, 2.0, 8.0, 2.0])) is None
    number, violation = broken_rule(problem.vector, problem.phases, np.array([8.0, 2.0, 16.0, 2.0]))
    assert problem.workloads[number].name == "chat"
    assert violation.found


def test_each_workload_has_layouts_of_its_own():
    problem = load_problem(PROBLEM)
    assert [layouts.name for layouts in problem.layouts] == ["layout", "layout of chat"]
    grid = np.array(list(itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16), (1, 2))), dtype=float)
    expected = set(map(tuple, grid[obeyed(problem, grid)].tolist()))
    assert possible(problem) == expected
    assert 1 < len(expected) < 4 * 3 * 5 * 2


def test_the_data_parallel_degree_of_each_follows():
    problem = load_problem(PROBLEM)
    with jax.enable_x64(True):
        candidate = problem.vector.candidate(jnp.array([4.0, 2.0, 2.0, 1.0]))
    assert float(candidate.strategy.dp) == 2
    assert float(candidate.beside[0].strategy.dp) == 8


def test_workloads_share_the_number_of_devices():
    """The degrees of each multiply to it, whether dp is given, varies or follows."""
    problem = load_problem(PROBLEM | {"variable": [DEVICES, *PROBLEM["variable"], DATA_PARALLEL]})
    (layouts,) = problem.layouts
    assert len(layouts.entries) == 6
    rows = possible(problem)
    assert {row[0] for row in rows} == {8.0, 16.0, 32.0}
    assert all(chat_tp * chat_pp * chat_dp == n for n, _, _, chat_tp, chat_pp, chat_dp in rows)
    assert obeyed(problem, np.array(list(rows))).all()


@pytest.mark.slow
def test_the_answer_is_the_exhaustive_optimum():
    problem = load_problem(PROBLEM)
    result = Search(problem, population=64).answer()
    rows = np.array(sorted(possible(problem)))
    with jax.enable_x64(True):
        scores = jax.jit(jax.vmap(lambda x: problem.scores(x, jnp.asarray(problem.limits), Exact())))(rows)
    scores = np.asarray(scores)
    assert obeyed(problem, result.x[None]).all()
    best = scores[np.all(scores[:, 1:] <= 0, axis=1), 0].min()
    assert result.feasible
    assert np.log(result.objective) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ({"path": "chat.strategy.tp", "from": 5, "to": 7}, "n_devices = 16 for chat"),
        ({"path": "chat.strategy.pp", "values": [3, 5]}, "for chat"),
        ({"path": "chat.strategy.micro_batch", "from": 1, "to": 4}, "input of training"),
    ],
)
def test_a_workload_without_a_layout_is_named(variable, hint):
    with pytest.raises(ConfigError, match=hint) as caught:
        load_problem(PROBLEM | {"variable": [variable]})
    assert "\n" not in str(caught.value)
