"""dp.compare and diffperf compare: each cell is the answer to its own question."""

import csv
import dataclasses
import io
import json

import pytest
from click.testing import CliRunner
from helpers import same_answer

import diffperf as dp
from diffperf.cli import cli
from diffperf.report import plots

SYSTEMS = ["dgx-a100", "dgx-h100"]


@pytest.fixture(scope="module")
def generation():
    return dp.compare("gpt3-22b", SYSTEMS, "generate", against="dgx-a100", devices=8, global_batch=8)


def test_a_cell_of_inference_is_an_estimate(generation):
    for cell in generation.cells:
        answer = dp.estimate("gpt3-22b", cell.system, "generate", devices=8, global_batch=8)
        report = answer.report
        assert cell.time == float(report.time)
        assert cell.tokens_per_second_per_device == pytest.approx(float(report.tokens_per_second) / 8)
        # The report computes both for itself.
        assert cell.tokens_per_joule == pytest.approx(float(report.tokens_per_joule), rel=1e-9)
        prices = dp.load_system(cell.system).prices
        megawatts = float(report.cost.electricity) / float(prices.electricity) / 1e6
        assert cell.tokens_per_second_per_megawatt == pytest.approx(cell.tokens_per_second / megawatts)
        assert megawatts > 8 * float(report.cost.node.total) / 1e6
        million = float(report.cost_per_million_tokens)
        assert cell.tokens_per_dollar_owned == pytest.approx(1e6 / million, rel=1e-9)
        assert answer.interval is not None
        assert (cell.low, cell.high) == pytest.approx(answer.interval.ends)
        assert cell.basis.startswith("calibrated")


def test_ratios_are_over_the_baseline(generation):
    first, second = generation.rows()
    assert first["tokens_per_second_per_device_ratio"] == 1.0
    for name in ("tokens_per_dollar_owned", "tokens_per_dollar_rented"):
        assert second[f"{name}_ratio"] == pytest.approx(second[name] / first[name])


def test_a_calibration_counts_for_the_systems_with_its_accelerator(generation):
    given = {"phases": "generate", "devices": 8, "global_batch": 8}
    fitted = dp.load_calibration("h100-sxm5-80gb")
    other = dataclasses.replace(fitted, values=fitted.values | {"accelerator.memory.hbm.efficiency": 0.5})
    first, second = dp.compare("gpt3-22b", SYSTEMS, calibration=other, **given).cells
    assert first.time == generation.cells[0].time
    assert second.time > 1.2 * generation.cells[1].time
    assert {cell.basis for cell in dp.compare("gpt3-22b", SYSTEMS, calibration="none", **given).cells} == {
        "datasheet"
    }


@pytest.mark.slow
def test_a_cell_of_training_is_the_best_of_a_plan():
    (cell,) = dp.compare("gpt3-22b", "dgx-a100", devices=16).cells
    best = dp.plan("gpt3-22b", "dgx-a100", devices=16, top=1).best[0]
    assert cell.time == float(best.report.time)
    assert cell.mfu == float(best.report.mfu)
    degrees = {name: float(getattr(best.strategy, name)) for name in ("tp", "pp", "dp")}
    assert all(f"{name} {degree:g}" in cell.layout for name, degree in degrees.items() if degree > 1)


@pytest.mark.slow
def test_what_does_not_fit_says_so():
    answer = dp.compare(["gpt3-22b", "gpt3-175b"], "dgx-a100", devices=1)
    for cell in answer.cells:
        assert not cell.fits
        assert cell.problem.startswith("does not fit")
        assert cell.tokens_per_second is None
    assert "too large" in str(answer)
    assert answer.figure().axes


def test_what_has_no_layout_says_why(generation):
    smaller = dp.load_system("dgx-a100", n_devices=4)
    first, second = dp.compare("gpt3-22b", [smaller, "dgx-a100"], "generate", tp=8, pp=1, dp=1).cells
    assert "4 devices for tp·pp·dp·cp" in first.problem
    assert not first.layout
    assert second.fits


