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
_LONGEST, _LINE = 32, 36  # characters in a line of a part of the time, and of a constraint
_WORKLOAD = 16  # characters of the name of a workload
_GAP = 0.4  # between the bars of two workloads
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
    workloads = len(result.problem.workloads)
    beside = 1.3 * (workloads - 1)  # inches of the bars of the other workloads
    figure = new_figure(15 + beside, max(4.8, 1.5 + _HEIGHT * len(result.constraints())))
    search, parts, limits = figure.subplots(1, 3, width_ratios=(1.25, 0.8 + beside / 4, 1))
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
    """Draws where the time goes in the baseline and in the design, as two stacked bars for every workload.

    Of several workloads, whose times may differ by decades, bars are over the time of the workload in the
    baseline; their times stand above them.
    """
    pairs, several = _report_pairs(result), result.relative
    colours: dict[str, str] = {}
    places, highest = [], 0.0
    for number, reports in enumerate(pairs.values()):
        name = time_breakdowns(reports[0])[0]
        both = [outputs(getattr(report, name)) for report in reports]
        wholes = [float(parts["total"][1]) for parts in both]
        scale = wholes[0] if several else 1.0
        own = [number * (2 + _GAP), number * (2 + _GAP) + 1]
        places += own
        tops = np.zeros(2)
        for path, (declared, value) in both[0].items():
            pair = np.array([float(value), float(both[1][path][1])])
            if path == "total" or max(pair) <= _NEGLIGIBLE * wholes[0]:
                continue
            label = None if declared.doc in colours else wrapped(declared.doc, _LONGEST)
            colour = colours.setdefault(declared.doc, PALETTE[len(colours) % len(PALETTE)])
            axes.bar(own, pair / scale, bottom=tops, width=0.62, color=colour, label=label)
            tops += pair / scale
        for place, top, whole in zip(own, tops, wholes, strict=True):
            note(axes, units.show(whole, "s", 3), (place, top), (0, 3), ha="center", fontsize=9)
        highest = max(highest, tops.max())
    axes.set_xticks(places, ("baseline", "design") * len(pairs), fontsize=9 if several else None)
    axes.set_ylim(0, 1.1 * highest)
    if several:
        named = [shortened(name, _WORKLOAD) for name in pairs]
        for number, name in enumerate(named):
            under = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
            note(axes, name, (number * (2 + _GAP) + 0.5, 0), (0, -20), fontsize=10, **under)
        axes.set_title("Time over the baseline's")
    else:
        axes.set_title(BREAKDOWNS[name])
        set_unit(axes.yaxis, "s")
    legend_beside(axes, fontsize=8)
    bare(axes, keep="left")


def _report_pairs(result: Any) -> dict[str, tuple[Any, Any]]:
    """The reports of every workload in the baseline and in the design, by the name of the workload."""
    first = result.problem.workloads[0].name
    before, after = result.problem.baseline_outcome.reports(first), result.outcome.reports(first)
    return {name: (report, after[name]) for name, report in before.items()}


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
