"""The page of a design, and what holds it back in sentences."""

import pytest
from click.testing import CliRunner

import diffperf as dp
from diffperf.api.limit_sentences import limit_sentences
from diffperf.cli import cli

PROBLEM = """
model = "llama-3-8b"
system = "dgx-a100"
n_devices = 1
technology = "n7-hbm2e"
phase = "decode"
maximize = "tokens_per_second"
[strategy]
global_batch = 64
sequence_length = 1024
[[variable]]
path = "design.compute_units"
from = 60
to = 160
[[variable]]
path = "design.voltage"
from = "0.55 V"
to = "1 V"
[[constraint]]
quantity = "cost.manufacturing"
at_most = "baseline"
[[constraint]]
quantity = "chip.power"
at_most = "350 W"
[[constraint]]
quantity = "chip.reticle"
at_most = 1
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("problem") / "decoder.toml"
    path.write_text(PROBLEM)
    return path


@pytest.fixture(scope="module")
def answer(problem):
    return dp.codesign(problem, population=64, against=["dgx-h100"])


def test_sentences_name_what_one_more_unit_buys(answer):
    """Numbers as in the rows of the constraints: per unit where a unit is small, else per cent."""
    rows = {row.constraint.quantity: row for row in answer.result.constraints()}
    sentences = limit_sentences(answer.result)
    active = [name for name, row in rows.items() if row.active]
    assert active, "the power holds the design back"
    for name in active:
        (sentence,) = (each for each in sentences if f" of {name} raises" in each)
        assert f"{rows[name].percent:.3g} %" in sentence
    watts = [each for each in sentences if each.startswith("One more watt of chip.power")]
    assert len(watts) == ("chip.power" in active)
    slack = [name for name in rows if name not in active]
    assert not slack or all(name in sentences[len(active)] for name in slack)
    assert "whole numbers and choices of the design as they are" in sentences[-1]


def test_the_page_holds_the_whole_answer(answer):
    page = answer.to_html()
    assert answer.title in page
    for word in ("What holds it back", "dgx-h100", "compute units", "KKT residual", "<svg"):
        assert word in page
    assert " src=" not in page
    assert 'rel="stylesheet"' not in page


def test_the_command_writes_the_page(problem, tmp_path):
    line = ["codesign", str(problem), "--population", "64", "--against", "dgx-h100"]
    result = CliRunner().invoke(cli, [*line, "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.stderr
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert "against systems that are sold" in result.stdout
