"""Parts of the time and the memory of an estimate, and of the price of a package: a whole and its parts."""

import equinox as eqx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf import units
from diffperf.quantity import locate
from diffperf.report.plots.style import (
    BLUE,
    DASHED,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    RED,
    bare,
    brief,
    faint_grid,
    legend_below,
    legend_beside,
    new_figure,
    note,
    set_title,
    set_unit,
    shortened,
    styled,
    text_on,
    wrapped,
)
from diffperf.report.tables import has_total, memory_parts, outputs

# Parts of a report that break its time down, and their titles.
BREAKDOWNS = {"breakdown": "Time", "prefill": "Time to first token", "decode": "Time of a decode pass"}

_NEGLIGIBLE = 1e-6  # share of a whole below which a part is left out
_NARROW = 1e-3  # share of the longest bar below which a part of a price cannot be seen, and has no colour
_SAME_PRICE = 1e-3  # relative spread of prices below which a curve is upright
_HATCHES = "", "////", "...."  # of the parts of a price, by how often the palette was used up
_LEAST_DISTANCE = 0.25, 0.08  # least distance of labels along a curve, as shares of its width and height
_LINE = 44  # characters in a line of the name of a part
_LONGEST = 28  # characters of the name of a system
_LABELLED = 0.045  # share of the memory bar's height that a label fits into


def time_breakdowns(report: eqx.Module) -> list[str]:
    """The names of those parts of a report that break a time down."""
    return [name for name in BREAKDOWNS if hasattr(report, name) and has_total(getattr(report, name))]


def parts_of(module: eqx.Module) -> list[tuple[str, float, str]]:
    """The parts of a whole that matter: (label, value, unit)."""
    parts = [
        (declared.doc, float(value), declared.unit)
        for path, (declared, value) in outputs(module).items()
        if "." not in path and path != "total"
    ]
    whole = sum(value for _, value, _ in parts)
    return [(label, value, unit) for label, value, unit in parts if value > _NEGLIGIBLE * whole]


def total_of(module: eqx.Module) -> float:
    """The sum of the parts of a whole."""
    return float(locate(module, "total")[0])


def draw_waterfall(axes: Axes, parts: list[tuple[str, float, str]], title: str) -> None:
    """Draws parts one after the other, from 0 to their sum."""
    total, start = sum(value for _, value, _ in parts), 0.0
    for row, (_, value, unit) in enumerate(parts):
        end = start + value
        colour = PALETTE[row % len(PALETTE)]
        axes.barh(row, value, left=start, color=colour, height=0.72)
        if row + 1 < len(parts):
            axes.plot([end, end], [row - 0.36, row + 1.36], color=GREY, linewidth=0.8)
        text = f"{units.show(value, unit, 3)}  {value / total:.0%}"
        _label_bar(axes, row, (start, end), total, text, inside=text_on(colour))
        start = end
    axes.set_yticks(range(len(parts)), [wrapped(label, _LINE) for label, _, _ in parts])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.set_xlim(0, total * 1.02)
    set_unit(axes.xaxis, parts[0][2], 5)
    axes.set_title(title)
    bare(axes)


def _label_bar(axes: Axes, row: int, ends: tuple[float, float], total: float, text: str, inside: str) -> None:
    """Writes a bar's value where there is room: to its right, to its left, or in it."""
    start, end = ends
    if end < 0.8 * total:
        note(axes, text, (end, row), (5, 0), ha="left", va="center", fontsize=9)
    elif start > 0.25 * total:
        note(axes, text, (start, row), (-5, 0), ha="right", va="center", fontsize=9)
    else:
        note(axes, text, (end, row), (-5, 0), ha="right", va="center", fontsize=9, color=inside)