def test_a_mistake_that_concerns_every_system_is_an_error():
    with pytest.raises(dp.ConfigError, match=r"^dp.compare: strategy.tp: found 7 for 64 attention heads"):
        dp.compare("gpt3-22b", SYSTEMS, "generate", devices=8, tp=7)


def test_rows_say_what_they_work_on(generation):
    for row in generation.rows():
        assert (row["global_batch"], row["sequence_length"], row["output_length"]) == (8, 2048, 200)
        assert row["precision"] == "bf16"
    title = (
        "gpt3-22b generate in bf16, sequences of 2,048 + 200 tokens, batch 8, the best layout of each system"
    )
    assert title in str(generation)


def test_what_is_given_beside_the_layout_is_repeated(generation):
    """Formats of stored weights and of the KV cache change every figure of the table."""
    assert "In all rows" not in str(generation)
    asked = {"devices": 8, "global_batch": 8, "kv_precision": "fp8"}
    answer = dp.compare("gpt3-22b", "dgx-h100", "generate", **asked)
    assert str(answer).splitlines()[0] == "In all rows: kv precision fp8"
    assert answer.to_dict()["given"] == "kv precision fp8"


def test_overrides_are_repeated():
    given = {"devices": 8, "global_batch": 8}
    answer = dp.compare("gpt3-22b", SYSTEMS, "decode", set={"hbm.bandwidth": "1 TB/s"}, **given)
    path = "system.accelerator.memory.hbm.bandwidth"
    text = "1 TB/s (was 2.039 TB/s) for dgx-a100, 1 TB/s (was 3.35 TB/s) for dgx-h100"
    assert str(answer).startswith(f"Overridden: {path} = {text}\n")
    assert answer.to_dict()["overrides"] == {path: text}
    same = dp.compare("gpt3-22b", SYSTEMS, "decode", set={"model.hidden": 8192}, **given)
    assert same.overrides == {"model.hidden": "8,192 (was 6,144)"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dp.compare("gpt3-22b", "dgx-a10"), 'dp.compare: systems: found "dgx-a10"'),
        (lambda: dp.compare([], "dgx-a100"), "nothing to compare"),
        (
            lambda: dp.compare("gpt3-22b", "dgx-a100", []),
            "dp.compare: phases: found no phase; expected at least",
        ),
        (lambda: dp.compare("gpt3-22b", "dgx-a100", against="dgx-h100"), "dp.compare: against:"),
        (lambda: dp.compare("gpt3-22b", "dgx-a100", "train"), "dp.compare: phases:"),
        (lambda: dp.compare("gpt3-22b", SYSTEMS, global_batch=0), "dp.compare: global_batch: found"),
        (
            lambda: dp.compare("llama-3-8b", SYSTEMS, "decode", sequence_length=100_000),
            "at most the 8,192 tokens",
        ),
    ],
)
def test_mistakes_are_found_at_once(call, words):
    with pytest.raises(dp.ConfigError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.slow
def test_the_command_writes_every_format(generation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "compare --models gpt3-22b --systems dgx-a100,dgx-h100 --phase generate --against dgx-a100"
    files = "--devices 8 --global-batch 8 --csv rows.csv --html page.html --json rows.json --plot figure.png"
    result = CliRunner().invoke(cli, f"{line} {files}".split())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split() == str(generation).split()
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written.pop("diffperf") == {"version": dp.__version__, "schema": 1}
    assert same_answer(written, json.loads(json.dumps(generation.to_dict())))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert [float(row["time"]) for row in rows] == pytest.approx([cell.time for cell in generation.cells])
    page = (tmp_path / "page.html").read_text()
    assert "dgx-h100" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_names_that_are_too_long_keep_both_ends():
    members = [plots.Bars(f"the-same-long-beginning-of-a-name, stack-{i}", {"a": 1.0}) for i in range(2)]
    figure = plots.comparison({"x": members}, {"a": ("a", "token/s")})
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(set(labels)) == 2
