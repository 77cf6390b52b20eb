"""Figures of inputs, made up: how they move an output, what limits where, where two systems break even."""

from collections.abc import Callable

import numpy as np
from figure_parts import LONG, SYSTEM, TITLE, quantity
from matplotlib.figure import Figure

from diffperf.explore.sensitivity import Sensitivity
from diffperf.report import plots


def tornado(rows: list[tuple[str, str, float, float]], title: str) -> Figure:
    """A tornado of (path, unit, value, elasticity)."""
    return plots.tornado(
        [Sensitivity(path, quantity(unit), value, share) for path, unit, value, share in rows], title
    )


def cell_map(x: plots.MapAxis, y: plots.MapAxis, names: list[str], title: str, *, too_large: bool) -> Figure:
    """A map with the names in diagonal bands."""
    rows, columns = np.indices((len(y.values), len(x.values)))
    bands = (rows + columns) * len(names) // (rows.max() + columns.max() + 1)
    hatched = (rows > len(y.values) // 2) & too_large
    return plots.cell_map(x, y, np.array(names, dtype=object)[bands].astype(str), hatched, title)


def axis(path: str, unit: str, low: float, high: float, count: int, *, log: bool = True) -> plots.MapAxis:
    values = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    return plots.MapAxis(values, path, quantity(unit), log)


def curves(values: plots.MapAxis, names: tuple[str, str], slopes: tuple[float, float], title: str) -> Figure:
    """Two powers of an input that cross in the middle of its range, where their slopes differ."""
    middle = float(np.sqrt(values.values[0] * values.values[-1]))
    by_name = {
        name: 3e-2 * (values.values / middle) ** slope for name, slope in zip(names, slopes, strict=True)
    }
    crossings = [middle] if slopes[0] != slopes[1] else []
    answer = plots.Curves(values.values, by_name, crossings)
    return plots.crossing_curves(answer, values, "cost.million_tokens", quantity("USD"), title)


WIDE = plots.SwingBar("global batch", "1", "1M", 2.4e10, 3.1)

EXAMPLES: dict[str, Callable[[], Figure]] = {
    "tornado-ordinary": lambda: tornado(
        [
            ("system.accelerator.matrix.peak", "FLOP/s", 312e12, -0.61),
            ("system.accelerator.memory.hbm.bandwidth", "byte/s", 2.04e12, -0.22),
            ("system.network.nvlink.bandwidth", "byte/s", 300e9, -0.11),
            ("strategy.microbatch", "", 2, 0.07),
        ],
        "What moves time of gpt3-175b, training, on 64 × dgx-a100\nchange for +1 % of each input",
    ),
    "tornado-degenerate": lambda: tornado([("system.prices.rate", "", 0.1, 1.0)], "What moves cost"),
    "tornado-empty": lambda: tornado([], "What moves cost"),
    "tornado-extreme": lambda: tornado(
        [
            (f"system.network.a_tier_with_a_very_long_name_{i}.bandwidth_per_direction", "byte/s", 3e9, x)
            for i, x in enumerate((1234.5, -987.0, 0.3e3, -25.0, 12.0, *np.geomspace(11, 1.3, 15)))
        ],
        TITLE,
    ),
    "swings-ordinary": lambda: plots.swing_bars(
        [
            plots.SwingBar("hbm bandwidth", "1 TB/s", "4 TB/s", 0.031, 0.012),
            plots.SwingBar("matrix peak", "200 TFLOP/s", "2 PFLOP/s", 0.022, 0.019),
            plots.SwingBar("global batch", "1", "512", 0.021, 0.034),
            plots.SwingBar("process wafer cost", "5 kUSD", "20 kUSD", 0.02, 0.02),
        ],
        0.02,
        "time",
        "s",
        "time of llama-3-8b, decode, on 8 × dgx-h100",
    ),
    "swings-degenerate": lambda: plots.swing_bars(
        [plots.SwingBar("prices rate", "1 %", "9 %", 2.0, 2.0)], 2.0, "time", "s", "time"
    ),
    "swings-extreme": lambda: plots.swing_bars(
        [
            plots.SwingBar(
                f"an input with a long name {i}", "1.23 EFLOP/s", "4.56 EFLOP/s", 2 - i / 30, 2.05 + i / 10
            )
            for i in range(12)
        ]
        + [WIDE],
        2.0,
        "cost.million_tokens",
        "USD",
        TITLE,
    ),
    "steps-ordinary": lambda: plots.steps_between(
        (0.05, 0.031),
        [("hbm bandwidth", -0.02), ("network.nvlink.bandwidth", -0.004), ("matrix peak", 0.005)],
        "s",
        "time of llama-3-8b, decode, on 8 × dgx-a100\nto dgx-h100",
    ),
    "steps-degenerate": lambda: plots.steps_between((0.05, 0.05), [], "s", "time\nto the same"),
    "steps-zero": lambda: plots.steps_between((0.05, 0.05), [("matrix peak", 0.0)], "s", "time\nto the same"),
    "steps-extreme": lambda: plots.steps_between(
        (3e-6, 3e4),
        [
            (f"system.network.a_tier_with_a_long_name_{i}.bandwidth_per_direction", x)
            for i, x in enumerate((3e4, -1e-6, 1e-9, -12.0, 11.999999))
        ],
        "s",
        TITLE,
    ),
    "indices-ordinary": lambda: plots.index_bars(
        [
            plots.IndexBar("hbm bandwidth", (0.62, 0.04), (0.71, 0.05)),
            plots.IndexBar("global batch", (0.2, 0.03), (0.28, 0.03)),
            plots.IndexBar("matrix peak", (0.02, 0.02), (0.04, 0.02)),
        ],
        "What varies time of llama-3-8b, decode, on 8 × dgx-h100",
    ),
    "indices-degenerate": lambda: plots.index_bars(
        [plots.IndexBar("batch", (1.0, 0.0), (1.0, 0.0))], "What varies time"
    ),
    "indices-zero": lambda: plots.index_bars(
        [plots.IndexBar("batch", (0.0, 0.0), (0.0, 0.0))], "What varies time"
    ),
    "indices-extreme": lambda: plots.index_bars(
        [
            plots.IndexBar(f"a tier with a very long name {i} bandwidth", (0.05 - i / 200, 0.3), (0.5, 0.4))
            for i in range(14)
        ],
        TITLE,
    ),
    "map-ordinary": lambda: cell_map(
        axis("system.accelerator.memory.hbm.bandwidth", "byte/s", 1e12, 8e12, 40),
        axis("strategy.global_batch", "", 1, 512, 40),
        ["latency and launch", "hbm bandwidth", "power", "matrix units"],
        "What limits llama-3-8b, decode, on 8 × dgx-h100",
        too_large=True,
    ),
    "map-degenerate": lambda: cell_map(
        axis("system.accelerator.memory.hbm.bandwidth", "byte/s", 1e12, 1e12, 1),
        axis("strategy.global_batch", "", 1, 1, 1),
        ["hbm bandwidth"],
        "What limits llama-3-8b",
        too_large=False,
    ),
    "map-nothing-fits": lambda: plots.cell_map(
        axis("system.accelerator.memory.hbm.bandwidth", "byte/s", 1e12, 8e12, 9),
        axis("strategy.global_batch", "", 1, 512, 9),
        np.full((9, 9), "hbm bandwidth"),
        np.full((9, 9), True),
        "What limits llama-3-8b",
    ),
    "map-extreme": lambda: cell_map(
        axis("system.network.a_tier_with_a_very_long_name.bandwidth_per_direction", "byte/s", 1e3, 1e13, 40),
        axis("strategy.sequence_length", "", 1e5, 1.02e5, 40, log=False),
        [f"tier-{i}-with-a-very-long-name bandwidth" for i in range(14)] + ["power", "vector units"],
        TITLE,
        too_large=True,
    ),
    "curves-ordinary": lambda: curves(
        axis("strategy.global_batch", "", 1, 512, 40), ("dgx-h100", "dgx-a100"), (-0.5, -0.2), "Break-even"
    ),
    "curves-degenerate": lambda: curves(
        axis("strategy.global_batch", "", 1, 8, 2, log=False), ("dgx-h100", "the same"), (0, 0), "Break-even"
    ),
    "curves-extreme": lambda: curves(
        axis("system.network.tier.bandwidth", "byte/s", 1e3, 1e13, 40), (SYSTEM, LONG), (-2, 1), TITLE
    ),
    "curves-of-many-crossings": lambda: plots.crossing_curves(
        plots.Curves(
            np.linspace(1, 100, 50),
            {"dgx-h100": np.sin(np.linspace(0, 20, 50)) + 2, "dgx-a100": np.full(50, 2.0)},
            [1.0, 16.5, 32.1, 47.7, 63.2, 78.8, 94.3],
        ),
        axis("strategy.global_batch", "", 1, 100, 50, log=False),
        "cost.million_tokens",
        quantity("USD"),
        "Break-even",
    ),
}
