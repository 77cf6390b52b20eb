"""Calibrations as configs: what is read, what is applied to which system, and what is wrong with a file."""

from pathlib import Path

import pytest

import diffperf as dp
from diffperf.hardware.system import System
from diffperf.load import load, load_calibrated, load_calibration, load_system
from diffperf.load.calibration import Calibration, part_of, parts
from diffperf.quantity import locate

TEXT = """
hardware = "a100-sxm4-80gb"
system = "dgx-a100"
date = 2026-01-02
[parts]
stack = "megatron-lm"
[values]
"accelerator.memory.hbm.efficiency" = 0.77
"stack.kernel_overhead" = "9 us"
[uncertainty]
parameters = ["accelerator.memory.hbm.efficiency", "stack.kernel_overhead"]
covariance = [[1e-4, 2e-5], [2e-5, 4e-4]]
[spread]
gemm = 0.05
"gemm fp8" = 0.07
"""


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def values(system: System) -> tuple[float, float]:
    return tuple(
        float(locate(system, path)[0])
        for path in ("accelerator.memory.hbm.efficiency", "stack.kernel_overhead")
    )


def test_values_replace_the_system_s_own(file):
    plain, fitted = load_system("dgx-a100", calibration="none"), load_system("dgx-a100", 64, calibration=file)
    assert values(fitted) == (0.77, 9e-6)
    assert values(plain) != values(fitted)
    assert (str(plain.calibration), str(fitted.calibration)) == ("none", "mine")
    assert float(fitted.n_devices) == 64


def test_values_of_another_stack_are_left_out(file):
    other = load_system("dgx-a100", stack="tensorrt-llm", calibration="none")
    assert values(load_system("dgx-a100", stack="tensorrt-llm", calibration=file)) == (0.77, values(other)[1])


def test_a_system_names_its_calibration(file, tmp_path):
    """Relative to its own file; every way to load the system applies it, and "none" does not."""
    shipped = (dp.load.config_root() / "systems" / "dgx-a100.toml").read_text(encoding="utf-8")
    ours, theirs = (
        shipped.replace('calibration = "a100-sxm4-80gb"', f'calibration = "{name}.toml"')
        for name in ("mine", "theirs")
    )
    assert shipped != ours
    (tmp_path / "ours.toml").write_text(ours)
    ours = str(tmp_path / "ours.toml")
    assert values(load_system(ours)) == values(load(System, ours)) == (0.77, 9e-6)
    assert values(load_system(ours, calibration="none")) == values(
        load_system("dgx-a100", calibration="none")
    )
    system, calibration = load_calibrated(ours)
    assert (str(system.calibration), calibration.hardware) == ("mine", "a100-sxm4-80gb")
    (tmp_path / "ours.toml").write_text(theirs)
    with pytest.raises(
        dp.ConfigError, match=r'ours\.toml: calibration: found "theirs\.toml"; expected an existing file'
    ):
        load_system(ours)


def test_calibrations_of_other_hardware_are_refused(file):
    with pytest.raises(
        dp.ConfigError, match=r'mine\.toml: hardware: found "a100-sxm4-80gb"; expected .* of h100-sxm5-80gb'
    ):
        load_system("dgx-h100", calibration=file)


def test_what_was_read(file):
    found = load_calibration(file)
    assert found.parameters == ("accelerator.memory.hbm.efficiency", "stack.kernel_overhead")
    assert found.covariance.tolist() == [[1e-4, 2e-5], [2e-5, 4e-4]]
    assert found.spread == {"gemm": 0.05, "gemm fp8": 0.07}
    assert found.parts == {"stack": "megatron-lm"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hbm.efficiency", "hbm.eficiency", 'did you mean "efficiency"'),
        ("= 0.77", "= 1.7", "from 0.05 to 1"),
        ('"9 us"', "9e-6", "a bare number has no unit"),
        ("[[1e-4, 2e-5], [2e-5, 4e-4]]", "[[1e-4]]", "uncertainty.covariance"),
        ("[[1e-4, 2e-5], [2e-5, 4e-4]]", "[[1e-4, 2e-5], [9e-5, 4e-4]]", "a symmetric matrix"),
        ("[[1e-4, 2e-5], [2e-5, 4e-4]]", "[[-1e-4, 2e-5], [2e-5, 4e-4]]", "no variance below 0"),
        ("[[1e-4, 2e-5], [2e-5, 4e-4]]", '"none"', "a symmetric matrix"),
        ('parameters = ["accelerator.memory.hbm.efficiency", ', "parameters = [", "the keys of [values]"),
        ("gemm = 0.05", 'gemm = "5 %"', "spread"),
        ("gemm = 0.05", "", "spread"),
        ("[spread]", "[spreads]", 'unknown key "spreads"'),
        ('hardware = "a100-sxm4-80gb"', "hardware = 100", "a name"),
        ("[parts]", "[[parts]]", "a table"),
    ],
)
def test_what_is_wrong_is_one_line(file, old, new, words):
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(dp.ConfigError) as problem:
        load_system("dgx-a100", calibration=file)
    assert str(problem.value).startswith(f"{file}: ")
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_parts_of_a_system():
    known = parts(load_system("dgx-a100"))
    assert known["accelerator"] == "a100-sxm4-80gb"
    assert known["accelerator.package.process"] == "tsmc-n7"
    assert known["stack"] == "megatron-lm"
    assert part_of("stack.kernel_overhead", known) == "stack"
    assert part_of("accelerator.package.process.wafer_price", known) == "accelerator.package.process"
    assert part_of("network.nvlink.efficiency", known) is None


def test_identity_tells_calibrations_apart(file):
    """Systems are cached by the calibration they have: the same file, read again, may say something else."""
    assert load_calibration(file) != load_calibration(file)
    assert isinstance(load(Calibration, str(file)), Calibration)
