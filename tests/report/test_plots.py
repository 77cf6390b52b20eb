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
        "Time per output token",
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
