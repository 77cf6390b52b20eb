"""What the tests of sweeps share: their compiled programs, and spaces from the text of a file."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from diffperf.explore.sweep.chunk_summaries import ChunkSummaries, compile_summaries
from diffperf.explore.sweep.parts import Parts
from diffperf.explore.sweep.point_estimates import chunk_tables, point_tables, recorded_outputs
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.summary import SummaryRules
from diffperf.explore.sweep.sweep_plan import SweepPlan

_programs: dict[str, Callable | ChunkSummaries] = {}


def _key(space, chunk, dtype) -> str:
    """Programs of rows depend on what a space asks to keep in no way but the outputs."""
    recorded = repr(recorded_outputs(space))
    space = dataclasses.replace(space, best_by=(), objectives=(), histograms=(), top=1)
    return SweepPlan(SummaryRules(space, np.dtype(dtype)), Parts(chunk, 0, ())).digest + recorded


def _compiled_once(space, chunk, dtype) -> Callable:
    """The program of a sweep, compiled by the first test whose chunks would have the same bytes."""
    key = _key(space, chunk, dtype)
    if key not in _programs:
        _programs[key] = chunk_tables(space, chunk, dtype)
    return _programs[key]


def _points_once(space, dtype) -> Callable:
    """The program of single points, compiled by the first test that needs it."""
    key = "points" + _key(space, 0, dtype)
    if key not in _programs:
        _programs[key] = point_tables(space, dtype)
    return _programs[key]


def _summaries_once(rules, chunk) -> ChunkSummaries:
    """The program of a sweep without a table, compiled by the first test with the same summaries."""
    key = SweepPlan(rules, Parts(chunk, 0, ())).digest
    if key not in _programs:
        _programs[key] = compile_summaries(rules, chunk)
    return dataclasses.replace(_programs[key], rules=rules)


@pytest.fixture
def shared_programs(monkeypatch):
    """Sweeps of one space share a program from test to test, as their chunks would be shared."""
    monkeypatch.setattr("diffperf.explore.sweep.part_program.chunk_tables", _compiled_once)
    monkeypatch.setattr("diffperf.explore.sweep.part_program.compile_summaries", _summaries_once)
    monkeypatch.setattr("diffperf.explore.sweep.double_precision.point_tables", _points_once)


@pytest.fixture
def compiled(monkeypatch):
    """Sweeps of few points are compiled too, as those of many are."""
    monkeypatch.setattr("diffperf.explore.sweep.part_program.FEW", 0)
    monkeypatch.setattr("diffperf.explore.sweep.point_estimates.FEW", 0)


@pytest.fixture
def short_parts(monkeypatch):
    """Parts of one chunk, so that small spaces have several."""
    monkeypatch.setattr("diffperf.explore.sweep.parts._CHUNKS", (1, 1))
    monkeypatch.setattr("diffperf.explore.sweep.parts._TABLE_CHUNKS", (1, 1))


@pytest.fixture
def space_of(tmp_path):
    """A space from the text of its file."""

    def build(text: str):
        path = tmp_path / "space.toml"
        path.write_text(text, encoding="utf-8")
        return load_space(path)

    return build
