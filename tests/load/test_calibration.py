"""Calibrations as configs: what is read, what is applied to which system, and what is wrong with a file."""

from pathlib import Path

import pytest

import diffperf as dp
from diffperf.hardware.system import System
from diffperf.load import load, load_calibrated, load_calibration, load_system
from diffperf.load.calibration import STACKS, Calibration, followers, part_of, parts, places
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


def overheads(system: System) -> tuple[float, float]:
    """Kernel overheads of the stacks of training and of inference."""
    return float(system.stack.kernel_overhead), float(system.inference_stack.kernel_overhead)


def two_stacks(folder: Path, training: str, inference: str) -> str:
    """A DGX A100 whose file names a stack for training and another for inference."""
    shipped = (dp.load.config_root() / "systems" / "dgx-a100.toml").read_text(encoding="utf-8")
    lines = [line for line in shipped.splitlines() if "stack" not in line.partition("=")[0]]
    names = [f'stack = "{training}"', f'inference_stack = "{inference}"']
    (folder / "two-stacks.toml").write_text("\n".join(names + lines))
    return str(folder / "two-stacks.toml")


@pytest.mark.parametrize(
    ("training", "inference", "fitted"),
    [
        ("megatron-lm", "megatron-lm", (True, True)),
        ("megatron-lm", "tensorrt-llm", (True, False)),
        ("tensorrt-llm", "megatron-lm", (False, True)),
        ("tensorrt-llm", "vllm", (False, False)),
    ],
)
def test_values_of_a_stack_hold_wherever_it_is_used(file, tmp_path, training, inference, fitted):
    """The calibration was fitted with Megatron-LM as the stack of training."""
    name = two_stacks(tmp_path, training, inference)
    configured = overheads(load_system(name, calibration="none"))
    system, calibration = load_calibrated(name, calibration=file)
    expected = tuple(9e-6 if holds else own for holds, own in zip(fitted, configured, strict=True))
    assert overheads(system) == expected
    assert 9e-6 not in configured
    path = "stack.kernel_overhead"
    places = [f"{slot}.kernel_overhead" for slot, holds in zip(STACKS, fitted, strict=True) if holds]
    assert calibration.places(path, system) == places
    assert calibration.holds(path, system) == any(fitted)
    assert calibration.holds("accelerator.memory.hbm.efficiency", system)


def test_values_of_both_stacks_stay_apart(file, tmp_path):
    """A value fitted for inference goes before that of the same stack in training."""
    text = TEXT.replace(
        '"stack.kernel_overhead" = "9 us"',
        '"stack.kernel_overhead" = "9 us"\n"inference_stack.kernel_overhead" = "4 us"',
    )
    text = text.replace(
        '"stack.kernel_overhead"]', '"stack.kernel_overhead", "inference_stack.kernel_overhead"]'
    )
    text = text.replace("[[1e-4, 2e-5], [2e-5, 4e-4]]", "[[1e-4, 0, 0], [0, 4e-4, 0], [0, 0, 4e-4]]")
    file.write_text(
        text.replace('stack = "megatron-lm"', 'stack = "megatron-lm"\ninference_stack = "megatron-lm"')
    )
    both = load_system("dgx-a100", stack="megatron-lm", calibration=file)
    assert overheads(both) == (9e-6, 4e-6)


def test_values_of_a_collective_library_hold_in_both_stacks():
    """Of a library inside a stack the library's own name counts, not the stack's."""
    system = load_system("dgx-a100", stack="vllm", calibration="none")
    library = str(system.stack.collectives.name)
    path = "stack.collectives.latency"
    assert places(path, {"stack.collectives": library}, system) == [path, f"inference_{path}"]
    assert places(path, {"stack.collectives": "another"}, system) == []
    assert places("network.nvlink.efficiency", {"stack.collectives": library}, system) == [
        "network.nvlink.efficiency"
    ]


def test_followers_are_formats_of_the_same_kernels():
    path, hopper = "accelerator.matrix.{}.efficiency", load_system("dgx-h100").accelerator
    assert followers(path.format("bf16"), [], hopper) == [path.format("fp16")]
    of_fp8 = followers(path.format("fp8"), [path.format("int8")], hopper)
    assert path.format("mxfp8") in of_fp8
    assert path.format("int8") not in of_fp8
    for other in ("accelerator.matrix", "accelerator.vector"):
        assert followers(other, [], hopper) == []


def test_formats_without_matrix_units_follow_the_one_that_they_are_multiplied_in():
    hopper, blackwell = (load_system(name).accelerator for name in ("dgx-h100", "hgx-b200"))
    path = "accelerator.matrix.{}.conversion_latency"
    assert {path.format(name) for name in ("fp4", "nvfp4", "mxfp4", "int4")} <= set(
        followers(path.format("fp8"), [], hopper)
    )
    assert path.format("nvfp4") not in followers(path.format("fp8"), [], blackwell)
    # No format that is multiplied in another one takes less time to convert to than that one.
    latencies = {
        name: float(getattr(hopper.matrix, name).conversion_latency) for name in ("fp8", "fp4", "int4")
    }
    assert len(set(latencies.values())) == 1


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
        ("gemm = 0.05", "gemm = 0.05\nattentoin = 0.1", 'did you mean "attention"'),
        ("[spread]", "[spreads]", 'unknown key "spreads"'),
        ('hardware = "a100-sxm4-80gb"', "hardware = 100", "a name"),
        ("[parts]", "[[parts]]", "a table"),
        ("date = 2026-01-02", 'date = "yesterday"', "a date, such as 2026-01-31"),
        ("date = 2026-01-02", "date = { nested = 1 }", "a date, such as 2026-01-31"),
        ("date = 2026-01-02", "version = nan", "a version of diffperf in quotes"),
        ("date = 2026-01-02", "files = 3", "[[files]] tables"),
        ("date = 2026-01-02", "errors = 3", "[errors.NAME] tables"),
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
    assert known["accelerator.package.dies.compute.process"] == "tsmc-n7"
    assert known["stack"] == "megatron-lm"
    assert part_of("stack.kernel_overhead", known) == "stack"
    assert (
        part_of("accelerator.package.dies.compute.process.wafer_price", known)
        == "accelerator.package.dies.compute.process"
    )
    assert part_of("network.nvlink.efficiency", known) is None


def test_identity_tells_calibrations_apart(file):
    """Systems are cached by the calibration they have: the same file, read again, may say something else."""
    assert load_calibration(file) != load_calibration(file)
    assert isinstance(load(Calibration, str(file)), Calibration)
