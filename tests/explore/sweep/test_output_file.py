"""What may be written, by how many sweeps at once, and what becomes of damaged checkpoints."""

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from diffperf.errors import ConfigError
from diffperf.explore.sweep.device_sizes import BLOCK
from diffperf.explore.sweep.output_file import check_output_file, only_writer
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import parts_folder, sweep

pytestmark = pytest.mark.usefixtures("shared_programs", "short_parts")

# Three chunks of one block each.
SPACE = """
model = "gpt3-22b"
system = "dgx-a100"
[strategy]
global_batch = 16
[[axis]]
path = "strategy.tp"
powers_of_two = {from = 1, to = 8}
[[axis]]
path = "nvlink.latency"
log = {from = "1 us", to = "9 us", points = 360}
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(SPACE, encoding="utf-8")
    return load_space(path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> bytes:
    """The file of a sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "space.toml").write_text(SPACE, encoding="utf-8")
    return sweep(load_space(folder / "space.toml"), folder / "out.parquet", chunk=BLOCK).path.read_bytes()


def interrupt(points):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_second_sweep_to_the_same_file_is_refused_and_the_first_stays_whole(space, reference, tmp_path):
    out, refusals = tmp_path / "out.parquet", []

    def start_a_second(points):
        with pytest.raises(ConfigError) as problem:
            sweep(space, out, chunk=BLOCK)
        refusals.append(str(problem.value))

    result = sweep(space, out, chunk=BLOCK, progress=start_a_second)
    assert len(refusals) == 4
    for line in refusals:
        assert "\n" not in line
        assert line.startswith(f"{out}: found another sweep")
        assert "name another output" in line
    assert result.points == pq.read_table(out).num_rows == 1440
    assert out.read_bytes() == reference
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "space.toml"]


@pytest.mark.slow
def test_sweeps_to_different_files_do_not_wait_for_one_another(space, tmp_path):
    with only_writer(tmp_path / "other.parquet"):
        assert sweep(space, tmp_path / "out.parquet", chunk=BLOCK).points == 1440


def test_a_lock_file_left_behind_blocks_nobody(tmp_path):
    """A killed process leaves its lock file, but no lock."""
    out = tmp_path / "out.parquet"
    lock = FileLock(tmp_path / "out.parquet.lock")
    with lock, pytest.raises(ConfigError), only_writer(out):
        pass
    (tmp_path / "out.parquet.lock").touch()
    with only_writer(out):
        pass
    assert list(tmp_path.iterdir()) == []


def test_results_in_the_working_directory_have_a_lock(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path / "results")
    with only_writer(Path(".")):
        assert [path.name for path in tmp_path.glob("*.lock")] == ["results.lock"]


def test_a_folder_that_takes_no_files_is_not_another_sweep(tmp_path, monkeypatch):
    def refuse(dir):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ConfigError) as problem, only_writer(tmp_path / "out.parquet"):
        pass
    assert f"found a folder that takes no files, {tmp_path} (Permission denied)" in str(problem.value)


@pytest.mark.slow
def test_damaged_parts_are_estimated_again(space, reference, tmp_path):
    out, done = tmp_path / "out.parquet", []

    def interrupt_at_the_last_part(points):
        done.append(points)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(space, out, chunk=BLOCK, threads=1, progress=interrupt_at_the_last_part)
    first, second = sorted(parts_folder(out).glob("parts/*.npz"))
    truncated = first.read_bytes()
    first.write_bytes(truncated[: len(truncated) // 2])
    second.write_bytes(bytes(len(second.read_bytes())))  # only zeros
    result = sweep(space, out, chunk=BLOCK)
    assert result.resumed == 0
    assert out.read_bytes() == reference


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "found a folder; expected the name of a Parquet file"),
        ("folder", "found a folder; expected the name of a Parquet file"),
        ("x.csv", 'found "x.csv"; expected .* ends in .parquet or .pq; write .*x.parquet'),
        ("x.xlsx", 'found "x.xlsx"; expected .* ends in .parquet or .pq; write .*x.parquet'),
        ("x", 'found "x"; expected .* ends in .parquet or .pq; write .*x.parquet'),
        ("nowhere/out.parquet", "create the folder first"),
        ("space.toml", "found a file that is not a Parquet table"),
    ],
)
def test_a_file_that_cannot_or_should_not_be_written_is_refused_before_computing(
    space, tmp_path, monkeypatch, name, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before = (tmp_path / "space.toml").read_bytes()
    with pytest.raises(ConfigError, match=words):
        sweep(space, name, progress=interrupt)
    assert (tmp_path / "space.toml").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "space.toml"]


@pytest.mark.slow
def test_an_empty_file_and_an_earlier_table_may_be_replaced(space, tmp_path):
    out = tmp_path / "out.parquet"
    out.touch()
    check_output_file(out)
    sweep(space, out)
    check_output_file(out)


def test_the_table_and_the_results_need_two_places(space, tmp_path):
    with pytest.raises(ConfigError, match="both --out and --results"):
        sweep(space, tmp_path / "x.parquet", results=tmp_path / "x.parquet")
