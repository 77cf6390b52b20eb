"""The other questions in Python: each answers what the command of its name answers."""

import json

import numpy as np
import pytest
from helpers import command_line

import diffperf as dp
from diffperf.api.from_python import asked, read_settings
from diffperf.api.varied_ranges import described_cuts, read_input_range
from diffperf.errors import ConfigError


def plain(answer) -> dict:
    return json.loads(json.dumps(answer.to_dict()))


def test_cost():
    answer = dp.cost("dgx-h100", against="mi300x-8", volume=1000)
    assert plain(answer) == command_line("cost dgx-h100 --against mi300x-8 --volume 1000 --json -")
    rows = {(row["section"], row["price"]): row for row in answer.rows()}
    purchase = rows["Purchase of a device", "accelerator"]
    assert purchase["dgx-h100"] == pytest.approx(28_000, rel=1e-3)
    assert "Purchase of a device" in str(answer)
    changed = dp.cost("dgx-h100", set={"prices.pue": 2.0})
    assert changed.per_hour["electricity"] > answer.per_hour["electricity"]
    with pytest.raises(dp.ConfigError, match=r"^dp\.cost: system:"):
        dp.cost("dgx-h10")
    with pytest.raises(dp.ConfigError, match=r"^dp\.cost: against: found a value of type int"):
        dp.cost("dgx-h100", against=3)


def test_a_figure_is_drawn_where_it_can_be_written(tmp_path, monkeypatch):
    answer = dp.cost("dgx-h100")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        dp.ConfigError, match=r'^answer\.plot: file: found "x\.gif"; expected a file name ending'
    ):
        answer.plot("x.gif")
    with pytest.raises(
        dp.ConfigError, match=r'^answer\.plot: file: found "nowhere/x\.png"; .*create the folder'
    ):
        answer.plot("nowhere/x.png")


@pytest.mark.slow
def test_sensitivity():
    answer = dp.sensitivity("gpt3-22b", "dgx-a100", tp=8, of="system", top=3)
    assert plain(answer) == command_line("sensitivity gpt3-22b dgx-a100 --tp 8 --json -")
    first = answer.rows()[0]
    assert abs(first["elasticity"]) == max(abs(row["elasticity"]) for row in answer.rows())
    with pytest.raises(dp.ConfigError, match=r"^dp\.sensitivity: of: "):
        dp.sensitivity("gpt3-22b", "dgx-a100", of="hardware")
    with pytest.raises(dp.ConfigError, match=r"^dp\.sensitivity: output: "):
        dp.sensitivity("gpt3-22b", "dgx-a100", tp=8, output="tim")


@pytest.mark.slow
def test_sweep(tmp_path):
    axis = {"path": "strategy.tp", "powers_of_two": {"from": 1, "to": 8}}
    space = {"model": "gpt3-22b", "system": "dgx-a100", "set": {"strategy.pp": 1}, "axis": [axis]}
    answer = dp.sweep(space, double=True)
    assert answer.result.points == 4
    assert answer.table().num_rows == 4
    best = answer.rows()[0]
    estimated = dp.estimate("gpt3-22b", "dgx-a100", tp=best["strategy.tp"], pp=1)
    assert best["time"] == pytest.approx(float(estimated.report.time), rel=1e-9)
    written = dp.sweep(space, tmp_path / "points.parquet", double=True)
    assert (tmp_path / "points.parquet").exists()
    assert np.allclose([row["time"] for row in written.rows()], [row["time"] for row in answer.rows()])
    front = dp.sweep(space, pareto=["time", "memory.peak"], best_by=["tp"])
    assert front.to_frame("front")["time"][0] == best["time"]
    assert front.to_frame("strategy.tp")["strategy.tp"].tolist() == sorted(
        row["strategy.tp"] for row in answer.rows()
    )
    assert front.to_frame("all").shape[0] == 4
    with pytest.raises(dp.ConfigError, match=r"^dp\.sweep: of: found \"front\""):
        answer.to_frame("front")
    with pytest.raises(dp.ConfigError, match=r"^dp\.sweep: pareto: "):
        dp.sweep(space, pareto=["time"])
    with pytest.raises(dp.ConfigError, match=r"^dp\.sweep: axis\[0\]"):
        dp.sweep(space | {"axis": [{"path": "strategy.tq", "values": [1]}]})


@pytest.mark.slow
def test_sweep_where_the_caller_computes_in_single_precision(float32):
    factors = {"factorize": {"of": 8, "over": ["strategy.tp", "strategy.pp", "strategy.dp"]}}
    space = {"model": "gpt3-22b", "system": "dgx-a100", "pareto": ["time", "memory.peak"], "axis": [factors]}
    answer = dp.sweep(space)
    assert str(answer.result.front["time"].type) == "double"
    assert len(answer.to_frame("all")) == answer.result.points == 10


def test_validate(tmp_path):
    table = tmp_path / "gemm.csv"
    table.write_text("id,hardware,m,n,k,dtype,latency_s\na,h100-sxm5-80gb,4096,4096,4096,bf16,2.4e-4\n")
    answer = dp.validate(table)
    assert plain(answer) == command_line(f"validate {table} --json -")
    assert "1 of 1 rows evaluated" in str(answer)
    assert [row["n"] for row in answer.rows()] == [1, 1]
    with pytest.raises(dp.ConfigError, match=r"^dp\.validate: "):
        dp.validate(table, where=["m>1e9"])


