"""Relative errors of predictions against every column of a table of measurements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from diffperf import units
from diffperf.errors import counted
from diffperf.report.plots.style import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    faint_grid,
    marker_size,
    new_figure,
    no_minor_labels,
    set_title,
    shortened,
    styled,
)

MOST_PANELS = 12
_ACROSS = 3  # panels side by side
_BAND = 0.1
_DECADE = 10.0  # greatest over least value from which an axis is logarithmic
_SHOWN, _LEAST_REACH, _MOST_REACH = 0.97, 0.25, 2.3  # of the vertical axis: share of the rows, |log ratio|
# Errors that ticks stand at where there is room, those first that matter most.
_ERRORS = (0, -0.5, 1, -0.8, 4, -0.2, 0.25, 0.5, -0.9, 9, -0.1, 0.1, 2, -0.3, -0.65)
_TICK_DISTANCE = 0.085  # least distance of ticks, as a share of the vertical scale
_LABEL_DISTANCE, _CHARACTER = 0.03, 0.029  # likewise between labels of the horizontal one, and their width
_MOST_TICKS = 10  # values that have ticks of their own
_LONGEST = 20  # characters of the name of a group


class Panel(NamedTuple):
    """A column of a table: what it explains, and how its rows are grouped.

    - `share`: the share of the residuals' variance between the groups.
    - `groups`: the index of each row's group; `names`: the names of the groups by index.
    - `values`: the numbers of the rows, NaN where unknown; None for a column of texts.
    """

    column: str
    label: str
    unit: str
    share: float
    groups: Int[np.ndarray, " rows"]
    names: tuple[str, ...]
    values: Float[np.ndarray, " rows"] | None


@styled
def residuals(
    measured: Float[np.ndarray, " rows"],
    ratios: Float[np.ndarray, " rows"],
    panels: Sequence[Panel],
    label: str,
    unit: str,
    title: str = "",
    most: int = MOST_PANELS,
) -> Figure:
    """Relative errors over the measured value, and over the columns that explain most of their spread.

    `ratios` are predicted / measured. The vertical scale is logarithmic in them and labelled by the error; it
    holds 97 % of the rows, errors of −90 % to +900 % at most, and triangles at its ends are the rows beyond.
    The band is ±10 %; a dot is the median of a decile or of a group, its bar reaches from the 25th to the
    75th percentile. Of the panels the first `most` are drawn.
    """
    shown = panels[:most]
    below = -(-len(shown) // _ACROSS)
    figure = new_figure(12, 3.6 + 2.9 * below)
    grid = figure.add_gridspec(1 + below, _ACROSS)
    top = figure.add_subplot(grid[0, :])
    limits = _limits(ratios)
    deciles = _deciles(measured)
    _draw_numbers(top, values=measured, ratios=ratios, groups=deciles, unit=unit, limits=limits)
    top.set_xlabel(f"{label}, measured")
    beyond = int(((ratios < limits[0]) | (ratios > limits[1])).sum())
    triangles = f"; triangles: {counted(beyond, 'row')} beyond the scale" if beyond else ""
    top.set_title(f"Every row, medians and quartiles by decile{triangles}", fontsize=10)
    for index, panel in enumerate(shown):
        axes = figure.add_subplot(grid[1 + index // _ACROSS, index % _ACROSS], sharey=top)
        if panel.values is None:
            _draw_texts(axes, panel, ratios, limits)
        else:
            _draw_numbers(
                axes, values=panel.values, ratios=ratios, groups=panel.groups, unit=panel.unit, limits=limits
            )
        axes.set_title(f"{panel.column}: {panel.share:.0%} of the spread", fontsize=10)
        axes.set_xlabel(panel.label, fontsize=9)
        if index % _ACROSS:
            axes.tick_params(labelleft=False)
    figure.supylabel("relative error, estimated / measured − 1", fontsize=10)
    set_title(figure, title)
    return figure


def _deciles(values: Float[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """The decile of each value."""
    return np.searchsorted(np.quantile(values, np.arange(1, 10) / 10), values, side="left")


def _limits(ratios: Float[np.ndarray, " rows"]) -> tuple[float, float]:
    """The ends of the vertical scale, which holds 97 % of the rows."""
    reach = 1.15 * float(np.quantile(np.abs(np.log(ratios)), _SHOWN))
    reach = float(np.clip(reach, _LEAST_REACH, _MOST_REACH))
    return float(np.exp(-reach)), float(np.exp(reach))


def _draw_numbers(
    axes: Axes,
    values: Float[np.ndarray, " rows"],
    ratios: Float[np.ndarray, " rows"],
    groups: Int[np.ndarray, " rows"],
    unit: str,
    limits: tuple[float, float],
) -> None:
    """Draws errors over numbers; rows without one stand at the left, under "empty"."""
    empty = np.isnan(values)
    least, most = float(values[~empty].min()), float(values[~empty].max())
    logarithmic = least > 0 and most > _DECADE * least
    _scale_numbers(axes, values[~empty], unit, logarithmic=logarithmic)
    places = values
    if empty.any():
        aside = least * (least / most) ** 0.1 if logarithmic else least - 0.1 * ((most - least) or 1.0)
        places = np.where(empty, aside, values)
        axes.annotate(
            "empty", (aside, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color=INK
        )
    _draw_points(axes, places, ratios, limits)
    _draw_medians(axes, places, ratios, groups, limits, joined=~empty)
    _draw_band(axes, limits)


def _scale_numbers(axes: Axes, numbers: Float[np.ndarray, " known"], unit: str, *, logarithmic: bool) -> None:
    """Sets the horizontal scale of numbers and its ticks: at the values themselves where they are few."""

    def label(value: float) -> str:
        return units.show(value, unit, 4) if unit and value else _count(value)

    least, most = float(numbers.min()), float(numbers.max())
    if logarithmic:
        axes.set_xscale("log")
    values, counts = np.unique(numbers, return_counts=True)
    if 1 < len(values) <= _MOST_TICKS:
        frequent = values[np.argsort(-counts, kind="stable")]
        places = np.log(frequent) if logarithmic else frequent
        longest = max(len(label(value)) for value in values)
        labelled = _apart(places, _LABEL_DISTANCE + _CHARACTER * longest)
        axes.xaxis.set_major_locator(FixedLocator(frequent[labelled].tolist()))
    elif logarithmic:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 100 * least else (1,), numticks=7))
    else:
        axes.xaxis.set_major_locator(
            MaxNLocator(5, steps=[1, 2, 5, 10], integer=not unit and most - least >= 1)
        )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))


def _apart(places: Float[np.ndarray, " places"], distance: float, span: float | None = None) -> list[int]:
    """The indices of as many places as there is room for, the first ones first: `distance` is the least
    between two of them, as a share of `span`, by default of all places'.
    """
    least = distance * (float(np.ptp(places)) if span is None else span)
    chosen: list[int] = []
    for index, place in enumerate(places):
        if all(abs(place - places[other]) > least for other in chosen):
            chosen.append(index)
    return chosen


def _count(value: float) -> str:
    """A number without a unit, short: 8,192, 131.1k, 4M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(scale, 1e4):
            return f"{value / scale:,.4g}{letter}"
    return f"{value:,.6g}"


