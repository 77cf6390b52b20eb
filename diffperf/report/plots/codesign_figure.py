"""How a co-design went: the search, the design beside its baseline, and what constrains it."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf import units
from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    RED,
    bare,
    legend_beside,
    new_figure,
    note,
    percent_ticks,
    set_title,
    styled,
    unit_ticks,
)
from diffperf.report.plots.waterfall import BREAKDOWNS, time_breakdowns
from diffperf.report.tables import outputs

_SETTLED = 1e-3  # largest violation of a constraint at which the objective is worth drawing
_NEGLIGIBLE = 0.004  # share of the baseline's time below which a part is left out


@styled
def codesign(result: Any, title: str = "") -> Figure:
    """How the search converged, where the time goes in baseline and design, and how full the constraints are.

    `result` is a `diffperf.explore.codesign.result.Codesign`.
    """
    figure = new_figure(15, 4.8)
    search, parts, limits = figure.subplots(1, 3, width_ratios=(1.25, 0.8, 1))
    _draw_convergence(search, result)
    _draw_breakdowns(parts, result)
    _draw_constraints(limits, result)
    set_title(figure, title)
    return figure


def _draw_convergence(axes: Axes, result: Any) -> None:
    """Draws the best objective over the baseline's, stage by stage."""
    stages = [point.stage.split(":")[0] for point in result.trace]
    objective = np.array([point.objective for point in result.trace])
    settled = np.array([point.violation for point in result.trace]) <= _SETTLED
    last, best = len(stages) - 1, (result.objective / result.baseline_objective) ** result.problem.sense
    axes.plot(np.arange(last + 1), np.where(settled, objective, np.nan), color=BLUE, linewidth=1.8)
    axes.axhline(1.0, color=GREY, linewidth=1, linestyle=DASHED)
    axes.axhline(best, color=ORANGE, linewidth=1.4)
    note(axes, f"{best:.3f}", (last, best), (0, -12), ha="right", color=ORANGE)
    note(axes, "baseline", (0, 1.0), (0, 4), color=GREY, fontsize=9)
    for index, stage in enumerate(stages):
        if index == 0 or stage != stages[index - 1]:
            axes.axvline(index, color=FAINT, linewidth=0.8)
            top = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top"}
            note(axes, stage, (index, 0.98), (3, 0), fontsize=8, color=INK, **top)
    # The start of a search is far off the scale on which it settles.
    axes.set_ylim(best - 0.15 * abs(1 - best) - 0.005, max(1.0, best) + 0.35 * abs(1 - best) + 0.01)
    axes.set_title("Search: best objective / baseline")
    axes.set_xlabel("steps of the search")
    bare(axes, keep="left")


def _draw_breakdowns(axes: Axes, result: Any) -> None:
    """Draws where the time goes in the baseline and in the design, as two stacked bars."""
    reports = (result.problem.baseline_outcome.report, result.outcome.report)
    name = time_breakdowns(reports[0])[0]
    baseline, design = (outputs(getattr(report, name)) for report in reports)
    whole = float(baseline["total"][1])
    tops = np.zeros(2)
    parts = {
        declared.doc: (float(value), float(design[path][1]))
        for path, (declared, value) in baseline.items()
        if path != "total"
    }
    shown = {label: pair for label, pair in parts.items() if max(pair) > _NEGLIGIBLE * whole}
    for index, (label, pair) in enumerate(shown.items()):
        axes.bar((0, 1), pair, bottom=tops, width=0.62, color=PALETTE[index % len(PALETTE)], label=label)
        tops += pair
    for place, top in enumerate(tops):
        note(axes, units.show(top, "s", 3), (place, top), (0, 3), ha="center")
    axes.set_xticks((0, 1), ("baseline", "design"))
    axes.set_title(BREAKDOWNS[name])
    axes.set_ylim(0, 1.1 * tops.max())
    axes.yaxis.set_major_formatter(unit_ticks("s"))
    legend_beside(axes, fontsize=8)
    bare(axes, keep="left")


def _draw_constraints(axes: Axes, result: Any) -> None:
    """Draws constraints as fractions of their limits; active ones in colour, with what 1 % more buys."""
    rows = result.constraints()
    for place, row in enumerate(rows):
        colour = RED if row.excess > 0 else ORANGE if row.active else GREY
        axes.barh(place, 1 + row.excess, color=colour, height=0.6)
        if row.active:
            text = f"{result.problem.objective} {row.percent:+.2f} %"
            axes.annotate(text, (0.02, place), va="center", fontsize=9, color="white", weight="bold")
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [str(row.constraint).replace("mm^2", "mm²") for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(percent_ticks())
    axes.set_title("Constraints, and what 1 % more buys")
    bare(axes)
