import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.errors import ConfigError
from diffperf.explore.sweep.space_file import load_space
from diffperf.load import available, config_root

HEAD = 'model = "gpt3-22b"\nsystem = "dgx-a100"\n'
AXIS = '[[axis]]\npath = "strategy.tp"\npowers_of_two = {from = 1, to = 8}\n'


@pytest.fixture
def space_of(tmp_path):
    """A space from the text of its file."""

    def build(text: str):
        path = tmp_path / "space.toml"
        path.write_text(HEAD + text, encoding="utf-8")
        return load_space(path)

    return build


def values(space):
    return [axis.values.tolist() for axis in space.axes]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ('path = "strategy.tp"\nvalues = [1, 3]', [1, 3]),
        ('path = "strategy.tp"\npowers_of_two = {from = 1, to = 9}', [1, 2, 4, 8]),
        ('path = "strategy.pp"\ndivisors_of = "model.depth"', [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]),
        ('path = "strategy.pp"\ndivisors_of = "system.n_devices"', [1, 2, 4, 8]),
        ('path = "strategy.pp"\ndivisors_of = 6', [1, 2, 3, 6]),
        (
            'path = "hbm.bandwidth"\nlinear = {from = "1 TB/s", to = "2 TB/s", points = 3}',
            [1e12, 1.5e12, 2e12],
        ),
        ('path = "hbm.bandwidth"\nlog = {from = "1 TB/s", to = "4 TB/s", points = 3}', [1e12, 2e12, 4e12]),
        ('path = "strategy.tp"\nlinear = {from = 1, to = 4, points = 7}', [1, 2, 3, 4]),
        ('path = "system.n_devices"\nlog = {from = 8, to = 64, points = 4}', [8, 16, 32, 64]),
        ('path = "strategy.zero"\nvalues = ["1", "0"]', [[0, 1, 0, 0], [1, 0, 0, 0]]),
        ('path = "strategy.sequence_parallel"\nvalues = [true, false]', [[0, 1], [1, 0]]),
    ],
)
def test_an_axis_takes_its_values(space_of, axis, expected):
    assert np.allclose(values(space_of("[[axis]]\n" + axis))[0], expected)


def test_units_and_names_are_kept(space_of):
    space = space_of(
        '[[axis]]\npath = "strategy.recompute"\nvalues = ["full", "none"]\n'
        '[[axis]]\npath = "hbm.capacity"\nvalues = ["80 GiB"]'
    )
    assert space.axes[0].labels == ("full", "none")
    assert space.axes[1].path == "system.accelerator.memory.hbm.capacity"
    assert space.axes[1].values.tolist() == [80 * 2**30]


def test_points_are_numbered_like_a_nested_loop(space_of):
    space = space_of(
        AXIS
        + '[[axis]]\npath = "strategy.pp"\nvalues = [1, 2, 3]\n'
        + '[[axis]]\npath = "strategy.micro_batch"\nvalues = [1, 2]'
    )
    loop = list(itertools.product(*map(range, space.shape)))
    assert [space.digits(number) for number in range(space.size)] == loop
    (region,) = space.regions
    for start, offset in ((0, 5), (7, 9), (23, 0)):
        digits = jax.jit(region.advance)(jnp.array(region.places(start)), offset)
        assert tuple(map(int, digits)) == loop[start + offset]


def test_a_space_beyond_32_bits_is_numbered(space_of):
    axes = "".join(
        f'[[axis]]\npath = "{path}"\nlinear = {{from = "1 TB/s", to = "2 TB/s", points = 100000}}\n'
        for path in ("hbm.bandwidth", "l2.bandwidth", "smem.bandwidth")
    )
    space = space_of(axes)
    number, (region,) = space.size - 3, space.regions
    assert space.size == 10**15
    assert tuple(map(int, region.advance(jnp.array(region.places(number), jnp.int32), jnp.int32(2)))) == (
        99999,
        99999,
        99999,
    )


def test_what_nobody_gives_follows_from_the_point(space_of):
    space = space_of("[set]\nsystem.n_devices = 32\nstrategy.micro_batch = 2\n[strategy]\npp = 2\n" + AXIS)
    assert space.derived == {"dp", "global_batch"}
    strategy = space.point([2], space.inputs).strategy
    assert (float(strategy.tp), float(strategy.dp), float(strategy.global_batch)) == (4, 4, 64)


def test_the_devices_left_for_dp_are_those_outside_a_context_parallel_group(space_of):
    space = space_of("[set]\nsystem.n_devices = 32\nstrategy.cp = 2\n" + AXIS)
    assert float(space.point([2], space.inputs).strategy.dp) == 4


def test_what_is_given_stays(space_of):
    space = space_of("[strategy]\ndp = 2\nglobal_batch = 16\n" + AXIS)
    assert space.derived == frozenset()
    assert float(space.point([3], space.inputs).strategy.dp) == 2


