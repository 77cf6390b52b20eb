"""The figure: rates of all strategies that fit memory, and the best rate of each pair of degrees."""

import math
from collections.abc import Sequence

import numpy as np
from best_strategies import best_index, sequences_per_second
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reporting import figure_style
from strategy_space import Columns, Row

from diffperf.report.plots import BLUE, GREY, INK, ORANGE, RED


def draw_distribution(axes: Axes, columns: Columns, rows: Sequence[Row], published: Sequence[Row]) -> None:
    """Draws how the rates of all strategies that fit are distributed, with some of the best."""
    rates = sequences_per_second(columns["tokens_per_second"])
    axes.hist(rates, bins=40, color=BLUE)
    axes.set_yscale("log")
    axes.set_xlabel("sequences a second")
    axes.set_ylabel("strategies that fit memory")
    axes.set_title("All strategies that fit memory")
    by_name = {row["restriction"]: row["rate"] for row in rows}
    lines = {
        "best": (by_name["whole space"], RED, "-"),
        "best with tp within a node": (by_name["tp within a node (8)"], ORANGE, "-"),
        "best without any overlap": (by_name["no overlap"], INK, ":"),
        "measured on 64 A100, times 64": (published[-1]["measured_rate"], INK, "--"),
    }
    for label, (rate, colour, style) in lines.items():
        axes.axvline(rate, color=colour, linestyle=style, linewidth=1.6, label=f"{label}: {rate:.0f}")
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)


def draw_degrees(figure: Figure, axes: Axes, columns: Columns) -> None:
    """Draws the best rate of every pair of tensor- and pipeline-parallel degrees."""
    tensor, pipeline = (columns[f"strategy.{name}"] for name in ("tp", "pp"))
    degrees = [np.unique(values) for values in (tensor, pipeline)]
    grid = np.full([len(values) for values in degrees], np.nan)
    for row, tp in enumerate(degrees[0]):
        for column, pp in enumerate(degrees[1]):
            mask = (tensor == tp) & (pipeline == pp)
            if mask.any():
                rate = columns["tokens_per_second"][best_index(columns, mask)]
                grid[row, column] = sequences_per_second(rate)
    image = axes.imshow(grid, origin="lower", cmap="Blues", aspect="auto", vmin=0)
    middle = 0.6 * np.nanmax(grid)
    for (row, column), rate in np.ndenumerate(grid):
        text, colour = ("–", GREY) if math.isnan(rate) else (f"{rate:.0f}", "white" if rate > middle else INK)
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    measured = (8, 8)  # tp and pp of the runs of published.csv
    row, column = (list(values).index(degree) for values, degree in zip(degrees, measured, strict=True))
    axes.plot(column, row, "s", markersize=34, fillstyle="none", color=ORANGE)
    axes.set_yticks(range(len(degrees[0])), [f"{degree:g}" for degree in degrees[0]])
    axes.set_xticks(range(len(degrees[1])), [f"{degree:g}" for degree in degrees[1]])
    axes.set_ylabel("tensor parallelism")
    axes.set_xlabel("pipeline stages (orange: degrees of the measured run)")
    axes.set_title("The best of each pair of degrees, sequences a second")
    figure.colorbar(image, ax=axes)


def draw(columns: Columns, rows: Sequence[Row], published: Sequence[Row]) -> Figure:
    """Draws the distribution of all strategies, and the best by degrees."""
    with figure_style():
        figure = Figure(figsize=(14, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_distribution(left, columns, rows, published)
        draw_degrees(figure, right, columns)
    return figure
