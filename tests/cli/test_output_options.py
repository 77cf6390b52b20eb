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
