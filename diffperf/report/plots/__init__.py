"""Figures for a slide: where time and memory go, what an output depends on, what a search came to.

Each function returns a matplotlib `Figure`; `save` writes it in the format of a file's name.
"""

from diffperf.report.plots.calibration_figure import calibration
from diffperf.report.plots.cell_map import Curves, MapAxis, cell_map, crossing_curves
from diffperf.report.plots.codesign_figure import codesign
from diffperf.report.plots.comparison_figure import Bars, comparison
from diffperf.report.plots.die_figure import die_prices
from diffperf.report.plots.front_figure import codesign_front
from diffperf.report.plots.range_bars import IndexBar, SwingBar, index_bars, steps_between, swing_bars
from diffperf.report.plots.residual_figure import Panel, residuals
from diffperf.report.plots.scatter import Column, predicted_against_measured, scatter
from diffperf.report.plots.serving_front import serving_front
from diffperf.report.plots.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    RED,
    STYLE,
    bare,
    check_format,
    save,
    words_of,
)
from diffperf.report.plots.tornado import input_name, output_name, tornado
from diffperf.report.plots.waterfall import breakdown, cost_curve, package_cost

__all__ = [
    "BLUE",
    "FAINT",
    "GREY",
    "INK",
    "ORANGE",
    "PALETTE",
    "RED",
    "STYLE",
    "Bars",
    "Column",
    "Curves",
    "IndexBar",
    "MapAxis",
    "Panel",
    "SwingBar",
    "bare",
    "breakdown",
    "calibration",
    "cell_map",
    "check_format",
    "codesign",
    "codesign_front",
    "comparison",
    "cost_curve",
    "crossing_curves",
    "die_prices",
    "index_bars",
    "input_name",
    "output_name",
    "package_cost",
    "predicted_against_measured",
    "residuals",
    "save",
    "scatter",
    "serving_front",
    "steps_between",
    "swing_bars",
    "tornado",
    "words_of",
]
