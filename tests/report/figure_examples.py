"""Figures drawn of made-up answers: ordinary ones, degenerate ones and extreme ones."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diffperf.explore.sensitivity import Sensitivity
from diffperf.quantity import Quantity
from diffperf.report import plots

LONG = "some-organisation/a-model-with-a-name-of-more-than-sixty-characters-480B-A35B"
SYSTEM = "a-system-with-a-long-name-of-2048-accelerators-with-co-packaged-optics"
TITLE = f"{LONG} trained on 2048 × {SYSTEM}\ntp 8 · pp 16 · dp 16 · sequence-parallel · recompute full"


def quantity(unit: str, *, log: bool = True, integer: bool = False) -> Quantity:
    return Quantity(unit, "an input", (0, 1e30), log, integer, "input")


def tornado(rows: list[tuple[str, str, float, float]], title: str) -> Figure:
    """A tornado of (path, unit, value, elasticity)."""
    return plots.tornado(
        [Sensitivity(path, quantity(unit), value, share) for path, unit, value, share in rows], title
    )


def scatter(values: np.ndarray, title: str, *, fits: bool = True, best: bool = True) -> Figure:
    random = np.random.default_rng(0)
    x, y = values, 3 / values * random.uniform(1, 2, len(values))
    columns = plots.Column(x, quantity("byte"), "memory peak"), plots.Column(y, quantity("s"), "time")
    which = random.uniform(size=len(x)) < (0.7 if fits else 0)
    place = int(np.argmin(np.where(which, y, np.inf))) if len(x) else 0
    return plots.scatter(*columns, which, (x[place], y[place]) if best else None, title)


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


MERITS = {
    "tokens_per_second_per_device": ("tokens per second of a device", "token/s"),
    "tokens_per_dollar": ("tokens per dollar", "token/USD"),
    "tokens_per_joule": ("tokens per joule", "token/J"),
}


def bars(name: str, rate: float | None, error: float | None = None, remark: str = "") -> plots.Bars:
    values = dict(zip(MERITS, (rate, rate and 3000 * rate, rate and rate / 700), strict=True))
    return plots.Bars(name, values, error, remark)


def die(nodes: dict[str, float], area: float, title: str, reticles: tuple[float, ...] = (858.0,)) -> Figure:
    """Prices of nodes: USD per mm² of a small die, which grow with the area."""
    areas = np.linspace(1, 1.2 * max(area, *reticles), 80)
    prices = {name: price * np.exp(areas / 900) for name, price in nodes.items()}
    points = {name: price * float(np.exp(area / 900)) for name, price in nodes.items()}
    return plots.die_prices(areas, prices, (area, points), list(reticles), title)


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


def serving(count: int, title: str, *, met: float, name: str = "tp 8 · dp 1", target: float = 50.0) -> Figure:
    random = np.random.default_rng(0)
    user = 10 ** random.uniform(0.3, 2.3, count)
    device = 3000 / (1 + user / 30) * random.uniform(0.3, 1, count)
    order = np.argsort(-user)
    front = order[np.maximum.accumulate(device[order]) <= device[order]]
    meets = (random.uniform(size=count) < met) & (user > target)
    place = int(np.argmax(np.where(meets, device, 0)))
    best = (float(user[place]), float(device[place]), name) if meets.any() else None
    return plots.serving_front(user, device, meets, front, target, best, title)


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


def codesign(
    reports: tuple[Any, Any],
    best: float,
    trace: list[tuple[str, float, float]],
    constraints: list[tuple[str, float, bool, float]],
    title: str,
    objective: str = "time",
    beside: tuple[Any, Any] | None = None,
) -> Figure:
    """A co-design: trace of (stage, objective, violation); constraints of (text, excess, active, percent)."""
    rows = [
        SimpleNamespace(constraint=text, excess=excess, active=active, percent=percent)
        for text, excess, active, percent in constraints
    ]
    runs = {"pretraining": reports} | ({"chat": beside} if beside else {})
    result = SimpleNamespace(
        trace=[SimpleNamespace(stage=s, objective=o, violation=v) for s, o, v in trace],
        objective=best,
        baseline_objective=1.0,
        relative=beside is not None,
        problem=SimpleNamespace(
            sense=1,
            objective=objective,
            workloads=[SimpleNamespace(name=name) for name in runs],
            baseline_outcome=SimpleNamespace(reports=lambda first: {n: r[0] for n, r in runs.items()}),
        ),
        outcome=SimpleNamespace(reports=lambda first: {n: r[1] for n, r in runs.items()}),
        constraints=lambda: rows,
    )
    return plots.codesign(result, title)


def front(
    limits: np.ndarray, variables: list[tuple[str, str, np.ndarray]], feasible: bool, title: str
) -> Figure:
    """A front: variables of (name, unit, values along the limits)."""
    columns = np.array([values for _, _, values in variables]).T
    designs = [
        SimpleNamespace(
            feasible=feasible,
            objective=3.0 / (1 + index),
            objective_unit="s",
            baseline_objective=2.0,
            x=columns[index],
        )
        for index in range(len(limits))
    ]
    placed = [
        (place, SimpleNamespace(name=name, declared=quantity(unit)))
        for place, (name, unit, _) in enumerate(variables)
    ]
    return plots.codesign_front(
        SimpleNamespace(
            front=SimpleNamespace(designs=designs, limits=limits),
            problem=SimpleNamespace(vector=SimpleNamespace(placed=lambda: placed), objective="time"),
            constraint=SimpleNamespace(declared=quantity("W"), quantity="power.device"),
            title=title,
        )
    )


def descent(count: int, end: float, stages: tuple[str, ...], start: float = 1.0) -> list:
    values = end + (start - end) * np.exp(-np.arange(count) / (count / 6))
    return [(stages[index * len(stages) // count], value, 0.0) for index, value in enumerate(values)]


def measured_against(count: int, names: tuple[str, ...], decades: float, title: str) -> Figure:
    random = np.random.default_rng(0)
    groups = {}
    for name in names:
        measured = 10 ** random.uniform(-6, -6 + decades, count)
        groups[name] = (measured * np.exp(random.normal(0, 0.1, count)), measured)
    return plots.predicted_against_measured(groups, "time of a step", "s", title)


HOUR = {"device": 2.1, "host and racks": 0.4, "network": 0.2, "energy": 0.15, "staff and building": 0.1}
BOUGHT = {"accelerator": 25_000.0, "host": 3000.0, "network": 2000.0, "racks and cooling": 900.0}
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
    "comparison-ordinary": lambda: plots.comparison(
        {
            f"{model} decode": [
                bars("dgx-a100", 800.0, 0.2),
                bars("dgx-h100", 1900.0, 0.15),
                bars("tpu-v5e", None, None, "does not fit"),
                bars("gaudi3", 1200.0),
            ]
            for model in ("llama-3-8b", "llama-3-70b")
        },
        MERITS,
    ),
    "comparison-degenerate": lambda: plots.comparison(
        {"llama-3-8b decode": [bars("dgx-a100", 800.0)]}, MERITS
    ),
    "comparison-nothing-fits": lambda: plots.comparison(
        {"llama-3-8b decode": [bars("dgx-a100", None, None, "does not fit")]}, MERITS
    ),
    "comparison-extreme": lambda: plots.comparison(
        {
            f"{LONG} {phase}": [
                bars(f"{SYSTEM}-{i}, stack-{i}", value, 2.0 if i % 2 else None)
                for i, value in enumerate(np.geomspace(1e-3, 1e7, 20))
            ]
            for phase in ("training", "decode")
        },
        MERITS,
        TITLE,
    ),
    "die-ordinary": lambda: die(
        {"n16": 0.12, "n7": 0.2, "n5": 0.31, "n3": 0.4}, 628.0, "Price of a good mm²"
    ),
    "die-degenerate": lambda: die({"n5": 0.31}, 50.0, "Price of a good mm²"),
    "die-extreme": lambda: die(
        {f"a-node-with-a-long-name-{i}": 1e-4 * 2**i for i in range(24)},
        812.0,
        "Price of a good mm² of a die by its area",
        (429.0, 858.0, 900.0),
    ),
    "die-small": lambda: die({"n5": 0.31, "n7": 0.3}, 0.5, "Price of a good mm²"),
    "residuals-ordinary": lambda: residuals(
        300, 2, ("gpt3-22b", "llama-3-8b", "llama-3-70b"), "training.csv"
    ),
    "residuals-degenerate": lambda: residuals(1, 0, ("gpt3-22b",), "training.csv"),
    "residuals-extreme": lambda: residuals(3000, 10, tuple(f"{LONG}-{i}" for i in range(12)), TITLE),
    "scatter-ordinary": lambda: scatter(np.geomspace(1e10, 9e10, 800), "gpt3-175b: 800 possible layouts"),
    "scatter-degenerate": lambda: scatter(np.array([4e10]), "gpt3-175b: 1 possible layout"),
    "scatter-nothing-fits": lambda: scatter(
        np.geomspace(1e10, 1e12, 80), "gpt3-175b: 0 possible layouts", fits=False, best=False
    ),
    "scatter-empty": lambda: scatter(np.array([]), "gpt3-175b: 0 possible layouts", best=False),
    "scatter-extreme": lambda: scatter(np.geomspace(1e3, 1e13, 50_000), TITLE),
    "measured-ordinary": lambda: measured_against(60, ("dgx-a100", "dgx-h100", "mi300x"), 3, "training.csv"),
    "measured-degenerate": lambda: measured_against(1, ("dgx-a100",), 3, "one row"),
    "measured-extreme": lambda: measured_against(200, tuple(f"{LONG}-{i}" for i in range(26)), 10, TITLE),
    "measured-empty": lambda: plots.predicted_against_measured({}, "time of a step", "s", "nothing.csv"),
    "serving-ordinary": lambda: serving(300, "llama-3-70b served on\n8 × dgx-h100", met=0.8),
    "serving-degenerate": lambda: serving(1, "llama-3-70b served", met=1.0, target=1.0),
    "serving-nothing-fits": lambda: serving(300, "llama-3-70b served", met=0.0, target=1e4),
    "serving-extreme": lambda: serving(
        20_000,
        TITLE,
        met=0.9,
        name="prefill tp 8 · pp 16 · ep 64 + decode tp 8 · dp 128 · ep 64, chunk 2048",
        target=90.0,
    ),
    "calibration-ordinary": lambda: calibration(
        400, 4, ("gemm", "attention"), 0.1, "Calibration of dgx-a100"
    ),
    "calibration-degenerate": lambda: calibration(1, 0, ("gemm",), 0.0, "Calibration of dgx-a100"),
    "calibration-extreme": lambda: calibration(
        20_000, 10, ("gemm", "attention", "collectives", "training", "inference", "serving"), 1.5, TITLE
    ),
    "cost-curve-ordinary": lambda: plots.cost_curve(
        np.linspace(2e4, 6e4, 7),
        np.linspace(800, 1500, 7),
        np.linspace(0.6, 0.9, 7),
        [f"{i} TB/s" for i in range(2, 9)],
        "Cost of llama-3-8b, decode, over hbm bandwidth",
    ),
    "cost-curve-degenerate": lambda: plots.cost_curve(
        np.full(2, 2e4), np.full(2, 800.0), np.full(2, 0.6), ["1", "2"], "over a price that changes nothing"
    ),
    "cost-curve-of-one-price": lambda: plots.cost_curve(
        np.full(9, 3.5e4),
        np.linspace(260, 320, 9),
        np.linspace(16, 12, 9),
        [f"{i} TB/s" for i in range(9)],
        "Cost of llama-3-8b, decode, over hbm bandwidth",
    ),
    "cost-curve-extreme": lambda: plots.cost_curve(
        np.geomspace(2e2, 6e8, 40),
        np.geomspace(1e-3, 1e7, 40),
        np.geomspace(1e-9, 1e3, 40),
        [f"{i}.25 TFLOP/s" for i in range(40)],
        TITLE,
    ),
    "front-ordinary": lambda: front(
        np.linspace(400, 1000, 7),
        [
            ("design.matrix_units", "", np.arange(100, 170, 10.0)),
            ("hbm.bandwidth", "byte/s", np.full(7, 3e12)),
            ("design.clock", "Hz", np.linspace(1e9, 2e9, 7)),
        ],
        True,
        "Least time by limit of power",
    ),
    "front-degenerate": lambda: front(
        np.array([700.0]), [("design.clock", "Hz", np.array([1e9]))], True, "One limit"
    ),
    "front-nothing-fits": lambda: front(
        np.array([7.0, 8.0]), [("design.clock", "Hz", np.array([1e9, 2e9]))], False, "No limit can be met"
    ),
    "front-extreme": lambda: front(
        np.geomspace(1, 1e10, 30),
        [
            (
                f"design.accelerator.memory.a_level_with_a_long_name_{i}.bandwidth",
                "byte/s",
                np.geomspace(1e3, 1e13, 30),
            )
            for i in range(9)
        ],
        True,
        TITLE,
    ),
}


def of_reports(training: Any, larger: Any, generation: Any, costs: Any) -> dict[str, Callable[[], Figure]]:
    """Figures of reports: of a training step, of one without room, of a generation; and of a package."""
    areas = np.linspace(50, 858, 40)
    limits = [("power.device ≤ 700 W", 0.0, True, -0.41), ("package.area ≤ 1600 mm^2", -0.2, False, 0.0)]
    return {
        "estimate-ordinary": lambda: plots.breakdown(
            training, "gpt3-22b, training, on 64 × dgx-a100\ntp 8 · dp 8"
        ),
        "estimate-generation": lambda: plots.breakdown(
            generation, "llama-3-8b on 64 × dgx-a100\ntp 8 · dp 8"
        ),
        "estimate-extreme": lambda: plots.breakdown(larger, TITLE),
        "codesign-ordinary": lambda: codesign(
            (training, training),
            0.71,
            descent(80, 0.71, ("screen", "relaxed", "rounded", "polished")),
            limits,
            "A co-design",
        ),
        "codesign-mix": lambda: codesign(
            (training, training),
            0.71,
            descent(80, 0.71, ("screen", "relaxed", "rounded", "polished")),
            limits,
            "A co-design for two workloads",
            beside=(generation, generation),
        ),
        "codesign-degenerate": lambda: codesign(
            (training, training), 1.0, [("screen", 1.0, 0.0)], [], "Nothing gained"
        ),
        "codesign-infeasible": lambda: codesign(
            (training, training),
            1.3,
            [("screen", 1.3, 0.5)] * 9,
            [("cost.run ≤ 1 USD", 8.0, True, -3.0)],
            "No design",
        ),
        "codesign-extreme": lambda: codesign(
            (training, larger),
            1e-4,
            descent(400, 1e-4, tuple(f"a stage {i}" for i in range(12)), 1e3),
            [
                (
                    f"accelerator.memory.a_level_with_a_long_name_{i}.bandwidth ≤ 123.4 GB/s",
                    x,
                    x == 0.0,
                    -12.345,
                )
                for i, x in enumerate((0.0, -0.99, -0.999999, 40.0, 0.0, *([-0.5] * 12)))
            ],
            TITLE,
            "cost.million_tokens",
        ),
        "package-ordinary": lambda: plots.package_cost(
            costs,
            areas,
            np.geomspace(300, 3000, 40),
            400.0,
            {"dgx-a100": {"buy": BOUGHT, "hour": HOUR}, "dgx-h100": {"buy": BOUGHT, "hour": HOUR}},
            "A100",
        ),
        "package-degenerate": lambda: plots.package_cost(
            costs,
            areas,
            np.full(40, 300.0),
            50.0,
            {"dgx-a100": {"buy": {"accelerator": 1.0}, "hour": {"energy": 1.0}}},
            "A100",
        ),
        "package-extreme": lambda: plots.package_cost(
            costs,
            areas,
            np.geomspace(1e-3, 1e7, 40),
            858.0,
            {
                f"{SYSTEM}-{i}": {
                    "buy": {f"{k} with a long name": 10**i * v for k, v in BOUGHT.items()},
                    "hour": HOUR,
                }
                for i in range(8)
            },
            TITLE,
        ),
    }
