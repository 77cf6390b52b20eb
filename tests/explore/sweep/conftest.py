"""What the tests of sweeps share: their compiled programs."""

from collections.abc import Callable

import pytest

from diffperf.explore.sweep.chunk_files import fingerprint
from diffperf.explore.sweep.point_estimates import compile_chunk

_programs: dict[str, Callable] = {}


def _compiled_once(space, chunk, dtype) -> Callable:
    """The program of a sweep, compiled by the first test whose chunks would have the same bytes."""
    key = fingerprint(space, chunk, dtype)
    if key not in _programs:
        _programs[key] = compile_chunk(space, chunk, dtype)
    return _programs[key]


@pytest.fixture
def shared_programs(monkeypatch):
    """Sweeps of one space share a program from test to test, as their chunks would be shared."""
    monkeypatch.setattr("diffperf.explore.sweep.sweep.compile_chunk", _compiled_once)
