"""What the tests of sweeps share: their compiled programs, and spaces from the text of a file."""

import dataclasses
from collections.abc import Callable

import pytest

from diffperf.explore.sweep.chunk_files import fingerprint
from diffperf.explore.sweep.chunk_summaries import ChunkSummaries, compile_summaries
from diffperf.explore.sweep.point_estimates import compile_chunk, compile_points
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.summary_files import summary_fingerprint

_programs: dict[str, Callable | ChunkSummaries] = {}


def _compiled_once(space, chunk, dtype) -> Callable:
    """The program of a sweep, compiled by the first test whose chunks would have the same bytes."""
    key = fingerprint(space, chunk, dtype)
    if key not in _programs:
        _programs[key] = compile_chunk(space, chunk, dtype)
    return _programs[key]


def _points_once(space, dtype) -> Callable:
    """The program of single points, compiled by the first test that needs it."""
    key = "points" + fingerprint(space, 0, dtype)
    if key not in _programs:
        _programs[key] = compile_points(space, dtype)
    return _programs[key]


def _summaries_once(rules, chunk) -> ChunkSummaries:
    """The program of a sweep without a table, compiled by the first test with the same summaries."""
    key = summary_fingerprint(rules, chunk, 0)
    if key not in _programs:
        _programs[key] = compile_summaries(rules, chunk)
    return dataclasses.replace(_programs[key], rules=rules)


@pytest.fixture
def shared_programs(monkeypatch):
    """Sweeps of one space share a program from test to test, as their chunks would be shared."""
    monkeypatch.setattr("diffperf.explore.sweep.table_sweep.compile_chunk", _compiled_once)
    monkeypatch.setattr("diffperf.explore.sweep.summary_sweep.compile_summaries", _summaries_once)
    monkeypatch.setattr("diffperf.explore.sweep.summary_sweep.compile_points", _points_once)


@pytest.fixture
def space_of(tmp_path):
    """A space from the text of its file."""

    def build(text: str):
        path = tmp_path / "space.toml"
        path.write_text(text, encoding="utf-8")
        return load_space(path)

    return build
