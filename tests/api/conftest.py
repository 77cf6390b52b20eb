"""What the tests of questions share: a folder of compiled programs."""

import os

import pytest


@pytest.fixture(autouse=True)
def _own_programs(monkeypatch):
    monkeypatch.setenv("DIFFPERF_CACHE", os.environ["DIFFPERF_TEST_CACHE"])  # as the library in tests
