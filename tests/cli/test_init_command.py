"""diffperf init: files that it writes, and those that it leaves alone."""

import pytest

from diffperf.api.templates import template


def test_the_command_writes_a_file_once(run, tmp_path):
    path = tmp_path / "gemm.csv"
    command = f"init measurements {path} --like gemm"
    first = run(command)
    assert first.exit_code == 0
    assert f"diffperf validate {path}" in first.stdout.replace("\n", "")
    path.write_text("mine", encoding="utf-8")
    again = run(command)
    assert (again.exit_code, path.read_text(encoding="utf-8")) == (1, "mine")
    assert "add --force" in again.stderr
    assert run(f"{command} --force").exit_code == 0
    assert path.read_text(encoding="utf-8") == template("measurements", "gemm")


@pytest.mark.parametrize(("kind", "ending"), [("stack", ".toml"), ("measurements", ".csv")])
def test_a_file_without_an_ending_gets_that_of_its_kind(run, tmp_path, kind, ending):
    """Commands take a name without an ending for that of a shipped config, so the next command would fail."""
    written = tmp_path / f"mine{ending}"
    answer = run(f"init {kind} {tmp_path / 'mine'}")
    assert str(written) in answer.stdout.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [written.name]


def test_validate_prints_a_table_that_it_reads(run, tmp_path):
    table = run("validate --template gemm").stdout
    (tmp_path / "table.csv").write_text(table, encoding="utf-8")
    assert "1 of 1 rows evaluated" in run("validate table.csv").stdout


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("init sistem -", 'did you mean "system"?'),
        ("init system - --like dgx-h101", 'command line: --like: found "dgx-h101"'),
        ("init system - --like dgx-h101", 'did you mean "dgx-h100"?'),
        ("init study study.toml", 'FILE: found "study.toml"; expected a file name ending in .py'),
        ("init measurements - --like gem", 'did you mean "gemm"?'),
        ("validate --template gem", 'did you mean "gemm"?'),
        ("init system /nowhere/mine.toml", "create the folder"),
    ],
)
def test_what_there_is_no_template_for_is_one_line(run, command, hint):
    result = run(command)
    assert result.exit_code != 0
    assert hint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
