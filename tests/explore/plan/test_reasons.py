"""Reasons why a strategy loses, by hand."""

import equinox as eqx
import pytest
from helpers import training

from diffperf.explore.plan.reasons import reason_against


@pytest.fixture(scope="module")
def report(gpt, system, strategy):
    return training(gpt, system, strategy)


def slower(report, **shares: float):
    """The report with parts of the time that take so much more, as shares of the whole."""
    whole = report.breakdown.total
    parts = {name: getattr(report.breakdown, name) + share * whole for name, share in shares.items()}
    breakdown = eqx.tree_at(
        lambda b: [getattr(b, name) for name in parts], report.breakdown, list(parts.values())
    )
    return eqx.tree_at(lambda r: (r.breakdown, r.time), report, (breakdown, breakdown.total))


def test_a_reason_names_the_parts_that_grew(report):
    why = reason_against(
        report, slower(report, pipeline_bubble=0.041, tensor_parallel=0.025, optimizer=-0.004), "time"
    )
    assert str(why) == (
        "+6.2 % time: time of the pipeline bubble +4.1 %, "
        "exposed time of tensor-parallel communication +2.5 %"
    )
    assert why.more == pytest.approx(0.062)
    assert sum(change for _, change in why.parts) == pytest.approx(why.more, rel=1e-9)


def test_a_reason_names_what_was_gained_for_it(report):
    why = reason_against(report, slower(report, pipeline_bubble=-0.02, recompute=0.03), "time")
    assert str(why) == (
        "+1.0 % time: time of recomputed activations +3.0 %, against time of the pipeline bubble −2.0 %"
    )


def test_a_reason_of_a_tie_is_the_memory(report):
    heavier = eqx.tree_at(lambda r: r.memory.peak, report, report.memory.peak + 2e9)
    assert str(reason_against(report, heavier, "time")) == "the same time, and 2 GB more memory"


def test_a_dearer_one_is_told_by_its_time(report):
    dearer = eqx.tree_at(lambda r: r.cost.run, slower(report, host=0.1), report.cost.run * 1.08)
    assert (
        str(reason_against(report, dearer, "cost"))
        == "+8.0 % cost, +10.0 % time: time for which devices wait for the host +10.0 %"
    )
