"""Many points in one figure: those of a sweep, and predictions against measurements."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from diffperf.quantity import Quantity
from diffperf.report.plots.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    colours,
    faint_grid,
    legend_below,
    marker_size,
    new_figure,
    say_empty,
    set_log_unit,
    set_title,
    set_unit,
    shortened,
    styled,
)

_LONGEST = 32  # characters of the name of a group
_LINE = 0.2  # inches of a group in the legend
_DECADES = 5  # largest over smallest value from which an axis is logarithmic
_TOLERANCE = 0.1  # the band that is shaded around perfect predictions


class Column(NamedTuple):
    """An output of the points of a sweep."""

    values: Float[np.ndarray, " points"]
    declared: Quantity
    label: str


@styled
def scatter(
    x: Column,
    y: Column,
    fits: Bool[np.ndarray, " points"],
    best: tuple[float, float] | None,
    title: str = "",
    front: tuple[Float[np.ndarray, " front"], Float[np.ndarray, " front"]] | None = None,
) -> Figure:
    """The possible points of a sweep by two outputs: `fits` says which fit memory; `best` is encircled; the
    points of a Pareto front, if there is one, are drawn over the others."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    size = marker_size(len(fits), 1.5, 18)
    for chosen, colour, label in ((~fits, GREY, "out of memory"), (fits, BLUE, "fits memory")):
        if chosen.any():
            axes.scatter(
                x.values[chosen],
                y.values[chosen],
                s=size,
                color=colour,
                label=label,
                linewidths=0,
                rasterized=True,
            )
    if front is not None:
        axes.scatter(*front, s=max(size, 12), color=ORANGE, label="Pareto front", linewidths=0, zorder=3)
    if best is not None:
        encircle(axes, best, "best")
    scale_axes(axes, x, y)
    faint_grid(axes)
    if len(fits):
        for handle in legend_below(axes, 4).legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([60])
    else:
        say_empty(axes, "no layout is possible")
    set_title(figure, title)
    return figure


def encircle(axes: Axes, point: tuple[float, float], label: str) -> None:
    """Draws a circle around a point, named in the legend."""
    axes.plot(
        *point,
        "o",
        markersize=11,
        markerfacecolor="none",
        markeredgecolor=ORANGE,
        markeredgewidth=2.2,
        linestyle="none",
        label=label,
        zorder=3,
    )


def scale_axes(axes: Axes, x: Column, y: Column) -> None:
    """Labels the axes in the units of their columns; columns that span decades get a logarithmic scale."""
    for axis, column, set_scale in ((axes.xaxis, x, axes.set_xscale), (axes.yaxis, y, axes.set_yscale)):
        values = column.values
        if values.size and values.min() > 0 and values.max() > _DECADES * values.min():
            set_scale("log")
            set_log_unit(axis, column.declared.unit, float(values.min()), float(values.max()))
        else:
            set_unit(axis, column.declared.unit, whole=column.declared.integer)
    axes.set_xlabel(x.label)
    axes.set_ylabel(y.label)


@styled
def predicted_against_measured(
    groups: dict[str, tuple[np.ndarray, np.ndarray]], label: str, unit: str, title: str = ""
) -> Figure:
    """Predictions over measurements on logarithmic scales, with the band of ±10 %.

    - groups: the points of a group by its name: (predicted, measured), each of shape (points,), in `unit`.
    - label: the quantity in words.
    """
    figure = new_figure(7.5, max(6.0, 1.5 + _LINE * len(groups)))
    axes = figure.add_subplot()
    both = np.concatenate([np.ravel(pair) for pair in groups.values()]) if groups else np.array([1.0])
    ends = np.array([both.min() / 1.5, both.max() * 1.5])
    low, high = (1 - _TOLERANCE) * ends, (1 + _TOLERANCE) * ends
    axes.fill_between(ends, low, high, color=FAINT, linewidth=0, label=f"within {100 * _TOLERANCE:.0f} %")
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    size = marker_size(both.size, 4)
    for (name, (predicted, measured)), colour in zip(groups.items(), colours(len(groups)), strict=True):
        axes.scatter(
            measured,
            predicted,
            s=size,
            color=colour,
            alpha=0.7,
            label=shortened(name, _LONGEST),
            linewidths=0,
            rasterized=True,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    for axis in (axes.xaxis, axes.yaxis):
        set_log_unit(axis, unit, *ends)
    axes.set_aspect("equal")
    axes.set_xlabel(f"{label}, measured")
    axes.set_ylabel(f"{label}, predicted")
    faint_grid(axes, linewidth=0.6)
    axes.legend(
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=9,
        markerscale=float(np.sqrt(40 / size)),
    )
    if not groups:
        say_empty(axes, "no row with a measured and a predicted value")
    set_title(figure, title)
    return figure
