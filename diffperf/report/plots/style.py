"""The look of every figure: colours, axes, and the formats a figure is written in."""

import functools
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FixedLocator, Formatter, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.report.output_files import replacing

FORMATS = (".png", ".svg", ".pdf")

INK, FAINT = "#1f2933", "#d5dbe1"
BLUE, ORANGE, RED, GREY = "#2f6db5", "#e08a2e", "#c8443a", "#9aa5b1"
# Texts in orange and grey are darker than lines and areas: 4.5 times the luminance of white paper and more.
ORANGE_TEXT, GREY_TEXT = "#a85a0c", "#5f6b78"
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
LINES = (BLUE, ORANGE, "#3d9a8b", RED, "#8e6bb0", "#7a4a21")
STYLE: dict[Any, Any] = {
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
DASHED = (0, (4, 2))  # four points drawn, two left out
_CHARACTERS_PER_INCH = 10.4  # of a title, at least
_TICKS = 6  # of a logarithmic axis, about
_DIGITS = (3, 4, 5, 6, 8, 10)  # of tick labels
_EXACT = 3  # of those, that are few
_UNDER_AXES = 40  # points from the axes to a legend below them, past tick labels and the label of the axis
_LIGHTEST = 0.65  # place in the map of colours up to which they are seen on white
_DARK = 0.225  # relative luminance below which white text is legible

Parameters = ParamSpec("Parameters")


def styled(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """A function that draws a figure in the style of this package, whatever matplotlib's settings are."""

    @functools.wraps(draw)
    def drawn(*args: Parameters.args, **settings: Parameters.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **settings)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, known to nothing but its caller (no pyplot)."""
    return Figure(figsize=(width, height), layout="constrained")


def set_title(figure: Figure, title: str, **style: Any) -> None:
    """Writes a title above all axes, at the left edge."""
    figure.suptitle(wrapped(title, _characters(figure)), x=0.01, ha="left", fontsize=12, **style)


def _characters(figure: Figure) -> int:
    """Number of characters of a title that fit in a line of a figure."""
    return int(figure.get_figwidth() * _CHARACTERS_PER_INCH)


def wrapped(text: str, width: int) -> str:
    """A text in lines of at most so many characters, broken between words, or in one that is longer."""
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.split("\n"))


def words_of(path: str) -> str:
    """An input or an output at a dotted path in words."""
    return path.removeprefix("design.").replace("_", " ").replace(".", " ")


def shortened(name: str, longest: int) -> str:
    """A name of at most so many characters: both of its ends, which tell it from others."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[: longest - half - 1]}…{name[-half:]}"


def brief(description: str) -> str:
    """The part of a description that there is room for: up to its first remark."""
    return re.split(r",|:| kept| that | \(", description)[0]


def colours(count: int) -> list[str]:
    """Colours for `count` lines or sets of points, dark enough for white paper."""
    if count <= len(LINES):
        return list(LINES[:count])
    return [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0, _LIGHTEST, count))]


