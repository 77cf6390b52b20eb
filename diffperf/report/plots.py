"""Figures one would put in a slide: where time and memory go, what an output hangs on, what a package costs, what a sweep found.

Each function returns a matplotlib `Figure` of its own (no pyplot, no global state); `save` writes it in the format of its name.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.quantity import Quantity
from diffperf.report.tables import has_total, outputs

FORMATS = (".png", ".svg", ".pdf")

INK, FAINT = "#1f2933", "#d5dbe1"
BLUE, ORANGE, RED, GREY = "#2f6db5", "#e08a2e", "#c8443a", "#9aa5b1"
PALETTE = (
    "#2f6db5",
    "#5b9bd5",
    "#8cc0e8",
    "#3d9a8b",
    "#7fc6a4",
    "#b5d99c",
    "#e9c46a",
    "#e08a2e",
    "#c8443a",
    "#8e6bb0",
)
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
}


def check_format(path: str | Path) -> Path:
    """The path, if a figure can be written to a file of that name. Raises `ConfigError`."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        hint = did_you_mean(path.suffix.lower(), FORMATS)
        raise ConfigError(
            "command line", "--plot", f'"{path}"', "a file name ending in " + ", ".join(FORMATS), hint
        )
    return path


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the ending of `path`."""
    path = check_format(path)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=160, bbox_inches="tight", facecolor="white")
    return path


def _axis_of(unit: str):
    """A formatter for tick labels in the unit's usual prefix."""
    return FuncFormatter(lambda value, _: units.show(value, unit, 3) if value else "0")


