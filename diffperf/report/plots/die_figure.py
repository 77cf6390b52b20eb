"""Cost of a mm² of a good die, over the area of the die."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from diffperf.report.plots.style import (
    DASHED,
    GREY,
    GREY_TEXT,
    INK,
    colours,
    faint_grid,
    new_figure,
    set_log_unit,
    set_title,
    set_unit,
    shortened,
    styled,
)

_DECADES = 5  # largest over smallest price from which the axis is logarithmic
_ROOM = 0.2  # share of the width of the axes that the text of a line takes
_LONGEST = 40  # characters of the names of a curve
_ROW = 14  # points from one row of texts above the axes to the next
_SAME = 1e-6  # relative difference of curves that are drawn as one


@styled
def die_prices(
    areas: Float[np.ndarray, " areas"],
    curves: Mapping[str, Float[np.ndarray, " areas"]],
    asked: tuple[float, Mapping[str, float]],
    reticles: Sequence[float],
    title: str = "",
) -> Figure:
    """Prices of a good mm² over the area of a die, a curve for each node.

    - areas: of the die, in mm²; curves: by node, USD there, NaN where no die fits on a wafer.
    - asked: the area that is asked about, and the prices there by node.
    - reticles: mm² that one exposure covers, a line each.
    """
    figure = new_figure(9, 5)
    axes = figure.add_subplot()
    area, points = asked
    groups = _alike(curves)
    for names, colour in zip(groups, colours(len(groups)), strict=True):
        axes.plot(areas, curves[names[0]], color=colour, linewidth=2, label=", ".join(names))
        axes.plot([area], [points[names[0]]], "o", color=colour, markersize=6)
    _scale_prices(axes, curves, points)
    axes.set_xlim(0, areas[-1])
    for reticle in reticles:
        axes.axvline(reticle, color=GREY, linewidth=1, linestyle=DASHED)
    axes.axvline(area, color=INK, linewidth=0.8)
    marks = [(area, f"this die: {area:,.4g} mm²", INK)]
    marks += [(reticle, f"reticle: {reticle:,.4g} mm²", GREY_TEXT) for reticle in reticles]
    _mark_areas(axes, sorted(marks, key=lambda mark: mark[0]))
    axes.set_xlabel("area of the die (mm²)")
    axes.set_ylabel("price of a mm² of a good die (USD)")
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    faint_grid(axes)
    _legend(axes, groups, points)
    set_title(figure, title)
    return figure


def _alike(curves: Mapping[str, Float[np.ndarray, " areas"]]) -> list[list[str]]:
    """The names of the curves, those of curves that lie on one another together."""
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if np.allclose(values, curves[group[0]], rtol=_SAME, atol=0, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _scale_prices(
    axes: Axes, curves: Mapping[str, Float[np.ndarray, " areas"]], points: Mapping[str, float]
) -> None:
    """A linear scale from zero, or a logarithmic one where prices differ much."""
    prices = np.array([*points.values(), *(price for values in curves.values() for price in values)])
    low, high = np.nanmin(prices), np.nanmax(prices)
    if high > _DECADES * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
        set_log_unit(axes.yaxis, "USD", low, high)
    else:
        axes.set_ylim(0, 1.1 * high)
        set_unit(axes.yaxis, "USD")


def _mark_areas(axes: Axes, marks: Sequence[tuple[float, str, str]]) -> None:
    """Writes what lines at increasing areas are above the axes: the first to its left, where there is room,
    the others to their right, each on a row of its own.
    """
    width = axes.get_xlim()[1]
    for place, (area, text, colour) in enumerate(marks):
        to_left = place == 0 and area > _ROOM * width
        axes.annotate(
            text,
            (area, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if to_left else 3, 4 + _ROW * max(place - 1, 0)),
            textcoords="offset points",
            ha="right" if to_left else "left",
            fontsize=9,
            color=colour,
        )


def _legend(axes: Axes, groups: Sequence[Sequence[str]], points: Mapping[str, float]) -> None:
    """The nodes beside the axes, the dearest at the asked area on top."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(groups)), key=lambda index: -points[groups[index][0]])
    axes.legend(
        [handles[index] for index in order],
        [shortened(labels[index], _LONGEST) for index in order],
        title="node",
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=9,
    )
