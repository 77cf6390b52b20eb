"""Calibrations that begin from another one, whose other values stay."""

import dataclasses

import numpy as np
import pytest
from calibration_cases import HARDWARE, SYSTEM, gemms, measured, noise, truth

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibration_file import write_calibration
from diffperf.explore.measured.validate import validate
from diffperf.load import load_calibration, load_system
from diffperf.quantity import locate

PATHS = ["accelerator.memory.hbm.efficiency", "accelerator.matrix.bf16.efficiency"]
ATTENTION = "accelerator.attention.bf16.efficiency"


@pytest.fixture(scope="module")
def shipped():
    return load_calibration(HARDWARE)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Twelve GEMMs of a device whose parameters are others than the shipped ones."""
    rows = gemms(("bf16",))[::13]
    return measured(tmp_path_factory.mktemp("few"), rows, truth(), noise(len(rows)))


@pytest.fixture(scope="module")
def fitted(few):
    return calibrate([few], paths=PATHS, folds=2, calibration=None)


def test_other_values_stay(fitted, shipped, tmp_path):
    written = write_calibration(fitted, tmp_path / "mine.toml")
    before = load_system(SYSTEM)
    after = load_system(SYSTEM, calibration=str(tmp_path / "mine.toml"))
    assert set(written.values) == {*shipped.values, *PATHS}
    for path in shipped.values:
        same = float(locate(after, path)[0]) == float(locate(before, path)[0])
        assert same == (path not in PATHS), path
    assert float(locate(before, ATTENTION)[0]) != float(
        locate(load_system(SYSTEM, calibration="none"), ATTENTION)[0]
    )


def test_uncertainty_of_staying_values_stays(fitted, shipped, tmp_path):
    written = write_calibration(fitted, tmp_path / "mine.toml")
    kept = [path for path in shipped.parameters if path not in PATHS]
    for first in kept:
        for second in kept:
            ours, theirs = (
                one.covariance[one.parameters.index(first), one.parameters.index(second)]
                for one in (written, shipped)
            )
            assert ours == pytest.approx(theirs, rel=1e-5)
    assert not written.covariance[: len(PATHS), len(PATHS) :].any()
    assert written.spread["attention"] == shipped.spread["attention"]
    assert written.spread["gemm"] == pytest.approx(fitted.spread["gemm"], rel=1e-3)


def test_errors_before_are_those_of_validate(fitted, few):
    without_fit = validate(few).summary().metrics["latency_s"]
    assert fitted.groups["gemm"].before.median_ape == pytest.approx(without_fit.median_ape, rel=1e-6)


def test_what_is_calibrated_is_known_better_before_a_fit(fitted, few):
    from_configs = calibrate([few], paths=PATHS, folds=2, calibration="none")
    for ours, theirs in zip(fitted.parameters, from_configs.parameters, strict=True):
        assert 0.15 <= ours.prior_spread < 0.16 < theirs.prior_spread
    chosen = calibrate([few], paths=PATHS, folds=2, prior_spread=0.5, calibration=None)
    assert [one.prior_spread for one in chosen.parameters] == [0.5, 0.5]


def test_values_of_the_users_own_file_do_not_stay(fitted, shipped):
    kept = dataclasses.replace(shipped, kept=(ATTENTION,))
    assert ATTENTION in fitted.staying
    assert ATTENTION not in dataclasses.replace(fitted, begun_from=kept).staying


def test_values_of_another_stack_do_not_stay(fitted, shipped):
    """A calibration is about one stack at a path."""
    path = "stack.kernel_overhead"
    of_stack = {"parts": {"stack": "nemo"}, "values": shipped.values | {path: "3 us"}}
    size = len(shipped.parameters)
    grown = np.zeros((size + 1, size + 1))
    grown[:size, :size] = shipped.covariance
    before = dataclasses.replace(
        shipped, parameters=(*shipped.parameters, path), covariance=grown, **of_stack
    )
    result = dataclasses.replace(fitted, begun_from=before)
    assert path in result.staying
    (parameter,) = fitted.parameters[:1]
    own = dataclasses.replace(parameter, path="stack.collective_overhead")
    of_megatron = dataclasses.replace(result, parameters=[own])
    assert of_megatron.parts["stack"] == str(fitted.system.stack.name) != "nemo"
    assert path not in of_megatron.staying


def test_a_calibration_of_another_accelerator_is_refused(few):
    with pytest.raises(ConfigError, match='of "a100-sxm4-80gb"; expected one of "h100-sxm5-80gb"'):
        calibrate([few], paths=PATHS, calibration=load_calibration("a100-sxm4-80gb"))


def test_the_answer_says_where_the_fit_began(few, tmp_path):
    mine = tmp_path / "mine.toml"
    answer = dp.calibrate(few, mine, parameters=PATHS, folds=2)
    assert f"Begun from the calibration {HARDWARE}" in str(answer)
    again = dp.calibrate(few, tmp_path / "again.toml", parameters=PATHS, folds=2, calibration=mine)
    fitted = [row["fitted"] for row in answer.rows()]
    assert [row["before"] for row in again.rows()] == pytest.approx(fitted, rel=1e-3)
    alone = dp.calibrate(few, tmp_path / "alone.toml", parameters=PATHS, folds=2, calibration="none")
    assert set(load_calibration(tmp_path / "alone.toml").values) == set(PATHS)
    assert "Begun from" not in str(alone)
