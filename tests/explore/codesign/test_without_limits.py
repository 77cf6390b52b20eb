"""A problem without a constraint of its own: the bounds of its variables limit it, and memory."""

import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.relax import Exact

PROBLEM = {
    "model": "llama-3-8b",
    "system": "dgx-h100",
    "n_devices": 8,
    "technology": "n4-hbm3",
    "phase": "decode",
    "minimize": "cost.run",
    "strategy": {"tp": 8, "global_batch": 64},
    "variable": [
        {"path": "design.compute_units", "from": 16, "to": 300},
        {"path": "design.voltage", "from": "0.6 V", "to": "0.9 V"},
    ],
}


@pytest.mark.slow
def test_the_objective_is_optimized_within_the_bounds_alone():
    answer = dp.codesign(PROBLEM, population=64)
    assert answer.feasible
    result = answer.result
    assert result.objective < result.baseline_objective
    assert [str(constraint) for constraint in result.problem.constraints] == ["memory.excess ≤ 0"]
    # The cheapest run needs few units, but more than the least.
    assert 16 < result.x[0] < 300
    assert answer.to_dict()["unpaid"] == {}


def test_a_design_has_to_fit_memory():
    """One stack of memory is cheapest, and holds too little for 64 sequences of eight thousand tokens."""
    variable = {"path": "design.memory_stacks", "from": 1, "to": 8}
    strategy = {"tp": 1, "global_batch": 64, "sequence_length": 4096, "output_length": 4096}
    asked = PROBLEM | {"n_devices": 1, "minimize": "cost.manufacturing", "strategy": strategy}
    answer = dp.codesign(asked | {"variable": [variable]})
    report = answer.result.outcome.report
    assert answer.feasible
    assert float(report.memory.peak) <= float(report.memory.capacity)
    fewer = jnp.asarray(answer.result.x - 1)
    assert float(answer.result.problem.scores(fewer, jnp.zeros(1), Exact())[1]) > 0


@pytest.mark.parametrize("objective", ["memory.excess", "breakdown.offload"])
def test_an_objective_that_is_not_above_zero_is_refused(objective):
    with pytest.raises(
        ConfigError, match=f'"{objective}".* in the baseline; expected an output that is above'
    ):
        dp.codesign(PROBLEM | {"phase": "training", "minimize": objective})


def test_a_limit_below_zero_is_refused():
    limit = {"quantity": "memory.excess", "at_most": "baseline"}
    with pytest.raises(ConfigError, match="expected a limit of zero or more; write the limit itself"):
        dp.codesign(PROBLEM | {"constraint": [limit]})


@pytest.mark.parametrize(
    ("path", "kind"), [("system.n_devices", "whole number"), ("strategy.precision", "choice")]
)
def test_what_is_uncertain_is_a_real_number(path, kind):
    with pytest.raises(ConfigError, match=f"which is a {kind}; expected a real number"):
        dp.codesign(PROBLEM | {"uncertain": [{"path": path, "from": 0.9, "to": 1.1}]})


def test_uncertain_inputs_stay_within_their_bounds():
    """The efficiency of HBM is at most 1: all samples that would lie above have the time of 1."""
    uncertain = {"path": "hbm.efficiency", "from": 1.5, "to": 2.0}
    problem = load_problem(PROBLEM | {"uncertain": [uncertain], "minimize": "time"})
    whole = load_problem(PROBLEM | {"set": {"hbm.efficiency": 1.0}, "minimize": "time"})
    with jax.enable_x64(True):
        start = jnp.asarray(problem.vector.start)
        ours = problem.scores(start, jnp.asarray(problem.limits), Exact())[0]
        best = jnp.log(whole.outcome(start, Exact()).report.time / problem.baseline_outcome.report.time)
        assert float(ours) == pytest.approx(float(best), rel=1e-9)


def test_a_front_needs_a_limit():
    with pytest.raises(ConfigError, match=r"add a \[\[constraint\]\] on it"):
        dp.codesign_front(PROBLEM, "cost.manufacturing=0.6x..1x")
