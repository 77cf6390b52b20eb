"""The interval of an estimate against the formula worked out by hand from the report."""

import dataclasses

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.phases import estimate
from diffperf.explore.calibrate.interval import UNMEASURED_STACK, Z90, interval
from diffperf.load import config_root, load, load_system
from diffperf.load.calibration import Calibration
from diffperf.quantity import locate, replace
from diffperf.software.stack import Stack
from diffperf.workload.configuration import Configuration

PATHS = ("accelerator.memory.hbm.efficiency", "stack.kernel_overhead")
COVARIANCE = np.array([[4e-4, -1e-4], [-1e-4, 9e-4]])


def calibration(spread: dict[str, float], covariance: np.ndarray = COVARIANCE) -> Calibration:
    """As if the shipped values had been fitted."""
    system = load_system("dgx-a100", calibration="none")
    values = {
        PATHS[0]: float(locate(system, PATHS[0])[0]),
        PATHS[1]: f"{float(locate(system, PATHS[1])[0])!r} s",
    }
    return Calibration(
        name="ours",
        file="ours.toml",
        hardware="a100-sxm4-80gb",
        system="dgx-a100",
        parts={"stack": "megatron-lm"},
        values=values,
        parameters=PATHS,
        covariance=covariance,
        spread=spread,
    )


@pytest.fixture(scope="module")
def inputs() -> Configuration:
    strategy = dp.load_strategy({"tp": 2, "global_batch": 4, "sequence_length": 512, "output_length": 64})
    # The stack that was calibrated drives training and inference.
    system = load_system("dgx-a100", 2, stack="megatron-lm", calibration="none")
    return Configuration(dp.load_model("llama-2-7b"), system, strategy)


report_of = jax.jit(estimate, static_argnames="phase")


def time_of(inputs: Configuration, phase: str) -> float:
    """The time of a phase in s."""
    return float(report_of(inputs, phase).time)


def slopes(inputs: Configuration, phase: str) -> np.ndarray:
    """d log(time) / d log(value), by central differences; a value of the stack is that of both phases."""

    def log_time(path: str, factor: float) -> float:
        value = float(locate(inputs.system, path)[0]) * factor
        paths = (path, path.replace("stack.", "inference_stack."))
        system = replace(inputs.system, dict.fromkeys(paths, value))
        return float(np.log(time_of(Configuration(inputs.model, system, inputs.strategy), phase)))

    return np.array([(log_time(path, np.exp(1e-5)) - log_time(path, np.exp(-1e-5))) / 2e-5 for path in PATHS])


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "training"])
def test_uncertainty_of_the_values(inputs, phase):
    found = interval(calibration({"gemm": 0.0}), inputs, phase)
    gradient = slopes(inputs, phase)
    assert found.parameters == pytest.approx(np.sqrt(gradient @ COVARIANCE @ gradient), rel=1e-4)
    assert found.model == 0
    assert found.time == pytest.approx(time_of(inputs, phase), rel=1e-12)
    low, high = found.ends
    assert np.log(high / low) == pytest.approx(2 * Z90 * found.parameters)


@pytest.mark.slow
def test_shares_of_the_kinds(inputs):
    """Errors of one kind add up over its share of the time; those of different kinds add in squares."""
    report, nothing = report_of(inputs, "generate"), 0 * COVARIANCE
    passes = float(inputs.strategy.output_length) - 1

    def seconds(*names: str) -> float:
        return sum(
            float(getattr(report.prefill, name)) + passes * float(getattr(report.decode, name))
            for name in names
        )

    parts = np.array(
        [seconds("matmul", "head"), seconds("attention"), seconds("tensor_parallel", "pipeline_transfers")]
    )
    shares = parts / parts.sum()
    found = interval(
        calibration({"gemm": 0.1, "attention": 0.2, "collectives": 0.4}, nothing), inputs, "generate"
    )
    assert found.parameters == 0
    assert found.model == pytest.approx(np.linalg.norm(shares * [0.1, 0.2, 0.4]), rel=1e-9)
    found = interval(calibration({"gemm": 0.1, "attention": 0.2}, nothing), inputs, "generate")
    assert found.model == pytest.approx(np.linalg.norm(shares * [0.1, 0.2, 0.2]), rel=1e-9)


@pytest.mark.slow
def test_number_formats_and_whole_runs(inputs):
    nothing = 0 * COVARIANCE
    in_bf16 = interval(calibration({"gemm": 0.1}, nothing), inputs, "prefill")
    by_format = interval(
        calibration({"gemm": 0.1, "gemm bf16": 0.3, "gemm fp8": 0.9}, nothing), inputs, "prefill"
    )
    assert by_format.model == pytest.approx(3 * in_bf16.model)
    spread = {"gemm": 0.1, "inference": 0.25}
    assert interval(calibration(spread, nothing), inputs, "generate").model == 0.25
    assert interval(calibration(spread, nothing), inputs, "training").model < 0.25


def test_a_value_that_was_overridden_is_known(inputs):
    both, gradient = calibration({"gemm": 0.0}), slopes(inputs, "prefill")
    changed = replace(inputs.system, {PATHS[0]: float(locate(inputs.system, PATHS[0])[0]) * 0.9})
    found = interval(both, Configuration(inputs.model, changed, inputs.strategy), "prefill")
    assert 0 < found.parameters < 0.04 * abs(gradient[1]) + 1e-9
    other = load_system("dgx-a100", 2, stack="tensorrt-llm", calibration="none")
    found = interval(both, Configuration(inputs.model, other, inputs.strategy), "prefill")
    assert found.parameters == pytest.approx(0.02 * abs(gradient[0]), rel=0.2)


@pytest.mark.parametrize(("phase", "driven_by_estimates"), [("training", True), ("prefill", False)])
def test_a_stack_of_estimates_adds_the_error_of_frameworks_left_out(inputs, phase, driven_by_estimates):
    """Training is driven by torchtitan, which nobody has measured, inference by Megatron-LM."""
    estimates = dataclasses.replace(inputs.system, stack=load(Stack, "torchtitan"))
    estimated = Configuration(inputs.model, estimates, inputs.strategy)
    measured, found = (interval(calibration({"gemm": 0.1}), c, phase) for c in (inputs, estimated))
    assert measured.stack == 0
    added = found.relative**2 - Z90**2 * (found.parameters**2 + found.model**2)
    assert added == pytest.approx((Z90 * UNMEASURED_STACK) ** 2 if driven_by_estimates else 0, abs=1e-12)


def test_a_basis_of_a_stack_that_is_neither_is_refused(tmp_path):
    text = (config_root() / "stacks" / "torchtitan.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text('basis = "hearsay"\n' + text, encoding="utf-8")
    with pytest.raises(
        dp.ConfigError, match='basis: found "hearsay"; expected "measured runs" or "estimates"'
    ):
        load(Stack, tmp_path / "mine.toml")


def test_as_dict(inputs):
    found = interval(calibration({"gemm": 0.1}), inputs, "prefill").as_dict()
    assert found["low"] < time_of(inputs, "prefill") < found["high"]
    assert found["probability"] == 0.9
