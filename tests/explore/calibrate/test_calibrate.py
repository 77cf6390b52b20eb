"""What a calibration finds in measurements whose parameters and noise are known, and what it refuses."""

import csv

import numpy as np
import pytest
from calibration_cases import HARDWARE, NOISE, gemms, made_of, measured, noise, truth, write

import diffperf as dp
from diffperf.explore.calibrate import fitting
from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import read_measurements


@pytest.mark.slow
def test_parameters_are_recovered_within_their_uncertainty(found):
    true = truth()
    off = np.array([np.log(one.after / true[one.path]) / one.spread for one in found.parameters])
    assert len(off) >= 5
    assert np.abs(off).max() < 3.5
    assert np.mean(off**2) < 2.5
    # What GEMMs depend on most is known well, and much better than before.
    assert min(one.spread for one in found.parameters) < 0.02
    assert all(one.spread <= 1.001 * one.prior_spread for one in found.parameters)


def test_parameters_without_effect_are_left_out(found):
    assert {one.path for one in found.parameters}.isdisjoint(found.without_effect)
    assert "accelerator.memory.smem.efficiency" in found.without_effect
    assert any(".int8." in path for path in found.without_effect)
    assert {f"accelerator.matrix.{name}.efficiency" for name in ("bf16", "fp8")} <= {
        one.path for one in found.parameters
    }


def test_errors_before_after_and_cross_validated(found):
    group = found.groups["gemm"]
    noise_alone = 0.6745 * NOISE
    assert group.after.median_ape == pytest.approx(noise_alone, rel=0.2)
    assert group.before.median_ape > 2 * group.after.median_ape
    assert group.after.mean_ape <= group.cross_validated.mean_ape < 1.2 * group.after.mean_ape
    assert set(found.groups) == {"gemm", "gemm bf16", "gemm fp8"}
    assert group.after.n == sum(found.groups[name].after.n for name in ("gemm bf16", "gemm fp8"))


def test_intervals_cover_what_they_say(found, tmp_path):
    """Rows left out, and measurements of shapes and with noise that no fit has seen."""
    assert found.spread["gemm"] == pytest.approx(NOISE, rel=0.15)
    assert 0.85 <= found.groups["gemm"].coverage <= 0.95
    rows = [row | {"m": row["m"] * 3 + 5, "n": row["n"] + 192} for row in gemms()]
    fresh = measured(tmp_path, rows, truth(), noise(len(rows), seed=3))
    fitted = Platforms(calibration=made_of({one.path: one.after for one in found.parameters}))
    predicted = predict("gemm", read_measurements(fresh).rows, fitted)
    with fresh.open(encoding="utf-8") as file:
        times = [float(row["latency_s"]) for row in csv.DictReader(file)]
    off = np.log([one.values["latency_s"] for one in predicted]) - np.log(times)
    inside = np.abs(off) <= Z90 * found.spread["gemm"]
    assert 0.85 <= inside.mean() <= 0.95


def test_outliers_do_not_move_the_fit(found, tmp_path):
    """One row in ten takes up to five times as long as it should: least squares would follow them."""
    rows = gemms()
    shifts, rng = noise(len(rows)), np.random.default_rng(4)
    wrong = rng.random(len(rows)) < 0.1
    shifts[wrong] += rng.uniform(0.5, 1.6, wrong.sum())
    robust = calibrate([measured(tmp_path, rows, truth(), shifts)])
    clean = {one.path: one for one in found.parameters}
    for one in robust.parameters:
        assert np.log(one.after / truth()[one.path]) == pytest.approx(
            0, abs=4 * np.hypot(one.spread, clean[one.path].spread)
        )
    assert robust.groups["gemm"].after.median_ape < 1.5 * found.groups["gemm"].after.median_ape
    assert np.median(robust.after[~wrong]) == pytest.approx(0, abs=0.01)


@pytest.mark.slow
def test_tables_are_fitted_jointly(table, tmp_path):
    """What one table does not tell of, the other does."""
    core = {
        "phase": "prefill",
        "batch": 4,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "causal": "true",
        "kernel": "",
    }
    rows = [
        core
        | {"id": i, "hardware": HARDWARE, "q_len": 2**i, "kv_len": 2**i, "dtype": "bf16", "kv_dtype": "bf16"}
        for i in range(8, 14)
    ]
    rows = [row | {"latency_s": 1e-9 * 4 ** row["id"]} for row in rows]
    alone, joint = (
        calibrate(files, folds=2) for files in ([table], [table, write(tmp_path / "attention.csv", rows)])
    )
    assert {source.kind: source.rows for source in joint.sources} == {"gemm": 300, "attention": 6}
    more = {one.path for one in joint.parameters} - {one.path for one in alone.parameters}
    assert more
    assert more <= set(alone.without_effect)
    assert all("attention" in path for path in more)


