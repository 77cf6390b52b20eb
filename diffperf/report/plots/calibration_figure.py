"""Errors of the estimator before and after a calibration."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    FAINT,
    GREY,
    INK,
    ORANGE,
    colours,
    legend_below,
    marker_size,
    new_figure,
    no_minor_labels,
    percent_ticks,
    set_log_unit,
    set_title,
    styled,
)

# Share of the rows that the vertical axis holds, and the least and the most |log(predicted / measured)| that
# it reaches for that, without its margin.
_SHOWN, _LEAST_REACH, _MOST_REACH = 0.995, 0.25, 3.0
_MARGIN = 1.1


@styled
def calibration(result: Any, title: str = "") -> Figure:
    """Predicted over measured time of every row, and how many rows lie within an error.

    `result` is a `diffperf.explore.calibrate.calibrate.Calibrated`.
    """
    figure = new_figure(13, 5.4)
    rows, shares = figure.subplots(1, 2, width_ratios=(1.5, 1))
    _draw_rows(rows, result)
    _draw_shares(shares, result)
    set_title(figure, title)
    return figure


def _draw_rows(axes: Axes, result: Any) -> None:
    """Draws predicted over measured time of every row, before the fit and cross-validated."""
    size = marker_size(len(result.times), 4)
    marks = {"s": size, "linewidths": 0, "rasterized": True}
    axes.scatter(result.times, np.exp(result.before), color=GREY, alpha=0.6, label="before the fit", **marks)
    kinds = sorted(set(result.kinds))
    for kind, colour in zip(kinds, colours(len(kinds)), strict=True):
        chosen = result.kinds == kind
        half_width = float(np.median(result.half_width[chosen]))
        name = f"{kind}, cross-validated (90 % within a factor of {np.exp(half_width):.2f})"
        ratios = np.exp(result.held_out[chosen])
        axes.scatter(result.times[chosen], ratios, color=colour, alpha=0.7, label=name, **marks)
        for side in (-1, 1):
            axes.axhline(np.exp(side * half_width), color=colour, linewidth=1, linestyle=DASHED)
    axes.axhline(1, color=INK, linewidth=0.8)
    _scale_rows(axes, np.abs(np.concatenate([result.before, result.held_out])))
    axes.set_xlabel("measured time")
    axes.set_title("Predicted / measured time")
    legend_below(axes, 1, markerscale=float(np.sqrt(40 / size)))


def _scale_rows(axes: Axes, distances: Float[np.ndarray, " points"]) -> None:
    """Sets logarithmic scales that hold nearly all points; `distances` are |log(predicted / measured)|."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    reach = float(np.clip(np.quantile(distances, _SHOWN), _LEAST_REACH, _MOST_REACH))
    axes.set_ylim(np.exp(-_MARGIN * reach), np.exp(_MARGIN * reach))
    axes.autoscale_view(scaley=False)
    set_log_unit(axes.xaxis, "s", *axes.get_xlim())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if reach > 1 else (1, 1.2, 1.5, 2, 3, 4, 6, 8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    no_minor_labels(axes)


def _draw_shares(axes: Axes, result: Any) -> None:
    """Draws the share of the rows within an error: before the fit, fitted and cross-validated."""
    reach = 1.2 * float(np.quantile(np.abs(np.expm1(result.before)), 0.9)) + 0.02
    for residuals, colour, name in (
        (result.before, GREY, "before the fit"),
        (result.after, BLUE, "fitted"),
        (result.held_out, ORANGE, "cross-validated"),
    ):
        errors = np.sort(np.abs(np.expm1(residuals)))
        shares = np.arange(len(errors) + 1) / len(errors)
        places = np.concatenate([[0.0], errors])
        axes.step(places, shares, where="post", color=colour, linewidth=1.8, label=name)
        axes.plot([places[-1], max(places[-1], reach)], [1, 1], color=colour, linewidth=1.8)
    for share in (0.5, 0.9):
        axes.axhline(share, color=FAINT, linewidth=1, zorder=0)
    axes.set_xlim(0, reach)
    axes.set_ylim(0, 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(percent_ticks())
    axes.set_xlabel("relative error of the predicted time")
    axes.set_title("Rows within an error")
    legend_below(axes, 1)
