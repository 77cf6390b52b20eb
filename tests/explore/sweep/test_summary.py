"""What a sweep keeps without a table, against pandas on the whole table."""

import dataclasses
import itertools

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from space_texts import space_text

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.sweep.axis import Axis
from diffperf.explore.sweep.device_sizes import BLOCK
from diffperf.explore.sweep.histograms import edges
from diffperf.explore.sweep.parts import Parts
from diffperf.explore.sweep.summary import SummaryRules
from diffperf.explore.sweep.sweep import sweep
from diffperf.explore.sweep.sweep_result import result_of, table_rows
from diffperf.quantity import locate

pytestmark = pytest.mark.usefixtures("shared_programs", "compiled")

HEAD = 'model = "gpt3-22b"\nsystem = "dgx-a100"\n'
AXIS = '[[axis]]\npath = "strategy.tp"\npowers_of_two = {from = 1, to = 8}\n'
# Five chunks of one block; layouts that fit, that do not, and that are none.
OPTIONS = """
rank_by = "cost.run"
top = 7
best_by = ["tp", "hbm.bandwidth"]
best_per_value = 3
pareto = ["time", "memory.peak", "mfu"]
histograms = ["time", "mfu"]
"""
AXES = """
[[axis]]
path = "strategy.pp"
values = [1, 2, 5]
[[axis]]
path = "strategy.micro_batch"
values = [1, 2, 4, 8]
"""
SPACE = space_text(OPTIONS, points=23, axes=AXES)


@pytest.fixture
def space(space_of):
    return space_of(SPACE)


@pytest.fixture
def table(space, tmp_path) -> pandas.DataFrame:
    """The rows of all points that are possible layouts and fit memory, in double precision."""
    path = sweep(space, tmp_path / "all.parquet", dtype=np.float64, chunk=space.size).path
    rows = pq.read_table(path).to_pandas()
    return rows[rows["feasible"] & rows["fits"]].reset_index(drop=True)


def fitting_rows(rules, table):
    """The rows of a table of all points that fit memory, and how many points are possible layouts."""
    possible = table["feasible"].to_numpy()
    numbers = np.arange(table.num_rows)
    return table_rows(rules, table, numbers, possible & table["fits"].to_numpy()), int(possible.sum())


def ranked(rows: pandas.DataFrame, path: str, count: int) -> pandas.DataFrame:
    return rows.sort_values(path, kind="stable").head(count)


def dominated(first, second) -> bool:
    """Whether the second point is at least as good, and better somewhere."""
    worse = [(1, "time"), (1, "memory.peak"), (-1, "mfu")]
    differences = [sign * (second[path] - first[path]) for sign, path in worse]
    return max(differences) <= 0 and min(differences) < 0


def check(result, table: pandas.DataFrame, relative: float) -> None:
    """The result of a sweep without a table is what pandas finds in the table."""
    assert result.fitting == len(table) > 100
    best = ranked(table, "cost.run", 7)["cost.run"]
    assert result.best["cost.run"].to_pylist() == pytest.approx(best.tolist(), rel=relative)
    hbm = "system.accelerator.memory.hbm.bandwidth"
    for path in ("strategy.tp", hbm):
        expected = table.groupby(path).apply(lambda rows: ranked(rows, "cost.run", 3))
        found = result.best_by[path].to_pandas()
        assert found[path].tolist() == expected.index.get_level_values(0).tolist()
        assert found["cost.run"].tolist() == pytest.approx(expected["cost.run"].tolist(), rel=relative)
    objectives = ["time", "memory.peak", "mfu"]
    rows = table[objectives].drop_duplicates().to_dict("records")
    front = [row for row in rows if not any(dominated(row, other) for other in rows)]
    front = sorted(tuple(row[path] for path in objectives) for row in front)
    assert result.front.select(objectives).to_pandas().to_numpy() == pytest.approx(
        np.array(front), rel=relative
    )
    for path in ("time", "mfu"):
        bins = np.append(edges(), np.inf)
        counts, _ = np.histogram(table[path].astype(np.float32), bins=bins)
        assert (result.histograms[path].counts == counts).all()
        median = result.histograms[path].quantile(0.5)
        assert median == pytest.approx(table[path].median(), rel=0.125)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1.0, -1.0], ids=["fitting points first", "all points together"])
def test_summaries_equal_brute_force(space, table, monkeypatch, most):
    """However chunks after the first are estimated."""
    monkeypatch.setattr("diffperf.explore.sweep.part_program.MOST_FITTING", most)
    result = sweep(space, chunk=BLOCK, dtype=np.float64, threads=2)
    check(result, table, 1e-12)
    assert result.points == space.size == 2208
    assert result.path is None


@pytest.mark.slow
def test_summaries_of_a_gpu_equal_brute_force(space, table, monkeypatch):
    """A whole chunk is one block there, few rows are copied to the host, and the places of few candidates."""
    for module in ("device_sizes", "chunk_summaries"):
        monkeypatch.setattr(f"diffperf.explore.sweep.{module}.on_cpu", lambda: False)
    monkeypatch.setattr("diffperf.explore.sweep.chunk_summaries._MOST_CANDIDATES", 4)
    check(sweep(space, chunk=2 * BLOCK, dtype=np.float64, threads=2), table, 1e-12)


