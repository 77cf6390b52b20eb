"""Files of finished parts: they come back as they were, and damaged ones do not."""

import dataclasses

import numpy as np
import pytest

from diffperf.explore.sweep.part_files import PartFiles
from diffperf.explore.sweep.part_program import Part
from diffperf.explore.sweep.sweep_plan import SweepPlan

SPACE = """
model = "gpt3-22b"
system = "dgx-a100"
pareto = ["time", "memory.peak"]
[[axis]]
path = "strategy.tp"
values = [1, 2, 4, 8]
[[axis]]
path = "hbm.bandwidth"
linear = {from = "1 TB/s", to = "3 TB/s", points = 500}
"""


@pytest.fixture
def files(space_of, tmp_path):
    (tmp_path / "kept").mkdir()
    files = PartFiles(tmp_path / "kept", SweepPlan.of(space_of(SPACE), np.float64, 512, True))
    files.prepare()
    return files


@pytest.fixture
def part(files):
    """A part of random rows."""
    rules = files.plan.rules
    rows = np.empty(300, rules.row_type)
    rows["number"] = np.arange(300)
    for path in rules.row_type.names[1:]:
        rows[path] = np.random.default_rng(len(path)).random(300)
    return Part(rules.of_rows(rows, 400, 350), b"rows of a table" * 50)


def assert_equal(first, second) -> None:
    for field in dataclasses.fields(first):
        one, other = getattr(first, field.name), getattr(second, field.name)
        pairs = zip(one, other, strict=True) if field.name == "best" else [(one, other)]
        assert all(np.array_equal(a, b) for a, b in pairs), field.name


def test_a_part_comes_back_and_has_the_same_bytes_again(files, part):
    assert files.read(0) is None
    files.write(0, part)
    assert_equal(files.read(0), part.summary)
    content = files.summary_file(0).read_bytes()
    files.write(0, part)
    assert files.summary_file(0).read_bytes() == content
    assert files.table_file(0).read_bytes() == part.table
    assert files.read(files.plan.parts.part) is None


@pytest.mark.parametrize("kind", ["summary_file", "table_file"])
def test_damaged_files_are_no_parts(files, part, kind):
    files.write(0, part)
    path = getattr(files, kind)(0)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (content[: len(content) // 2], bytes(len(content)), bytes(flipped), b""):
        path.write_bytes(damaged)
        assert files.read(0) is None
    path.unlink()
    assert files.read(0) is None


@pytest.mark.slow
def test_parts_of_another_plan_are_not_taken_over(files, part, space_of):
    files.write(0, part)
    other = SweepPlan.of(space_of(SPACE.replace("gpt3-22b", "gpt3-175b")), np.float64, 512, True)
    assert PartFiles(files.folder, other).read(0) is None
    single = SweepPlan.of(files.plan.space, np.float32, 512, True)
    assert PartFiles(files.folder, single).read(0) is None


def test_half_written_files_are_removed(files, part):
    files.write(0, part)
    leftover = files.folder / "parts" / "part-000000.npz.unfinished"
    leftover.write_bytes(b"half")
    files.prepare()
    assert not leftover.exists()
    assert_equal(files.read(0), part.summary)
