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
    GREY_TEXT,
    ORANGE,
    bare,
    faint_grid,
    new_figure,
    note,
    say_empty,
    set_title,
    set_unit,
    styled,
    words_of,
    wrapped,
)

_COLUMNS = 4
_HEADING = 30  # characters in a line above a panel
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
    columns = min(_COLUMNS, 1 + len(placed))
    figure = new_figure(_PANEL[0] * columns, _PANEL[1] * rows + 0.8)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    objective = [design.objective for design in designs]
    first = designs[0] if len(designs) else answer.front.designs[0]
    _draw(
        panels[0],
        answer=answer,
        limits=limits,
        values=objective,
        name=words_of(answer.problem.objective),
        unit=first.objective_unit,
    )
    if len(designs):
        baseline = first.baseline_objective
        panels[0].axhline(baseline, color=GREY, linewidth=1, linestyle=DASHED)
        note(panels[0], "baseline", (limits[-1], baseline), (0, 3), ha="right", fontsize=9, color=GREY_TEXT)
    for panel, (begin, variable) in zip(panels[1:], placed, strict=False):
        values = [design.x[begin] for design in designs]
        name, declared = words_of(variable.name), variable.declared
        _draw(
            panel,
            answer=answer,
            limits=limits,
            values=values,
            name=name,
            unit=declared.unit,
            color=ORANGE,
            whole=declared.integer,
        )
    for panel in panels[1 + len(placed) :]:
        panel.set_visible(False)
    figure.supxlabel(f"limit of {words_of(answer.constraint.quantity)}", fontsize=10)
    set_title(figure, answer.title)
    return figure


def _draw(
    axes: Axes,
    answer: Any,
    limits: Any,
    values: Any,
    name: str,
    unit: str,
    *,
    color: str = BLUE,
    whole: bool = False,
) -> None:
    """One quantity along the limits."""
    axes.plot(limits, values, color=color, marker="o", markersize=4, linewidth=1.6)
    axes.set_title(wrapped(name, _HEADING))
    set_unit(axes.xaxis, answer.constraint.declared.unit, 4)
    set_unit(axes.yaxis, unit, whole=whole)
    bare(axes, keep="left")
    faint_grid(axes)
    if not len(limits):
        say_empty(axes, "no design meets a limit")
