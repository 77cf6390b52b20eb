"""What the tests of questions share: a folder of compiled programs, and JAX's settings as they were."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _own_programs(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("DIFFPERF_CACHE", str(tmp_path_factory.getbasetemp() / "programs"))
    folder = jax.config.values["jax_compilation_cache_dir"]
    yield
    jax.config.update("jax_compilation_cache_dir", folder)  # the command line sets its own
