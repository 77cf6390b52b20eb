"""Axes that vary together, factorizations, configs, and constraints: their points against a loop."""

import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.sweep.sweep import excluding_constraints, sweep

pytestmark = pytest.mark.usefixtures("shared_programs")

HEAD = 'model = "gpt3-22b"\nsystem = "dgx-a100"\n'
FACTORS = '[[axis]]\nfactorize = {of = 24, over = ["strategy.tp", "strategy.pp", "strategy.dp"]}\n'
ZIPPED = """[[axis]]
zip = [{path = "strategy.micro_batch", values = [1, 2]},
       {path = "hbm.bandwidth", values = ["2 TB/s", "3 TB/s"]}]
"""


def values(space):
    return [axis.values.tolist() for axis in space.axes]


def test_zipped_axes_share_a_dimension(space_of):
    space = space_of(HEAD + ZIPPED + '[[axis]]\npath = "strategy.tp"\nvalues = [1, 2, 4]')
    assert space.shape == (2, 3)
    assert [axis.dimension for axis in space.axes] == [0, 0, 1]
    point = space.point([1, 2], space.inputs)
    assert float(point.strategy.micro_batch) == 2
    assert values(space)[1] == [2e12, 3e12]


@pytest.mark.parametrize("number", [1, 7, 24, 64])
def test_factorizations_are_all_products(space_of, number):
    space = space_of(HEAD + FACTORS.replace("24", str(number)))
    found = list(zip(*values(space), strict=True))
    every = itertools.product(range(1, number + 1), repeat=3)
    assert found == [factors for factors in every if np.prod(factors) == number]
    assert space.derived == {"global_batch"}


def test_constraints_hold_where_python_says_so(space_of):
    texts = [
        "strategy.tp * strategy.pp <= 8",
        "2 <= strategy.pp < 12 or strategy.dp == 1",
        "not (strategy.micro_batch == 2 and hbm.bandwidth > '2.5 TB/s') or -strategy.tp + 3 >= 2",
        "strategy.recompute != 'full' and strategy.dp % 2 == 0 or strategy.tp / 2 > 1",
    ]
    recompute = '[[axis]]\npath = "strategy.recompute"\nvalues = ["full", "none"]\n'
    space = space_of(HEAD + f"where = {texts}\n" + FACTORS + recompute + ZIPPED)
    for number in range(space.size):
        digits = space.digits(number)
        tp, pp, dp_degree = (axis.values[digits[0]] for axis in space.axes[:3])
        chosen, micro_batch = ("full", "none")[digits[1]], (1, 2)[digits[2]]
        bandwidth = (2e12, 3e12)[digits[2]]
        expected = (
            tp * pp <= 8
            and (2 <= pp < 12 or dp_degree == 1)
            and (not (micro_batch == 2 and bandwidth > 2.5e12) or -tp + 3 >= 2)
            and ((chosen != "full" and dp_degree % 2 == 0) or tp / 2 > 1)
        )
        assert bool(space.allows(space.point(digits, space.inputs))) == expected


def test_the_constraint_that_empties_a_space_is_named(space_of):
    space = space_of(HEAD + "where = ['strategy.tp > 999', 'strategy.pp <= 8']\n" + FACTORS)
    assert excluding_constraints(space) == 'where: "strategy.tp > 999" excludes all of 30 points examined'
    space = space_of(HEAD + "where = ['strategy.tp > 4', 'strategy.tp < 4']\n" + FACTORS)
    assert "all of them together" in excluding_constraints(space)


CONFIGS = """
model = "gpt3-22b"
system = "dgx-a100"
best_by = ["system"]
where = ["strategy.tp <= 4"]
[set]
system.n_devices = 8
[strategy]
micro_batch = 1
[[axis]]
path = "strategy.tp"
powers_of_two = {from = 1, to = 8}
[[axis]]
path = "system"
values = ["dgx-a100", "gaudi2-8", "dgx-h100"]
"""


