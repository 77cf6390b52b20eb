import csv
import json
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import diffperf as dp
from diffperf.cli import cli
from diffperf.cli.configs_command import calibration_facts
from diffperf.explore.calibrate import fitting
from diffperf.explore.measured.columns import measured_columns
from diffperf.explore.plan.candidates import default_global_batch
from diffperf.explore.sweep import sweep as sweep_module
from diffperf.load import FOLDERS, available, load_calibration
from diffperf.quantity import declaration
from diffperf.workload.strategy import Strategy

SPACE = """
model = "gpt3-22b"
system = "dgx-a100"
[strategy]
global_batch = 16
[[axis]]
path = "strategy.tp"
powers_of_two = {from = 1, to = 8}
[[axis]]
path = "strategy.recompute"
values = ["none", "full"]
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command line in an empty folder."""
    monkeypatch.setenv("DIFFPERF_CACHE", "off")
    monkeypatch.chdir(tmp_path)

    def invoke(line: str, *more: str):
        return CliRunner().invoke(cli, [*line.split(), *more])

    return invoke


def answer(result) -> dict:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_estimate_prints_where_time_goes(run):
    result = run("estimate gpt3-175b dgx-a100 --devices 64 --tp 8 --pp 8")
    assert result.exit_code == 0
    for words in (
        "gpt3-175b training on 64 × a100-sxm4-80gb",
        "dp 1 (what the other degrees leave)",
        "Fits memory",
        "step time",
        "cost",
    ):
        assert words in result.stdout
    assert result.stderr == ""