def bare(axes: Axes, *, keep: str = "bottom") -> None:
    """Only the spine that carries the scale, and faint lines from its ticks."""
    for side in ("left", "bottom", "top", "right"):
        axes.spines[side].set_visible(side == keep)
    axes.tick_params(length=0)
    axes.grid(axis="x" if keep == "bottom" else "y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def _parts(module: eqx.Module) -> list[tuple[str, float, str]]:
    """(label, value, unit) of the parts of a whole that are more than a millionth of it."""
    named = [
        (declared.doc, float(value), declared.unit)
        for path, (declared, value) in outputs(module).items()
        if "." not in path
    ]
    whole = sum(value for label, value, _ in named if label != "total")
    return [(label, value, unit) for label, value, unit in named if label != "total" and value > 1e-6 * whole]


def _waterfall(axes: Axes, parts: list[tuple[str, float, str]], title: str) -> None:
    """Parts one after the other, from 0 to their sum."""
    total, start = sum(value for _, value, _ in parts), 0.0
    for row, (_, value, unit) in enumerate(parts):
        end = start + value
        axes.barh(row, value, left=start, color=PALETTE[row % len(PALETTE)], height=0.72)
        if row + 1 < len(parts):
            axes.plot([end, end], [row - 0.36, row + 1.36], color=GREY, linewidth=0.8)
        text = f"{units.show(value, unit, 3)}  {value / total:.0%}"
        beside = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        if end < 0.8 * total:
            axes.annotate(text, (end, row), xytext=(5, 0), ha="left", **beside)
        elif start > 0.25 * total:
            axes.annotate(text, (start, row), xytext=(-5, 0), ha="right", **beside)
        else:  # nearly all of it: no room on either side
            axes.annotate(text, (end, row), xytext=(-5, 0), ha="right", color="white", **beside)
        start = end
    axes.set_yticks(range(len(parts)), [label for label, _, _ in parts])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlim(0, total * 1.02)
    axes.xaxis.set_major_formatter(_axis_of(parts[0][2]))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(title)
    bare(axes)


def _brief(label: str) -> str:
    """A description as a legend can hold it: up to its first remark."""
    return re.split(r",| kept| that | \(", label)[0]


def _apart(index: int) -> str:
    """Colours whose neighbours differ: every other one of the palette, then those between."""
    half = len(PALETTE) // 2
    return PALETTE[(2 * index + index // half) % len(PALETTE)]


def _memory_bar(axes: Axes, memory: eqx.Module) -> None:
    """What fills a device's memory, against what it has."""
    capacity, peak, top = float(memory.capacity), float(memory.peak), 0.0
    skipped = ("peak", "capacity", "excess")
    parts = {path: part for path, part in outputs(memory).items() if path not in skipped and "." not in path}
    named = {path: (declared.doc, float(value)) for path, (declared, value) in parts.items()}
    height = max(capacity, peak)
    for index, (label, value) in enumerate(pair for pair in named.values() if pair[1] > 0):
        axes.bar(0, value, bottom=top, width=0.6, color=_apart(index), label=_brief(label))
        if value > 0.045 * height:
            axes.text(
                0,
                top + value / 2,
                units.show(value, "byte", 3),
                ha="center",
                va="center",
                fontsize=9,
                color="white",
            )
        top += value
    over = peak > capacity
    colour = RED if over else INK
    axes.axhline(capacity, color=colour, linewidth=1.6, linestyle=(0, (4, 2)))
    beside = {"xytext": (3, 5), "textcoords": "offset points", "fontsize": 9, "color": colour}
    beside["bbox"] = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0}
    axes.annotate(f"{units.show(capacity, 'byte', 3)} per device", (-0.5, capacity), **beside)
    verdict = f"does not fit: {peak / capacity:.0%}" if over else f"fits: {peak / capacity:.0%} used"
    axes.set_title(f"Memory ({verdict})", color=colour)
    axes.set_xlim(-0.5, 0.75)
    axes.set_ylim(0, 1.1 * height)
    axes.set_xticks([])
    axes.yaxis.set_major_formatter(_axis_of("byte"))
    bare(axes, keep="left")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


# Parts of a report that break its time down, and what they are called above a figure.
_BREAKDOWNS = {"breakdown": "Time", "prefill": "Time to first token", "decode": "Time per output token"}


def breakdown(report: eqx.Module, title: str = "") -> Figure:
    """Where the time of an estimate goes, as a waterfall for each of its phases, beside what fills the memory."""
    names = [name for name in _BREAKDOWNS if hasattr(report, name) and has_total(getattr(report, name))]
    parts = [_parts(getattr(report, name)) for name in names]
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(11, max(4.2, 0.42 * sum(map(len, parts)) + 1.2 * len(parts))), layout="constrained"
        )
        ratios = [len(rows) for rows in parts]
        grid = figure.add_gridspec(len(names), 2, width_ratios=(3.2, 1), height_ratios=ratios)
        for row, (name, rows) in enumerate(zip(names, parts, strict=True)):
            whole = units.show(getattr(report, name).total, "s")
            _waterfall(figure.add_subplot(grid[row, 0]), rows, f"{_BREAKDOWNS[name]}: {whole}")
        _memory_bar(figure.add_subplot(grid[:, 1]), report.memory)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _percent(value: float) -> str:
    return f"{value:+.3g} %".replace("-", "−") if value else "0"


def input_name(path: str) -> str:
    """A path as a short name: what it is of, and what it is."""
    return (
        " ".join(path.replace("_", " ").split(".")[-2:]).removeprefix("system ").removeprefix("accelerator ")
    )


def tornado(found: Sequence, title: str = "", limit: int = 12) -> Figure:
    """Elasticities of an output, the largest on top: what +1 % of each input does to it.

    `found` holds `diffperf.explore.sensitivity.Sensitivity`s, ranked.
    """
    largest = max((abs(one.elasticity) for one in found), default=0.0)
    shown = [one for one in found if abs(one.elasticity) > 1e-3 * largest][:limit]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.2 + 0.42 * max(len(shown), 1)), layout="constrained")
        axes = figure.add_subplot()
        reach = largest or 1.0
        for row, one in enumerate(shown):
            axes.barh(row, one.elasticity, color=ORANGE if one.elasticity > 0 else BLUE, height=0.68)
            beside = {
                "xytext": (4 if one.elasticity > 0 else -4, 0),
                "textcoords": "offset points",
                "va": "center",
                "fontsize": 9,
            }
            axes.annotate(
                _percent(one.elasticity),
                (one.elasticity, row),
                ha="left" if one.elasticity > 0 else "right",
                **beside,
            )
        labels = [f"{input_name(one.path)}  ({units.show(one.value, one.declared.unit, 3)})" for one in shown]
        axes.set_yticks(range(len(shown)), labels)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        sides = [sign for sign in (-1, 1) if any(sign * one.elasticity > 0 for one in shown)] or [-1, 1]
        axes.set_xlim(min(0, 1.35 * reach * sides[0]), max(0, 1.35 * reach * sides[-1]))
        axes.axvline(0, color=INK, linewidth=1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _percent(value)))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        bare(axes)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def package_cost(
    cost: eqx.Module, areas: np.ndarray, totals: np.ndarray, die_area: float, title: str = ""
) -> Figure:
    """What a package costs, piece by piece, and how that grows with the die: `totals` in USD at `areas` in mm²."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        _waterfall(left, _parts(cost), f"One package: {units.show(cost.total, 'USD')}")
        right.plot(areas, totals, color=BLUE, linewidth=2)
        right.plot([die_area], [float(cost.total)], "o", color=ORANGE, markersize=8)
        right.annotate(
            f"{die_area:.0f} mm²",
            (die_area, float(cost.total)),
            xytext=(-8, 8),
            textcoords="offset points",
            ha="right",
        )
        right.set_title("Package cost by die area")
        right.set_xlabel("area of one compute die (mm²)")
        right.set_ylim(0, 1.15 * float(np.max(totals)))
        right.yaxis.set_major_formatter(_axis_of("USD"))
        right.grid(color=FAINT, linewidth=0.8)
        right.set_axisbelow(True)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def scatter(
    x: tuple[np.ndarray, Quantity, str],
    y: tuple[np.ndarray, Quantity, str],
    fits: np.ndarray,
    best: tuple[float, float] | None,
    title: str = "",
) -> Figure:
    """The possible points of a sweep by two outputs (values, declaration, label), told apart by whether they fit memory."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        size = float(np.clip(4e4 / max(len(fits), 1), 1.5, 18))
        for chosen, colour, label in ((~fits, FAINT, "out of memory"), (fits, BLUE, "fits memory")):
            if chosen.any():
                axes.scatter(
                    x[0][chosen],
                    y[0][chosen],
                    s=size,
                    color=colour,
                    label=label,
                    linewidths=0,
                    rasterized=True,
                )
        if best is not None:
            axes.plot(
                *best,
                "o",
                markersize=11,
                markerfacecolor="none",
                markeredgecolor=ORANGE,
                markeredgewidth=2.2,
                zorder=3,
            )
            axes.annotate(
                "best",
                best,
                xytext=(0, -16),
                textcoords="offset points",
                ha="center",
                color=ORANGE,
                weight="bold",
            )
        for axis, (values, declared, _), scale in (
            (axes.xaxis, x, axes.set_xscale),
            (axes.yaxis, y, axes.set_yscale),
        ):
            if values.size and values.min() > 0 and values.max() > 5 * values.min():
                scale("log")
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_minor_formatter(NullFormatter())
            axis.set_major_formatter(_axis_of(declared.unit))
        axes.set_xlabel(x[2])
        axes.set_ylabel(y[2])
        axes.grid(color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="upper right", markerscale=float(np.sqrt(60 / size)))
        axes.set_title(title)
    return figure


