"""A fit that explains nothing of its measurements is not written."""

import csv
import dataclasses

import numpy as np
import pytest
from calibration_cases import gemms, write
from click.testing import CliRunner

import diffperf as dp
from diffperf.cli import cli
from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibrated import (
    CLEARLY_BETTER,
    DOUBTFUL,
    EXPLAINED,
    UNEXPLAINED,
    _is_explained,
)
from diffperf.explore.calibrate.calibration_file import write_calibration


def garbage(kind: str, table) -> list[dict[str, object]]:
    """Rows of GEMMs whose times say nothing of them."""
    rng, rows = np.random.default_rng(5), gemms(("bf16",))
    if kind == "12 s each":
        times = np.full(len(rows), 12.0)
    elif kind == "random times":
        times = np.exp(rng.uniform(np.log(1e-6), np.log(1e-1), len(rows)))
    elif kind == "random times of a millisecond or so":
        times = rng.uniform(0.5e-3, 1.5e-3, len(rows))
    else:  # what was measured, but for other shapes
        with table.open(encoding="utf-8") as file:
            measured = [float(row["latency_s"]) for row in csv.DictReader(file) if row["dtype"] == "bf16"]
        times = rng.permutation(measured)
    return [row | {"latency_s": repr(float(time))} for row, time in zip(rows, times, strict=True)]


@pytest.mark.parametrize(
    "kind", ["12 s each", "random times", "random times of a millisecond or so", "times of other shapes"]
)
def test_a_fit_to_garbage_is_not_written(kind, table, tmp_path):
    rows = write(tmp_path / "gemm.csv", garbage(kind, table))
    fitted = calibrate([rows], paths=["hbm.efficiency", "matrix.bf16.efficiency", "kernel_latency"], folds=3)
    with pytest.raises(dp.ConfigError, match=r"gemm.csv: fit of gemm: found .* a factor of .* off") as raised:
        write_calibration(fitted, tmp_path / "mine.toml")
    assert "check the unit of the measured times" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.csv"]


def test_the_command_line_says_so_in_one_line(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFPERF_CACHE", "off")
    write(tmp_path / "gemm.csv", garbage("12 s each", table))
    line = "calibrate gemm.csv --parameters hbm.efficiency,kernel_latency --folds 2 --out mine.toml"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: gemm.csv: fit of gemm: found that the fit does not explain these rows"
    )
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (tmp_path / "mine.toml").exists()


def test_a_fit_of_several_tables_names_the_one_that_is_not_explained(found):
    """One bad table is refused whatever the others explain."""
    found.check_explains()
    half = np.arange(len(found.times)) % 2 == 0
    kinds = np.where(half, "gemm", "attention")
    worse = np.where(half, found.held_out, found.held_out + 1)
    with pytest.raises(dp.ConfigError, match="fit of attention"):
        dataclasses.replace(found, kinds=kinds, held_out=worse).check_explains()


@pytest.mark.parametrize(
    ("left_out", "before", "scatter", "kept"),
    [
        (0.9 * EXPLAINED, 0.5 * EXPLAINED, 0.01, True),  # close, whatever was configured
        (1.1 * EXPLAINED, 0.1, 1.0, True),  # better than one time for all
        (1.1 * EXPLAINED, 1.0, 1.1 * EXPLAINED, False),  # no better than one time for all
        (1.1 * DOUBTFUL, 1.0, 1.0, True),  # better than that, and than configured
        (1.1 * DOUBTFUL, 1.1 * DOUBTFUL, 1.0, False),  # no better than configured
        (1.1 * UNEXPLAINED, 9.0, 9.0, False),  # better, but far off
    ],
)
def test_what_counts_as_explained(left_out, before, scatter, kept):
    log_times = np.array([-scatter, scatter] * 10)
    assert _is_explained(left_out, before, log_times) is kept
    assert 0 < EXPLAINED < DOUBTFUL < UNEXPLAINED
    assert CLEARLY_BETTER < 1