def _contrasting_colour(index: int) -> str:
    """Colours whose neighbours differ: every other one of the palette, then those between."""
    half = len(PALETTE) // 2
    return PALETTE[(2 * index + index // half) % len(PALETTE)]


def _draw_memory(axes: Axes, memory: eqx.Module) -> None:
    """Draws what fills a device's memory as a stacked bar, and its capacity as a line."""
    peak, capacity = (float(locate(memory, name)[0]) for name in ("peak", "capacity"))
    height, top = max(capacity, peak), 0.0
    parts = {label: value for label, value in memory_parts(memory).items() if value > 0}
    for index, (label, value) in enumerate(parts.items()):
        colour = _contrasting_colour(index)
        axes.bar(0, value, bottom=top, width=0.6, color=colour, label=brief(label))
        if value > _LABELLED * height:
            text = units.show(value, "byte", 3)
            box = {"facecolor": colour, "edgecolor": "none", "pad": 1}  # over the line at the capacity
            style = {"ha": "center", "va": "center", "fontsize": 9, "color": text_on(colour)}
            axes.text(0, top + value / 2, text, zorder=3, bbox=box, **style)
        top += value
    _draw_capacity(axes, peak, capacity)
    axes.set_xlim(-0.5, 0.75)
    axes.set_ylim(0, 1.1 * height)
    axes.set_xticks([])
    set_unit(axes.yaxis, "byte")
    bare(axes, keep="left")
    legend_beside(axes, fontsize=9)


def _draw_capacity(axes: Axes, peak: float, capacity: float) -> None:
    """Draws a line at the capacity of a device, and says in the title whether the peak fits below it."""
    over = peak > capacity
    colour = RED if over else INK
    text = f"capacity of a device: {units.show(capacity, 'byte', 3)}"
    axes.axhline(capacity, color=colour, linewidth=1.6, linestyle=DASHED, label=text)
    verdict = f"does not fit: {peak / capacity:,.0%}" if over else f"fits: {peak / capacity:.0%} used"
    axes.set_title(f"Memory ({verdict})", color=colour)


@styled
def breakdown(report: eqx.Module, title: str = "") -> Figure:
    """Parts of the time of an estimate, as a waterfall for each phase, beside the parts of the memory."""
    names = time_breakdowns(report)
    parts = {name: parts_of(getattr(report, name)) for name in names}
    rows = sum(map(len, parts.values()))
    figure = new_figure(11, max(4.2, 0.42 * rows + 1.2 * len(parts)))
    grid = figure.add_gridspec(
        len(names), 2, width_ratios=(3.2, 1), height_ratios=[len(parts[name]) for name in names]
    )
    for row, name in enumerate(names):
        whole = units.show(total_of(getattr(report, name)), "s")
        draw_waterfall(figure.add_subplot(grid[row, 0]), parts[name], f"{BREAKDOWNS[name]}: {whole}")
    _draw_memory(figure.add_subplot(grid[:, 1]), locate(report, "memory")[0])
    set_title(figure, title)
    return figure


def _draw_owners(axes: Axes, prices: dict[str, dict[str, float]], title: str, *, named: bool) -> None:
    """Draws a bar for each system, stacked of the parts of a price in USD, the first system on top: with its
    name in front if `named`.
    """
    totals = {name: sum(each.values()) for name, each in prices.items()}
    least = _NARROW * max(totals.values())
    every = dict.fromkeys(name for each in prices.values() for name in each)
    parts = [name for name in every if any(each.get(name, 0.0) > least for each in prices.values())]
    systems = list(prices)[::-1]
    left = np.zeros(len(systems))
    for index, part in enumerate(parts):
        values = np.array([prices[name].get(part, 0.0) for name in systems])
        colour = _contrasting_colour(index)
        hatch = _HATCHES[index // len(PALETTE) % len(_HATCHES)]
        axes.barh(
            range(len(systems)),
            values,
            left=left,
            height=0.6,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=part,
        )
        left += values
    for place, system in enumerate(systems):
        note(axes, units.show(totals[system], "USD", 4), (left[place], place), (4, -4), fontsize=9)
    axes.set_yticks(range(len(systems)), [shortened(name, _LONGEST) for name in systems] if named else [])
    axes.set_xlim(0, 1.4 * float(np.max(left)))
    axes.set_title(title)
    set_unit(axes.xaxis, "USD", 3)
    bare(axes, keep="bottom")
    legend_below(axes, fontsize=8)


@styled
def package_cost(
    cost: eqx.Module,
    areas: np.ndarray,
    totals: np.ndarray,
    die_area: float,
    owners: dict[str, dict[str, dict[str, float]]],
    title: str = "",
) -> Figure:
    """Cost of a package, piece by piece, its growth with the die, and the cost of a device to its owner.

    - areas: areas of one compute die, in mm², shape (areas,).
    - totals: what the package costs with dies of those areas, in USD, shape (areas,).
    - die_area: the area of the die that `cost` is for, in mm².
    - owners: by system, USD to "buy" a device and of an "hour" of it, by part.
    """
    figure = new_figure(11, 6.4 + 0.4 * len(owners))
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1), height_ratios=(3.4, 0.8 + 0.4 * len(owners)))
    pieces, growth, buying, hourly = (figure.add_subplot(grid[place // 2, place % 2]) for place in range(4))
    _draw_owners(
        buying, {name: prices["buy"] for name, prices in owners.items()}, "A device, bought", named=True
    )
    _draw_owners(
        hourly, {name: prices["hour"] for name, prices in owners.items()}, "An hour of it, owned", named=False
    )
    total = total_of(cost)
    draw_waterfall(pieces, parts_of(cost), f"One package: {units.show(total, 'USD')}")
    growth.plot(areas, totals, color=BLUE, linewidth=2)
    growth.plot([die_area], [total], "o", color=ORANGE, markersize=8)
    # The curve rises, so that there is room to the left above it and to the right below it.
    shift, side = ((9, -12), "left") if die_area < float(np.mean(areas)) else ((-8, 8), "right")
    note(growth, f"{die_area:.0f} mm²", (die_area, total), shift, ha=side)
    growth.set_title("Package cost by die area")
    growth.set_xlabel("area of one compute die (mm²)")
    growth.set_ylim(0, 1.15 * float(np.max(totals)))
    set_unit(growth.yaxis, "USD")
    set_unit(growth.xaxis, "", 5)
    faint_grid(growth)
    set_title(figure, title)
    return figure


def _distant(prices: np.ndarray, values: np.ndarray) -> list[int]:
    """The first, the middle and the last of some points, without those whose labels would meet another's."""
    width, height = (float(np.max(each) - min(0.0, np.min(each))) or 1.0 for each in (np.ptp(prices), values))
    chosen: list[int] = []
    for place in (0, len(prices) - 1, len(prices) // 2):
        is_distant = (
            abs(prices[place] - prices[other]) > _LEAST_DISTANCE[0] * width
            or abs(values[place] - values[other]) > _LEAST_DISTANCE[1] * height
            for other in chosen
        )
        if all(is_distant):
            chosen.append(place)
    return chosen


@styled
def cost_curve(
    prices: np.ndarray, rates: np.ndarray, tokens: np.ndarray, labels: list[str], title: str = ""
) -> Figure:
    """Performance over what a device costs, and the price of tokens over the same.

    - prices: USD of a device, shape (points,); rates: tokens per second; tokens: USD per million tokens.
    - labels: what the input is at every point.
    """
    figure = new_figure(11, 4.2)
    for axes, values, unit, name in zip(
        figure.subplots(1, 2),
        (rates, tokens),
        ("token/s", "USD"),
        ("Performance", "A million tokens"),
        strict=True,
    ):
        axes.plot(prices, values, "o-", color=BLUE, linewidth=2)
        axes.margins(x=0.16)
        upright = np.ptp(prices) <= _SAME_PRICE * np.max(prices)
        shift, side = ((9, -3), "left") if upright else ((0, 8), "center")
        for place in _distant(prices, values):
            note(axes, labels[place], (prices[place], values[place]), shift, fontsize=9, ha=side)
        axes.set_title(name)
        axes.set_xlabel("price of a device with its share of host, network and racks")
        set_unit(axes.xaxis, "USD", 3)
        set_unit(axes.yaxis, unit)
        axes.set_ylim(0, 1.15 * float(np.max(values)))
        faint_grid(axes)
    set_title(figure, title)
    return figure
