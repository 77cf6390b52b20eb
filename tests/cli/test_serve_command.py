"""diffperf serve: the ranking, the reasons, flags and figure, and what it says where nothing serves."""

import json
import re

import pytest

LINE = "serve llama-3-8b dgx-h100 --devices 2 --chunk 2048"


@pytest.mark.slow
def test_serve_ranks_says_why_draws_and_prints_flags(run, tmp_path):
    result = run(f"{LINE} --ttft 500ms --tpot 20ms --json served.json --plot front.png --flags vllm")
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "served.json").read_text())
    assert data["serves"]
    assert data["targets"] == {"ttft": 0.5, "tpot": pytest.approx(0.02), "percentile": "mean"}
    assert [served["layout"] for served in data["best"]] != []
    for served in data["best"]:
        assert served["report"]["time_per_output_token"] <= 0.02
        assert served["limit"] in result.stdout
        assert served["devices"] == 2
    for words in (
        "TTFT up to 500 ms and TPOT up to 20 ms (mean)",
        "Best by throughput: ",
        "why the others lose",
        "Flags for vllm",
        f"--max-num-seqs {data['best'][0]['requests']['batch_cap']:g}",
    ):
        assert words in result.stdout
    assert (tmp_path / "front.png").stat().st_size > 10_000


@pytest.mark.slow
def test_targets_and_loads_that_nothing_serves_name_what_works(run):
    """One line, exit code 3, and options that do serve."""
    strict = run(f"{LINE} --ttft 1ms --tpot 20ms --json nothing.json")
    assert strict.exit_code == 3
    assert strict.stderr.count("\n") == 1
    assert "times the target" in strict.stderr
    remedy = re.search(r"(--ttft \S+) works", strict.stderr)
    assert remedy
    assert run(f"{LINE} {remedy[1]} --tpot 20ms").exit_code == 0

    rate = run(f"{LINE} --tpot 20ms --rate 500")
    assert rate.exit_code == 3
    assert "beyond saturation" in rate.stderr
    lower, more = re.search(r"use (--rate \S+), or (--devices \S+)", rate.stderr).groups()
    assert run(f"{LINE} --tpot 20ms {lower}").exit_code == 0
    assert run(f"{LINE} --tpot 20ms --rate 500 {more}").exit_code == 0


@pytest.mark.slow
def test_memory_that_is_too_small_names_the_smallest_system(run):
    long = "--input 500000 --set model.context_window=1000000"
    result = run(f"{LINE} {long} --tp 1 --pp 1 --devices 1 --kv-precision fp32")
    assert result.exit_code == 3
    assert "no layout fits memory" in result.stderr
    assert "KV cache" in result.stderr


@pytest.mark.slow
def test_pools_are_compared_or_left_out(run, tmp_path):
    """Two devices make one prefill worker and one decode worker."""
    result = run(f"{LINE} --ttft 500ms --pools disaggregated --json pools.json --flags sglang")
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "pools.json").read_text())
    (served,) = data["best"]
    assert (served["layout"], served["devices"], served["prefill"]["instances"]) == ("tp 1 → tp 1", 2, 1)
    assert served["prefill"]["pools"]["prefill_utilization"] <= 1
    ends = data["decode_interval"]
    decode_pass = (ends["low"] * ends["high"]) ** 0.5  # nothing is prefilled between passes of these workers
    assert served["report"]["time_per_output_token"] == pytest.approx(decode_pass, rel=0.05)
    assert "A decode pass of the best layout" in result.stdout
    assert data["flags"]["sglang"][0] == "# 1 of this server for prompts"
    for words in ("pairs of pools", "1 → 1", "--disaggregation-mode decode", "throughput over the capacity"):
        assert words in result.stdout
    without = run(f"{LINE} --ttft 500ms --pools aggregated")
    assert "→" not in without.stdout
    assert "pools" not in without.stdout


@pytest.mark.slow
def test_pools_that_do_not_serve_say_why_in_a_line(run):
    for options, words in (
        ("--ttft 1ms", "no two pools meet TTFT up to 1 ms"),
        ("--ttft 1s --devices 1", "fit 1 device;"),
        ("--ttft 300ms --rate 500", "fit 2 devices"),
    ):
        result = run(f"{LINE} --pools disaggregated {options}")
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
        assert words in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--ttft 500", '--ttft: found "500"; expected a time above 0, such as "500 ms"'),
        ("--ttft 5GB", "wrong dimension"),
        ("--tpot -3ms", '--tpot: found "-3ms"'),
        ("--percentile 95", '--percentile: found "95"; expected mean or 90'),
        ("--rate 3 --concurrency 4", "drop one of them"),
        ("--rate fast", "--rate: found"),
        ("--input 0", "--input: found 0"),
        ("--flags vlm", 'did you mean "vllm"?'),
        ("--pools separate", "aggregated or disaggregated or both"),
        ("--by speed", "one of throughput, cost, energy"),
        ("--zero 3", "--zero"),
    ],
)
def test_bad_options_are_one_line(run, options, words):
    result = run(f"{LINE} {options}")
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve gpt3-175b dgx-a100 --input 4000 --output 100", "2,048 positions of gpt3-175b"),
        ("serve llama-2-7b dgx-a100 --input 4000 --output 100", "4,096 tokens that llama-2-7b is made for"),
        (
            "estimate llama-3.1-8b dgx-a100 --phase decode --sequence-length 131000 --output-length 73",
            "131,073",
        ),
        ("estimate gpt3-175b dgx-a100 --phase prefill --sequence-length 2049", "2,048 positions"),
    ],
)
def test_a_context_beyond_the_model_s(run, command, words):
    result = run(command)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_contexts_that_the_model_is_made_for(run):
    """A whole window is served; a longer one where the user extends it, and in training."""
    estimate = "estimate llama-2-7b dgx-a100 --sequence-length"
    for asked in (
        "4096 --phase prefill",
        "4000 --output-length 96 --phase decode",
        "8192 --phase prefill --set model.context_window=8192",
        "8192 --phase training",
    ):
        assert run(f"{estimate} {asked}").exit_code == 0, asked
