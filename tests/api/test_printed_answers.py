"""What printed answers say beside their figures: overrides, hints, what MFU counts, and nothing of zeros."""

import io

import equinox as eqx
import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

import diffperf as dp
from diffperf.api.codesign_answer import comparison

QUESTION = ("gpt3-22b", "dgx-a100")


def render_table(table: Table) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=160).print(table)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def printed() -> str:
    settings = {"hbm.bandwidth": "1.8 TB/s", "strategy.zero": "1"}
    return str(dp.estimate(*QUESTION, devices=16, set=settings))


def test_active_overrides_are_repeated(printed):
    assert "hbm.bandwidth = 1.8 TB/s (was 2.039 TB/s), strategy.zero = 1" in printed
    assert "Overridden" not in str(dp.estimate(*QUESTION, devices=16, tp=8, pp=1))


def test_open_degrees_hint_at_the_search(printed):
    assert "dp.plan searches" in printed
    assert "dp.plan" not in str(dp.estimate(*QUESTION, devices=16, tp=8))


def test_utilizations_are_explained(printed):
    assert "MFU" in printed
    assert "recomputed activations" in printed


def test_zero_rows_are_left_out(printed):
    breakdown = printed[printed.index("breakdown") : printed.index("\nmemory")]
    assert "context-parallel" not in breakdown
    assert "linear layers" in breakdown
    assert "total" in breakdown
    assert "KV cache" not in printed
    # What is zero is still in the answer for programs.
    answer = dp.estimate(*QUESTION, devices=16, tp=8, pp=1)
    assert answer.to_dict()["report"]["breakdown"]["context_parallel"] == 0


def test_reports_side_by_side_leave_out_what_is_negligible_in_both():
    """A step that is one program never waits for its host, which counts as a nanosecond; with one micro-batch
    more in flight, pipelines have a bubble in one of the two.
    """
    program = {"devices": 16, "stack": "maxtext", "tp": 8}
    one, other = (dp.estimate(*QUESTION, **program, pp=pp).report for pp in (1, 2))
    assert 0 < float(one.breakdown.host) < 1e-6 * float(one.breakdown.total)
    text = render_table(comparison("report", one, other))
    assert "wait for the host" not in text
    assert "pipeline bubble" in text


def test_what_is_negative_in_the_baseline_changes_by_no_percentage():
    """Memory that is short where some was free: from -0.24 to 0.9 is no change of -477 %."""
    report = dp.estimate(*QUESTION, devices=16, tp=8, pp=1).report
    free, short = (eqx.tree_at(lambda r: r.memory.excess, report, np.asarray(x)) for x in (-0.24, 0.9))
    text = render_table(comparison("report", short, free))
    line = next(row for row in text.splitlines() if "above 0" in row)
    assert "%" not in line


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (lambda: dp.estimate("llama-3-8b", "mi300x-8", tp=1), "Rests on figures of mi300x"),
        (lambda: dp.plan("llama-3-8b", "dgx-a100", devices=8, top=1), "Time 5"),
        (lambda: dp.plan("llama-3-8b", "mi300x-8", top=1), "Rests on figures of mi300x"),
    ],
)  # fmt: skip
def test_an_answer_says_how_sure_it_is_and_what_it_rests_on(answer, line):
    made = answer()
    lines = [text for text in str(made).splitlines() if text.startswith(line)]
    assert len(lines) == 1
    assert ("(90 %: " in lines[0]) != ("no interval" in lines[0])
    assert made.to_dict()["basis"] == ("datasheet" if "mi300x" in line else "calibrated")


def test_a_plan_tells_what_a_whole_training_takes():
    answer = dp.plan(*QUESTION, devices=16, top=2, tokens=1e9, set={"hbm.bandwidth": 1.8e12})
    assert "Training on 1e+09 tokens" in str(answer)
    assert "Overridden" in str(answer)
    assert answer.to_dict()["training"]["tokens"] == 1e9
    assert len(answer.rows()) == 2


def test_a_plan_that_fits_nothing_has_no_best():
    answer = dp.plan("gpt3-175b", "dgx-a100", devices=1)
    assert not answer.fits
    assert answer.best == ()
    assert "No strategy fits memory" in str(answer)
    assert answer.to_dict()["least"]["report"]["memory"]["excess"] > 0


def test_systems_that_are_equal_have_nothing_less():
    asked = {"phase": "decode", "tp": 8, "against": "hgx-h200"}
    equal = str(dp.break_even("llama-2-7b", "hgx-h200", x=("nvlink.bandwidth", "100..900 GB/s"), **asked))
    assert "equal all along" in equal
    assert "changes nothing" not in equal
    asked |= {"x": ("prices.accelerator_markup", (1, 20)), "vary": "second"}
    idle = str(dp.break_even("llama-2-7b", "dgx-a100", **asked))
    assert "dgx-a100 has less all along" in idle
    assert "changes nothing here: h200-sxm-141gb has a published price" in idle
