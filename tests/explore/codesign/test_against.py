"""Systems that are sold run the workloads of a design problem in their own best layout."""

import jax
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.codesign.against import bought_systems
from diffperf.explore.codesign.problem_file import load_problem

PROBLEM = {
    "model": "llama-3-8b",
    "system": "dgx-a100",
    "n_devices": 8,
    "technology": "n7-hbm2e",
    "phase": "decode",
    "maximize": "tokens_per_second",
    "strategy": {"tp": 8, "global_batch": 16, "sequence_length": 1024},
    "variable": [
        {"path": "strategy.tp", "from": 1, "to": 8},
        {"path": "strategy.global_batch", "values": [16, 64, 256]},
        {"path": "design.compute_units", "from": 50, "to": 150},
    ],
    "constraint": [
        {"quantity": "cost.manufacturing", "at_most": "0.5 baseline"},
        {"quantity": "time", "at_most": "9 ms"},
    ],
}


def brute_force(system):
    """(rate, tp, batch) of every layout on a system that keeps to the latency."""
    found = []
    for tp in (1, 2, 4, 8):
        for batch in (16, 64, 256):
            answer = dp.estimate(
                "llama-3-8b",
                system,
                devices=8,
                phase="decode",
                tp=tp,
                global_batch=batch,
                sequence_length=1024,
            )
            if answer.report.time <= 9e-3:
                found.append((float(answer.report.tokens_per_second), tp, batch))
    return found


@pytest.mark.slow
def test_a_sold_system_runs_in_its_best_layout():
    with jax.enable_x64(True):
        problem = load_problem(PROBLEM)
        (bought,) = bought_systems(problem, ["dgx-h100"], "here")
        rate, tp, batch = max(brute_force("dgx-h100"))
    (strategy,) = bought.strategies
    assert (float(strategy.tp), float(strategy.global_batch)) == (tp, batch)
    assert float(bought.reports["decode"].tokens_per_second) == pytest.approx(rate, rel=1e-6)
    assert bought.fits, "limits of cost and chip are not those of a system that is sold"
    assert bought.manufacturing > problem.limits[0]


@pytest.mark.slow
def test_a_limit_that_no_layout_meets_is_named():
    table = PROBLEM | {"constraint": [{"quantity": "time", "at_most": "1 ms"}]}
    (bought,) = bought_systems(load_problem(table), ["dgx-h100"], "here")
    assert [constraint.quantity for constraint in bought.missed] == ["time"]


def test_an_objective_of_the_chip_is_refused():
    problem = load_problem(PROBLEM | {"maximize": "chip.shoreline"})
    with pytest.raises(ConfigError, match=r"chip\.shoreline"):
        bought_systems(problem, ["dgx-h100"], "here")


def test_listed_values_of_a_layout_stay_listed():
    (layouts,) = load_problem(PROBLEM).layouts
    assert set(layouts.values[:, 1]) == {16, 64, 256}
