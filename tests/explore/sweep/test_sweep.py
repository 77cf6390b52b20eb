import dataclasses
import itertools
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.sweep.device_sizes import BLOCK
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import commonest_violation, parts_folder, sweep
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import feasible

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = """
model = "gpt3-22b"
system = "dgx-a100"
rank_by = "time"
top = 3
[strategy]
micro_batch = 1
global_batch = 16
[[axis]]
path = "strategy.tp"
powers_of_two = {from = 1, to = 8}
[[axis]]
path = "strategy.pp"
values = [1, 2, 5]
[[axis]]
path = "strategy.recompute"
values = ["selective", "full"]
[[axis]]
path = "hbm.bandwidth"
values = ["2 TB/s", "3 TB/s"]
"""
# Three chunks of one block each.
LARGE = SMALL + '[[axis]]\npath = "nvlink.latency"\nlog = {from = "1 us", to = "9 us", points = 30}\n'


@pytest.fixture
def space(tmp_path):
    return space_of(tmp_path, SMALL)


def space_of(folder, text):
    path = folder / "space.toml"
    path.write_text(text, encoding="utf-8")
    return load_space(path)


@pytest.mark.slow
def test_equals_a_loop_of_estimates(space, tmp_path):
    """Every row against the public functions, one estimate at a time, in float64."""
    table = (
        sweep(space, tmp_path / "out.parquet", dtype=np.float64)
        and pq.read_table(tmp_path / "out.parquet").to_pylist()
    )
    model, recorded = dp.load_model("gpt3-22b"), recorded_outputs(space)
    loop = itertools.product((1, 2, 4, 8), (1, 2, 5), ("selective", "full"), (2e12, 3e12))
    for row, (tp, pp, recompute, bandwidth) in zip(table, loop, strict=True):
        system = dp.override(
            dp.load_system("dgx-a100"), {"accelerator.memory.hbm.bandwidth": f"{bandwidth} byte/s"}
        )
        given = {"tp": tp, "pp": pp, "recompute": recompute, "micro_batch": 1, "global_batch": 16}
        strategy = dp.load_strategy(given, n_devices=8)
        report = training(model, system, strategy)
        assert row["strategy.tp"] == tp
        assert row["strategy.recompute"] == recompute
        assert row["system.accelerator.memory.hbm.bandwidth"] == bandwidth
        assert row["feasible"] == bool(feasible(Configuration(model, system, strategy)))
        assert row["fits"] == (float(report.memory.excess) <= 0)
        found = outputs(report)
        assert [row[path] for path in recorded] == pytest.approx(
            [float(found[path][1]) for path in recorded], rel=1e-10
        )


@pytest.mark.slow
def test_many_points_are_compiled_and_few_are_not(space, tmp_path, request):
    """NumPy evaluates few points, and XLA's program comes to the same rows."""
    interpreted = sweep(space, tmp_path / "few.parquet", dtype=np.float64)
    request.getfixturevalue("compiled")
    compiled = sweep(space, tmp_path / "many.parquet", dtype=np.float64)
    few, many = pq.read_table(interpreted.path), pq.read_table(compiled.path)
    assert few.schema == many.schema
    for path in few.column_names:
        if path in recorded_outputs(space):
            np.testing.assert_allclose(few[path], many[path], rtol=1e-12)
        else:
            assert few[path].to_pylist() == many[path].to_pylist()


@pytest.mark.slow
def test_float32_agrees(space, tmp_path):
    sweep(space, tmp_path / "single.parquet", dtype=np.float32)
    sweep(space, tmp_path / "double.parquet", dtype=np.float64)
    single, double = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("single", "double"))
    assert str(single["time"].type) == "float"
    for path in recorded_outputs(space):
        assert np.allclose(single[path], double[path], rtol=1e-4), path


@pytest.mark.slow
def test_best_rows_are_the_best_of_the_table(space, tmp_path):
    result = sweep(space, tmp_path / "out.parquet")
    rows = [row for row in pq.read_table(result.path).to_pylist() if row["feasible"] and row["fits"]]
    assert result.fitting == len(rows) > 3
    kept = [{name: row[name] for name in result.best.column_names} for row in rows]
    assert result.best.to_pylist() == sorted(kept, key=lambda row: row["time"])[:3]
    upward = sweep(dataclasses.replace(space, descending=True), tmp_path / "out.parquet")
    assert upward.best.to_pylist()[0]["time"] == max(row["time"] for row in rows)


