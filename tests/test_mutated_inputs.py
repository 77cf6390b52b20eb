"""Mutated inputs of every command and endpoint are refused in one line or accepted (`mutated_inputs.py`)."""

import mutated_inputs
import pytest
from mutated_inputs import Input, Outcome
from starlette.testclient import TestClient

from diffperf.cli import COMMANDS

CLIENT = TestClient(mutated_inputs.application(mutated_inputs.Checks(lambda: None)))


def test_no_command_is_forgotten():
    assert set(mutated_inputs.GOOD) == set(COMMANDS)


@pytest.mark.parametrize("name", [name for name in mutated_inputs.GOOD if name != "explore"])
def test_a_good_command_line_is_accepted(name, monkeypatch, tmp_path):
    """Otherwise its mutations would be refused for what is wrong with the line itself."""
    monkeypatch.chdir(tmp_path)
    result = mutated_inputs.commanded(tuple(mutated_inputs.GOOD[name].split()))
    assert result is None or result.exit_code == 0, result.stderr


@pytest.mark.parametrize("folder", mutated_inputs.READERS)
def test_files_as_shipped_are_accepted(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = mutated_inputs.shipped(folder)[0]
    for name, content in mutated_inputs.beside(folder, str(path)).items():
        (tmp_path / name).write_bytes(content)
    line = mutated_inputs.READERS[folder].replace("FILE", str(path))
    result = mutated_inputs.commanded(tuple(line.split()))
    assert result is None or result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (RuntimeError("planted"), "traceback"),
        (SystemExit(7), "exit code 7"),
        (SystemExit(0), "wrong success"),
        (SystemExit(1), "not one line"),
    ],
)
def test_a_planted_fault_is_found(planted, fault, monkeypatch, tmp_path):
    def fail(*_):
        raise planted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("diffperf.cli.group.Commands.resolve_command", fail)
    assert fault in mutated_inputs.run_one(Input("list", ("list",), wrong=True), CLIENT).fault


def test_a_wrong_input_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    entry = Input("list", ("list", "--no-such-option"), wrong=True)
    assert mutated_inputs.run_one(entry, CLIENT) == Outcome(True, "")


def test_a_seed_draws_the_same_inputs():
    assert list(mutated_inputs.draws(40, 3)) == list(mutated_inputs.draws(40, 3))
