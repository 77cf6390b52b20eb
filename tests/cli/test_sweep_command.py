"""diffperf sweep: the table it writes, the best it prints, and how an interrupted sweep goes on."""

import json

import pyarrow.parquet as pq
import pytest

from diffperf.explore.sweep.part_tables import MergedTable

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


@pytest.mark.slow
def test_sweep_writes_prints_and_plots(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SPACE)
    result = run("sweep mine.toml --top 2 --out mine.parquet --plot cloud.png --json best.json")
    assert result.exit_code == 0, result.stderr
    assert "8 points" in result.stdout
    assert "points/s" in result.stdout
    table = pq.read_table(tmp_path / "mine.parquet")
    best = json.loads((tmp_path / "best.json").read_text())["best"]
    assert table.num_rows == 8
    assert len(best) == 2
    assert best[0]["time"] == min(row["time"] for row in table.to_pylist() if row["feasible"] and row["fits"])
    assert (tmp_path / "cloud.png").stat().st_size > 5_000


@pytest.mark.slow
def test_without_a_file_nothing_but_what_is_asked_for_is_kept(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SPACE)
    result = run("sweep mine.toml --pareto time,memory.peak --best-by tp --plot front.png --json kept.json")
    assert result.exit_code == 0, result.stderr
    assert "Pareto front of time, memory.peak" in result.stdout
    assert "Best by time of every strategy.tp" in result.stdout
    assert "median" in result.stdout
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["table"] is None
    assert [row["time"] for row in kept["front"]] == sorted(row["time"] for row in kept["front"])
    assert kept["front"][0]["time"] == kept["best"][0]["time"]
    assert sum(row["points"] for row in kept["histograms"]["time"]) == kept["fitting"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["front.png", "kept.json", "mine.toml"]
    refused = run("sweep mine.toml --pareto time,memory.peek")
    assert refused.exit_code == 1
    assert "command line: pareto[1]: found" in refused.stderr


def test_where_nothing_is_left_the_exit_code_says_so(run, tmp_path):
    (tmp_path / "mine.toml").write_text('where = ["strategy.tp > 9"]' + SPACE)
    result = run("sweep mine.toml")
    assert result.exit_code == 3
    assert "8 points, 0 of them allowed by where" in result.stdout
    assert '"strategy.tp > 9" excludes all of 8 points' in result.stdout


def test_what_is_the_same_at_every_point_is_said(run, tmp_path):
    """The fixed devices and strategy, without axes and what follows from them."""
    (tmp_path / "mine.toml").write_text('where = ["strategy.tp > 9"]' + SPACE)
    result = run("sweep mine.toml --json answer.json")
    same = "8 devices · pp 1 · micro batch 1 · global batch 16 · sequence length 2048"
    assert f"At every point: {same}" in result.stdout.splitlines()
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["model"], answer["system"], answer["phase"]) == ("gpt3-22b", "dgx-a100", "training")
    assert answer["strategy"]["global_batch"] == 16
    assert {"tp", "recompute", "dp"}.isdisjoint(answer["strategy"])


def test_rows_are_not_broken_where_nobody_sees_the_width(run, tmp_path):
    asked = 'top = 2\npareto = ["cost.run", "energy.total", "tokens_per_second", "memory.peak"]'
    (tmp_path / "mine.toml").write_text(asked + SPACE)
    lines = run("sweep mine.toml").stdout.splitlines()
    title = lines.index("Best by time, smallest first")
    assert lines[title + 1].split()[-1] == "mfu"
    assert lines[title + 4] == ""  # below the headings and two rows
    assert "…" not in "".join(lines)


@pytest.mark.slow
def test_an_interrupted_sweep_says_how_to_go_on(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(SPACE)
    monkeypatch.setattr(MergedTable, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run("sweep mine.toml -o mine.parquet")
    assert result.exit_code == 130
    assert result.stderr.count("\n") == 1
    assert "1 finished parts are kept in mine.parquet.parts" in result.stderr
    assert "same command again" in result.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "8 taken over" in run("sweep mine.toml -o mine.parquet").stdout
