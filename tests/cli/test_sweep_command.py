"""diffperf sweep: the table it writes, the best it prints, and how an interrupted sweep goes on."""

import json

import pyarrow.parquet as pq
import pytest

from diffperf.explore.sweep import sweep as sweep_module

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
