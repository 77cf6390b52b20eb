"""diffperf estimate and diffperf sensitivity: the library's answers, in tables, JSON and figures."""

import json

import click
import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.cli import cli
from diffperf.explore.plan.candidates import default_global_batch
from diffperf.quantity import declaration
from diffperf.workload.strategy import Strategy


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
    result = run("estimate gpt3-175b dgx-a100 --devices 64 --tp 8 --pp 4 --virtual-stages 2 --json -")
    data = json.loads(result.stdout)
    assert result.exit_code == (0 if data["fits"] else 3)
    system = dp.load_system("dgx-a100", 64)
    strategy = dp.load_strategy({"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64}, n_devices=64)
    report = training(dp.load_model("gpt3-175b"), system, strategy)
    assert data["report"]["time"] == pytest.approx(float(report.time), rel=1e-12)
    assert data["report"]["energy"]["total"] == pytest.approx(float(report.energy.total), rel=1e-12)
    assert data["inputs"]["strategy"]["recompute"] == "none"
    assert data["inputs"]["system"]["accelerator"]["memory"]["hbm"]["capacity"] == float(
        system.accelerator.device_memory.capacity
    )
    assert data["chosen"] == {"dp": 2, "global_batch": float(default_global_batch(system, strategy))}
    assert data["fits"] is bool(report.memory.excess <= 0)


def test_estimate_says_by_how_much_it_does_not_fit(run, tmp_path):
    result = run("estimate gpt3-1t dgx-a100 --json answer.json")
    assert result.exit_code == 3
    assert result.stderr == ""
    assert json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))["fits"] is False
    assert "Does not fit memory: needs" in result.stdout
    assert "too much" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode", "generate"])
def test_estimate_of_inference(answer, phase):
    data = answer(f"estimate llama-2-7b dgx-a100 --phase {phase} --devices 1 --json -")
    assert data["chosen"] == {"tp": 1, "pp": 1, "dp": 1}
    assert data["report"]["time"] > 0


def test_overrides_and_stack(answer):
    base = "estimate gpt3-22b dgx-a100 --tp 8 --json - "
    settings = "--set hbm.capacity=40GB --set model.hidden=4096 --set strategy.zero=1"
    data = answer(f"{base} --stack tensorrt-llm {settings} --recompute full")
    assert data["inputs"]["system"]["stack"]["name"] == "tensorrt-llm"
    assert data["inputs"]["system"]["accelerator"]["memory"]["hbm"]["capacity"] == 40e9
    assert data["inputs"]["model"]["hidden"] == 4096
    assert data["inputs"]["strategy"]["zero"] == "1"
    assert data["inputs"]["strategy"]["recompute"] == "full"
    assert answer(base + "--no-sequence-parallel")["inputs"]["strategy"]["sequence_parallel"] == "off"


@pytest.mark.slow
def test_smooth_is_above_exact_and_close(answer):
    exact, smooth = (
        answer("estimate gpt3-22b dgx-a100 --tp 8 --json - " + more)["report"]["time"]
        for more in ("", "--smooth 200")
    )
    assert exact != smooth
    assert smooth == pytest.approx(exact, rel=0.05)


@pytest.mark.slow
def test_a_band_averages_waves(answer):
    base = "estimate gpt3-22b dgx-a100 --tp 8 --json - --smooth 200 "
    alone, wide = (answer(base + more)["report"]["time"] for more in ("", "--band 0.15"))
    python = dp.estimate("gpt3-22b", "dgx-a100", tp=8, smooth=200, band=0.15)
    assert alone != wide
    assert wide == pytest.approx(float(python.report.time))


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


def test_float64(answer):
    """The command line computes in double precision whatever the library's default is."""
    data = answer("estimate gpt3-22b dgx-a100 --tp 8 --json -")
    assert data["report"]["time"] != float(np.float32(data["report"]["time"]))


@pytest.mark.slow
def test_sensitivity(run, tmp_path):
    result = run("sensitivity gpt3-22b dgx-a100 --tp 8 --top 5 --plot tornado.png --json found.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rows, (ranked, rooms) = found["elasticities"], result.stdout.split("room ")
    assert rows[0]["path"] in ranked
    assert rows[5]["path"] not in ranked
    by_path = {(row["path"], row["derivative"]): row["elasticity"] for row in rows}
    assert by_path["system.accelerator.matrix.bf16.rate", "slope"] < -0.3
    units = "system.accelerator.compute_units"
    assert by_path[units, "−1"] <= by_path[units, "+1"] < 0
    assert (units, "slope") not in by_path
    slopes = [row["elasticity"] for row in rows if row["derivative"] == "slope"]
    assert sum(room["total"] for room in found["rooms"]) == pytest.approx(sum(slopes))
    assert "compute" in rooms
    assert (tmp_path / "tornado.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["training", "generate"])
def test_listed_operators_and_collectives_add_up_to_the_report(run, answer, phase):
    command = f"estimate llama-2-7b dgx-a100 --devices 16 --tp 4 --dp 4 --phase {phase}"
    command += " --global-batch 16 --operators"
    data = answer(f"{command} --json -")
    for field in {row["pass_name"] for row in data["operators"]}:
        breakdown = data["report"][field]
        operators = sum(row["time"] for row in data["operators"] if row["pass_name"] == field)
        exposed = sum(row["exposed"] for row in data["collectives"] if row["pass_name"] == field)
        waits = sum(breakdown.get(part, 0.0) for part in ("host", "pipeline_bubble", "offload"))
        assert operators + exposed + waits == pytest.approx(breakdown["total"], rel=1e-9)
    shown = run(command).stdout
    assert "qkv" in shown
    assert "all-reduce of the residual stream" in shown


def test_the_command_prints_them(run):
    result = run("estimate llama-3-8b dgx-a100 --phase decode --tp 1 --dp 8 --global-batch 65536")
    answer = dp.estimate("llama-3-8b", "dgx-a100", "decode", tp=1, dp=8, global_batch=65536)
    assert "Does not fit memory" in result.stdout
    assert f"up to {answer.greatest['global_batch']:,.0f} sequences of 2,048 + 200 tokens" in result.stdout


def test_a_comparison_of_which_nothing_fits_exits_as_estimate_does(run):
    line = "compare --models gpt3-175b --systems dgx-a100 --phase decode --devices 1"
    result = run(line)
    assert result.exit_code == 3
    assert "too large" in result.stdout
