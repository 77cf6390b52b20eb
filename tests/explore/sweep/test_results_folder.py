"""A results folder: what it holds, whom it refuses, and that killed sweeps come to the same bytes."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import files_of
from space_texts import space_text

from diffperf.errors import ConfigError
from diffperf.explore.sweep.device_sizes import BLOCK
from diffperf.explore.sweep.part_files import PartFiles
from diffperf.explore.sweep.sweep import sweep

pytestmark = pytest.mark.usefixtures("shared_programs", "short_parts")

# Six parts of a block each.
OPTIONS = """
rank_by = "cost.run"
table = true
best_by = ["tp"]
pareto = ["time", "memory.peak"]
histograms = ["time", "mfu"]
"""
SPACE = space_text(OPTIONS, points=350)


@pytest.fixture
def space(space_of):
    return space_of(SPACE)


def run(space, folder, **options):
    return sweep(space, results=folder, chunk=BLOCK, dtype=np.float64, **options)


def refused(space, folder):
    """The one line that refuses a sweep, before it has computed anything."""
    with pytest.raises(ConfigError) as problem:
        run(space, folder, progress=lambda points: pytest.fail("it has begun"))
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_it_holds_the_answer_the_table_and_the_manifest(space, tmp_path):
    folder = tmp_path / "results"
    result = run(space, folder)
    assert sorted(files_of(folder)) == [
        "answer.json",
        "best.parquet",
        "best_by.strategy.tp.parquet",
        "front.parquet",
        "histograms.parquet",
        "manifest.json",
        *(f"parts/part-{i:06d}.npz" for i in range(6)),
        "sample.parquet",
        *(f"table/part-{i:06d}.parquet" for i in range(6)),
    ]
    table = pq.read_table(result.path)
    assert table.num_rows == space.size == 2800
    assert table.schema.field("time").metadata == {b"unit": b"s"}
    fitting = table.to_pandas().query("feasible and fits")
    best = pq.read_table(folder / "best.parquet")
    assert best["cost.run"].to_pylist() == sorted(fitting["cost.run"])[:10]
    assert best.schema.field("cost.run").metadata == {b"unit": b"USD"}
    histogram = pq.read_table(folder / "histograms.parquet").to_pandas()
    assert (histogram.groupby("output")["points"].sum() == len(fitting)).all()
    answer = json.loads((folder / "answer.json").read_text())
    assert (answer["points"], answer["fitting"]) == (2800, len(fitting))
    assert answer["best"] == best.to_pylist()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["kept"] == ["summaries", "table"]
    assert manifest["parts"] == {"count": 6, "points": BLOCK, "chunk": BLOCK}
    assert manifest["outputs"]["energy.total"] == "J"
    assert manifest["inputs"]["strategy.global_batch"] == 16


def test_a_single_file_has_the_same_rows(space, tmp_path):
    run(space, tmp_path / "results")
    out = sweep(space, tmp_path / "all.parquet", chunk=BLOCK, dtype=np.float64).path
    assert pq.read_table(out).equals(pq.read_table(tmp_path / "results" / "table"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "results", "space.toml"]


@pytest.mark.slow
def test_damaged_and_missing_parts_are_estimated_again(space, tmp_path):
    folder = tmp_path / "results"
    run(space, folder)
    whole = files_of(folder)
    assert run(space, folder).resumed == space.size
    assert files_of(folder) == whole
    (folder / "parts" / "part-000001.npz").write_bytes(whole["parts/part-000001.npz"][:-300])
    (folder / "table" / "part-000003.parquet").write_bytes(bytes(900))
    (folder / "table" / "part-000004.parquet").unlink()
    (folder / "front.parquet").unlink()
    assert run(space, folder).resumed == space.size - 3 * BLOCK
    assert files_of(folder) == whole


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(space, tmp_path):
    folder, done = tmp_path / "results", []
    run(space, tmp_path / "reference")

    def interrupt(points):
        done.append(points)
        if len(done) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(space, folder, threads=1, progress=interrupt)
    assert not json.loads((folder / "manifest.json").read_text())["complete"]
    assert 0 < run(space, folder).resumed < space.size
    assert files_of(folder) == files_of(tmp_path / "reference")


def test_a_second_sweep_on_the_same_folder_is_refused(space, tmp_path):
    refusals = []

    def start_a_second(points):
        if points:
            with pytest.raises(ConfigError, match="another sweep that is writing there") as problem:
                run(space, tmp_path / "results")
            refusals.append(str(problem.value))

    run(space, tmp_path / "results", threads=1, progress=start_a_second)
    assert len(refusals) == 6
    assert all("\n" not in line for line in refusals)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "space.toml"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("global_batch = 16", "global_batch = 32"), "strategy.global_batch is 16.0, not 32.0"),
        pytest.param(("points = 350", "points = 340"), "points is 2800, not 2720", marks=pytest.mark.slow),
        pytest.param(("linear = {", "log = {"), "values on its axes", marks=pytest.mark.slow),
        pytest.param(
            ('rank_by = "cost.run"', 'rank_by = "mfu"'),
            'rank_by is "cost.run", not "mfu"',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("table = true", "table = false"),
            'kept is ["summaries", "table"], not ["summaries"]',
            marks=pytest.mark.slow,
        ),
        pytest.param(('"dgx-a100"', '"dgx-h100"'), "not", marks=pytest.mark.slow),
    ],
)
def test_results_of_another_space_are_refused_with_what_differs(space, space_of, tmp_path, change, words):
    folder = tmp_path / "results"

    def interrupt(points):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(space, folder, progress=interrupt)
    before = files_of(folder)
    line = refused(space_of(SPACE.replace(*change)), folder)
    assert line.startswith(f"{folder}: manifest.json: found the results of another sweep: ")
    assert words in line
    assert "--results" in line
    assert files_of(folder) == before


def test_folders_that_hold_anything_else_are_refused(space, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert "a folder without manifest.json" in refused(space, tmp_path / "mine")
    assert "found a file" in refused(space, tmp_path / "space.toml")
    assert "create the folder first" in refused(space, tmp_path / "nowhere" / "results")
    (tmp_path / "mine" / "manifest.json").write_text("{half")
    assert "found a damaged file" in refused(space, tmp_path / "mine")
    (tmp_path / "mine" / "manifest.json").write_text('{"schema": 99}')
    assert "schema: found 99" in refused(space, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
def test_checkpoints_of_another_space_are_given_up(space, space_of, tmp_path):
    folder, done = tmp_path / "space.sweep", []

    def interrupt(points):
        done.append(points)
        if len(done) == 5:
            raise KeyboardInterrupt

    options = {"checkpoints": folder, "chunk": BLOCK, "dtype": np.float64, "threads": 1}
    with pytest.raises(KeyboardInterrupt):
        sweep(space, progress=interrupt, **options)
    assert list(folder.glob("parts/*.npz"))
    assert sweep(space_of(SPACE.replace("batch = 16", "batch = 32")), **options).resumed == 0
    assert not folder.exists()


def test_no_folder_but_one_of_checkpoints_is_deleted(space, tmp_path):
    results = tmp_path / "space.sweep"
    run(space, results)
    whole = files_of(results)
    with pytest.raises(ConfigError, match="found the results of a sweep; expected a folder of checkpoints"):
        sweep(space, checkpoints=results, chunk=BLOCK, dtype=np.float64)
    assert files_of(results) == whole


def test_files_that_no_sweep_has_written_stay(space, tmp_path):
    mine = tmp_path / "mine"
    for name in ("thesis.txt", "parts/notes.txt", "data.unfinished/plan.txt"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(name)
    whole = files_of(mine)
    sweep(space, checkpoints=mine, chunk=BLOCK, dtype=np.float64)
    assert files_of(mine) == whole


def test_parts_of_another_sweep_are_removed_where_the_manifest_is_lost(space, space_of, tmp_path):
    folder, smaller = tmp_path / "results", space_of(space_text(OPTIONS, points=150))
    run(space, folder)
    (folder / "manifest.json").unlink()
    run(smaller, folder)
    run(smaller, tmp_path / "reference")
    assert pq.read_table(folder / "table").num_rows == smaller.size == 1200
    assert files_of(folder) == files_of(tmp_path / "reference")


@pytest.mark.slow
def test_single_precision_that_overflows_goes_on_in_double(space, tmp_path, monkeypatch):
    """The last part has an estimate that is no number, and all parts are estimated again."""
    from diffperf.explore.sweep.part_program import PartProgram

    space, finish = dataclasses.replace(space, table=False), PartProgram.finish

    def overflowing(program, start, done):
        part = finish(program, start, done)
        unsound = int(start > 4 * BLOCK and not program.plan.is_double)
        return dataclasses.replace(part, summary=dataclasses.replace(part.summary, unsound=unsound))

    def interrupt_in_double(files, start, part):
        if files.plan.is_double and start:
            raise KeyboardInterrupt
        write(files, start, part)

    write = PartFiles.write
    monkeypatch.setattr(PartProgram, "finish", overflowing)
    options = {"chunk": BLOCK, "dtype": np.float32, "threads": 1}
    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, "write", interrupt_in_double)
        with pytest.raises(KeyboardInterrupt):
            sweep(space, results=tmp_path / "results", **options)
    resumed = sweep(space, results=tmp_path / "results", **options)
    assert resumed.resumed == BLOCK  # the part in double precision, and none in single
    reference = sweep(space, results=tmp_path / "reference", **options)
    assert files_of(tmp_path / "results") == files_of(tmp_path / "reference")
    assert reference.best.equals(run(space, tmp_path / "double").best)


KILLED = """
import sys
import numpy as np
from diffperf.explore.sweep import parts
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import sweep

