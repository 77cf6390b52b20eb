"""Figures of residuals, ordinary and extreme: what is drawn, and that nothing lies outside the page."""

import itertools

import numpy as np
import pytest

from diffperf.report import plots


def panel(column: str, share: float, groups: np.ndarray, names=None, values=None) -> plots.Panel:
    """A panel of texts, or of numbers where there are `values`."""
    shown = tuple(names or (f"group {index}" for index in range(groups.max() + 1)))
    return plots.Panel(column, f"{column} in words", "", share, groups, shown, values)


def title(axes) -> str:
    return axes.get_title(loc="left")


def overlapping(labels: list) -> list[str]:
    """The tick labels that run into the next one."""
    shown = [label for label in labels if label.get_text() and label.get_visible()]
    boxes = sorted((label.get_window_extent().extents.tolist(), label.get_text()) for label in shown)
    return [text for ((_, _, right, _), text), ((left, *_), _) in itertools.pairwise(boxes) if left < right]


def test_every_row_and_the_panels_are_drawn():
    random = np.random.default_rng(0)
    tp = 2.0 ** random.integers(0, 5, 300)
    ratios = np.exp(random.normal(0, 0.05, 300)) * np.where(tp == 16, 0.6, 1)
    groups = np.log2(tp).astype(int)
    panels = [panel("tp", 0.9, groups, values=tp), panel("model", 0.1, random.integers(0, 3, 300))]
    figure = plots.residuals(10 ** random.uniform(-1, 2, 300), ratios, panels, "step time", "s", "a table")
    top, numbers, texts = figure.axes
    assert title(numbers) == "tp: 90% of the spread"
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "step time, measured",
        "tp in words",
        "model in words",
    ]
    points = np.concatenate(
        [drawn.get_offsets() for drawn in numbers.collections if len(drawn.get_offsets())]
    )
    assert len(points) == 300
    medians = {tuple(np.round(line.get_xydata()[0], 9)) for line in numbers.lines if line.get_marker() == "o"}
    expected = {(float(2**g), round(float(np.median(ratios[groups == g])), 9)) for g in range(5)}
    assert medians == expected
    assert texts.get_xticklabels()[0].get_text().startswith("group 0 (")
    figure.draw_without_rendering()
    assert {label.get_text() for label in top.get_yticklabels()} >= {"0", "−20%", "+25%"}


def test_rows_beyond_the_scale_are_triangles():
    ratios = np.concatenate([np.full(100, 1.01), [1e6, 1e-6]])
    figure = plots.residuals(np.linspace(1, 2, 102), ratios, [], "time", "s")
    (top,) = figure.axes
    assert "triangles: 2 rows beyond the scale" in title(top)
    low, high = top.get_ylim()
    heights = sorted(y for drawn in top.collections for _, y in drawn.get_offsets())
    assert (heights[0], heights[-1]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("count", [1, 2])
def test_a_table_of_few_rows(count):
    figure = plots.residuals(np.full(count, 2.0), np.full(count, 1.1), [], "time", "s", "few rows")
    figure.draw_without_rendering()
    assert len(figure.axes) == 1


def test_at_most_twelve_panels():
    panels = [panel(f"column{index}", 0.5, np.arange(20) % 2) for index in range(20)]
    assert len(plots.residuals(np.ones(20), np.ones(20), panels, "time", "s").axes) == 13


def test_ten_decades_and_long_names_stay_on_the_page_and_apart():
    random = np.random.default_rng(0)
    values = 10 ** random.uniform(-3, 7, 400)
    values[:40] = np.nan
    deciles = np.where(np.isnan(values), 10, np.digitize(np.log10(values), np.arange(-2, 7)))
    names = [f"a name of a group that is far too long to be shown whole {index}" for index in range(11)]
    panels = [
        panel("wide", 0.5, deciles, names, values),
        panel("texts", 0.2, random.integers(0, 11, 400), names),
        panel("few", 0.1, random.integers(0, 2, 400), values=random.choice([131072.0, 4096.0, 4097.0], 400)),
    ]
    measured = 10 ** random.uniform(-9, 1, 400)
    figure = plots.residuals(measured, np.exp(random.normal(0, 3, 400)), panels, "time", "s", "extreme")
    figure.draw_without_rendering()
    page = figure.bbox
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert min(box.x0, box.y0, page.x1 - box.x1, page.y1 - box.y1) >= 0
        if axes.get_xlabel() != "texts in words":
            assert not overlapping(axes.get_xticklabels())
    assert "empty" in [text.get_text() for text in figure.axes[1].texts]
    assert len(figure.axes[2].get_xticklabels()) == 11
    assert max(len(label.get_text()) for label in figure.axes[2].get_xticklabels()) < 30
