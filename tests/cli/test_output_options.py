"""Options that name a file are checked before the computation."""

import pytest


@pytest.mark.parametrize(
    ("option", "name"), [("--json", "missing/x.json"), ("--plot", "missing/x.png"), ("--json", ".")]
)
def test_commands_check_their_files_first(run, option, name):
    result = run(f"estimate gpt3-22b dgx-a100 {option} {name}")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{option}: found" in result.stderr


def test_help_says_what_is_searched_in_inference_too(run):
    words = " ".join(run("compare --help").stdout.split())
    assert "split every sequence among them [best layout in training, else 1]" in words
    assert "the experts, 0 for the degree of all other layers [best layout]" in words
    words = " ".join(run("estimate --help").stdout.split())
    assert "split the experts of a layer among them [best layout]" in words


def test_help_says_in_which_units_json_is(run):
    """Areas of chips are in mm², all else in SI units."""
    assert "in SI units, chips in mm and mm²" in " ".join(run("cost --help").stdout.split())
