"""What the tests of questions share: a folder of compiled programs, and JAX's settings as they were."""

import os

import jax
import pytest


@pytest.fixture(autouse=True)
def _own_programs(monkeypatch):
    monkeypatch.setenv("DIFFPERF_CACHE", os.environ["DIFFPERF_TEST_CACHE"])  # as the library in tests
    folder = jax.config.values["jax_compilation_cache_dir"]
    yield
    jax.config.update("jax_compilation_cache_dir", folder)  # the command line sets its own
