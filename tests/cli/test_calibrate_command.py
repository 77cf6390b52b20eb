"""diffperf calibrate: the fit, the config it writes, and every way in which there is none."""

import itertools
import json

import pytest

from diffperf.cli.configs_command import calibration_facts
from diffperf.explore.calibrate import fitting
from diffperf.load import load_calibration

DATASHEETS = {"h100-sxm5-80gb": (989e12, 3.35e12), "a100-sxm4-80gb": (312e12, 2.04e12)}  # FLOP/s, byte/s


def calibration_table(folder, *hardware: str) -> str:
    """GEMMs of accelerators (an H100 by default) that multiply half as fast as their datasheets say."""
    rows = []
    for name in hardware or ("h100-sxm5-80gb",):
        rate, bandwidth = DATASHEETS[name]
        for n, k, m in itertools.product((512, 4096, 8192), (1024, 8192), (8, 1024, 4096)):
            seconds = max(2 * n * k / bandwidth, 4 * m * n * k / rate) + 6e-6
            rows.append(f"{name}-{n}-{k}-{m},{name},bf16,{m},{n},{k},{seconds}")
    (folder / "gemm.csv").write_text("\n".join(["id,hardware,dtype,m,n,k,latency_s", *rows]) + "\n")
    return "gemm.csv"


@pytest.mark.slow
def test_calibrate_and_what_comes_of_it(run, answer, tmp_path):
    with (tmp_path / calibration_table(tmp_path)).open("a") as file:
        file.write("bad,h100-sxm5-80gb,bf16,8,8,8,5 us\n")
    line = "calibrate gemm.csv --parameters hbm.efficiency,matrix.bf16.efficiency --folds 3 --out mine.toml"
    result = run(line + " --json found.json --plot found.png")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines()[0].startswith("gemm.csv line 20 (bad): latency_s: found")
    for words in (
        "2 parameters fitted to 18 rows",
        "accelerator.memory.hbm.efficiency",
        "left out",
        "Written to mine.toml",
    ):
        assert words in result.stdout
    data = json.loads((tmp_path / "found.json").read_text())
    assert data["parameters"]["accelerator.matrix.bf16.efficiency"]["after"] == pytest.approx(0.5, rel=0.2)
    assert data["errors"]["gemm"]["after"]["median_ape"] < data["errors"]["gemm"]["before"]["median_ape"]
    assert (tmp_path / "found.png").stat().st_size > 10_000

    after, before = (
        answer(f"validate gemm.csv {option} --json -")["overall"]["metrics"]["latency_s"]
        for option in ("--calibration mine.toml", "")
    )
    assert after["median_ape"] == pytest.approx(data["errors"]["gemm"]["after"]["median_ape"], rel=0.01)
    assert before["median_ape"] == pytest.approx(data["errors"]["gemm"]["before"]["median_ape"], rel=1e-6)

    estimate = "estimate llama-2-7b dgx-h100 --phase prefill --tp 1 --devices 1"
    text = run(f"{estimate} --calibration mine.toml").stdout
    assert "dgx-h100, tensorrt-llm, calibration mine" in text
    assert "± " in text
    assert "± " not in run(f"{estimate} --calibration none").stdout
    calibrated = answer(f"{estimate} --calibration mine.toml --json -")
    assert (
        calibrated["time_interval"]["low"]
        < calibrated["report"]["time"]
        < calibrated["time_interval"]["high"]
    )
    assert calibrated["inputs"]["system"]["calibration"] == "mine"
    values = len({*load_calibration("h100-sxm5-80gb").values, *data["parameters"]})
    assert calibration_facts(load_calibration("mine.toml")).startswith(
        f"{values} values of dgx-h100 (h100-sxm5-80gb), ± "
    )


@pytest.mark.slow
def test_calibrate_a_stack_on_all_hardware(run, tmp_path):
    """The file that is written is a stack, which other commands take."""
    file = calibration_table(tmp_path, *DATASHEETS)
    line = f"calibrate {file} --hardware all --parameters kernel_overhead,matrix_efficiency --out mine.toml"
    result = run(f"{line} --stack kernels --leave-out hardware --where m>8")
    assert result.exit_code == 0, result.stderr
    title = "h100-sxm5-80gb, a100-sxm4-80gb (kernels): 2 parameters fitted to 24 rows"
    for words in (title, "stack.matrix_efficiency", "Written to mine.toml"):
        assert words in result.stdout
    shown = run("estimate llama-2-7b dgx-h100 --phase prefill --tp 1 --devices 1 --stack mine.toml").stdout
    assert "dgx-h100, mine" in shown
    result = run(line)
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: command line: --hardware: found all; expected the hardware, or --stack; name the stack\n",
    )