@pytest.mark.slow
def test_loading_questions():
    space, problem = dp.load_space("gpt3-175b-strategy-sweep"), dp.load_problem("gpt3-175b-under-a100-budget")
    assert space.size > 1
    assert str(problem.baseline.model.name) == "gpt3-175b"
    assert dp.load_space(space) is space
    assert str(dp.load_stack("vllm").name) == "vllm"
    assert dp.load_calibration("h100-sxm5-80gb").hardware == "h100-sxm5-80gb"
    with pytest.raises(dp.ConfigError, match=r"^dp\.load_problem: "):
        dp.load_problem("gpt9")
    with pytest.raises(dp.ConfigError, match=r"^dp\.load_space: "):
        dp.load_space({"model": "gpt3-22b"})


@pytest.mark.slow
def test_calibrate(tmp_path):
    """Rows that are exactly those of another efficiency give this efficiency back."""
    header = "id,hardware,m,n,k,dtype,latency_s"
    path, system = "accelerator.matrix.bf16.efficiency", dp.load_system("dgx-h100", calibration="none")
    shapes = [(m, n, k) for m in (2048, 4096, 8192) for n in (4096, 8192) for k in (4096, 8192)]
    assert float(system.accelerator.matrix.bf16.efficiency) != 0.6
    slow = [2 * m * n * k / (0.6 * 989.4e12) for m, n, k in shapes]
    rows = [
        f"{index},h100-sxm5-80gb,{m},{n},{k},bf16,{time}"
        for index, ((m, n, k), time) in enumerate(zip(shapes, slow, strict=True))
    ]
    table = tmp_path / "gemm.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    answer = dp.calibrate(table, tmp_path / "mine.toml", hardware="h100-sxm5-80gb", parameters=[path])
    (row,) = answer.rows()
    # Tiles, waves and launches take the rest of the time, so that the fitted value is somewhat higher.
    assert 0.6 <= row["fitted"] < 0.8
    assert dp.load_calibration(tmp_path / "mine.toml").values[path] == pytest.approx(row["fitted"], rel=1e-3)
    assert "1 parameter fitted to 12 rows" in str(answer)
    with pytest.raises(dp.ConfigError, match=r"^dp\.calibrate: out: "):
        dp.calibrate(table, tmp_path / "mine.json")


@pytest.mark.parametrize(
    "x", [("hbm.bandwidth", "2..4 TB/s"), {"hbm.bandwidth": "2..4 TB/s"}, "hbm.bandwidth=2..4 TB/s"]
)
def test_an_input_and_its_range_in_three_forms(x):
    question = asked("break_even", "llama-3-8b", "dgx-h100")
    read = read_input_range(question.configuration("decode"), x, question, "decode", "--x")
    assert (read.path, read.low, read.high) == ("system.accelerator.memory.hbm.bandwidth", 2e12, 4e12)


def test_a_share_beyond_the_bounds_of_an_input_is_cut_and_says_so():
    question = asked("sensitivity", "llama-3-8b", "dgx-h100")
    inputs = question.configuration("decode")
    cut = read_input_range(inputs, "matrix.bf16.efficiency=±50%", question, "decode", "--x")
    assert cut.high == 1
    (line,) = described_cuts([cut])
    assert line.startswith(
        "The high end of system.accelerator.matrix.bf16.efficiency is 1, the most that it can"
    )
    whole = read_input_range(inputs, "hbm.bandwidth=±50%", question, "decode", "--x")
    assert described_cuts([whole]) == []


@pytest.mark.parametrize("x", ["hbm.bandwidth", {}, {"a": "1..2", "b": "1..2"}, ("hbm.bandwidth",), 3])
def test_what_is_no_range_of_an_input_is_refused_in_one_line(x):
    question = asked("break_even", "llama-3-8b", "dgx-h100")
    with pytest.raises(ConfigError, match="expected one input and its range; write") as problem:
        read_input_range.__wrapped__(question.configuration("decode"), x, question, "decode", "--x")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("x", "phase", "message"),
    [
        (
            "power_limit=1..700 W",
            "decode",
            "found 1 W; expected more than the 90 W that the idle device draws",
        ),
        ("global_batch=7..16", "training", "found 7 sequences"),
        ("power_limit=100..700 W", "decode", ""),
        ("strategy.tp=3..5", "training", ""),  # degrees may be between those that are possible
    ],
)
def test_ends_of_ranges_break_no_rule_by_themselves(x, phase, message):
    layout = {"tp": 4, "dp": 2, "global_batch": 8}
    question = asked("sensitivity", "llama-3-8b", "dgx-h100", devices=8, strategy=layout)
    inputs = question.configuration(phase)
    if not message:
        assert read_input_range(inputs, x, question, phase, "--x").low > 0
        return
    with pytest.raises(ConfigError, match=message):
        read_input_range.__wrapped__(inputs, x, question, phase, "--x")


def test_settings_that_are_no_dictionary_are_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"set: found .* expected values of inputs by their paths"):
        read_settings(["hbm.bandwidth=4 TB/s"], "dp.estimate")


def test_an_output_that_is_zero_has_no_ratio():
    """Without pipeline stages there is no bubble, whatever the bandwidth."""
    layout = {"devices": 8, "tp": 8, "global_batch": 8, "output": "breakdown.pipeline_bubble"}
    varied = {"hbm.bandwidth": "2..4 TB/s"}
    assert "–" in str(dp.sensitivity("llama-3-8b", "dgx-h100", ranges=varied, **layout))
    crossing = dp.break_even("llama-3-8b", "dgx-h100", "dgx-a100", x=varied, **layout)
    assert "equal all along" in str(crossing)