def predicted_against_measured(
    groups: dict[str, tuple[np.ndarray, np.ndarray]], label: str, title: str = ""
) -> Figure:
    """Predictions over measurements, (predicted, measured) by group, on logarithmic scales with the band of ±10 %."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 6), layout="constrained")
        axes = figure.add_subplot()
        both = np.concatenate([np.ravel(pair) for pair in groups.values()]) if groups else np.array([1.0])
        ends = np.array([both.min() / 1.5, both.max() * 1.5])
        axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color=FAINT, linewidth=0, label="within 10 %")
        axes.plot(ends, ends, color=INK, linewidth=0.8)
        size = float(np.clip(4e4 / both.size, 4, 30))
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
        for axis, scale, limits in (
            (axes.xaxis, axes.set_xscale, axes.set_xlim),
            (axes.yaxis, axes.set_yscale, axes.set_ylim),
        ):
            scale("log")
            limits(*ends)
            axis.set_minor_formatter(NullFormatter())
        axes.set_aspect("equal")
        axes.set_xlabel(f"{label} measured")
        axes.set_ylabel(f"{label} predicted")
        axes.grid(color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            fontsize=9,
            markerscale=float(np.sqrt(40 / size)),
        )
        axes.set_title(title)
    return figure


def calibration(found, title: str = "") -> Figure:
    """What a calibration did to the errors: row by row over the measured time, and how many rows lie within an error.

    `found` is a `diffperf.explore.calibrate.calibrate.Calibrated`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        rows, shares = figure.subplots(1, 2, width_ratios=(1.5, 1))
        size = float(np.clip(4e4 / len(found.times), 4, 30))
        rows.scatter(
            found.times,
            np.exp(found.before),
            s=size,
            color=FAINT,
            linewidths=0,
            label="as configured",
            rasterized=True,
        )
        for index, kind in enumerate(sorted(set(found.kinds))):
            chosen = found.kinds == kind
            points = found.times[chosen], np.exp(found.held_out[chosen])
            name = f"{kind}, cross-validated (90 % within a factor of {np.exp(np.median(found.half_width[chosen])):.2f})"
            colour = PALETTE[(7 * index) % len(PALETTE)]
            rows.scatter(*points, s=size, color=colour, linewidths=0, alpha=0.7, label=name, rasterized=True)
            for side in (-1, 1):
                rows.axhline(
                    np.exp(side * np.median(found.half_width[chosen])),
                    color=colour,
                    linewidth=1,
                    linestyle=(0, (4, 2)),
                )
        rows.axhline(1, color=INK, linewidth=0.8)
        rows.set_xscale("log")
        rows.set_yscale("log")
        reach = float(
            np.clip(np.quantile(np.abs(np.concatenate([found.before, found.held_out])), 0.995), 0.2, 3.0)
        )
        rows.set_ylim(np.exp(-1.1 * reach), np.exp(1.1 * reach))
        rows.xaxis.set_major_formatter(_axis_of("s"))
        rows.yaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if reach > 1 else (1, 1.2, 1.5, 2, 3, 4, 6, 8))
        )
        rows.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axis in (rows.xaxis, rows.yaxis):
            axis.set_minor_formatter(NullFormatter())
        rows.set_xlabel("measured time")
        rows.set_title("Predicted / measured time")
        rows.legend(frameon=False, fontsize=9, loc="best", markerscale=float(np.sqrt(40 / size)))
        for residuals, colour, name in (
            (found.before, GREY, "as configured"),
            (found.after, BLUE, "fitted"),
            (found.held_out, ORANGE, "cross-validated"),
        ):
            errors = np.sort(np.abs(np.expm1(residuals)))
            shares.plot(
                errors, np.arange(1, len(errors) + 1) / len(errors), color=colour, linewidth=1.8, label=name
            )
        for share in (0.5, 0.9):
            shares.axhline(share, color=FAINT, linewidth=1, zorder=0)
        shares.set_xlim(0, 1.2 * float(np.quantile(np.abs(np.expm1(found.before)), 0.9)) + 0.02)
        shares.set_ylim(0, 1)
        for axis in (shares.xaxis, shares.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        shares.set_xlabel("error")
        shares.set_title("Rows within an error")
        shares.legend(frameon=False, loc="lower right")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def codesign(found, title: str = "") -> Figure:
    """How a co-design search went, where the design's time goes beside the baseline's, and how full its constraints are.

    `found` is a `diffperf.explore.codesign.search.Codesign`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(15, 4.8), layout="constrained")
        search, parts, limits = figure.subplots(1, 3, width_ratios=(1.25, 0.8, 1))
        _convergence(search, found)
        _compared(parts, found)
        _fullness(limits, found)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _convergence(axes: Axes, found) -> None:
    """Best objective of all starts over the baseline's, and the least violation, by outer iteration."""
    iterations = np.arange(len(found.trace))
    objective = np.array([point.objective for point in found.trace])
    violation = np.array([point.violation for point in found.trace])
    settled = violation <= 1e-3
    axes.plot(iterations, np.where(settled, objective, np.nan), color=BLUE, linewidth=1.8)
    axes.axhline(1.0, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    best = (found.objective / found.baseline_objective) ** found.study.sense
    axes.axhline(best, color=ORANGE, linewidth=1.4)
    axes.annotate(
        f"{best:.3f}",
        (iterations[-1], best),
        xytext=(0, -12),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    axes.annotate("baseline", (0, 1.0), xytext=(0, 4), textcoords="offset points", color=GREY, fontsize=9)
    changes = [i for i in range(1, len(found.trace)) if _stage(found, i) != _stage(found, i - 1)]
    for begin in [0, *changes]:
        axes.axvline(begin, color=FAINT, linewidth=0.8)
        axes.annotate(_stage(found, begin), (begin, 0.98), xycoords=("data", "axes fraction"), xytext=(3, 0),
                      textcoords="offset points", rotation=90, va="top", fontsize=8, color=INK)  # fmt: skip
    # Far from where it settles the objective says little.
    axes.set_ylim(best - 0.15 * abs(1 - best) - 0.005, max(1.0, best) + 0.35 * abs(1 - best) + 0.01)
    axes.set_title("Search: best objective / baseline")
    axes.set_xlabel("outer iteration")
    bare(axes, keep="left")


def _stage(found, index: int) -> str:
    return found.trace[index].stage.split(":")[0]


def _compared(axes: Axes, found) -> None:
    """Time breakdown of the baseline and of the design, stacked."""
    reports = (found.study.baseline_outcome.report, found.outcome.report)
    name = next(name for name in _BREAKDOWNS if hasattr(reports[0], name))
    tops = np.zeros(2)
    rows = [[float(value) for _, (_, value) in outputs(getattr(report, name)).items()] for report in reports]
    labels = [declared.doc for declared, _ in outputs(getattr(reports[0], name)).values()]
    whole = sum(value for label, value in zip(labels, rows[0], strict=True) if label != "total")
    shown = [
        (label, pair)
        for label, *pair in zip(labels, *rows, strict=True)
        if label != "total" and max(pair) > 0.004 * whole
    ]
    for index, (label, pair) in enumerate(shown):
        axes.bar((0, 1), pair, bottom=tops, width=0.62, color=PALETTE[index % len(PALETTE)], label=label)
        tops += pair
    for x, top in enumerate(tops):
        axes.annotate(
            units.show(top, "s", 3), (x, top), xytext=(0, 3), textcoords="offset points", ha="center"
        )
    axes.set_xticks((0, 1), ("baseline", "design"))
    axes.set_title(_BREAKDOWNS[name])
    axes.set_ylim(0, 1.1 * tops.max())
    axes.yaxis.set_major_formatter(_axis_of("s"))
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], names[::-1], frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    bare(axes, keep="left")


def _fullness(axes: Axes, found) -> None:
    """Every constraint as a fraction of its limit; the active ones in colour, with their shadow prices."""
    rows = found.constraints()
    for row, ((_, _, multiplier, _), excess) in enumerate(zip(rows, found.excess, strict=True)):
        active = multiplier > 1e-3
        colour = RED if excess > 0 else ORANGE if active else GREY
        axes.barh(row, 1 + float(excess), color=colour, height=0.6)
        price = f"{found.study.objective} {-multiplier * found.study.sense:+.2f} %" if active else ""
        axes.annotate(price, (0.02, row), va="center", fontsize=9, color="white", weight="bold")
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [str(constraint).replace("mm^2", "mm²") for constraint, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_title("Constraints, and what 1 % more buys")
    bare(axes)
