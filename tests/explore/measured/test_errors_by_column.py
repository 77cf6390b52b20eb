"""Which column of a table explains the spread of residuals: known answers, and numpy's own variances."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffperf.explore.measured.column_words import words
from diffperf.explore.measured.errors_by_column import EMPTY, OTHER, explained_share, grouped, residuals
from diffperf.explore.measured.schemas import SCHEMAS
from diffperf.explore.measured.statistics import Evaluation

M = SCHEMAS["gemm"]["m"]


def evaluation(ratio: float, measured: float = 1e-3, **cells: object) -> Evaluation:
    """A row of a GEMM whose predicted time is `ratio` times the measured one."""
    texts = {name: str(value) for name, value in cells.items()}
    return Evaluation(texts, {"latency_s": measured}, {"latency_s": ratio * measured})


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-2, 2)), min_size=6, max_size=40))
def test_the_share_is_one_less_the_ratio_of_numpys_variances(rows):
    groups, values = np.array([group for group, _ in rows]), np.array([value for _, value in rows])
    share, counts = explained_share(values, groups), np.bincount(groups)
    present, n = counts[counts > 0], len(values)
    if n <= len(present) or values.var() < 1e-20:
        assert share == 0
        return
    pooled = sum(
        values[groups == group].var() * len(values[groups == group]) for group in set(groups.tolist())
    )
    expected = 1 - pooled / (n - len(present)) / values.var(ddof=1)
    assert share == pytest.approx(max(0, expected), abs=1e-9)


def test_groups_that_mean_nothing_explain_nothing_however_many_they_are():
    """The correlation ratio that is not corrected says about 10 % here."""
    shares = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        values, groups = random.normal(size=200), random.integers(0, 20, 200)
        shares.append(explained_share(values, groups))
        means = np.array([values[groups == group].mean() for group in range(20)])[groups]
        assert np.var(means) / np.var(values) > shares[-1] + 0.05
    assert np.mean(shares) < 0.04


def test_a_residual_of_one_column_alone_is_explained_by_it_alone():
    random = np.random.default_rng(1)
    rows = [
        evaluation(
            {128: 0.7, 256: 1.0, 512: 1.6}[m],
            m=m,
            n=int(random.integers(1, 1e6)),
            dtype=random.choice(["bf16", "fp8"]),
            k=4096,
            id=index,
        )
        for index, m in enumerate(random.choice([128, 256, 512], 300))
    ]
    found = residuals("gemm", rows, "latency_s")
    shares = {each.column: each.share for each in found.explained}
    assert list(shares) == ["m", *(name for name in shares if name != "m")]
    assert shares["m"] == pytest.approx(1)
    assert set(shares) == {"m", "n", "dtype"}  # not the constant one, the name or what was measured
    assert max(shares["n"], shares["dtype"]) < 0.05
    np.testing.assert_allclose(found.ratios, [row.predicted["latency_s"] / 1e-3 for row in rows])


def test_deciles_hold_a_tenth_of_the_rows_each():
    values = np.random.default_rng(2).lognormal(5, 3, 1000)
    found = grouped("m", [repr(float(value)) for value in values], M, np.log(values))
    assert found is not None
    assert found.values is not None
    assert np.ptp(np.bincount(found.groups)) <= 2
    assert found.share > 0.9  # the residual is the column's logarithm
    ends = [
        (found.values[found.groups == group].min(), found.values[found.groups == group].max())
        for group in range(10)
    ]
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ends))


def test_the_ten_most_frequent_texts_have_groups_and_empty_cells_one_of_their_own():
    texts = [f"name-{index}" for index in range(100) for _ in range(100 - index)]
    found = grouped("dtype", texts, SCHEMAS["gemm"]["dtype"], np.zeros(len(texts)))
    assert found is not None
    assert found.values is None
    assert found.names == (*(f"name-{index}" for index in range(10)), OTHER)
    assert (found.groups == 10).sum() == len(texts) - sum(range(91, 101))
    numbers = grouped("m", ["", "8", "16", "8"], M, np.zeros(4))
    assert numbers is not None
    assert numbers.values is not None
    assert (numbers.names, numbers.groups.tolist()) == (("8", "16", EMPTY), [2, 0, 1, 0])
    assert np.isnan(numbers.values[0])


def test_columns_that_say_nothing_are_left_out():
    logs = np.zeros(4)
    assert grouped("m", ["8"] * 4, M, logs) is None
    assert grouped("name", ["a", "b", "c", "d"], None, logs) is None
    assert grouped("dtype", ["bf16"] * 4, SCHEMAS["gemm"]["dtype"], logs) is None


def test_columns_that_divide_the_rows_alike_are_one():
    rows = [evaluation(1 + 0.1 * (i % 2), m=8 * (1 + i % 2), dtype=["fp8", "bf16"][i % 2]) for i in range(8)]
    (only,) = residuals("gemm", rows, "latency_s").explained
    assert (only.column, only.alike) == ("m", ("dtype",))


@pytest.mark.parametrize(
    ("kind", "column", "text"),
    [
        ("training", "step_time_s", "step time"),
        ("training", "tp", "tensor-parallel degree"),
        ("inference", "ttft_s", "time to first token"),
        ("energy", "energy_per_token_j", "energy per token"),
        ("serving", "kv_dtype", "KV format"),
        ("gemm", "room_of_rack", "room of rack"),
    ],
)
def test_columns_in_words(kind, column, text):
    assert words(kind, column) == text