def text_on(colour: str) -> str:
    """White or ink, whichever is legible on an area of a colour."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour)]
    return "white" if float(np.dot(linear, (0.2126, 0.7152, 0.0722))) < _DARK else INK


def check_format(path: str | Path, option: str = "--plot", asked_by: str = "command line") -> Path:
    """The path, if a figure can be written to a file of that name. Raises `ConfigError`, which names the
    option that the path is from, and `asked_by` in place of a file.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        hint = did_you_mean(path.suffix.lower(), FORMATS)
        expected = "a file name ending in " + ", ".join(FORMATS)
        raise ConfigError(asked_by, option, f'"{path}"', expected, hint)
    return path


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the ending of `path`."""
    path = check_format(path)
    with matplotlib.rc_context(STYLE), replacing(path) as beside:
        figure.savefig(beside, dpi=160, bbox_inches="tight", facecolor="white")
    return path


class DistinctLabels(Formatter):
    """A formatter of tick labels: `show(value, digits)`, with as few digits as say exactly where ticks are;
    where that takes many, with as few as make them differ.
    """

    def __init__(self, show: Callable[[float, int], str]) -> None:
        self.show = show

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self._label(x, _DIGITS[0])

    def format_ticks(self, values: Sequence[float] | np.ndarray) -> list[str]:
        rows = [[self._label(value, digits) for value in values] for digits in _DIGITS]
        exact = (labels for labels in rows[:_EXACT] if labels == rows[-1])
        distinct = (labels for labels in rows if len(set(labels)) == len(set(map(float, values))))
        return next(exact, None) or next(distinct, rows[-1])

    def _label(self, value: float, digits: int) -> str:
        return self.show(value, digits).replace("-", "−") if value else "0"


def unit_ticks(unit: str) -> DistinctLabels:
    """A formatter of tick labels: values in `unit`, with the prefix that suits each."""
    return DistinctLabels(lambda value, digits: units.show(value, unit, digits))


def percent_ticks() -> DistinctLabels:
    """A formatter of tick labels: fractions as percentages, whole ones where those differ."""

    def show(value: float, digits: int) -> str:
        text = f"{100 * value:,.{digits - _DIGITS[0]}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"

    return DistinctLabels(show)


class RoundLocator(MaxNLocator):
    """Ticks at round values of a unit as it is written: at whole hours and days rather than 10 000 s."""

    def __init__(self, unit: str, most: int, *, whole: bool = False) -> None:
        super().__init__(most, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1 if whole else 2)
        self.unit = unit

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        scale = units.scale_of(max(abs(vmin), abs(vmax)), self.unit)
        return np.asarray(super().tick_values(vmin / scale, vmax / scale)) * scale


def set_unit(axis: Axis, unit: str, most: int = 6, *, whole: bool = False) -> None:
    """Gives a linear axis about so many ticks at most, labelled in `unit`, at whole numbers if `whole`."""
    axis.set_major_locator(RoundLocator(unit, most, whole=whole))
    axis.set_major_formatter(unit_ticks(unit))


def set_log_unit(axis: Axis, unit: str, low: float, high: float) -> None:
    """Gives a logarithmic axis from `low` to `high` ticks at round values, labelled in `unit`."""
    axis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(unit_ticks(unit))


def log_ticks(low: float, high: float) -> list[float]:
    """Round values between two, some in each decade."""
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10), np.arange(10, 100) / 10):
        ticks = np.array([digit * 10**decade for decade in decades for digit in digits])
        ticks = ticks[(ticks >= 0.999 * low) & (ticks <= 1.001 * high)]
        if len(ticks) >= _TICKS // 2:
            return ticks[:: math.ceil(len(ticks) / (_TICKS + 2))].tolist()
    return [low, high]


def bare(axes: Axes, *, keep: str = "bottom") -> None:
    """Leaves only the spine that carries the scale, and faint lines from its ticks."""
    for side in ("left", "bottom", "top", "right"):
        axes.spines[side].set_visible(side == keep)
    axes.tick_params(length=0)
    faint_grid(axes, axis="x" if keep == "bottom" else "y")


def faint_grid(axes: Axes, *, axis: Literal["both", "x", "y"] = "both", linewidth: float = 0.8) -> None:
    """Draws faint lines from the ticks, behind the data."""
    axes.grid(axis=axis, color=FAINT, linewidth=linewidth)
    axes.set_axisbelow(True)


def no_minor_labels(axes: Axes) -> None:
    """Labels the major ticks only."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())


def marker_size(points: int, least: float, most: float = 30) -> float:
    """The area of a marker, in square points: the smaller, the more points share the axes."""
    return float(np.clip(4e4 / max(points, 1), least, most))


def note(axes: Axes, text: str, point: tuple[Any, Any], shift: tuple[float, float], **style: Any) -> None:
    """Writes `text` beside a point of the data, shifted by points of the page."""
    axes.annotate(text, point, xytext=shift, textcoords="offset points", **style)


def legend_beside(axes: Axes, **style: Any) -> None:
    """A legend to the right of the axes, in the order that the parts of a bar are stacked."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        **style,
    )


def legend_below(axes: Axes, columns: int = 2, **style: Any) -> Legend:
    """A legend below the axes and the label of the horizontal one."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    down = ScaledTranslation(0, -_UNDER_AXES / 72, figure.dpi_scale_trans)
    return axes.legend(
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + down,
        borderaxespad=0,
        ncols=columns,
        **{"fontsize": 9} | style,
    )


def say_empty(axes: Axes, text: str) -> None:
    """Writes why axes are empty in their middle, and leaves out their scales."""
    box = {"facecolor": "white", "edgecolor": "none"}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY_TEXT, bbox=box)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
