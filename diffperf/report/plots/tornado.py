"""Tornado of elasticities: the inputs on which an output depends most."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffperf import units
from diffperf.quantity import Quantity
from diffperf.report.plots.style import (
    BLUE,
    INK,
    ORANGE,
    DistinctLabels,
    bare,
    brief,
    new_figure,
    note,
    say_empty,
    set_title,
    shortened,
    styled,
    words_of,
)

_CHANGE = "change of the output for +1 % of each input"
_LONGEST = 52  # characters of the name of an input
_NEGLIGIBLE = 1e-3  # of the largest elasticity: bars that could not be seen are left out


@runtime_checkable
class Elasticity(Protocol):
    """Fields of an input that a tornado needs: a `diffperf.explore.sensitivity.Sensitivity` has them."""

    @property
    def path(self) -> str: ...
    @property
    def declared(self) -> Quantity: ...
    @property
    def value(self) -> float: ...
    @property
    def elasticity(self) -> float: ...
    @property
    def derivative(self) -> str: ...  # "slope", or the change of a whole number, such as "+1"


def _signed_percent(value: float, digits: int = 3) -> str:
    if not value:
        return "0"
    text = f"{value:+,.0f}" if abs(value) >= 10**digits else f"{value:+,.{digits}g}"
    return f"{text} %".replace("-", "−")


def input_name(path: str) -> str:
    """A short name for the input at a dotted path: its last two words, such as "nvlink bandwidth"."""
    words = " ".join(path.replace("_", " ").split(".")[-2:])
    for first in ("system ", "accelerator ", "strategy ", "design "):
        words = words.removeprefix(first)
    return shortened(words, _LONGEST)


def output_name(path: str, declared: Quantity) -> str:
    """An output in words: what its declaration says, or its path where that says more: "memory peak"."""
    words = words_of(path)
    return words if declared.doc in words.split() else brief(declared.doc)


def _change(row: Elasticity) -> str:
    """The value of an input, and how much a whole number changes."""
    value = units.show(row.value, row.declared.unit, 3)
    return value if row.derivative == "slope" else f"{value} {row.derivative}"


@styled
def tornado(
    elasticities: Sequence[Elasticity], title: str = "", limit: int = 12, change: str = _CHANGE
) -> Figure:
    """Change of an output by 1 % more of each input, in percent, which `change` says in words.

    `elasticities` are ranked, the largest first; at most `limit` of them are shown.
    """
    largest = max((abs(row.elasticity) for row in elasticities), default=0.0)
    shown = [row for row in elasticities if abs(row.elasticity) > _NEGLIGIBLE * largest][:limit]
    figure = new_figure(9, 1.2 + 0.42 * max(len(shown), 1))
    axes = figure.add_subplot()
    for place, row in enumerate(shown):
        side = 1 if row.elasticity > 0 else -1
        axes.barh(place, row.elasticity, color=ORANGE if side > 0 else BLUE, height=0.68)
        text, align = _signed_percent(row.elasticity), "left" if side > 0 else "right"
        note(axes, text, (row.elasticity, place), (4 * side, 0), ha=align, va="center", fontsize=9)
    labels = [f"{input_name(row.path)}  ({_change(row)})" for row in shown]
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _set_reach(axes, shown, largest or 1.0)
    axes.axvline(0, color=INK, linewidth=1)
    axes.xaxis.set_major_formatter(DistinctLabels(_signed_percent))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(change)
    bare(axes)
    if not shown:
        say_empty(axes, "no input moves it")
    set_title(figure, title)
    return figure


def _set_reach(axes: Axes, shown: Sequence[Elasticity], largest: float) -> None:
    """Leaves room for the bars and their labels, on the sides of 0 that have any."""
    sides = [sign for sign in (-1, 1) if any(sign * row.elasticity > 0 for row in shown)] or [-1, 1]
    axes.set_xlim(min(0, 1.35 * largest * sides[0]), max(0, 1.35 * largest * sides[-1]))
