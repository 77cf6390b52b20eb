"""What a phase reports, without an estimate of it."""

import dataclasses

import jax
import pytest

import diffperf as dp
from diffperf import traced_once
from diffperf.errors import ConfigError
from diffperf.estimate import phases
from diffperf.explore.inputs import checked_output, report_outputs
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration


@pytest.fixture
def traced(monkeypatch):
    """The phases that are estimated, one by one."""
    estimated, training_step = [], phases.PHASES["training"]

    def counted(*inputs):
        estimated.append("training")
        return training_step(*inputs)

    monkeypatch.setitem(phases.PHASES, "training", counted)
    # Neither this process nor an earlier one has a program.
    monkeypatch.setattr("diffperf.explore.inputs._reported.programs", {})
    monkeypatch.setattr("diffperf.compiler._folder", lambda: None)
    return estimated


def test_one_estimate_tells_what_all_of_a_structure_report(gpt, system, strategy, traced):
    c = Configuration(gpt, system, strategy)
    reported = outputs(dp.training_step(gpt, system, strategy))
    traced_once._program.cache_clear()
    traced.clear()
    for changed in (c, dataclasses.replace(c, strategy=dataclasses.replace(strategy, tp=strategy.tp * 2))):
        assert report_outputs(changed, "training") == {
            path: declared for path, (declared, _) in reported.items()
        }
    assert traced == ["training"]
    with jax.enable_x64(True):
        declared = checked_output(c, "training", "cost.run", "space.toml")
    assert declared.unit == "USD"


def test_an_output_that_is_not_reported(gpt, system, strategy):
    c = Configuration(gpt, system, strategy)
    with pytest.raises(ConfigError, match=r'space.toml: output: found "cost.rum".*cost.run'):
        checked_output(c, "training", "cost.rum", "space.toml")
