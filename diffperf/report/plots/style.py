"""The look of every figure: colours, axes, and the formats a figure is written in."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.report.output_files import replacing

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
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, **style)


def check_format(path: str | Path, option: str = "--plot") -> Path:
    """The path, if a figure can be written to a file of that name. Raises `ConfigError`, which names the
    option that the path is from.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        hint = did_you_mean(path.suffix.lower(), FORMATS)
        raise ConfigError(
            "command line", option, f'"{path}"', "a file name ending in " + ", ".join(FORMATS), hint
        )
    return path


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the ending of `path`."""
    path = check_format(path)
    with matplotlib.rc_context(STYLE), replacing(path) as beside:
        figure.savefig(beside, dpi=160, bbox_inches="tight", facecolor="white")
    return path


def unit_ticks(unit: str) -> FuncFormatter:
    """A formatter of tick labels: values in `unit`, with the prefix that suits each."""
    return FuncFormatter(lambda value, _: units.show(value, unit, 3) if value else "0")


def percent_ticks() -> FuncFormatter:
    """A formatter of tick labels: fractions as whole percentages."""
    return FuncFormatter(lambda value, _: f"{value:.0%}")


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
