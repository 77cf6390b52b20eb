"""Interactivity against throughput: what the layouts of a serving system offer under which load."""

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from diffperf.quantity import Quantity
from diffperf.report.plots.scatter import Column, encircle, scale_axes
from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    GREY,
    INK,
    RED,
    faint_grid,
    legend_below,
    marker_size,
    new_figure,
    set_title,
    shortened,
    styled,
)

_LONGEST = 64  # characters of the name of a layout

_RATE = Quantity(
    unit="",
    doc="tokens per second",
    bounds=(0, np.inf),
    log=True,
    integer=False,
    kind="output",
)


@styled
def serving_front(
    interactivity: Float[np.ndarray, " points"],
    throughput: Float[np.ndarray, " points"],
    met: Bool[np.ndarray, " points"],
    front: Int[np.ndarray, " best"],
    target: float,
    best: tuple[float, float, str] | None,
    title: str = "",
) -> Figure:
    """Layouts under loads by tokens per second of a user and of a device.

    - `met`: the points that meet all targets; `front`: those that no other point exceeds in both.
    - `target`: the least tokens per second of a user, 0 for none; `best`: the chosen point and its layout.
    """
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    size = marker_size(len(met), 4, 18)
    for chosen, colour, label in ((~met, GREY, "misses a target"), (met, BLUE, "meets the targets")):
        if chosen.any():
            axes.scatter(
                interactivity[chosen],
                throughput[chosen],
                s=size,
                color=colour,
                label=label,
                linewidths=0,
                rasterized=True,
            )
    axes.plot(interactivity[front], throughput[front], color=INK, linewidth=1, label="Pareto front")
    if target > 0:
        axes.axvline(target, color=RED, linewidth=1, linestyle=DASHED, label="TPOT target")
    if best is not None:
        encircle(axes, best[:2], shortened(f"best: {best[2]}", _LONGEST))
    columns = (interactivity, "tokens/s of a user (1 / TPOT)"), (throughput, "output tokens/s per device")
    x, y = (Column(values, _RATE, label) for values, label in columns)
    scale_axes(axes, x, y)
    faint_grid(axes)
    for handle in legend_below(axes, 3).legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([60])
    set_title(figure, title)
    return figure
