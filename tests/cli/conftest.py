"""What the tests of the command line share: an empty folder to run in, and one compile cache."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import diffperf
from diffperf.cli import cli


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory) -> Path:
    """One folder of compiled programs for the session, which the workers of a parallel run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compile_cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path, compile_cache) -> Callable[..., Result]:
    """Runs a command line in an empty folder: `run("list models")`."""
    monkeypatch.setenv("DIFFPERF_CACHE", str(compile_cache))
    monkeypatch.chdir(tmp_path)

    def invoke(line: str, *more: str) -> Result:
        return CliRunner().invoke(cli, [*line.split(), *more])

    return invoke


@pytest.fixture
def answer(run) -> Callable[..., dict]:
    """Runs a command line that writes JSON to stdout, and reads it."""

    def invoke(line: str, *more: str) -> dict:
        result = run(line, *more)
        assert result.exit_code == 0, result.stderr
        content = json.loads(result.stdout)
        assert content.pop("diffperf") == {"version": diffperf.__version__, "schema": 1}
        return content

    return invoke
