"""What answers about several systems and about designs rest on."""

import numpy as np
import pytest

from diffperf import estimate
from diffperf.api.basis import describe_systems
from diffperf.api.sweep_basis import describe_space_basis, space_basis
from diffperf.explore.sweep.space_file import load_space
from diffperf.load import load_system

SPACE = {
    "model": "gpt3-22b",
    "system": "dgx-a100",
    "set": {"system.n_devices": 8},
    "axis": [{"path": "strategy.tp", "values": [1, 8]}],
}


def test_a_sweep_on_one_system():
    space = load_space(SPACE)
    assert space_basis(space) == {"dgx-a100": "calibrated"}
    assert describe_space_basis(space).startswith("Rests on efficiencies of a100-sxm4-80gb fitted")


def test_systems_of_a_sweep_that_rest_on_the_same_are_named_together():
    names = ["dgx-a100", "mi300x-8", "dgx-h100"]
    space = load_space(SPACE | {"axis": [*SPACE["axis"], {"path": "system", "values": names}]})
    assert space_basis(space) == {
        "dgx-a100": "calibrated",
        "dgx-h100": "calibrated",
        "mi300x-8": "datasheet",
    }
    line = describe_space_basis(space)
    assert "datasheet: mi300x-8" in line
    assert line.startswith("Rests on: calibrated: ")
    assert line == describe_systems([load_system(name) for name in space_basis(space)], "training")


def test_neither_hardware_nor_software_was_fitted():
    """The time has at least the interval of a stack that nobody measured: its logarithm ± 1.645 times 0.18.
    Software that was fitted, on hardware that was not, has none.
    """
    asked = {"devices": 8, "tp": 8, "precision": "bf16"}
    answer = estimate("llama-3-8b", "hgx-h800", stack="hai-llm", **asked)
    known = answer.to_dict()["time_interval"]
    time = float(answer.report.time)
    assert (known["low"], known["high"]) == pytest.approx(
        (time * np.exp(-0.2961), time * np.exp(0.2961)), rel=1e-3
    )
    line = answer.certainty.line()
    assert "± 29.6% or more" in line
    assert "estimates of hai-llm" in line
    fitted = estimate("llama-3-8b", "hgx-h800", stack="megatron-core", **asked)
    assert "time_interval" not in fitted.to_dict()
    assert "no interval is known" in fitted.certainty.line()


@pytest.mark.parametrize("memories", [None, ["hbm3", "hbm4"]])
def test_a_sweep_of_designs(memories):
    """The rates are those of a technology, or of the technologies that an axis names."""
    axes = [{"path": "design.memory_stacks", "values": [4, 6]}]
    axes += [{"path": "technology.memory", "values": memories}] if memories else []
    space = load_space(SPACE | {"technology": "n4-hbm3", "axis": axes})
    (rests_on,) = space_basis(space).values()
    assert rests_on.startswith("estimate in n4-hbm3")
    assert ("hbm4" in rests_on) == (memories is not None)
    line = describe_space_basis(space)
    assert "no interval" in line
    assert "efficiencies of a100-sxm4-80gb as fitted" in line
