"""Figures of estimates beside measurements, made up."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from figure_parts import LONG, TITLE
from matplotlib.figure import Figure

from diffperf.report import plots


def residuals(count: int, decades: float, names: tuple[str, ...], title: str) -> Figure:
    random = np.random.default_rng(0)
    measured = 10 ** random.uniform(0, decades, count) if decades else np.full(count, 2.0)
    groups = random.integers(0, len(names), count)
    groups = np.searchsorted(np.unique(groups), groups)
    ratios = np.exp(random.normal(0, 0.05 + 0.2 * decades, count))
    panels = [
        plots.Panel("model", "name of the model", "", 0.5, groups, names[: groups.max() + 1], None),
        plots.Panel("tp", "tensor-parallel degree", "", 0.2, groups, (), 2.0**groups),
        plots.Panel("bytes", "size of the message", "byte", 0.1, groups, (), measured),
    ]
    return plots.residuals(measured, ratios, panels if count > 1 else [], "time of a step", "s", title)


def calibration(count: int, decades: float, kinds: tuple[str, ...], error: float, title: str) -> Figure:
    random = np.random.default_rng(0)
    result = SimpleNamespace(
        times=1e-5 * 10 ** random.uniform(0, decades, count),
        before=random.normal(2 * error, error, count),
        after=random.normal(0, error / 2, count),
        held_out=random.normal(0, error / 1.5, count),
        kinds=np.array(kinds)[random.integers(0, len(kinds), count)],
        half_width=np.full(count, 1.6 * error),
    )
    return plots.calibration(result, title)


def measured_against(count: int, names: tuple[str, ...], decades: float, title: str) -> Figure:
    random = np.random.default_rng(0)
    groups = {}
    for name in names:
        measured = 10 ** random.uniform(-6, -6 + decades, count)
        groups[name] = (measured * np.exp(random.normal(0, 0.1, count)), measured)
    return plots.predicted_against_measured(groups, "time of a step", "s", title)


EXAMPLES: dict[str, Callable[[], Figure]] = {
    "residuals-ordinary": lambda: residuals(
        300, 2, ("gpt3-22b", "llama-3-8b", "llama-3-70b"), "training.csv"
    ),
    "residuals-degenerate": lambda: residuals(1, 0, ("gpt3-22b",), "training.csv"),
    "residuals-extreme": lambda: residuals(3000, 10, tuple(f"{LONG}-{i}" for i in range(12)), TITLE),
    "measured-ordinary": lambda: measured_against(60, ("dgx-a100", "dgx-h100", "mi300x"), 3, "training.csv"),
    "measured-degenerate": lambda: measured_against(1, ("dgx-a100",), 3, "one row"),
    "measured-extreme": lambda: measured_against(200, tuple(f"{LONG}-{i}" for i in range(26)), 10, TITLE),
    "measured-empty": lambda: plots.predicted_against_measured({}, "time of a step", "s", "nothing.csv"),
    "calibration-ordinary": lambda: calibration(
        400, 4, ("gemm", "attention"), 0.1, "Calibration of dgx-a100"
    ),
    "calibration-degenerate": lambda: calibration(1, 0, ("gemm",), 0.0, "Calibration of dgx-a100"),
    "calibration-extreme": lambda: calibration(
        20_000, 10, ("gemm", "attention", "collectives", "training", "inference", "serving"), 1.5, TITLE
    ),
}