parts._CHUNKS = parts._TABLE_CHUNKS = (1, 1)
print("begins", flush=True)
sweep(load_space(sys.argv[1]), results=sys.argv[2], chunk=512, dtype=np.float64, threads=1)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_anywhere_comes_to_the_same_bytes(space_of, tmp_path):
    """Kills at random moments, some while it compiles, most while it writes its eighty parts."""
    space_of(SPACE.replace("points = 350", "points = 5000"))
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def start(folder):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "space.toml"), str(tmp_path / folder)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        return process

    def finished():
        return len(list((tmp_path / "results").glob("parts/*.npz")))

    begun = time.monotonic()
    assert start("reference").wait() == 0
    whole = time.monotonic() - begun  # a loaded machine needs long to compile
    draw, seen = random.Random(0), []
    for _ in range(6):
        process, before = start("results"), finished()
        # Some are killed at any time, the others after some more parts.
        deadline, more = time.monotonic() + draw.uniform(0.04, 1) * whole, draw.randint(1, 12)
        while process.poll() is None and time.monotonic() < deadline and finished() < before + more:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        process.kill()
        process.wait()
        seen.append(finished())
    assert 0 < seen[-1] < 79, seen
    assert start("results").wait() == 0
    assert files_of(tmp_path / "results") == files_of(tmp_path / "reference")