@pytest.mark.slow
def test_systems_of_two_structures_are_estimated_as_one_by_one(space_of, tmp_path):
    space = space_of(CONFIGS)
    assert space.axes[0].path == "system"
    assert len(space.regions) == 2
    result = sweep(space, tmp_path / "out.parquet", dtype=np.float64)
    rows = pq.read_table(result.path).to_pylist()
    assert len(rows) == result.points == 9
    assert {row["system"] for row in rows} == {"dgx-a100", "gaudi2-8", "dgx-h100"}
    for row in rows:
        if row["feasible"]:
            degrees = {"tp": row["strategy.tp"], "pp": 1, "micro_batch": 1}
            answer = dp.estimate("gpt3-22b", row["system"], devices=8, **degrees)
            assert row["time"] == pytest.approx(float(answer.report.time), rel=1e-9)
    fitting = [row for row in rows if row["feasible"] and row["fits"]]
    summary = sweep(space, dtype=np.float64)
    assert (summary.points, summary.fitting) == (9, len(fitting))
    assert summary.best["time"].to_pylist() == sorted(row["time"] for row in fitting)
    for row in summary.best_by["system"].to_pylist():
        assert row["time"] == min(other["time"] for other in fitting if other["system"] == row["system"])


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('where = "strategy.tp < 4"', "where", "list of constraints"),
        ('where = ["strategy.tp <"]', "where[0]", "comparison"),
        ('where = ["strategy.tp"]', "where[0]", "comparison"),
        ('where = ["strategy.tp / 0 > 1"]', "where[0]", "found a division by 0 in"),
        ('where = ["strategy.tp % 0 > 1"]', "where[0]", "found a division by 0 in"),
        ('where = ["strategy.tp = 2"]', "where[0]", "write == for equal: 'strategy.tp == 2'"),
        ('where = ["strategy.tpp < 4"]', "where[0]", '"tp"'),
        ("where = [\"__import__('os').system('true') == 0\"]", "where[0]", "inputs, numbers"),
        ('where = ["(lambda: 1)() == 1"]', "where[0]", "inputs, numbers"),
        ('where = ["[x for x in y] == 1"]', "where[0]", "inputs, numbers"),
        ('where = ["strategy.tp ** 9 < 4"]', "where[0]", "inputs, numbers"),
        ('where = ["strategy.tp in 4"]', "where[0]", "one of <"),
        ('where = ["accelerator.power_limit <= 700 W"]', "where[0]", "write the quantity in quotes: '700 W'"),
        ('where = ["strategy.tp <= 8 and"]', "where[0]", 'write "strategy.tp * strategy.pp <= 64"'),
        ("where = [\"cost.manufacturing <= '2000 USD'\"]", "where[0]", "the output cost.manufacturing"),
        ("where = [\"strategy.recompute == 'ful'\"]", "where[0]", '"full"'),
        ("where = [\"strategy.recompute < 'full'\"]", "where[0]", "== or !="),
        ('where = ["strategy.recompute < 3"]', "where[0]", "a number"),
        ("where = [\"hbm.bandwidth < '2 TB'\"]", "where[0]", "TB/s"),
        ("where = [3]", "where[0]", "as a text"),
        (f"where = ['{'(' * 200}1{')' * 90}']", "where[0]", "comparison"),
        (f"where = ['{'1 + ' * 99}1 < 2']", "where[0]", "at most 300"),
    ],
)
def test_bad_constraints_are_one_clear_line(space_of, text, key, words):
    line = problem_of(space_of, f'{HEAD}{text}\n[[axis]]\npath = "strategy.tp"\nvalues = [1]', key)
    assert words in line


@pytest.mark.parametrize(
    ("axis", "key", "words"),
    [
        ("zip = []", "axis[0].zip", "at least two"),
        (
            'zip = [{path = "strategy.tp", values = [1]}, {path = "strategy.pp", values = [1, 2]}]',
            "axis[0].zip[1]",
            "1, as",
        ),
        ('zip = [1, 2]\npath = "strategy.tp"', "axis[0]", "one of path"),
        ("factorize = {of = 8}", "axis[0].factorize", "of and over"),
        ('factorize = {of = 8, over = ["strategy.tp"]}', "axis[0].factorize.over", "two paths"),
        ('factorize = {of = 8.5, over = ["strategy.tp", "strategy.pp"]}', "axis[0].factorize.of", "whole"),
        (
            'factorize = {of = "n", over = ["strategy.tp", "strategy.pp"]}',
            "axis[0].factorize.of",
            "path of one",
        ),
        (
            'factorize = {of = 8, over = ["strategy.tp", "strategy.recompute"]}',
            "axis[0].factorize.over[1]",
            "number",
        ),
        ('path = "system"\nvalues = []', "axis[0].values", "names of systems"),
        ('path = "system"\nvalues = ["dgx-a10"]', "axis[0].values[0]", "dgx-a100"),
        ('path = "stack"\nvalues = ["nemo", "nemo"]', "axis[0].values[1]", "once"),
        (
            'path = "stack"\nvalues = ["nemo"]\n[[axis]]\npath = "stack"\nvalues = ["megatron-lm"]',
            "axis[1].path",
            "merge",
        ),
    ],
)
def test_bad_axes_are_one_clear_line(space_of, axis, key, words):
    assert words in problem_of(space_of, f"{HEAD}[[axis]]\n{axis}\n", key)


def problem_of(space_of, text: str, key: str) -> str:
    with pytest.raises(ConfigError) as problem:
        space_of(text)
    assert problem.value.key == key
    line = str(problem.value)
    assert "\n" not in line
    return line
