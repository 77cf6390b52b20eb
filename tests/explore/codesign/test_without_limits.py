"""A problem without a constraint: the bounds of its variables are its only limits."""

import pytest

import diffperf as dp
from diffperf.errors import ConfigError

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
    lines = [line for line in answer.lines() if isinstance(line, str)]
    assert any("without constraints" in line for line in lines)
    assert not any("limit" in line for line in lines)
    assert "without limits" in answer.to_html()
    # The cheapest run needs few units, but more than the least.
    assert 16 < result.x[0] < 300
    assert answer.to_dict()["unpaid"] == {}


def test_a_front_needs_a_limit():
    with pytest.raises(ConfigError, match=r"add a \[\[constraint\]\] on it"):
        dp.codesign_front(PROBLEM, "cost.manufacturing=0.6x..1x")
