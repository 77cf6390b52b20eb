"""The table of a design beside systems as they are sold."""

from typing import Any

import equinox as eqx
import numpy as np
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.basis import basis, basis_of_design
from diffperf.explore.codesign.against import BoughtSystem
from diffperf.explore.codesign.result import Codesign
from diffperf.quantity import locate
from diffperf.report.tables import outputs, show
from diffperf.workload.strategy import Strategy

_COSTS = ("cost.manufacturing", "cost.capital", "cost.run")


def against_lines(result: Codesign, bought: tuple[BoughtSystem, ...]) -> list[RenderableType]:
    """The design beside systems that are sold, and below that their layouts and the limits that they miss."""
    lines: list[RenderableType] = [against_table(result, bought)]
    for each in bought:
        notes = [_layout(result, each.strategies)] if open_in_strategies(result) else []
        notes += [f"misses {' and '.join(map(str, each.missed))}"] if each.missed else []
        lines += [f"{each.name}: {'; '.join(notes)}"] if notes else []
    return lines


def against_table(result: Codesign, bought: tuple[BoughtSystem, ...]) -> Table:
    """The design beside systems that are sold: the objective, what they cost, and their power."""
    problem, first = result.problem, result.problem.workloads[0].name
    table = Table(
        title="against systems that are sold, each in its best layout",
        box=None,
        pad_edge=False,
        title_justify="left",
        title_style="bold",
    )
    heading = f"{problem.objective} / baseline" if result.relative else problem.objective
    for name in ("", heading, "the design is", *_COSTS, "power limit", "rests on"):
        table.add_column(name, justify="left" if name in ("", "rests on") else "right")
    ours, phase = _relative(result), problem.workloads[0].phase
    design = basis_of_design(str(result.design.technology.name))
    rows: list[tuple[Any, ...]] = [
        ("the design", ours, result.outcome.report, result.outcome.chip.power, design)
    ]
    for each in bought:
        rests_on = basis(each.candidate.system, phase)
        rows.append((each.name, each.relative, each.reports[first], each.power_limit, rests_on))
    for name, relative, report, power, rests_on in rows:
        value = result.baseline_objective * np.exp(problem.sense * relative)
        better = f"{np.exp(relative - ours):.2f} × as good" if name != "the design" else ""
        shown = units.show(float(value), result.objective_unit)
        table.add_row(name, shown, better, *_costs(report), units.show(float(power), "W"), rests_on)
    return table


def times_as_good(result: Codesign, system: BoughtSystem) -> float:
    """Ratio of the objective of the design to that of a sold system, above 1 where the design is better."""
    return float(np.exp(system.relative - _relative(result)))


def open_in_strategies(result: Codesign) -> list[str]:
    """The paths of the variables that belong to layouts, which sold systems choose too."""
    paths = [variable.name for variable in result.problem.variables]
    return [path for path in paths if "strategy" in path.split(".")]


def _relative(result: Codesign) -> float:
    """The log of the design's objective over the baseline's, less is better."""
    return result.problem.sense * float(np.log(result.objective / result.baseline_objective))


def _costs(report: eqx.Module) -> list[str]:
    """Costs of a system, as texts."""
    known = outputs(report)
    return [show(known[path][1], known[path][0]) for path in _COSTS]


def _layout(result: Codesign, strategies: tuple[Strategy, ...]) -> str:
    """The open fields of the layouts, such as "tp 8, micro batch 2"."""
    names = [workload.name for workload in result.problem.workloads]
    texts = []
    for path in open_in_strategies(result):
        *owner, _, field = path.split(".")
        strategy = strategies[names.index(owner[-1]) if owner else 0]
        value, declared = locate(strategy, field)
        assert declared is not None, "variables are declared"
        texts.append(f"{field.replace('_', ' ')} {show(value, declared)}")
    return ", ".join(texts)