def test_a_narrow_prior_holds_its_parameter(table):
    (free,) = calibrate([table], paths=["hbm.efficiency"], folds=2).parameters
    (held,) = calibrate([table], paths=["hbm.efficiency"], prior_spread=1e-4, folds=2).parameters
    assert abs(free.surprise) > 0.1
    assert held.after == pytest.approx(held.before, rel=2e-3)


# --- what cannot be fitted


def test_several_accelerators_ask_which(tmp_path):
    rows = [row | {"hardware": name} for name in ("a100-sxm4-80gb", HARDWARE) for row in gemms()[:3]]
    table = write(tmp_path / "gemm.csv", [row | {"id": i} for i, row in enumerate(rows)])
    with pytest.raises(
        dp.ConfigError, match=r"--hardware: found rows of 2 accelerators.*a100-sxm4-80gb, h100-sxm5-80gb"
    ):
        calibrate([table])
    with pytest.raises(dp.ConfigError, match='did you mean "h100-sxm5-80gb"'):
        calibrate([table], hardware="h100-sxm5")
    with pytest.raises(
        dp.ConfigError, match='found "mi300x"; expected hardware of a row that can be read; known: a100'
    ):
        calibrate([table], hardware="mi300x")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["hbm.eficiency"], "hbm.efficiency"),
        (["model.hidden"], '"model"'),
        (["compute_units"], "an efficiency, a rate or a time"),
        (["system.accelerator.memory"], "a group of inputs"),
        (["smem.efficiency"], "none that a row depends on"),
    ],
)
def test_what_is_no_parameter(table, paths, words):
    with pytest.raises(dp.ConfigError, match=words):
        calibrate([table], paths=paths)


def test_fewer_rows_than_parameters(tmp_path):
    table = write(tmp_path / "gemm.csv", [row | {"latency_s": 1e-4} for row in gemms()[:2]])
    with pytest.raises(dp.ConfigError, match="2 usable rows; expected at least one for each of"):
        calibrate([table])


def test_no_row_left_says_why(tmp_path):
    """Rows that cannot be read, of every hardware asked for, and rows that can, but not evaluated; of all
    tables together.
    """
    good = gemms()[0]
    bad = write(tmp_path / "bad.csv", [good | {"latency_s": "5 us"}, good | {"id": 1, "hardware": "abacus"}])
    unfit = write(tmp_path / "unfit.csv", [good | {"id": i, "dtype": "fp6"} for i in range(3)])
    reasons = r"1 × latency_s: a unit in the cell, 1 × hardware: unknown hardware"
    for hardware in (None, HARDWARE):
        with pytest.raises(dp.ConfigError, match=rf"bad.csv: found no row left to fit \({reasons}\)"):
            calibrate([bad], hardware)
    with pytest.raises(
        dp.ConfigError,
        match=rf"bad.csv, .*unfit.csv: found no row left to fit \(3 × precision fp6, {reasons}\)",
    ):
        calibrate([bad, unfit], paths=["hbm.efficiency"])


def test_a_table_that_is_read_is_as_good_as_its_file(table):
    by_file, by_table = (
        calibrate([one], paths=["hbm.efficiency"], folds=2) for one in (table, read_measurements(table))
    )
    assert by_table.sources == by_file.sources
    assert by_table.parameters == by_file.parameters


def test_bad_rows_are_told_and_the_rest_is_used(table, tmp_path):
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    rows[3]["latency_s"], rows[4]["latency_s"], rows[5]["dtype"] = "5 us", "", "fp6"
    found = calibrate([write(tmp_path / "gemm.csv", rows)], paths=["hbm.efficiency"], folds=2)
    assert [fault.split(": ")[0] for fault in found.faults] == [f"{tmp_path / 'gemm.csv'} line 5 (3)"]
    assert found.sources[0].rows == 297
    assert found.sources[0].skipped == {
        "latency_s: a unit in the cell": 1,
        "nothing measured": 1,
        "precision fp6": 1,
    }


def test_a_fit_that_does_not_converge(table, monkeypatch):
    monkeypatch.setattr(fitting, "MAX_STEPS", 1)
    with pytest.raises(dp.ConfigError, match="fit: found no convergence in 1 step"):
        calibrate([table])


@pytest.mark.slow
def test_parameters_that_no_row_tells_apart(table):
    """Only their product matters, and a prior this wide says nothing of either."""
    paths = ["hbm.efficiency", "hbm.bandwidth"]
    with pytest.raises(dp.ConfigError, match="fit: found a singular Hessian"):
        calibrate([table], paths=paths, prior_spread=1e6)
    assert len(calibrate([table], paths=paths, folds=2).parameters) == 2
