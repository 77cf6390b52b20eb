"""Many points in one figure: those of a sweep, and predictions against measurements."""

from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from diffperf.quantity import Quantity
from diffperf.report.plots.style import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    faint_grid,
    marker_size,
    new_figure,
    no_minor_labels,
    note,
    styled,
    unit_ticks,
)

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
    for chosen, colour, label in ((~fits, FAINT, "out of memory"), (fits, BLUE, "fits memory")):
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
    legend = axes.legend(frameon=False, loc="upper right")
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([60])
    axes.set_title(title)
    return figure


def encircle(axes: Axes, point: tuple[float, float], text: str) -> None:
    """Draws a circle around a point, with a text below it."""
    axes.plot(
        *point,
        "o",
        markersize=11,
        markerfacecolor="none",
        markeredgecolor=ORANGE,
        markeredgewidth=2.2,
        zorder=3,
    )
    note(axes, text, point, (0, -16), ha="center", color=ORANGE, weight="bold")


def scale_axes(axes: Axes, x: Column, y: Column) -> None:
    """Labels the axes in the units of their columns; columns that span decades get a logarithmic scale."""
    for axis, column, set_scale in ((axes.xaxis, x, axes.set_xscale), (axes.yaxis, y, axes.set_yscale)):
        values = column.values
        if values.size and values.min() > 0 and values.max() > _DECADES * values.min():
            set_scale("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(unit_ticks(column.declared.unit))
    axes.set_xlabel(x.label)
    axes.set_ylabel(y.label)


@styled
def predicted_against_measured(
    groups: dict[str, tuple[np.ndarray, np.ndarray]], label: str, title: str = ""
) -> Figure:
    """Predictions over measurements on logarithmic scales, with the band of ±10 %.

    `groups` holds the points of a group by its name: (predicted, measured), each of shape (points,).
    """
    figure = new_figure(7.5, 6)
    axes = figure.add_subplot()
    both = np.concatenate([np.ravel(pair) for pair in groups.values()]) if groups else np.array([1.0])
    ends = np.array([both.min() / 1.5, both.max() * 1.5])
    low, high = (1 - _TOLERANCE) * ends, (1 + _TOLERANCE) * ends
    axes.fill_between(ends, low, high, color=FAINT, linewidth=0, label=f"within {100 * _TOLERANCE:.0f} %")
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    size = marker_size(both.size, 4)
    for index, (name, (predicted, measured)) in enumerate(groups.items()):
        colour = matplotlib.colormaps["tab20"](index % 20)
        axes.scatter(
            measured,
            predicted,
            s=size,
            color=colour,
            alpha=0.7,
            label=name,
            linewidths=0,
            rasterized=True,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    no_minor_labels(axes)
    axes.set_aspect("equal")
    axes.set_xlabel(f"{label} measured")
    axes.set_ylabel(f"{label} predicted")
    faint_grid(axes, linewidth=0.6)
    axes.legend(
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=9,
        markerscale=float(np.sqrt(40 / size)),
    )
    axes.set_title(title)
    return figure