def test_estimate_json_is_the_library_s_answer(run):
    found = answer(run("estimate gpt3-175b dgx-a100 --devices 64 --tp 8 --pp 4 --virtual-stages 2 --json -"))
    system = dp.load_system("dgx-a100", 64)
    strategy = dp.load_strategy({"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64}, n_devices=64)
    report = dp.training_step(dp.load_model("gpt3-175b"), system, strategy)
    assert found["report"]["time"] == pytest.approx(float(report.time), rel=1e-12)
    assert found["report"]["energy"]["total"] == pytest.approx(float(report.energy.total), rel=1e-12)
    assert found["inputs"]["strategy"]["recompute"] == "none"
    assert found["inputs"]["system"]["accelerator"]["memory"]["hbm"]["capacity"] == float(
        system.accelerator.device_memory.capacity
    )
    assert found["chosen"] == {"dp": 2, "global_batch": float(default_global_batch(system, strategy))}
    assert found["fits"] is bool(report.memory.excess <= 0)


def test_estimate_says_by_how_much_it_does_not_fit(run):
    result = run("estimate gpt3-1t dgx-a100")
    assert result.exit_code == 0
    assert "Does not fit memory: needs" in result.stdout
    assert "too much" in result.stdout


@pytest.mark.parametrize("phase", ["prefill", "decode", "generate"])
def test_estimate_of_inference(run, phase):
    found = answer(run(f"estimate llama-2-7b dgx-a100 --phase {phase} --devices 1 --json -"))
    assert found["chosen"] == {"tp": 1, "pp": 1, "dp": 1}
    assert found["report"]["time"] > 0


def test_overrides_and_stack(run):
    base = "estimate gpt3-22b dgx-a100 --tp 8 --json - "
    found = answer(
        run(
            base
            + "--stack tensorrt-llm --set hbm.capacity=40GB --set model.hidden=4096 --set strategy.zero=1 --recompute full"
        )
    )
    assert found["inputs"]["system"]["stack"]["name"] == "tensorrt-llm"
    assert found["inputs"]["system"]["accelerator"]["memory"]["hbm"]["capacity"] == 40e9
    assert found["inputs"]["model"]["hidden"] == 4096
    assert found["inputs"]["strategy"]["zero"] == "1"
    assert found["inputs"]["strategy"]["recompute"] == "full"
    assert answer(run(base + "--no-sequence-parallel"))["inputs"]["strategy"]["sequence_parallel"] == "off"


def test_smooth_is_above_exact_and_close(run):
    exact, smooth = (
        answer(run("estimate gpt3-22b dgx-a100 --tp 8 --json - " + more))["report"]["time"]
        for more in ("", "--smooth 200")
    )
    assert exact != smooth
    assert smooth == pytest.approx(exact, rel=0.05)


def test_every_field_of_the_strategy_is_an_option():
    params = cli.get_command(click.Context(cli), "estimate").params
    names = {parameter.name for parameter in params}
    for field in Strategy.__dataclass_fields__.values():
        assert field.name in names
        option = next(parameter for parameter in params if parameter.name == field.name)
        assert option.help.startswith(declaration(field).doc)


@pytest.mark.parametrize("name", ["figure.png", "figure.svg", "figure.pdf"])
def test_figures_are_written(run, tmp_path, name):
    assert run(f"estimate gpt3-22b dgx-a100 --tp 8 --plot {name}").exit_code == 0
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert (tmp_path / name).read_bytes().startswith(heads[name[-3:]])


def test_sensitivity(run, tmp_path):
    result = run("sensitivity gpt3-22b dgx-a100 --tp 8 --top 5 --plot tornado.png --json found.json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["elasticities"]
    assert rows[0]["path"] in result.stdout
    assert rows[5]["path"] not in result.stdout
    by_path = {row["path"]: row["elasticity"] for row in rows}
    assert by_path["system.accelerator.matrix.bf16.rate"] < -0.3
    assert (tmp_path / "tornado.png").stat().st_size > 10_000


def test_plan_ranks_says_why_and_writes_flags(run, tmp_path):
    result = run(
        "plan gpt3-22b dgx-a100 --global-batch 32 --top 3 --json plan.json --flags flags.txt --plot best.png"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["fits"]
    assert (len(found["best"]), found["by"]) == (3, "time")
    assert found["searched"] >= found["possible"] >= found["fitting"] > 3
    counts = f"{found['searched']:,} strategies: {found['possible']:,} possible, {found['fitting']:,} of them fit memory"
    for words in (counts, "Searched: tp dividing the heads", "Best by time: tp ", "Why the others lose"):
        assert words in result.stdout
    best, *others = found["best"]
    assert best["behind"] is None
    text = " ".join(result.stdout.split())
    for candidate in others:
        assert candidate["behind"]["why"] in text
        assert candidate["report"]["time"] >= best["report"]["time"]
    lines = (tmp_path / "flags.txt").read_text().splitlines()
    assert f"--tensor-model-parallel-size {best['strategy']['tp']:g}" in lines
    assert f"--micro-batch-size {best['strategy']['micro_batch']:g}" in lines
    assert (tmp_path / "best.png").stat().st_size > 10_000

    fields = ("tp", "pp", "dp", "virtual_stages", "micro_batch", "global_batch", "recompute", "zero")
    given = " ".join(f"--{name.replace('_', '-')} {best['strategy'][name]}" for name in fields)
    again = answer(run(f"estimate gpt3-22b dgx-a100 {given} --json -"))
    assert again["report"]["time"] == pytest.approx(best["report"]["time"], rel=1e-12)


def test_plan_of_flags_or_json_alone(run):
    line = "plan gpt3-22b dgx-a100 --global-batch 32 --top 1"
    assert run(f"{line} --flags -").stdout.startswith("# gpt3-22b training on 8 × a100-sxm4-80gb")
    found = answer(run(f"{line} --by cost --json -"))["best"][0]
    assert (
        found["report"]["cost"]["run"] <= answer(run(f"{line} --json -"))["best"][0]["report"]["cost"]["run"]
    )


def test_plan_where_nothing_fits(run, tmp_path):
    result = run("plan gpt3-22b dgx-a100 --devices 1 --json plan.json")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    for words in (
        "no strategy fits memory",
        "most of it optimizer state",
        "the smallest that fits, by doubling, is",
    ):
        assert words in result.stderr
    found = json.loads((tmp_path / "plan.json").read_text())
    assert not found["fits"]
    assert found["best"] == []
    assert run(f"plan gpt3-22b dgx-a100 --devices {found['smallest_system']:g}").exit_code == 0
    assert run(f"plan gpt3-22b dgx-a100 --devices {found['smallest_system'] / 2:g}").exit_code == 3
    fixed = run("plan gpt3-22b dgx-a100 --devices 1 --tp 1 --pp 1 --dp 1")
    assert fixed.exit_code == 3
    assert "no system of up to 1,000,000 devices fits either" in fixed.stderr


def test_sweep_writes_prints_and_plots(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SPACE)
    result = run("sweep mine.toml --top 2 --plot cloud.png --json best.json")
    assert result.exit_code == 0, result.stderr
    assert "8 points" in result.stdout
    assert "points/s" in result.stdout
    table = pq.read_table(tmp_path / "mine.parquet")
    best = json.loads((tmp_path / "best.json").read_text())["best"]
    assert table.num_rows == 8
    assert len(best) == 2
    assert best[0]["time"] == min(row["time"] for row in table.to_pylist() if row["feasible"] and row["fits"])
    assert (tmp_path / "cloud.png").stat().st_size > 5_000


def test_an_interrupted_sweep_says_how_to_go_on(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(SPACE)
    monkeypatch.setattr(sweep_module._BestRows, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run("sweep mine.toml")
    assert result.exit_code == 130
    assert result.stderr.count("\n") == 1
    assert "1 chunks are kept in mine.parquet.parts" in result.stderr
    assert "same command again" in result.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "8 taken over" in run("sweep mine.toml").stdout


def test_an_interrupt_is_one_line(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("diffperf.cli.options.best_layout", interrupted)
    result = run("estimate gpt3-22b dgx-a100")
    assert (result.exit_code, result.stderr) == (130, "Error: interrupted\n")


def test_cost(run, tmp_path):
    result = run("cost dgx-a100 --devices 16 --set accelerator_markup=2 --plot cost.png --json cost.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "cost.json").read_text())
    assert "purchase price" in result.stdout
    assert found["per_hour"]["total"] == pytest.approx(
        found["per_hour"]["depreciation"] + found["per_hour"]["electricity"]
    )
    assert found["cost"]["accelerator"]["total"] == pytest.approx(found["cost"]["manufacturing"])
    prices, network = found["system"]["prices"], found["system"]["network"]
    each = (
        2 * found["cost"]["manufacturing"] + prices["host"] + sum(tier["price"] for tier in network.values())
    )
    assert found["cost"]["capital"] == pytest.approx(16 * each)


def gemm_table(folder, *rows: str) -> str:
    good = [
        "a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2.5e-4",
        "b,two,a100-sxm4-80gb,bf16,8192,4096,4096,1,1e-3",
    ]
    (folder / "gemm.csv").write_text(
        "\n".join(["id,group,hardware,dtype,m,n,k,batch,latency_s", *good, *rows]) + "\n"
    )
    return "gemm.csv"


def test_validate(run, tmp_path):
    file = gemm_table(
        tmp_path,
        "c,two,gb200,q4_0,8,8,8,1,1e-6",
        "d,two,h100-sxm5-80gb,bf16,8,8,8,1,5 us",
        "a,one,h100,bf16,8,8,8,1,1",
    )
    result = run(f"validate {file} --plot errors.png --json errors.json")
    assert result.exit_code == 0, result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "gemm.csv line 5 (d)",
        "gemm.csv line 6 (a)",
    ]
    for words in (
        "2 of 5 rows evaluated",
        "overall",
        "a100-sxm4-80gb",
        "precision q4_0",
        "latency_s: a unit in the cell",
    ):
        assert words in result.stdout
    found = json.loads((tmp_path / "errors.json").read_text())
    assert (found["table"], list(found["groups"]), found["overall"]["rows"]) == ("gemm", ["one", "two"], 5)
    assert found["overall"]["metrics"]["latency_s"]["n"] == 2
    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_validate_by_any_column(run, tmp_path):
    found = answer(run(f"validate {gemm_table(tmp_path)} --by m --json -"))
    assert list(found["groups"]) == ["4096", "8192"]


def test_validate_where_no_row_can_be_read(run, tmp_path):
    (tmp_path / "gemm.csv").write_text("id,hardware,dtype,m,n,k,latency_s\na,abacus,bf16,1,1,1,1\n")
    result = run("validate gemm.csv --plot none.svg")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "0 of 1 rows evaluated" in result.stdout
    assert "Nothing could be evaluated" in result.stdout


def test_validate_has_no_empty_tables(run, tmp_path):
    """Where no row is evaluated a sentence says so; where a group has none, its line does."""
    header, skipped = "id,group,hardware,dtype,m,n,k,latency_s", "a,one,h100-sxm5-80gb,q4_0,8,8,8,1e-6"
    (tmp_path / "gemm.csv").write_text(f"{header}\n{skipped}\n")
    result = run("validate gemm.csv")
    assert result.exit_code == 0, result.stderr
    assert [" ".join(line.split()) for line in result.stdout.splitlines() if line] == [
        "gemm.csv (gemm): 0 of 1 rows evaluated",
        "Nothing could be evaluated, for the reasons counted below.",
        "skipped",
        "reason rows",
        "precision q4_0 1",
    ]
    (tmp_path / "gemm.csv").write_text(f"{header}\n{skipped}\nb,two,h100-sxm5-80gb,bf16,8,8,8,1e-6\n")
    lines = [line.split() for line in run("validate gemm.csv").stdout.splitlines()]
    assert ["one", "no", "row", "evaluated", "0"] in lines
    assert sum(line[:1] == ["hardware"] for line in lines) == 1
    assert "Nothing could be evaluated" not in " ".join(map(" ".join, lines))


def test_validate_of_runs_that_only_ran_out_of_memory(run, tmp_path):
    """They are evaluated, and have a table of their own in place of the one of errors."""
    with (Path(__file__).parent / "data" / "korthikanti_training.csv").open(encoding="utf-8") as file:
        row = next(csv.DictReader(file)) | dict.fromkeys(measured_columns("training"), "") | {"oom": "true"}
    with (tmp_path / "training.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([row.keys(), row.values()])
    result = run("validate training.csv")
    assert result.exit_code == 0, result.stderr
    assert "1 of 1 rows evaluated" in result.stdout
    assert "out of memory" in result.stdout
    assert "bias" not in result.stdout
    assert "Nothing could be evaluated" not in result.stdout


def calibration_table(folder) -> str:
    """GEMMs of an H100 that takes twice as long for everything as its datasheet says."""
    rows = [f"{n}-{k}-{m},h100-sxm5-80gb,bf16,{m},{n},{k},{max(2 * n * k / 3.35e12, 4 * m * n * k / 989e12) + 6e-6}"
            for n in (512, 4096, 8192) for k in (1024, 8192) for m in (8, 1024, 4096)]  # fmt: skip
    (folder / "gemm.csv").write_text("\n".join(["id,hardware,dtype,m,n,k,latency_s", *rows]) + "\n")
    return "gemm.csv"


def test_calibrate_and_what_comes_of_it(run, tmp_path):
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
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["parameters"]["accelerator.matrix.bf16.efficiency"]["after"] == pytest.approx(0.5, rel=0.2)
    assert found["errors"]["gemm"]["after"]["median_ape"] < found["errors"]["gemm"]["before"]["median_ape"]
    assert (tmp_path / "found.png").stat().st_size > 10_000

    after, before = (
        answer(run(f"validate gemm.csv --calibration {name} --json -"))["overall"]["metrics"]["latency_s"]
        for name in ("mine.toml", "none")
    )
    assert after["median_ape"] == pytest.approx(found["errors"]["gemm"]["after"]["median_ape"], rel=0.01)
    assert before["median_ape"] == pytest.approx(found["errors"]["gemm"]["before"]["median_ape"], rel=1e-6)

    estimate = "estimate llama-2-7b dgx-h100 --phase prefill --tp 1 --devices 1"
    text = run(f"{estimate} --calibration mine.toml").stdout
    assert "dgx-h100, megatron-core, calibration mine" in text
    assert "± " in text
    assert "± " not in run(f"{estimate} --calibration none").stdout
    sure = answer(run(f"{estimate} --calibration mine.toml --json -"))
    assert sure["time_interval"]["low"] < sure["report"]["time"] < sure["time_interval"]["high"]
    assert sure["inputs"]["system"]["calibration"] == "mine"
    assert calibration_facts(load_calibration("mine.toml")).startswith(
        "2 values of dgx-h100 (h100-sxm5-80gb), ± "
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
    assert run(f"calibrate {file} --parameters hbm.efficiency --folds 2 --out mine.toml").exit_code == 0
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
            "bad.csv: found no row left to fit (1 × hardware: unknown hardware, 1 × latency_s: a unit in the cell, ",
        ),
        ("bad.csv --hardware h100-sxm5-80gb", "Error: bad.csv: found no row left to fit"),
        (
            "both.csv",
            "found rows of 2 accelerators; expected one accelerator; choose one: a100-sxm4-80gb, h100-sxm5-80gb",
        ),
        (
            "both.csv --hardware a100-sxm4-80gb",
            "Error: both.csv: found 1 usable row; expected at least one for each of",
        ),
        ("bad.csv nowhere.csv", "Error: nowhere.csv: No such file"),
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
        "Error: gemm.csv: fit: found no convergence in 1 steps; expected a fit that converges"
    )
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.csv"]


def test_an_output_that_is_a_folder_is_told_before_the_fit(run, tmp_path):
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


def test_list_names_every_config(run):
    everything = answer(run("list --json -"))
    assert set(everything) == {*FOLDERS.values(), "problems", "spaces"}
    for folder, configs in everything.items():
        assert sorted(configs) == available(folder)
        assert all(line and "\n" not in line for line in configs.values())
    models = run("list models")
    assert "174.6 B parameters" in models.stdout
    assert "accelerators" not in models.stdout


def test_help_and_version(run):
    for line in ("", "--help", "estimate --help", "--version"):
        assert run(line).exit_code == 0
    text = run("estimate --help").stdout
    assert "--micro-batch N" in text
    assert "none|selective|full" in text


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("estimate gpt3-175c dgx-a100", 1, 'did you mean "gpt3-175b"'),
        ("estimate gpt3-175b dgx-a10", 1, 'did you mean "dgx-a100"'),
        ("estimate gpt3-175b dgx-a100 --tpp 8", 2, "--tp"),
        ("estimate gpt3-175b dgx-a100 --tp eight", 1, "expected a number"),
        ("estimate gpt3-175b dgx-a100 --tp 0", 1, "from 1 to"),
        ("estimate gpt3-175b dgx-a100 --recompute selectiv", 1, 'did you mean "selective"'),
        ("estimate gpt3-175b dgx-a100 --phase train", 1, 'did you mean "training"'),
        ("estimate gpt3-175b dgx-a100 --devices -3", 1, "n_devices"),
        ("estimate gpt3-175b dgx-a100 --devices 8 --tp 8 --pp 8", 1, "product of the degrees"),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwith=4TB/s", 1, "hbm.bandwidth"),
        ("estimate gpt3-175b dgx-a100 --set bandwidth=4TB/s", 1, "system.network.nvlink.bandwidth"),
        ("estimate gpt3-175b dgx-a100 --set tp=4", 1, '"strategy.tp"'),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwidth=4Tb", 1, "Gbit or GB"),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwidth", 2, "path=value"),
        ("estimate gpt3-175b dgx-a100 --set system.name=x", 1, "names are not inputs"),
        ("estimate gpt3-175b dgx-a100 --plot x.jpg", 1, ".png"),
        ("estimate gpt3-175b dgx-a100 --smooth 0", 2, "sharpness"),
        ("estimate gpt3-175b dgx-a100 --smooth nan", 2, "sharpness"),
        ("estimate gpt3-175b dgx-a100 --stack megatron", 1, "megatron-lm"),
        ("estimate gpt3-22b dgx-a100 --tp 8 --json nowhere/x.json", 1, "nowhere/x.json"),
        ("estimate gpt3-175b", 2, "SYSTEM"),
        ("estimat gpt3-175b dgx-a100", 2, "estimate"),
        ("plan gpt3-175b dgx-a100 --devices 1024 --tp 6", 1, "use tp 8 or 4"),
        ("plan gpt3-175b dgx-a100 --by speed", 1, "one of time, cost, energy"),
        ("plan gpt3-175b dgx-a100 --by tim", 1, 'did you mean "time"'),
        ("plan gpt3-175b dgx-a100 --schedules 1f1b,zerobubble", 1, 'did you mean "zero_bubble"'),
        ("plan gpt3-175b dgx-a100 --micro-batch 1.5", 1, "a whole number"),
        ("plan gpt3-175b dgx-a100 --top 0", 2, "--top"),
        ("plan gpt3-175b", 2, "SYSTEM"),
        ("sensitivity gpt3-175b dgx-a100 --of price", 1, "strategy"),
        ("sensitivity gpt3-22b dgx-a100 --tp 8 --output tme", 1, 'did you mean "time"'),
        ("sweep nowhere.toml", 1, "existing file"),
        ("sweep nothing", 1, "configs/studies"),
        ("cost dgx-b200", 1, "did you mean"),
        ("cost dgx-a100 --set model.hidden=3", 1, '"model"'),
        ("list model", 1, 'did you mean "models"'),
        ("validate nowhere.csv", 1, "nowhere.csv"),
        ("validate nowhere.csv --plot errors.jpg", 1, ".png"),
        ("calibrate nowhere.csv --out mine.toml", 1, "nowhere.csv"),
        ("calibrate nowhere.csv", 2, "--out"),
        ("calibrate nowhere.csv --out mine.json", 1, ".toml"),
        ("calibrate nowhere.csv --out nowhere/mine.toml", 1, "a folder that exists"),
        ("calibrate nowhere.csv --prior-spread 0 --out mine.toml", 2, "--prior-spread"),
        ("calibrate nowhere.csv --prior-spread nan --out mine.toml", 2, "--prior-spread"),
        ("calibrate --out mine.toml", 2, "FILE"),
        ("estimate gpt3-22b dgx-a100 --calibration nothing", 1, "configs/calibrations"),
        ("estimate gpt3-22b dgx-a100 --calibration nothing.toml", 1, "existing file"),
    ],
)
def test_bad_input_is_one_line(run, line, code, words):
    result = run(line)
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr


def test_the_installed_command_uses_its_compile_cache(tmp_path):
    program = "from diffperf.cli import main; main()"
    arguments = [sys.executable, "-c", program, "cost", "dgx-a100"]
    result = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        env={"DIFFPERF_CACHE": str(tmp_path / "cache")},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert any((tmp_path / "cache").iterdir())


def test_float64(run):
    """The command line computes in double precision whatever the library's default is."""
    found = answer(run("estimate gpt3-22b dgx-a100 --tp 8 --json -"))
    assert found["report"]["time"] != float(np.float32(found["report"]["time"]))
