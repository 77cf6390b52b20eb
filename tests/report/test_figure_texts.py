"""What is written on figures can be read: on ordinary ones, degenerate ones and extreme ones."""

import itertools

import matplotlib
import numpy as np
import pytest
from figure_examples import EXAMPLES
from figures_of_reports import of_reports
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import diffperf as dp
from diffperf.api.cost_answer import hourly_cost
from diffperf.report import plots
from diffperf.report.plots import style

RIGHT_ANGLES = 0, 90
REPORTS = list(of_reports(None, None, None, None))
# A figure is saved with what reaches beyond its edges, which it may by this share of width and height.
BEYOND = 0.08


def written(figure: Figure) -> list[Text]:
    """Every text that is drawn, but ticks outside their scale and texts at an angle."""
    figure.draw_without_rendering()
    axes = [part for part in figure.findobj(Axis) if part.axes.get_visible()]
    ticks = [tick for part in axes for tick in (*part.get_major_ticks(), *part.get_minor_ticks())]
    drawn = {id(tick) for part in axes for tick in part._update_ticks()}
    hidden = {id(text) for tick in ticks if id(tick) not in drawn for text in (tick.label1, tick.label2)}
    hidden |= {id(text) for part in figure.axes if not part.get_visible() for text in part.findobj(Text)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_text().strip()
        and text.get_visible()
        and id(text) not in hidden
        and text.get_rotation() in RIGHT_ANGLES
    ]


def inside(text: Text) -> Bbox:
    """The box of a text without empty lines above it, a little smaller than it: letters seldom fill it."""
    lines, box = text.get_text().split("\n"), text.get_window_extent()
    top = box.y1 - box.height * sum(not any(lines[: end + 1]) for end in range(len(lines))) / len(lines)
    return Bbox.from_extents(box.x0, box.y0, box.x1, top).padded(-1.5)


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts that lie on each other."""
    boxes = [(text.get_text(), inside(text)) for text in written(figure)]
    return [
        (first, second)
        for (first, box), (second, other) in itertools.combinations(boxes, 2)
        if box.overlaps(other)
    ]


def beyond(figure: Figure) -> list[str]:
    """The texts that lie outside the figure, which is then enlarged by them."""
    width, height = figure.bbox.width, figure.bbox.height
    page = Bbox.from_extents(-BEYOND * width, -BEYOND * height, (1 + BEYOND) * width, (1 + BEYOND) * height)
    boxes = {text.get_text(): inside(text) for text in written(figure)}
    return [text for text, box in boxes.items() if not (page.contains(*box.min) and page.contains(*box.max))]


def repeated_ticks(figure: Figure) -> list[list[str]]:
    """The scales on which different ticks have the same label."""
    scales = [
        [text.get_text() for text in axis.get_majorticklabels()]
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_formatter(), style.DistinctLabels)
    ]
    return [labels for labels in scales if len(set(labels)) < len(labels)]


def is_readable(figure: Figure) -> None:
    with matplotlib.rc_context(style.STYLE):
        assert overlapping(figure) == []
        assert beyond(figure) == []
        assert repeated_ticks(figure) == []


@pytest.fixture(scope="module")
def reports(gpt, llama, system):
    strategy = dp.load_strategy({"tp": 8, "dp": 8, "global_batch": 64})
    step = dp.training_step(gpt, system, strategy)
    small = dp.override(system, {"accelerator.memory.hbm.capacity": "1 GB"})
    without_room = dp.training_step(gpt, small, strategy)
    served = dp.generate(llama, system, dp.load_strategy({"tp": 8, "dp": 8, "global_batch": 8}))
    return of_reports(step, without_room, served, hourly_cost(system).accelerator)


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_of_made_up_answers_can_be_read(name):
    is_readable(EXAMPLES[name]())


@pytest.mark.parametrize("name", REPORTS)
def test_texts_of_reports_can_be_read(reports, name):
    is_readable(reports[name]())


def test_the_check_sees_texts_that_meet_and_those_off_the_page():
    figure = style.new_figure(4, 3)
    axes = figure.add_subplot()
    axes.text(0.5, 0.5, "a text")
    axes.text(0.52, 0.5, "another")
    assert overlapping(figure) == [("a text", "another")]
    figure.text(0.9, 0.5, "a text that is much too long for this figure")
    assert beyond(figure) == ["a text that is much too long for this figure"]


def contrast(colour: str, other: str = "white") -> float:
    """The ratio of luminances of two colours, as WCAG 2.1 defines it."""

    def luminance(name: str) -> float:
        rgb = np.array(matplotlib.colors.to_rgb(name))
        return float(
            np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
        )

    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_legible():
    for text in (style.INK, style.RED, style.GREY_TEXT, style.ORANGE_TEXT):
        assert contrast(text) >= 4.5
    for area in style.PALETTE:
        assert contrast(style.text_on(area), area) >= 3.5
    for count in (1, 6, 12):
        assert min(contrast(line) for line in style.colours(count)) >= 2.5


def test_ticks_of_long_times_are_whole_hours():
    axes = style.new_figure(4, 3).add_subplot()
    axes.set_xlim(0, 30_000)
    style.set_unit(axes.xaxis, "s")
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels[:3] == ["0", "2 h", "4 h"]


def test_ticks_have_the_digits_that_tell_them_apart():
    labels = style.unit_ticks("s").format_ticks([2.0, 2.0001, 2.0002])
    assert labels == ["2 s", "2.0001 s", "2.0002 s"]
    assert style.percent_ticks().format_ticks([0.0, 0.004, 0.008]) == ["0", "0.4%", "0.8%"]


def test_a_map_of_one_column_is_hatched_where_nothing_fits():
    declared = dp.quantity.Quantity("", "batch", (1, 10), False, True, "input")
    x = plots.MapAxis(np.array([1.0]), "strategy.batch", declared, True)
    y = plots.MapAxis(np.array([1.0, 2.0, 4.0]), "strategy.tp", declared, True)
    axes = plots.cell_map(x, y, np.full((3, 1), "power"), np.full((3, 1), True)).axes[0]
    hatched = [
        path.get_extents()
        for part in axes.collections
        if part.get_array() is not None
        for path in part.get_paths()
        if hasattr(part, "hatches")
    ]
    assert len(hatched) == 1
    np.testing.assert_allclose(hatched[0].y0, axes.get_ylim()[0])
    np.testing.assert_allclose(hatched[0].y1, axes.get_ylim()[1])


def test_whole_numbers_have_whole_ticks():
    axes = style.new_figure(4, 3).add_subplot()
    axes.set_ylim(3.8, 4.2)
    style.set_unit(axes.yaxis, "", whole=True)
    assert all(tick == round(tick) for tick in axes.get_yticks())
    declared = dp.quantity.Quantity("", "batch", (1, 10), False, True, "input")
    x, y = (plots.MapAxis(np.array([1.0, 2.0, 3.0]), "strategy.tp", declared, log) for log in (True, False))
    axes = plots.cell_map(x, y, np.full((3, 3), "power"), np.full((3, 3), False)).axes[0]
    assert [*axes.get_xticks(), *axes.get_yticks()] == [1, 2, 3, 1, 2, 3]