@pytest.mark.slow
def test_rank_follows_the_output(space_of):
    assert not space_of('rank_by = "cost.run"\n' + AXIS).descending
    assert space_of('rank_by = "tokens_per_second"\n' + AXIS).descending
    assert space_of('rank_by = "cost.run"\norder = "descending"\n' + AXIS).descending
    front = 'pareto = ["time", "cost.run", "mfu"]\n'
    assert space_of(front + AXIS).objectives == (("time", 1), ("cost.run", 1), ("mfu", -1))
    dear = space_of('rank_by = "cost.run"\norder = "descending"\n' + front + AXIS)
    assert dear.objectives == (("time", 1), ("cost.run", -1), ("mfu", -1))


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("", "axis", "[[axis]]"),
        ("axes = 1\n" + AXIS, "axes", '"axis"'),
        ('phase = "train"\n' + AXIS, "phase", '"training"'),
        ('rank_by = "tme"\n' + AXIS, "rank_by", '"time"'),
        ('rank_by = ["time", "cost.run"]\n' + AXIS, "rank_by", '"time"'),
        ("rank_by = 3\n" + AXIS, "rank_by", '"time"'),
        ('phase = ["decode"]\n' + AXIS, "phase", '"decode"'),
        ('order = "ascend"\n' + AXIS, "order", '"ascending"'),
        ("top = 0\n" + AXIS, "top", "how many"),
        ("[strategy]\ntpp = 2\n" + AXIS, "tpp", '"tp"'),
        ('[set]\n"system.n_device" = 8\n' + AXIS, "system.n_device", '"n_devices"'),
        ('[set]\n"hbm.bandwith" = "1 TB/s"\n' + AXIS, "set.hbm.bandwith", "hbm.bandwidth"),
        (AXIS + AXIS, "axis[1].path", "merge"),
        ("[set]\nstrategy.tp = 4\n" + AXIS, "set.strategy.tp", "leave one out"),
        ("[strategy]\ntp = 4\n" + AXIS, "strategy.tp", "leave one out"),
        ('[[axis]]\npath = "modle"\nvalues = ["gpt3-22b"]', "axis[0].path", 'did you mean "model"'),
        (
            '[[axis]]\npath = "phase"\nvalues = ["decode"]',
            "axis[0].path",
            "model, system, accelerator, stack",
        ),
        ('phase = "decode"\n[strategy]\nzero = "3"\n' + AXIS, "strategy.zero", "leave it out"),
        (
            'phase = "generate"\n[[axis]]\npath = "strategy.virtual_stages"\nvalues = [1, 2]',
            "strategy.virtual_stages",
            "leave it out",
        ),
        ('[[axis]]\npath = "strategy.micro_bach"\nvalues = [1]', "axis[0].path", '"micro_batch"'),
        ('[[axis]]\npath = "strategy"\nvalues = [1]', "axis[0].path", "tp, pp, dp"),
        ('[[axis]]\npath = "strategy.tp"', "axis[0]", "what values"),
        ('[[axis]]\npath = "strategy.tp"\nvalues = [1]\ndivisors_of = 8', "axis[0]", "once"),
        ('[[axis]]\npath = "strategy.tp"\nvalue = [1]', "axis[0].value", '"values"'),
        ('[[axis]]\npath = "strategy.tp"\nvalues = []', "axis[0].values", "brackets"),
        ('[[axis]]\npath = "strategy.tp"\nvalues = [1, 0]', "axis[0].values[1]", "check"),
        ('[[axis]]\npath = "strategy.tp"\nvalues = [1, nan]', "axis[0].values[1]", "check"),
        ('[[axis]]\npath = "hbm.bandwidth"\nvalues = ["1 TB"]', "axis[0].values[0]", "TB/s"),
        ('[[axis]]\npath = "strategy.tp"\nvalues = [2, 4, 2]', "axis[0].values[2]", "every value once"),
        (
            '[[axis]]\npath = "strategy.recompute"\nvalues = ["full", "full"]',
            "axis[0].values[1]",
            "every value once",
        ),
        (
            '[[axis]]\npath = "strategy.tp"\npowers_of_two = {from = 3, to = 5}',
            "axis[0].powers_of_two.from",
            "start at 2 or 4",
        ),
        (
            '[[axis]]\npath = "hbm.bandwidth"\nlinear = {from = "2 TB/s", to = "1 TB/s", points = 3}',
            "axis[0].linear.from",
            "swap",
        ),
        (
            '[[axis]]\npath = "hbm.bandwidth"\nlinear = {from = "1 TB/s", to = "2 TB/s"}',
            "axis[0].linear",
            "points",
        ),
        (
            '[[axis]]\npath = "hbm.bandwidth"\nlog = {from = "1 TB/s", to = "2 TB/s", points = 0}',
            "axis[0].log.points",
            "how many",
        ),
        ('[[axis]]\npath = "strategy.pp"\ndivisors_of = "model.dept"', "axis[0].divisors_of", "model.depth"),
        ('[[axis]]\npath = "strategy.recompute"\nvalues = ["ful"]', "axis[0].values[0]", '"full"'),
        ('[[axis]]\npath = "strategy.recompute"\npowers_of_two = {from = 1, to = 8}', "axis[0]", "choice"),
    ],
)
def test_bad_spaces_are_one_clear_line(space_of, text, key, remedy):
    with pytest.raises(ConfigError) as problem:
        space_of(text)
    line = str(problem.value)
    assert "\n" not in line
    assert problem.value.key == key
    assert remedy in problem.value.remedy or remedy in problem.value.expected
    assert "space.toml" in line


def test_shipped_sweeps_load():
    names = [
        name
        for name in available("spaces")
        if "[[axis]]" in (config_root() / f"spaces/{name}.toml").read_text()
    ]
    assert names
    for name in names:
        assert load_space(name).size > 1000