@pytest.mark.slow
def test_single_precision_is_ranked_again_in_double(space, table):
    result = sweep(space, chunk=BLOCK, dtype=np.float32, threads=1)
    assert result.best["cost.run"].to_pylist() == pytest.approx(
        ranked(table, "cost.run", 7)["cost.run"].tolist(), rel=1e-12
    )
    assert str(result.front["time"].type) == "double"
    assert result.fitting == len(table)


@pytest.mark.slow
def test_a_table_has_the_same_summary(space, table, tmp_path):
    result = sweep(space, tmp_path / "out.parquet", dtype=np.float64, chunk=space.size)
    check(result, table, 1e-12)


def test_merging_is_associative_and_order_does_not_matter(space, table, tmp_path):
    """Ranges of any size, merged in any order, have the summary of the whole."""
    rules = SummaryRules(space, np.dtype(np.float64))
    rows, possible = fitting_rows(rules, pq.read_table(tmp_path / "all.parquet"))
    whole = rules.of_rows(rows, space.size, possible)
    cuts = [0, 5, 900, 901, 1700, space.size]
    parts = []
    for low, high in itertools.pairwise(cuts):
        inside = rows[(rows["number"] >= low) & (rows["number"] < high)]
        parts.append(rules.of_rows(inside, high - low, possible if low == 0 else 0))
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        a, b, c, d, e = (parts[i] for i in order)
        for merged in (
            rules.merge([a, b, c, d, e]),
            rules.merge([rules.merge([a, b]), rules.merge([c, rules.merge([d, e])])]),
        ):
            assert_equal(merged, whole)


def assert_equal(first, second) -> None:
    for field in dataclasses.fields(first):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "best":
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        else:
            assert np.array_equal(one, other), field.name


@pytest.mark.slow
def test_a_second_sweep_with_the_same_checkpoints_is_refused(space, tmp_path):
    refusals = []

    def start_a_second(points):
        if points:
            with pytest.raises(ConfigError, match="another sweep"):
                sweep(space, checkpoints=tmp_path / "kept", chunk=BLOCK, dtype=np.float64)
            refusals.append(points)

    sweep(
        space,
        checkpoints=tmp_path / "kept",
        chunk=BLOCK,
        dtype=np.float64,
        threads=1,
        progress=start_a_second,
    )
    assert len(refusals) == 5


def test_of_equal_points_the_first_counts(space):
    """The last points of every chunk equal the first: nothing depends on how the points are divided."""
    rules = SummaryRules(dataclasses.replace(space, best_by=(), histograms=()), np.dtype(np.float64))
    rows = np.zeros(6, rules.row_type)
    rows["number"] = [5, 1, 4, 2, 3, 0]
    rows["cost.run"] = [1, 2, 1, 2, 1, 3]
    rules = dataclasses.replace(rules, space=dataclasses.replace(rules.space, top=3))
    summary = rules.of_rows(rows, 6, 6)
    assert summary.best[0]["number"].tolist() == [3, 4, 5]
    assert summary.front["number"].tolist() == [0]
    result = result_of(rules, summary, None, resumed=0, seconds=1.0, compile_seconds=0.0)
    assert result.front.num_rows == 1


def long_axis(size: int) -> Axis:
    """An axis of so many values, which need no memory."""
    declared = locate(dp.load_strategy({}), "tp")[1]
    return Axis("strategy.tp", declared, np.broadcast_to(1.0, (size,)), 0)


@pytest.mark.parametrize("size", [1, 512, 65_536, 65_537, 10**7, 10**9, 10**12])
def test_parts_cover_all_points_once(space_of, size):
    parts = Parts.of(dataclasses.replace(space_of(HEAD + AXIS), axes=(long_axis(size),)))
    assert parts.part % parts.chunk == parts.chunk % BLOCK == 0
    assert parts.starts[-1] < size == parts.stop(parts.starts[-1])
    assert len(parts.starts) >= min(16, -(-size // (4 * parts.chunk)))
    chunks = list(parts.chunks(parts.starts[-1]))
    assert chunks[0][0] == parts.starts[-1]
    assert chunks[-1][1] == size
    assert all(first[1] == second[0] for first, second in itertools.pairwise(chunks))


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ('pareto = ["time"]', "pareto", "cost.run"),
        ('pareto = "time"', "pareto", "cost.run"),
        ('pareto = ["time", "cost.rum"]', "pareto[1]", '"cost.run"'),
        ('pareto = ["time", "time"]', "pareto[1]", "leave it out"),
        ('pareto = ["time", "mfu", "hfu", "power", "cost.run"]', "pareto", "cost.run"),
        ('best_by = ["strategy.pp"]', "best_by[0]", '"strategy.tp"'),
        ("best_by = [1]", "best_by", "strategy.tp"),
        ("best_per_value = 0", "best_per_value", "of every value"),
        ('histograms = ["tme"]', "histograms[0]", '"time"'),
    ],
)
def test_bad_requests_are_one_clear_line(space_of, text, key, remedy):
    with pytest.raises(ConfigError) as problem:
        space_of(HEAD + text + "\n" + AXIS)
    assert problem.value.key == key
    assert remedy in problem.value.remedy
    assert "\n" not in str(problem.value)
