"""The best designs along one limit: what they reach, and how they change."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf.quantity import Quantity
from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    GREY,
    ORANGE,
    bare,
    faint_grid,
    new_figure,
    set_title,
    styled,
    unit_ticks,
)

_COLUMNS = 4
_PANEL = (3.6, 2.5)  # width and height in inches


@styled
def codesign_front(answer: Any) -> Figure:
    """The objective and every real or whole variable of the best designs along the limits of a constraint.

    `answer` is a `diffperf.api.front_answer.FrontAnswer`.
    """
    feasible = np.array([design.feasible for design in answer.front.designs])
    limits, designs = answer.front.limits[feasible], np.array(answer.front.designs)[feasible]
    placed = [
        (begin, variable)
        for begin, variable in answer.problem.vector.placed()
        if isinstance(variable.declared, Quantity)
    ]
    rows = -(-(1 + len(placed)) // _COLUMNS)
    figure = new_figure(_PANEL[0] * _COLUMNS, _PANEL[1] * rows + 0.6)
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).ravel())
    objective = [design.objective for design in designs]
    first = designs[0] if len(designs) else answer.front.designs[0]
    _draw(panels[0], answer, limits, objective, answer.problem.objective, first.objective_unit)
    panels[0].axhline(first.baseline_objective, color=GREY, linewidth=1, linestyle=DASHED)
    for panel, (begin, variable) in zip(panels[1:], placed, strict=False):
        values = [design.x[begin] for design in designs]
        name = variable.name.removeprefix("design.").replace("_", " ")
        _draw(panel, answer, limits, values, name, variable.declared.unit, color=ORANGE)
    for panel in panels[1 + len(placed) :]:
        panel.set_visible(False)
    set_title(figure, answer.title)
    return figure


def _draw(axes: Axes, answer: Any, limits: Any, values: Any, name: str, unit: str, color: str = BLUE) -> None:
    """One quantity along the limits."""
    axes.plot(limits, values, color=color, marker="o", markersize=4, linewidth=1.6)
    axes.set_title(name)
    axes.xaxis.set_major_formatter(unit_ticks(answer.constraint.declared.unit))
    axes.yaxis.set_major_formatter(unit_ticks(unit))
    axes.locator_params(axis="x", nbins=4)
    bare(axes, keep="left")
    faint_grid(axes)
