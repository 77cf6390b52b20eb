"""Sweeps by Dask: a real scheduler and workers on loopback, of which one is killed; and what is refused."""

import importlib
import json
import os
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from helpers import files_of
from space_texts import space_text

from diffperf.api.sweep_answer import cluster_of
from diffperf.errors import ConfigError
from diffperf.explore.sweep import part_cluster
from diffperf.explore.sweep.device_sizes import BLOCK
from diffperf.explore.sweep.part_cluster import Cluster
from diffperf.explore.sweep.part_program import Part, PartProgram
from diffperf.explore.sweep.sweep import sweep
from diffperf.explore.sweep.sweep_plan import SweepPlan

pytestmark = pytest.mark.usefixtures("shared_programs", "short_parts")

# 47 parts of a block each, with a constraint: its closure has to reach the workers.
OPTIONS = """
table = true
pareto = ["time", "memory.peak"]
where = ["strategy.tp <= 4 or strategy.recompute == 'full'"]
"""
SPACE = space_text(OPTIONS, points=3000)


@pytest.fixture
def started(tmp_path):
    """A function that starts a command of Dask; all are ended with the test."""
    processes = []

    def start(name, *options):
        arguments = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options]
        log = (tmp_path / f"{name}-{len(processes)}.log").open("w")
        processes.append(subprocess.Popen(arguments, stdout=log, stderr=log, env=os.environ, cwd=tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_has_the_same_bytes(space_of, tmp_path, started):
    space, file = space_of(SPACE), tmp_path / "scheduler.json"
    options = {"chunk": BLOCK, "dtype": np.float64}
    sweep(space, results=tmp_path / "reference", **options)
    started(
        "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)
    )
    while not file.exists():
        time.sleep(0.05)
    place = ("--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--no-nanny")
    first, second = (started("worker", *place) for _ in range(2))
    address = json.loads(file.read_text())["address"]
    seen = []

    def kill_one(points):
        seen.append(points)
        if len(seen) == 8:
            first.kill()

    cluster = Cluster(0, address, "arguments")
    result = sweep(space, results=tmp_path / "results", cluster=cluster, progress=kill_one, **options)
    assert first.wait() == -9
    assert second.poll() is None
    assert (result.resumed, sum(seen)) == (0, space.size)
    assert files_of(tmp_path / "results") == files_of(tmp_path / "reference")


@pytest.mark.slow
def test_processes_of_this_machine_have_the_same_bytes(space_of, tmp_path):
    space = space_of(SPACE.replace("3000", "300"))
    options = {"chunk": BLOCK, "dtype": np.float64}
    sweep(space, results=tmp_path / "reference", **options)
    sweep(space, results=tmp_path / "results", cluster=Cluster(2, "", "arguments"), **options)
    assert files_of(tmp_path / "results") == files_of(tmp_path / "reference")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "smoke://signals"])
def test_a_wrong_address_is_one_line_within_seconds(space_of, address):
    space = space_of(SPACE)
    importlib.import_module("distributed")  # takes seconds by itself where the machine is busy
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=r"scheduler: found .* expected the address of a Dask") as problem:
        sweep(space, cluster=Cluster(0, address, "command line"))
    assert time.perf_counter() - began < 20  # Dask itself waits for 30
    assert "\n" not in str(problem.value)
    assert address in str(problem.value)


def test_without_dask_the_error_says_what_to_install(space_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"workers: found no package .* pip install 'diffperf\[cluster\]'"):
        sweep(space_of(SPACE), cluster=Cluster(2, "", "command line"))


def test_a_plan_arrives_with_all_its_digits(space_of):
    plan = SweepPlan.of(space_of(SPACE), np.float64, BLOCK, False)
    with jax.enable_x64(False):
        arrived = part_cluster.unpack(part_cluster.pack(plan))
    assert arrived.digest == plan.digest
    assert jax.tree.leaves(arrived.space.inputs)[0].dtype == np.float64


@pytest.mark.slow
def test_a_worker_compiles_a_plan_once(space_of, monkeypatch):
    space, compiled = space_of(SPACE), []
    plan, other = (SweepPlan.of(space, dtype, BLOCK, False) for dtype in (np.float64, np.float32))

    def compile_plan(plan):
        compiled.append(plan.digest)
        return PartProgram(plan)

    monkeypatch.setattr(PartProgram, "compile", compile_plan)
    monkeypatch.setattr(PartProgram, "finish", lambda program, start: Part(program.plan.rules.empty()))
    monkeypatch.setattr(part_cluster, "_programs", {})
    for each in (plan, plan, other, plan):
        part_cluster.finish_part(part_cluster.pack(each), each.digest, 0)
    assert compiled == [plan.digest, other.digest, plan.digest]
    assert len(part_cluster._programs) == 1


def test_workers_and_scheduler_exclude_each_other():
    assert cluster_of(None, None, "arguments") is None
    assert cluster_of(2, None, "arguments") == Cluster(2, "", "arguments")
    with pytest.raises(ConfigError, match="leave out one"):
        cluster_of(2, "tcp://here:1", "arguments")
    with pytest.raises(ConfigError, match="workers"):
        cluster_of(0, None, "arguments")
