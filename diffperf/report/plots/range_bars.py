"""Values of an output over ranges of inputs, and contributions of changes between two configurations."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf import units
from diffperf.report.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    bare,
    legend_below,
    new_figure,
    note,
    percent_ticks,
    say_empty,
    set_title,
    set_unit,
    shortened,
    styled,
)
from diffperf.report.plots.tornado import input_name

_ROOM = 0.2  # of the width of a scale, left for labels at either end
_STILL = 1e-6  # relative width of a scale below which no range makes a difference
_LONGEST = 44  # characters of a name in front of a bar
_ENDLESS = 1e6  # likewise, from which it is written with a power of ten
_MANY = 10  # times what was before, from which a change is no percentage any more


class SwingBar(NamedTuple):
    """An input, texts of both ends of its range, and the output at either end."""

    label: str
    low: str
    high: str
    at_low: float
    at_high: float


@styled
def swing_bars(bars: Sequence[SwingBar], before: float, output: str, unit: str, title: str = "") -> Figure:
    """A tornado: for each range a bar from the output at its low end (blue) to its high end (orange)."""
    figure = new_figure(9.5, 1.5 + 0.5 * max(len(bars), 1))
    axes = figure.add_subplot()
    for place, bar in enumerate(bars):
        for end, colour in ((bar.at_low, BLUE), (bar.at_high, ORANGE)):
            axes.barh(place, end - before, left=before, color=colour, height=0.62)
        both_above = min(bar.at_low, bar.at_high) >= before
        both_below = max(bar.at_low, bar.at_high) <= before
        if both_above or both_below:  # both labels on the side of the bar
            far = max((bar.at_low, bar.at_high), key=lambda end: abs(end - before))
            _label(axes, place, far, f"{bar.low} … {bar.high}", 1 if both_above else -1)
        else:
            for end, text in ((bar.at_low, bar.low), (bar.at_high, bar.high)):
                _label(axes, place, end, text, 1 if end > before else -1)
    axes.axvline(before, color=INK, linewidth=1)
    axes.set_yticks(range(len(bars)), [shortened(bar.label, _LONGEST) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    ends = np.array([[bar.at_low, bar.at_high] for bar in bars] or [[before, before]])
    _leave_room(axes, min(ends.min(), before), max(ends.max(), before))
    set_unit(axes.xaxis, unit)
    axes.set_xlabel(f"{output} at the low (blue) and the high end (orange) of each range")
    bare(axes)
    set_title(figure, title)
    return figure


@styled
def steps_between(
    ends: tuple[float, float], contributions: Sequence[tuple[str, float]], unit: str, title: str = ""
) -> Figure:
    """A waterfall from one output to another: what each change adds (orange) or takes away (blue)."""
    before, after = ends
    figure = new_figure(9.5, 1.8 + 0.45 * (len(contributions) + 2))
    axes = figure.add_subplot()
    axes.barh(0, before, color=GREY, height=0.62)
    _label(axes, 0, before, units.show(before, unit, 3), 1)
    start = before
    for place, (_, part) in enumerate(contributions, start=1):
        axes.barh(place, part, left=start, color=ORANGE if part > 0 else BLUE, height=0.62)
        axes.plot([start, start], [place - 1.31, place + 0.31], color=GREY, linewidth=0.8)
        sign = "+" if part > 0 else "−" if part < 0 else ""
        text = f"{sign}{units.show(abs(part), unit, 3)}  {_change(part, before)}".rstrip()
        _label(axes, place, max(start, start + part), text, 1)
        start += part
    last = len(contributions) + 1
    axes.plot([start, start], [last - 1.31, last + 0.31], color=GREY, linewidth=0.8)
    axes.barh(last, after, color=INK, height=0.62)
    _label(axes, last, after, f"{units.show(after, unit, 3)}  {_change(after - before, before)}".rstrip(), 1)
    names = [shortened(name, _LONGEST) if "." not in name else input_name(name) for name, _ in contributions]
    axes.set_yticks(range(last + 1), ["before", *names, "after"])
    axes.set_ylim(last + 0.6, -0.6)
    sums = before + np.cumsum([0.0, *(part for _, part in contributions)])
    axes.set_xlim(0, 1.35 * max(float(sums.max()), after))
    set_unit(axes.xaxis, unit)
    bare(axes)
    set_title(figure, title)
    return figure


class IndexBar(NamedTuple):
    """An input, and its first-order and total index, each with half the width of its interval."""

    label: str
    first: tuple[float, float]
    total: tuple[float, float]


@styled
def index_bars(bars: Sequence[IndexBar], title: str = "") -> Figure:
    """Sobol indices: a pair of bars for each input, with their intervals."""
    figure = new_figure(9, 1.9 + 0.62 * max(len(bars), 1))
    axes = figure.add_subplot()
    for shift, name, colour in ((-0.19, "first", BLUE), (0.19, "total", ORANGE)):
        values = [getattr(bar, name) for bar in bars]
        axes.barh(
            np.arange(len(bars)) + shift,
            [value for value, _ in values],
            xerr=[width for _, width in values],
            height=0.34,
            color=colour,
            error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
            label={"first": "alone (first order)", "total": "with interactions (total)"}[name],
        )
    axes.set_yticks(range(len(bars)), [shortened(bar.label, _LONGEST) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(min([0.0, *(bar.first[0] - bar.first[1] for bar in bars)]), None)
    axes.xaxis.set_major_formatter(percent_ticks())
    axes.set_xlabel("share of the variance")
    bare(axes)
    legend_below(axes)
    if not any(bar.total[0] or bar.first[0] for bar in bars):
        say_empty(axes, "no input varies it")
    set_title(figure, title)
    return figure


def _label(axes: Axes, place: int, end: float, text: str, side: int) -> None:
    """A text beside the end of a bar, on its outer side."""
    note(axes, text, (end, place), (4 * side, 0), ha="left" if side > 0 else "right", va="center", fontsize=9)


def _change(part: float, before: float) -> str:
    """A change relative to what was before, with its sign: in per cent, or times that where it is large."""
    if before == 0:
        return ""
    share = part / before
    text = f"{share:+.1%}" if abs(share) < _MANY else f"{share:+,.0f} times"
    text = text if abs(share) < _ENDLESS else f"{share:+.0e} times"
    return text.replace("-", "−")


def _leave_room(axes: Axes, low: float, high: float) -> None:
    """Sets a scale from the least to the greatest value, with room for labels at both ends."""
    still = high - low <= _STILL * abs(high)
    width = (abs(high) or 1.0) if still else high - low
    axes.set_xlim(low - _ROOM * width, high + _ROOM * width)
