"""Figures of reports of the estimator, ordinary, degenerate and extreme: steps, co-designs, packages."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from figure_parts import SYSTEM, TITLE
from matplotlib.figure import Figure

from diffperf.report import plots

HOUR = {"device": 2.1, "host and racks": 0.4, "network": 0.2, "energy": 0.15, "staff and building": 0.1}
BOUGHT = {"accelerator": 25_000.0, "host": 3000.0, "network": 2000.0, "racks and cooling": 900.0}


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
        SimpleNamespace(constraint=text, excess=excess, active=active, sloped=active, percent=percent)
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


def descent(count: int, end: float, stages: tuple[str, ...], start: float = 1.0) -> list:
    values = end + (start - end) * np.exp(-np.arange(count) / (count / 6))
    return [(stages[index * len(stages) // count], value, 0.0) for index, value in enumerate(values)]


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
