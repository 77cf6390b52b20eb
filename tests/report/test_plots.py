import itertools

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.sensitivity import Sensitivity
from diffperf.quantity import Quantity
from diffperf.report import plots


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.fixture(scope="module")
def report(gpt, system, strategy):
    return dp.training_step(gpt, system, strategy)


def test_a_waterfall_goes_from_zero_to_the_total(report):
    time, memory = plots.breakdown(report).axes
    bars = time.patches
    assert bars[0].get_x() == 0
    for before, after in itertools.pairwise(bars):
        assert after.get_x() == pytest.approx(before.get_x() + before.get_width())
    assert bars[-1].get_x() + bars[-1].get_width() == pytest.approx(float(report.time))
    assert len(texts(time)) == len(bars)
    filled = sum(bar.get_height() for bar in memory.patches)
    assert filled == pytest.approx(float(report.memory.peak))


@pytest.mark.parametrize(("capacity", "verdict"), [("10 GB", "does not fit"), ("1 TB", "(fits")])
def test_whether_memory_fits_is_said(gpt, system, strategy, capacity, verdict):
    sized = dp.override(system, {"accelerator.memory.hbm.capacity": capacity})
    memory = plots.breakdown(dp.training_step(gpt, sized, strategy)).axes[-1]
    assert verdict in memory.get_title(loc="left")


def test_generation_shows_both_phases(llama, system):
    strategy = dp.load_strategy({"tp": 8, "dp": 8, "global_batch": 8})
    figure = plots.breakdown(dp.generate(llama, system, strategy))
    assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes[:2]] == [
        "Time to first token",
        "Time of a decode pass",
    ]


def test_a_tornado_shows_the_largest_with_values_and_units():
    declared = Quantity("byte/s", "bandwidth", (0, 1), False, False, "input")
    elasticities = [
        Sensitivity(f"system.network.tier{i}.bandwidth", declared, 3e9, (-1) ** i / (i + 1))
        for i in range(20)
    ]
    axes = plots.tornado(elasticities, limit=12).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [row.elasticity for row in elasticities[:12]]
    assert axes.get_yticklabels()[1].get_text() == "tier1 bandwidth  (3 GB/s)"
    assert texts(axes)[:2] == ["+1 %", "−0.5 %"]
    assert axes.yaxis_inverted()


def test_a_tornado_says_by_how_much_a_whole_number_changes():
    units = Quantity("", "compute units", (1, 1000), True, True, "input")
    row = Sensitivity("system.accelerator.compute_units", units, 108.0, -0.8, "−1")
    (label,) = plots.tornado([row]).axes[0].get_yticklabels()
    assert label.get_text() == "compute units  (108 −1)"


def test_swings_are_drawn_from_the_value_in_between():
    bars = [
        plots.SwingBar("bandwidth", "1 TB/s", "4 TB/s", 3.0, 1.0),
        plots.SwingBar("x", "1", "2", 2.5, 3.5),
    ]
    axes = plots.swing_bars(bars, 2.0, "time", "s").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1.0, -1.0, 0.5, 1.5]
    assert texts(axes) == ["1 TB/s", "4 TB/s", "1 … 2"]


def test_a_waterfall_of_changes_ends_where_they_add_up_to():
    axes = plots.steps_between((4.0, 2.5), [("memory", -2.0), ("network", 0.5)], "s").axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 4), (4, -2), (2, 0.5), (0, 2.5)]
    assert texts(axes)[1:] == ["−2 s  −50.0%", "+500 ms  +12.5%", "2.5 s  −37.5%"]


def test_indices_have_their_intervals():
    axes = plots.index_bars([plots.IndexBar("batch", (0.6, 0.1), (0.8, 0.05))]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.6, 0.8]
    assert len(axes.containers) >= 2


def test_a_map_names_what_limits_and_hatches_what_does_not_fit():
    declared = Quantity("byte/s", "bandwidth", (1, 1e13), True, False, "input")
    x, y = (plots.MapAxis(np.geomspace(1e11, 1e12, 4), path, declared, True) for path in ("a.x", "a.y"))
    names = np.array([["power"] * 2 + ["hbm bandwidth"] * 2] * 4)
    axes = plots.cell_map(x, y, names, names == "power").axes[0]
    assert set(texts(axes)) == {"power", "hbm bandwidth"}
    assert [text.get_text() for text in axes.get_legend().get_texts()][-1] == "does not fit memory"
    assert axes.get_xlim()[0] < 1e11 < 1e12 < axes.get_xlim()[1]


def test_curves_are_marked_where_they_cross():
    declared = Quantity("USD", "cost", (0, 1e9), True, False, "output")
    values = np.linspace(1.0, 10.0, 10)
    curves = plots.Curves(values, {"a": values, "b": 11 - values}, [5.5])
    axis = plots.MapAxis(values, "system.batch", Quantity("", "batch", (1, 10), False, True, "input"), False)
    axes = plots.crossing_curves(curves, axis, "cost.run", declared).axes[0]
    assert texts(axes) == ["5.5"]


def test_nothing_to_show_is_still_a_figure(tmp_path):
    assert plots.save(plots.tornado([]), tmp_path / "empty.png").stat().st_size > 0


def test_other_formats_are_refused():
    with pytest.raises(dp.ConfigError, match=r"\.png"):
        plots.check_format("figure.jpeg")


def test_a_scatter_separates_what_fits():
    declared = Quantity("s", "time", (0, 1), False, False, "output")
    values, fits = np.array([1.0, 10.0, 100.0]), np.array([True, False, True])
    column = plots.Column(values, declared, "time")
    axes = plots.scatter(column, column, fits, (1.0, 1.0)).axes[0]
    assert [len(points.get_offsets()) for points in axes.collections] == [1, 2]
    assert axes.get_xscale() == "log"
