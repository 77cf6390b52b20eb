"""Course of a co-design: the search, the design beside its baseline, and the active constraints."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffperf import units
from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    FAINT,
    GREY,
    GREY_TEXT,
    INK,
    ORANGE,
    ORANGE_TEXT,
    PALETTE,
    RED,
    bare,
    legend_beside,
    new_figure,
    note,
    percent_ticks,
    say_empty,
    set_title,
    set_unit,
    shortened,
    styled,
    words_of,
    wrapped,
)
from diffperf.report.plots.waterfall import BREAKDOWNS, time_breakdowns
from diffperf.report.tables import outputs

_SMALL = 0.01  # objective over the baseline's below which it is written with a power of ten
_LONGEST, _LINE = 40, 36  # characters of a part of the time, and in a line of a constraint
_HEIGHT = 0.36  # inches of a constraint
_MOST = 2.0  # times its limit, at which the bar of a constraint is cut
_SETTLED = 1e-3  # largest violation of a constraint at which the objective is worth drawing
_FEW = 3  # constraints that the axes have room for at least
_NEGLIGIBLE = 0.004  # share of the baseline's time below which a part is left out


@styled
def codesign(result: Any, title: str = "") -> Figure:
    """Convergence of the search, parts of the time in baseline and design, and the fill of the constraints.

    `result` is a `diffperf.explore.codesign.result.Codesign`.
    """
    figure = new_figure(15, max(4.8, 1.5 + _HEIGHT * len(result.constraints())))
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
    label = f"{best:.3f}" if best >= _SMALL else f"{best:.3g}"
    right = {"xycoords": ("axes fraction", "data"), "ha": "right"}
    note(axes, label, (1.0, best), (0, -12 if best <= 1 else 4), color=ORANGE_TEXT, **right)
    note(axes, "baseline", (1.0, 1.0), (0, 4 if best <= 1 else -12), color=GREY_TEXT, fontsize=9, **right)
    for index, stage in enumerate(stages):
        if index == 0 or stage != stages[index - 1]:
            axes.axvline(index, color=FAINT, linewidth=0.8)
            top = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top"}
            note(axes, stage, (index, 0.98), (3, 0), fontsize=8, color=INK, **top)
    # The start of a search is far off the scale on which it settles.
    span = abs(1 - best)
    axes.set_ylim(min(1.0, best) - 0.15 * span - 0.005, max(1.0, best) + 0.35 * span + 0.01)
    axes.set_xlim(-0.04 * max(last, 1), 1.04 * max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title("Search: best objective / baseline")
    axes.set_xlabel("steps of the search")
    bare(axes, keep="left")


def _draw_breakdowns(axes: Axes, result: Any) -> None:
    """Draws where the time goes in the baseline and in the design, as two stacked bars."""
    reports = (result.problem.baseline_outcome.report, result.outcome.report)
    name = time_breakdowns(reports[0])[0]
    baseline, design = (outputs(getattr(report, name)) for report in reports)
    wholes = [float(parts["total"][1]) for parts in (baseline, design)]
    tops = np.zeros(2)
    parts = {
        declared.doc: (float(value), float(design[path][1]))
        for path, (declared, value) in baseline.items()
        if path != "total"
    }
    shown = {label: pair for label, pair in parts.items() if max(pair) > _NEGLIGIBLE * wholes[0]}
    for index, (label, pair) in enumerate(shown.items()):
        axes.bar(
            (0, 1),
            pair,
            bottom=tops,
            width=0.62,
            color=PALETTE[index % len(PALETTE)],
            label=shortened(label, _LONGEST),
        )
        tops += pair
    for place, (top, whole) in enumerate(zip(tops, wholes, strict=True)):
        note(axes, units.show(whole, "s", 3), (place, top), (0, 3), ha="center")
    axes.set_xticks((0, 1), ("baseline", "design"))
    axes.set_title(BREAKDOWNS[name])
    axes.set_ylim(0, 1.1 * tops.max())
    set_unit(axes.yaxis, "s")
    legend_beside(axes, fontsize=8)
    bare(axes, keep="left")


def _draw_constraints(axes: Axes, result: Any) -> None:
    """Draws constraints as fractions of their limits; active ones in colour, with what 1 % more buys."""
    rows, objective = result.constraints(), words_of(result.problem.objective)
    for place, row in enumerate(rows):
        colour = RED if row.excess > 0 else ORANGE if row.active else GREY
        end = min(1 + row.excess, _MOST)
        axes.barh(place, end, color=colour, height=0.6)
        texts = [f"{1 + row.excess:,.0%}"] if 1 + row.excess > _MOST else []
        if row.sloped:
            texts.append(f"{objective} {row.percent:+.2f} %".replace("-", "−"))
        note(axes, "; ".join(texts), (max(end, 1.0), place), (4, 0), va="center", fontsize=9, color=INK)
    axes.axvline(1, color=INK, linewidth=1.2)
    names = [wrapped(str(row.constraint).replace("mm^2", "mm²"), _LINE) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.set_ylim(max(len(rows), _FEW) - 0.4, -0.6)
    axes.set_xlim(0, 1.7 * max([1.0, *(min(1 + row.excess, _MOST) for row in rows)]))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(percent_ticks())
    axes.set_title("Constraints, and what 1 % more buys")
    axes.set_xlabel("share of the limit")
    bare(axes)
    if not rows:
        say_empty(axes, "no constraints")