def test_a_table_given_twice(run, tmp_path):
    file = calibration_table(tmp_path)
    result = run(f"calibrate {file} ./{file} --parameters hbm.efficiency --out mine.toml")
    assert result.exit_code == 1
    assert (
        result.stderr
        == f'Error: command line: FILE: found "./{file}" again; expected every table once; leave one out\n'
    )
    assert not (tmp_path / "mine.toml").exists()


def test_a_calibration_of_hardware_that_a_table_does_not_have(run, tmp_path):
    file = calibration_table(tmp_path)
    parameters = "hbm.efficiency,matrix.bf16.efficiency"
    assert run(f"calibrate {file} --parameters {parameters} --folds 2 --out mine.toml").exit_code == 0
    (tmp_path / "other.csv").write_text(
        (tmp_path / file).read_text().replace("h100-sxm5-80gb", "a100-sxm4-80gb")
    )
    for line in ("validate other.csv", "estimate gpt3-22b dgx-a100", "cost dgx-a100"):
        result = run(f"{line} --calibration mine.toml")
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: mine.toml: hardware: found")
        assert result.stderr.count("\n") == 1


def test_a_fit_that_fails_writes_nothing(run, tmp_path):
    calibration_table(tmp_path)
    line = "calibrate gemm.csv --parameters hbm.efficiency,hbm.bandwidth --prior-spread 1e7 --out mine.toml"
    result = run(line)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: gemm.csv: fit: found a singular Hessian")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.csv"]


def test_calibrate_names_every_bad_row_whatever_comes_of_the_others(run, tmp_path):
    """Of the tables that can be read, in one line each; then one line says what is wrong with the fit."""
    bad = ("a,abacus,bf16,1,1,1,1", "b,h100-sxm5-80gb,bf16,8,8,8,5 us", "c,h100-sxm5-80gb,bf16,8,8,8,nan")
    good = ("d,h100-sxm5-80gb,bf16,8,8,8,4e-6", "e,a100-sxm4-80gb,bf16,8,8,8,4e-6")
    for name, rows in (("bad", bad), ("both", (*bad, *good))):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,hardware,dtype,m,n,k,latency_s", *rows]) + "\n")
    for arguments, words in (
        (
            "bad.csv",
            "bad.csv: found no row left to fit "
            "(1 × hardware: unknown hardware, 1 × latency_s: a unit in the cell, ",
        ),
        ("bad.csv --hardware h100-sxm5-80gb", "Error: bad.csv: found no row left to fit"),
        (
            "both.csv",
            "found rows of 2 accelerators; expected one accelerator; "
            "choose one: a100-sxm4-80gb, h100-sxm5-80gb",
        ),
        (
            "both.csv --hardware a100-sxm4-80gb",
            "Error: both.csv: found 1 usable row; expected at least one for each of",
        ),
        ("bad.csv nowhere.csv", "Error: nowhere.csv: found no table that can be read (No such file"),
    ):
        result = run(f"calibrate {arguments} --out mine.toml")
        assert result.exit_code == 1
        *named, error = result.stderr.splitlines()
        assert [line.split(": ")[0].split(".csv ")[1] for line in named] == [
            "line 2 (a)",
            "line 3 (b)",
            "line 4 (c)",
        ]
        assert words in error
    assert not (tmp_path / "mine.toml").exists()


def test_a_fit_that_does_not_converge_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "MAX_STEPS", 1)
    result = run(f"calibrate {calibration_table(tmp_path)} --out mine.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: gemm.csv: fit: found no convergence in 1 step; expected a fit that converges"
    )
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.csv"]


def test_an_output_that_is_a_folder_is_refused_before_the_fit(run, tmp_path):
    (tmp_path / "mine.toml").mkdir()
    result = run("calibrate nowhere.csv --out mine.toml")
    assert result.exit_code == 1
    assert (
        result.stderr
        == 'Error: command line: --out: found "mine.toml", a folder; expected a file; name a file in it\n'
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hbm.eficiency", 'did you mean "system.accelerator.memory.hbm.efficiency"?'),
        ("accelerator.memory.hbm.eficiency", 'did you mean "system.accelerator.memory.hbm.efficiency"?'),
        ("efficiency", "write one of: "),
        (",", "found no path"),
    ],
)
def test_a_parameter_that_is_none_is_one_line(run, tmp_path, path, words):
    result = run(f"calibrate {calibration_table(tmp_path)} --parameters {path} --out mine.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: command line: --parameters: found ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
