"""Figures over ranges of inputs: a map with a name for each cell, and curves that cross."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from diffperf import units
from diffperf.quantity import Quantity
from diffperf.report.plots.style import (
    GREY,
    INK,
    ORANGE,
    PALETTE,
    faint_grid,
    legend_below,
    log_ticks,
    new_figure,
    no_minor_labels,
    set_log_unit,
    set_title,
    set_unit,
    shortened,
    styled,
    unit_ticks,
)
from diffperf.report.plots.tornado import input_name, output_name

_LABELLED = 0.04  # share of the cells from which a name is written on the map too
_TICKS = 6
_WHOLE = 1e-6  # distance from a whole number that is rounding
_LONGEST = 32  # characters of a name in the legend
_CHARACTER, _LINE = 0.014, 0.06  # width and height of a letter on the map, as shares of its
_ROW = 13  # points from the value of a crossing to the next
# Colours of names that appear in every map, so that maps can be compared.
_COLOURS = {
    "matrix units": PALETTE[0],
    "vector units": PALETTE[2],
    "power": PALETTE[8],
    "latency and launch": GREY,
}
_OTHERS = tuple(PALETTE[place] for place in (3, 7, 6, 9, 5, 1))


class MapAxis(NamedTuple):
    """Values of an input along an axis of a figure."""

    values: np.ndarray
    path: str
    declared: Quantity
    log: bool


@styled
def cell_map(x: MapAxis, y: MapAxis, names: np.ndarray, too_large: np.ndarray, title: str = "") -> Figure:
    """A map with a colour for each of some names, (y, x); hatched where `too_large`."""
    known = list(dict.fromkeys([*(name for name in _COLOURS if name in names), *np.unique(names).tolist()]))
    others = itertools.cycle(_OTHERS)
    colours = [_COLOURS.get(name) or next(others) for name in known]
    places = np.vectorize(known.index)(names)
    figure = new_figure(9, 5.4)
    axes = figure.add_subplot()
    edges = [_edges(each) for each in (x, y)]
    norm = BoundaryNorm(np.arange(len(known) + 1) - 0.5, max(len(known), 2))
    palette = ListedColormap(colours if len(colours) > 1 else colours * 2)
    axes.pcolormesh(*edges, places, cmap=palette, norm=norm, rasterized=True)
    handles = [
        Patch(color=colour, label=shortened(name, _LONGEST))
        for name, colour in zip(known, colours, strict=True)
    ]
    if too_large.any():
        ends = [np.stack([each[:-1], each[1:]], axis=1).ravel() for each in edges]  # of every cell
        cells = too_large.repeat(2, axis=0).repeat(2, axis=1)
        axes.contourf(*ends, cells, levels=[0.5, 1.5], colors="none", hatches=["///"])
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="///", label="does not fit memory"))
    written: list[tuple[float, float, float]] = []
    for place, name in enumerate(known):
        _write_name(axes, x=x, y=y, where=places == place, name=shortened(name, _LONGEST), written=written)
    for axis, scale, each in ((axes.xaxis, axes.set_xscale, x), (axes.yaxis, axes.set_yscale, y)):
        scale("log" if each.log else "linear")
        axis.set_major_locator(FixedLocator(_ticks(each)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(unit_ticks(each.declared.unit))
    axes.set_xlabel(input_name(x.path))
    axes.set_ylabel(input_name(y.path))
    axes.legend(handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    set_title(figure, title)
    return figure


class Curves(NamedTuple):
    """Named curves over the same values, and the values at which they cross."""

    values: np.ndarray
    by_name: Mapping[str, np.ndarray]
    crossings: Sequence[float]


@styled
def crossing_curves(
    curves: Curves, axis: MapAxis, output: str, declared: Quantity, title: str = ""
) -> Figure:
    """Curves of an output over an input, with a mark and the value at every crossing."""
    figure = new_figure(9, 4.8)
    axes = figure.add_subplot()
    # The first curve is wider, so that both are seen where they are the same.
    for (name, values), colour, width in zip(
        curves.by_name.items(), (PALETTE[0], ORANGE), (3.2, 1.6), strict=True
    ):
        axes.plot(curves.values, values, color=colour, linewidth=width, label=name)
    first = next(iter(curves.by_name.values()))
    for place, crossing in enumerate(curves.crossings):
        height = float(np.interp(crossing, curves.values, first))
        axes.axvline(crossing, color=GREY, linewidth=0.8, zorder=0)
        axes.plot([crossing], [height], "o", color=INK, markersize=6)
        _write_crossing(axes, units.show(crossing, axis.declared.unit, 3), crossing, place)
    if axis.log:
        axes.set_xscale("log")
    every = np.concatenate(list(curves.by_name.values()))
    if every.min() > 0 and every.max() > 5 * every.min():
        axes.set_yscale("log")
        set_log_unit(axes.yaxis, declared.unit, float(every.min()), float(every.max()))
    else:
        set_unit(axes.yaxis, declared.unit)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(axis)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(unit_ticks(axis.declared.unit))
    no_minor_labels(axes)
    axes.set_xlabel(input_name(axis.path))
    axes.set_ylabel(output_name(output, declared))
    faint_grid(axes)
    legend_below(axes, 1)
    set_title(figure, title)
    return figure


def _edges(axis: MapAxis) -> np.ndarray:
    """The edges of cells around values: half way between neighbours, in logarithms where those are even."""
    values = np.log(axis.values) if axis.log else np.asarray(axis.values, float)
    if len(values) == 1:
        values = np.array([values[0] - 0.5, values[0] + 0.5])
        return np.exp(values) if axis.log else values
    middles = (values[1:] + values[:-1]) / 2
    ends = 2 * values[0] - middles[0], 2 * values[-1] - middles[-1]
    edges = np.concatenate([[ends[0]], middles, [ends[1]]])
    return np.exp(edges) if axis.log else edges


def _ticks(axis: MapAxis) -> list[float]:
    """Round values inside an axis: of one digit, or two where those are too few; whole if the input is."""
    low, high = float(axis.values[0]), float(axis.values[-1])
    if low == high:
        return [low]
    if axis.log:
        ticks = log_ticks(low, high)
    else:
        step = 10 ** np.floor(np.log10((high - low) / _TICKS))
        step *= next(f for f in (1, 2, 5, 10) if (high - low) / (f * step) <= _TICKS)
        ticks = (np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step).tolist()
    if axis.declared.integer:
        ticks = [tick for tick in ticks if abs(tick - round(tick)) < _WHOLE] or [low, high]
    return ticks


def _write_crossing(axes: Axes, text: str, crossing: float, place: int) -> None:
    """Writes the value of a crossing above the axes, those of its neighbours on rows of their own."""
    axes.annotate(
        text,
        (crossing, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 4 + _ROW * (place % 3)),
        textcoords="offset points",
        ha="center",
    )


def _write_name(axes: Axes, x: MapAxis, y: MapAxis, where: np.ndarray, name: str, written: list) -> None:
    """Writes a name on the cells that have it, if they are many: near the middle of those, unless it would
    meet one of those `written` before, (across, up, half its width) as shares of the map, or an edge.
    """
    if where.mean() < _LABELLED:
        return
    rows, columns = np.nonzero(where)
    place = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
    across, up = (columns[place] + 0.5) / where.shape[1], (rows[place] + 0.5) / where.shape[0]
    half = len(name) * _CHARACTER / 2
    if not half < across < 1 - half or any(
        abs(up - other_up) < _LINE and abs(across - other) < half + other_half
        for other, other_up, other_half in written
    ):
        return
    written.append((across, up, half))
    point = float(x.values[columns[place]]), float(y.values[rows[place]])
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    axes.text(*point, name, ha="center", va="center", fontsize=9, color=INK, bbox=box)
