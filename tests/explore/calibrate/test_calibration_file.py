"""The config that a calibration writes."""

import datetime
import tomllib

import pytest
from calibration_cases import HARDWARE, SYSTEM

import diffperf as dp
from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibration_file import calibration_text, quantity_text, write_calibration
from diffperf.load import load_system
from diffperf.quantity import Quantity, locate


def test_the_config_holds_what_was_found(found, tmp_path):
    written = write_calibration(found, tmp_path / "mine.toml")
    assert (written.name, written.hardware, written.system) == ("mine", HARDWARE, SYSTEM)
    system = load_system(SYSTEM, calibration=str(tmp_path / "mine.toml"))
    for one in found.parameters:
        assert float(locate(system, one.path)[0]) == pytest.approx(one.after, rel=6e-4)
    assert written.covariance == pytest.approx(found.covariance, rel=1e-5)
    assert written.spread == pytest.approx(found.spread, rel=1e-3)
    table = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert table["files"][0]["rows"] == 300
    assert len(table["files"][0]["sha256"]) == 64
    assert table["errors"]["gemm"]["cross_validated"]["median"] == pytest.approx(
        found.groups["gemm"].cross_validated.median_ape, rel=1e-3
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.toml"]


def test_the_config_is_the_same_for_the_same_table(found, table):
    day = datetime.date(2026, 1, 2)
    again = calibrate([table])
    assert calibration_text(found, day) == calibration_text(again, day)
    other = calibration_text(found, datetime.date(2026, 1, 3))
    assert [line for line in other.splitlines() if line not in calibration_text(found, day).splitlines()] == [
        "date = 2026-01-03"
    ]


def test_an_interrupted_write_leaves_what_was_there(found, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("before")

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_calibration(found, tmp_path / "mine.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    assert (tmp_path / "mine.toml").read_text() == "before"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.712345, "", "0.7123"),
        (4.23456e-6, "s", '"4.235 µs"'),
        (3.35e12, "byte/s", '"3.35 TB/s"'),
        (1.0, "", "1"),
        (123456.7, "", "1.235e+05"),
        (1.23456e-11, "J/byte", '"12.35 pJ/B"'),
        (2e5, "s", '"200000.0 s"'),
    ],
)
def test_values_are_written_with_four_digits_and_read_back(value, unit, text):
    declared = Quantity(unit, "", (1e-30, 1e30), True, False, "input")
    assert quantity_text(value, declared) == text
    assert dp.load.checked(declared, tomllib.loads(f"x = {text}")["x"], "", "") == pytest.approx(
        value, rel=1e-3
    )
