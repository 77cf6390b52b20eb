"""The study of chiplets: CATCH's published values, its layers, and files of cases from the command line."""

import json
import subprocess
import sys

import pytest
from helpers import STUDIES, study_module

STUDY = STUDIES / "chiplet_cost"
CASES = STUDY / "published_cases.json"
TOLERANCE = 1e-6
catch = study_module("chiplet_cost", "catch")
LAYERS = (
    "name,active,cost_per_mm2,defect_density,critical_area_ratio,clustering_factor,litho_percent\n"
    "combined_7nm,True,0.132219,0.005,0.64,2,0.27\n"
)


def run(*arguments):
    command = [sys.executable, STUDY / "run.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_values_that_catch_asserts():
    """Yields, counted dies and costs of CATCH's own tests, with dies in rows and in grids."""
    worst = catch.compared(catch.published_rows())
    assert set(worst) == set(catch.RESULTS)
    assert max(worst.values()) < TOLERANCE


def test_a_layer_by_hand():
    row = dict(zip(*(line.split(",") for line in LAYERS.splitlines()), strict=True))
    result = catch.die_results(row, 100.0)
    assert result["layer_yield"] == pytest.approx((1 + 0.005 * 100 * 0.64 / 2) ** -2, rel=1e-12)
    whole, field = result["dies_per_wafer"], 26 * 33
    price = 0.132219 * 3.141592653589793 * 150**2 / whole
    expected = price * (0.73 + 0.27 / (8 * 100 / field))
    assert result["layer_cost"] == pytest.approx(expected, rel=1e-9)
    assert whole == pytest.approx(result["smooth_dies"], rel=0.03)


def test_files_of_cases(tmp_path):
    layers = tmp_path / "layers.csv"
    layers.write_text(LAYERS, encoding="utf-8")
    done = run("--cases", CASES, "--catch", layers, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "45 cases: largest relative error" in done.stdout
    assert "0 of 1 rows of the file state results" in done.stdout
    assert (tmp_path / "catch_layers.csv").exists()


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"cases": []})])
def test_a_bad_file_of_cases_is_one_line(tmp_path, content):
    file = tmp_path / "cases.json"
    file.write_text(content, encoding="utf-8")
    done = run("--cases", file, "--out", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("node", "6", "cases[0].node: found '6'; expected one of"),
        ("packaging", "EMIB", "cases[0].packaging: found 'EMIB'; expected one of OS, FO, SI"),
        ("total_module_area_mm2", -5, "cases[0].total_module_area_mm2: found -5; expected a number above 0"),
        ("n_chips", "two", "cases[0].n_chips: found 'two'; expected a number above 0"),
    ],
)
def test_a_bad_case_is_named(tmp_path, key, value, line):
    content = json.loads(CASES.read_text(encoding="utf-8"))
    case = next(case for case in content["cases"] if case["kind"] == "system")
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(content | {"cases": [case | {key: value}]}), encoding="utf-8")
    done = run("--cases", file, "--out", tmp_path)
    assert done.returncode == 1
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