def _draw_texts(
    axes: Axes, panel: Panel, ratios: Float[np.ndarray, " rows"], limits: tuple[float, float]
) -> None:
    """Draws errors in a strip for each group of texts, named below it with its number of rows."""
    width = np.random.default_rng(0).uniform(-0.28, 0.28, len(ratios))
    _draw_points(axes, panel.groups + width, ratios, limits)
    places, none = panel.groups.astype(float), np.zeros(len(ratios), dtype=bool)
    _draw_medians(axes, places, ratios, panel.groups, limits, joined=none)
    names = [
        f"{shortened(name, _LONGEST)} ({(panel.groups == index).sum():,})"
        for index, name in enumerate(panel.names)
    ]
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    _draw_band(axes, limits)


def _draw_points(
    axes: Axes,
    places: Float[np.ndarray, " rows"],
    ratios: Float[np.ndarray, " rows"],
    limits: tuple[float, float],
) -> None:
    """Draws a point for each row; those beyond the scale are triangles at its end."""
    low, high = limits
    size = marker_size(len(ratios), 4, 24)
    inside = (ratios >= low) & (ratios <= high)
    for chosen, marker, heights in (
        (inside, "o", ratios),
        (ratios > high, "^", np.full_like(ratios, high)),
        (ratios < low, "v", np.full_like(ratios, low)),
    ):
        axes.scatter(
            places[chosen],
            heights[chosen],
            s=size if marker == "o" else 18,
            marker=marker,
            color=BLUE,
            alpha=0.35,
            linewidths=0,
            clip_on=marker == "o",
            rasterized=True,
        )


def _draw_medians(
    axes: Axes,
    places: Float[np.ndarray, " rows"],
    ratios: Float[np.ndarray, " rows"],
    groups: Int[np.ndarray, " rows"],
    limits: tuple[float, float],
    joined: Bool[np.ndarray, " rows"],
) -> None:
    """Marks the median and the quartiles of every group at its median place, within the scale.

    A line joins the medians of the groups whose rows are all `joined`.
    """
    marks = []
    for group in np.unique(groups):
        rows = groups == group
        place = float(np.median(places[rows]))
        low, middle, high = np.clip(np.quantile(ratios[rows], (0.25, 0.5, 0.75)), *limits)
        axes.plot([place, place], [low, high], color=ORANGE, linewidth=2.4, solid_capstyle="butt", zorder=3)
        axes.plot(place, middle, "o", color=ORANGE, markeredgecolor="white", markersize=5.5, zorder=4)
        if joined[rows].all():
            marks.append((place, middle))
    if marks:
        axes.plot(*zip(*sorted(marks), strict=True), color=ORANGE, linewidth=1, zorder=3)


def _draw_band(axes: Axes, limits: tuple[float, float]) -> None:
    """Draws zero and the band of ±10 %, and sets the vertical scale."""
    axes.axhspan(1 - _BAND, 1 + _BAND, color=FAINT, linewidth=0, zorder=0)
    axes.axhline(1, color=INK, linewidth=0.8, zorder=1)
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(limits).tolist()))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: _percent(ratio - 1)))
    no_minor_labels(axes)
    faint_grid(axes, axis="y", linewidth=0.6)


def _ticks(limits: tuple[float, float]) -> Float[np.ndarray, " ticks"]:
    """The ratios that ticks stand at: those that matter most, as many as there is room for."""
    low, high = np.log(limits)
    places = np.log1p(_ERRORS)
    places = places[(places >= low) & (places <= high)]
    return np.sort(np.exp(places[_apart(places, _TICK_DISTANCE, float(high - low))]))


def _percent(error: float) -> str:
    """An error with its sign, "0" where there is none."""
    return f"{error:+,.0%}".replace("-", "−") if abs(error) > 1e-9 else "0"
