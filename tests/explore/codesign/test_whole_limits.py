"""Searches whose only useful variable is a whole number: what stops it, and a variable without effect."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.api.codesign_answer import CodesignAnswer
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.search import Search

pytestmark = pytest.mark.slow  # the programs of a search take ten seconds to compile

ONE_NODE = {
    "model": "gpt3-22b",
    "system": "dgx-h100",
    "n_devices": 8,
    "technology": "n4-hbm3",
    "minimize": "time",
    "strategy": {"tp": 8, "global_batch": 64},
    "variable": [
        {"path": "design.compute_units", "from": 64, "to": 200},
        {"path": "system.network.infiniband.bandwidth", "from": "10 GB/s", "to": "200 GB/s"},
    ],
    "constraint": [{"quantity": "cost.manufacturing", "at_most": "baseline"}],
}


@pytest.fixture(scope="module")
def answer() -> CodesignAnswer:
    return dp.codesign(ONE_NODE, population=256)


def text_of(answer):
    return "\n".join(line for line in answer.lines() if isinstance(line, str))


def test_a_variable_without_effect_stays_at_the_baseline_and_is_named(answer):
    assert answer.result.x[1] == pytest.approx(50e9)
    expected = (
        "system.network.infiniband.bandwidth changes neither the objective nor a limit[/bold yellow]; held"
    )
    assert expected in text_of(answer)
    assert answer.to_dict()["without_effect"] == ["system.network.infiniband.bandwidth"]


def test_a_variable_that_matters_between_nodes_is_not_held():
    search = Search(load_problem(ONE_NODE | {"n_devices": 16}), population=256)
    assert search.without_effect == []


def test_the_limit_that_refuses_one_more_unit_is_active(answer):
    """One more unit, by hand, costs what the answer says that it needs beyond the limit, and is faster."""
    result = answer.result
    row, _ = result.constraints()  # the other is that of memory
    (step,) = row.steps
    assert row.active
    assert step.value == result.x[0] + 1
    search = Search(result.problem, population=256)
    scores = search.scorer.exact(np.array([[step.value, result.x[1]]]), result.problem.limits).values[0]
    assert step.needs[0] == pytest.approx(scores[1] * result.problem.limits[0])
    assert np.exp(scores[0]) == pytest.approx(
        result.objective / result.baseline_objective / np.exp(step.gain)
    )
    text = text_of(answer)
    assert "The next compute unit needs $" in text
    assert "more of cost.manufacturing, and lowers time by" in text
    # Of the limits, that of memory alone holds nothing back.
    assert "cost.manufacturing" not in text.partition(" buys nothing")[0].rpartition("more of ")[2]


def test_the_limit_that_refuses_one_more_sequence_of_the_batch_is_active():
    """The batch is a number of the layout; the next one takes longer than the limit by what is said."""
    serving = ONE_NODE | {
        "model": "llama-3-8b",
        "phase": "decode",
        "maximize": "tokens_per_second",
        "strategy": {"tp": 8, "global_batch": 64},
        "variable": [
            {"path": "strategy.global_batch", "from": 8, "to": 512},
            {"path": "strategy.tp", "values": [4, 8]},
            {"path": "design.compute_units", "values": [100, 132]},
        ],
        "constraint": [
            {"quantity": "time", "at_most": "6 ms"},
            {"quantity": "cost.manufacturing", "at_most": "1000000 USD"},
        ],
    }
    del serving["minimize"]
    answer = dp.codesign(serving, population=256)
    result = answer.result
    time, cost, _ = result.constraints()
    assert time.active
    assert not cost.active
    (step,) = [step for step in time.steps if step.variable.path == "strategy.global_batch"]
    assert step.value == step.before + 1
    assert result.x[0] == step.before
    problem = result.problem
    more = np.array([step.value, *result.x[1:]])
    score = Search(problem, population=256).scorer.exact(more[None], problem.limits).values[0]
    assert step.needs == {0: pytest.approx(score[1] * problem.limits[0])}
    text = text_of(answer)
    assert f"strategy.global_batch {step.value:.0f} in place of {step.before:.0f} needs " in text
    assert "more of time, and raises tokens_per_second by" in text
    assert "that would improve the design needs more of cost.manufacturing or memory.excess." in text
    assert "buys nothing" not in text


def test_what_the_sold_chip_costs_remade_is_told(answer):
    assert "The sold chip remade in n4-hbm3 costs $2,834, 3.5% more than the baseline's $2,739." in text_of(
        answer
    )


def test_a_front_of_whole_numbers_gives_the_change_between_limits():
    whole = ONE_NODE | {"variable": ONE_NODE["variable"][:1]}
    along = dp.codesign_front(whole, "cost.manufacturing=0.98x..1.02x", points=2, population=256)
    first, last = along.rows()
    slope = (last["time"] - first["time"]) / (last["limit"] - first["limit"])
    assert first["secant"] == pytest.approx(slope)
    assert slope < 0
    cells = list(along.table().columns[3].cells)
    assert all(cell.startswith("-") and cell.endswith("% (between limits)") for cell in cells)
