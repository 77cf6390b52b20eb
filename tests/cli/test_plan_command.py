"""diffperf plan: the ranking, the reasons, the flags, and what it says where nothing fits."""

import json

import pytest


def test_plan_ranks_says_why_and_writes_flags(run, answer, tmp_path):
    result = run(
        "plan gpt3-22b dgx-a100 --global-batch 32 --top 3 --json plan.json --flags flags.txt --plot best.png"
    )
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["fits"]
    assert (len(data["best"]), data["by"]) == (3, "time")
    assert data["searched"] >= data["possible"] >= data["fitting"] > 3
    fitting = f"{data['fitting']:,} of them fit memory"
    counts = f"{data['searched']:,} strategies: {data['possible']:,} possible, {fitting}"
    searched = "Searched:\n  tensor-parallel degrees that divide the attention heads"
    for words in (counts, "Best by time: tp ", "Why the others lose"):
        assert words in result.stdout
    assert searched in "\n".join(line.rstrip() for line in result.stdout.splitlines())
    best, *others = data["best"]
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
    fields += ("recompute_norms", "recompute_activation_functions", "recompute_mlp")
    given = " ".join(f"--{name.replace('_', '-')} {best['strategy'][name]}" for name in fields)
    estimated = answer(f"estimate gpt3-22b dgx-a100 {given} --json -")
    assert estimated["report"]["time"] == pytest.approx(best["report"]["time"], rel=1e-12)


def test_plan_of_flags_or_json_alone(run, answer):
    line = "plan gpt3-22b dgx-a100 --global-batch 32 --top 1"
    assert run(f"{line} --flags -").stdout.startswith("# gpt3-22b training on 8 × a100-sxm4-80gb")
    data = answer(f"{line} --by cost --json -")["best"][0]
    assert data["report"]["cost"]["run"] <= answer(f"{line} --json -")["best"][0]["report"]["cost"]["run"]


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
    data = json.loads((tmp_path / "plan.json").read_text())
    assert not data["fits"]
    assert data["best"] == []
    assert run(f"plan gpt3-22b dgx-a100 --devices {data['smallest_system']:g}").exit_code == 0
    assert run(f"plan gpt3-22b dgx-a100 --devices {data['smallest_system'] / 2:g}").exit_code == 3
    fixed = run("plan gpt3-22b dgx-a100 --devices 1 --tp 1 --pp 1 --dp 1")
    assert fixed.exit_code == 3
    assert "no system of up to 1,000,000 devices fits either" in fixed.stderr
