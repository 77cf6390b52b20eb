"""Figures of choices, made up: systems, dies, layouts of training and serving, designs along a limit."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from figure_parts import LONG, SYSTEM, TITLE, quantity
from matplotlib.figure import Figure

from diffperf.report import plots

MERITS = {
    "tokens_per_second_per_device": ("tokens per second of a device", "token/s"),
    "tokens_per_dollar": ("tokens per dollar", "token/USD"),
    "tokens_per_joule": ("tokens per joule", "token/J"),
}


def scatter(values: np.ndarray, title: str, *, fits: bool = True, best: bool = True) -> Figure:
    random = np.random.default_rng(0)
    x, y = values, 3 / values * random.uniform(1, 2, len(values))
    columns = plots.Column(x, quantity("byte"), "memory peak"), plots.Column(y, quantity("s"), "time")
    which = random.uniform(size=len(x)) < (0.7 if fits else 0)
    place = int(np.argmin(np.where(which, y, np.inf))) if len(x) else 0
    return plots.scatter(*columns, which, (x[place], y[place]) if best else None, title)


def bars(name: str, rate: float | None, error: float | None = None, remark: str = "") -> plots.Bars:
    values = dict(zip(MERITS, (rate, rate and 3000 * rate, rate and rate / 700), strict=True))
    return plots.Bars(name, values, error, remark)


def die(nodes: dict[str, float], area: float, title: str, reticles: tuple[float, ...] = (858.0,)) -> Figure:
    """Prices of nodes: USD per mm² of a small die, which grow with the area."""
    areas = np.linspace(1, 1.2 * max(area, *reticles), 80)
    prices = {name: price * np.exp(areas / 900) for name, price in nodes.items()}
    points = {name: price * float(np.exp(area / 900)) for name, price in nodes.items()}
    return plots.die_prices(areas, prices, (area, points), list(reticles), title)


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


EXAMPLES: dict[str, Callable[[], Figure]] = {
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
    "scatter-ordinary": lambda: scatter(np.geomspace(1e10, 9e10, 800), "gpt3-175b: 800 possible layouts"),
    "scatter-degenerate": lambda: scatter(np.array([4e10]), "gpt3-175b: 1 possible layout"),
    "scatter-nothing-fits": lambda: scatter(
        np.geomspace(1e10, 1e12, 80), "gpt3-175b: 0 possible layouts", fits=False, best=False
    ),
    "scatter-empty": lambda: scatter(np.array([]), "gpt3-175b: 0 possible layouts", best=False),
    "scatter-extreme": lambda: scatter(np.geomspace(1e3, 1e13, 50_000), TITLE),
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