def test_nothing_fits(tmp_path):
    tiny = space_of(tmp_path, SMALL + '[set]\n"hbm.capacity" = "1 GB"\n')
    result = sweep(tiny, tmp_path / "out.parquet")
    assert (result.fitting, result.best.num_rows) == (0, 0)
    assert result.feasible > 0


def test_a_space_without_possible_layouts_names_the_rule(tmp_path):
    space = space_of(
        tmp_path,
        SMALL.replace("powers_of_two = {from = 1, to = 8}", "values = [7, 2]")
        + "[set]\nsystem.n_devices = 7\n",
    )
    assert sweep(space, tmp_path / "out.parquet").feasible == 0
    reason = commonest_violation(space)
    assert "\n" not in reason
    assert reason.startswith("12 of 24 points examined")
    assert "strategy.tp" in reason
    assert "a divisor of the heads" in reason


@pytest.mark.slow
def test_one_row_group_a_chunk_and_no_leftovers(tmp_path):
    space = space_of(tmp_path, LARGE)
    result = sweep(space, tmp_path / "out.parquet", chunk=BLOCK)
    assert space.size == 1440
    file = pq.ParquetFile(result.path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [512, 512, 416]
    units = {field.name: (field.metadata or {}).get(b"unit") for field in file.schema_arrow}
    assert units["time"] == b"s"
    assert units[space.axes[-1].path] == b"s"
    assert units["feasible"] is None
    assert not parts_folder(result.path).exists()
    whole, cut = (
        pq.read_table(path) for path in (sweep(space, tmp_path / "whole.parquet").path, result.path)
    )
    assert cut.select(["strategy.recompute", "feasible"]).equals(
        whole.select(["strategy.recompute", "feasible"])
    )
    assert np.allclose(cut["time"], whole["time"], rtol=1e-5)


@pytest.mark.slow
def test_one_trace_for_the_whole_sweep(tmp_path, monkeypatch):
    from diffperf.explore.sweep import point_estimates as module

    traces = []
    original = module.feasible
    monkeypatch.setattr(module, "feasible", lambda *inputs: traces.append(1) or original(*inputs))
    # Not a program that other tests share.
    monkeypatch.setattr("diffperf.explore.sweep.part_program.chunk_tables", module.chunk_tables)
    sweep(space_of(tmp_path, LARGE), tmp_path / "out.parquet", chunk=BLOCK)
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("short_parts")
def test_an_interrupted_sweep_resumes_to_the_same_bytes(tmp_path):
    space, seen = space_of(tmp_path, LARGE), []
    reference = sweep(space, tmp_path / "reference.parquet", chunk=BLOCK)

    def interrupt(points):
        seen.append(points)
        if len(seen) == 4:
            raise KeyboardInterrupt

    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        sweep(space, out, chunk=BLOCK, threads=1, progress=interrupt)
    assert not out.exists()
    kept = sorted(parts_folder(out).glob("parts/*.npz"))
    assert kept
    kept[0].unlink()  # a hole in the middle of what is there is filled too

    resumed = sweep(space, out, chunk=BLOCK)
    assert resumed.resumed > 0
    assert out.read_bytes() == reference.path.read_bytes()
    assert resumed.best.equals(reference.best)
    assert (resumed.feasible, resumed.fitting) == (reference.feasible, reference.fitting)


@pytest.mark.slow
@pytest.mark.usefixtures("short_parts")
def test_parts_of_another_space_are_not_taken_over(tmp_path):
    space, out = space_of(tmp_path, LARGE), tmp_path / "out.parquet"

    def interrupt(points):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(space, out, chunk=BLOCK, progress=interrupt)
    other = space_of(tmp_path, LARGE.replace("global_batch = 16", "global_batch = 32"))
    assert sweep(other, out, chunk=BLOCK).resumed == 0


@pytest.mark.slow
def test_many_points_a_second(tmp_path):
    """A floor far below what a core does (hundreds of thousands), so that only a loop over points or a
    retrace fails it."""
    space = space_of(tmp_path, LARGE.replace("points = 30", "points = 1000"))
    began = time.perf_counter()
    result = sweep(space, tmp_path / "out.parquet")
    assert result.points == 48_000
    assert result.points_per_second > 10_000
    assert time.perf_counter() - began < 60
