"""The table [set] of spaces and of design problems, which one function reads."""

import tomllib

import pytest

from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.sweep.space_file import load_space
from diffperf.quantity import locate

SHARED = {
    "model": "llama-3-8b",
    "system": "dgx-h100",
    "technology": "n4-hbm3",
    "phase": "decode",
    "strategy": {"global_batch": 8},
}
PROBLEM = SHARED | {
    "n_devices": 1,
    "minimize": "time",
    "variable": [{"path": "design.compute_units", "from": 8, "to": 200}],
    "constraint": [{"quantity": "cost.manufacturing", "at_most": "3000 USD"}],
}
SPACE = SHARED | {"axis": [{"path": "design.compute_units", "values": [100, 132]}]}
SETTINGS = """
design.memory_stacks = 2
technology.memory.price = "90 USD/GB"
prices.electricity = "0.2 USD/kWh"
strategy.sequence_length = 1024
strategy.precision = "fp8"
"hbm.efficiency" = 0.5
"""
EXPECTED = {
    "design.memory_stacks": 2,
    "technology.memory.price": 90e-9,
    "system.prices.electricity": 0.2 / 3.6e6,
    "strategy.sequence_length": 1024,
    "system.accelerator.memory.hbm.efficiency": 0.5,
}


def loaded(kind, settings):
    """What a problem or a space with settings begins with."""
    if kind == "problem":
        return load_problem(PROBLEM | {"set": settings}).baseline
    return load_space(SPACE | {"set": settings}).inputs


@pytest.mark.parametrize("kind", ["problem", "space"])
def test_keys_without_quotes_and_endings_of_paths_are_inputs(kind):
    candidate = loaded(kind, tomllib.loads(SETTINGS))
    for path, value in EXPECTED.items():
        assert float(locate(candidate, path)[0]) == pytest.approx(value), path
    assert float(candidate.strategy.precision.fp8) == 1


@pytest.mark.parametrize("kind", ["problem", "space"])
@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ("compute_units = 100", "set.compute_units", "design.compute_units"),
        ('hbm.latency_ = "1 us"', "set.hbm.latency_", "unknown name"),
        (
            'prices.electricity = "0.2 USD/kWh"\n"system.prices.electricity" = "0.1 USD/kWh"',
            "set.system.prices.electricity",
            "twice",
        ),
        ('hbm.latency = "300 ns"', "set.system.accelerator.memory.hbm.latency", "technology.memory.latency"),
    ],
)
def test_settings_that_lead_nowhere_are_one_clear_line(kind, settings, key, words):
    with pytest.raises(ConfigError) as problem:
        loaded(kind, tomllib.loads(settings))
    assert problem.value.key == key
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_variables_and_uncertain_inputs_are_named_by_endings_of_paths():
    problem = load_problem(
        PROBLEM
        | {
            "variable": [
                {"path": "voltage", "from": "0.6 V", "to": "0.9 V"},
                {"path": "hbm.efficiency", "from": 0.5, "to": 0.9},
            ],
            "uncertain": [{"path": "prices.electricity", "from": 0.5, "to": 2.0}],
        }
    )
    paths = [variable.path for variable in problem.variables]
    assert paths == ["design.voltage", "system.accelerator.memory.hbm.efficiency"]
    assert problem.uncertainty.paths == ("system.prices.electricity",)
