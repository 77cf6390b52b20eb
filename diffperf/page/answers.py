"""The answer to a state of the page: the report, operators, elasticities and dollars, as plain values."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from diffperf import units
from diffperf.api.basis import describe_basis
from diffperf.api.layout_lines import describe_conversion
from diffperf.api.question import Question, describe_strategy
from diffperf.estimate.long_run import long_run
from diffperf.explore.bottlenecks import listing
from diffperf.explore.calibrate.interval import Interval, interval
from diffperf.explore.dollars import purchases
from diffperf.explore.elasticities import GROUPS, elasticities
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.sensitivity import SLOPE
from diffperf.explore.whole_steps import whole_numbers, whole_steps_of_outputs
from diffperf.page.programs import Compiling, Programs
from diffperf.page.state import State
from diffperf.quantity import Choice, Quantity, locate, real
from diffperf.relax import Exact
from diffperf.report.tables import has_total, memory_parts, outputs, show
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

_NO_EFFECT = 1e-6  # elasticities up to this are rounding: the input does not matter
_SHOWN_INPUTS = 60  # of each output
# Outputs whose elasticities the page offers, where a phase reports them.
ELASTIC_OUTPUTS = (
    "time",
    "time_to_first_token",
    "time_per_output_token",
    "energy.total",
    "cost.run",
    "cost_per_million_tokens",
    "cost.capital",
    "memory.peak",
    "power",
)


def answer(state: State, programs: Programs) -> dict[str, Any]:
    """Answer of the page to a state; `compiling` lists the parts that are not there yet.

    **Raises:** `ConfigError` for a state that cannot be used.
    """
    question, tokens = state.question(), state.training_tokens()
    inputs = Configuration(question.model, question.system, Strategy())
    result: dict[str, Any] = {
        "query": state.query(),
        "title": question.summary(state.phase),
        "compiling": [],
    }
    try:
        layout = programs.run(f"layout {state.phase}", inputs, lambda: question.layout(state.phase, Exact()))
    except Compiling:
        return result | {"compiling": ["the estimate", "operators", "sensitivities"]}
    configuration = dataclasses.replace(inputs, strategy=layout.strategy)
    result |= describe(question, layout, state.phase)
    if tokens is not None:
        result["training"] = _training(configuration, layout, tokens)
    parts: dict[str, Callable[[], Any]] = {
        "operators": lambda: _operators(configuration, state.phase),
        "sensitivities": lambda: _sensitivities(configuration, state.phase, layout.report),
    }
    for name, part in parts.items():
        try:
            result[name] = programs.run(f"{name} {state.phase}", configuration, part)
        except Compiling:
            result["compiling"].append(name)
    return result


def time_interval(state: State, programs: Programs) -> dict[str, Any]:
    """The 90 % interval of the time: None where the system is not calibrated.

    It takes dozens of estimates, so that the page asks for it by itself, when nothing else is asked.
    """
    question = state.question()
    inputs = Configuration(question.model, question.system, Strategy())
    calibration = question.calibration
    if calibration is None:
        return {"compiling": [], "interval": None}
    try:
        layout = programs.run(f"layout {state.phase}", inputs, lambda: question.layout(state.phase, Exact()))
        configuration = dataclasses.replace(inputs, strategy=layout.strategy)
        fitted_interval = programs.run(
            f"interval {state.phase}",
            configuration,
            lambda: interval(calibration, configuration, state.phase),
        )
    except Compiling:
        return {"compiling": ["the interval"]}
    return {"compiling": [], "interval": None if fitted_interval is None else _interval(fitted_interval)}


def describe(question: Question, layout: Layout, phase: str) -> dict[str, Any]:
    """A layout and its report for the page."""
    notes = [] if question.calibration else [describe_basis(question.system, phase)]
    notes += describe_conversion(question, layout.strategy)
    return {
        "strategy": describe_strategy(layout.strategy, phase),
        "chosen": layout.chosen,
        "candidates": layout.candidates,
        "fits": layout.fits,
        "notes": notes,
        "outputs": _outputs(layout.report),
        "wholes": list(_wholes(layout.report)),
        "memory": _memory(layout.report),
    }


def number(value: Any, declared: Quantity | Choice) -> dict[str, Any]:
    """A number of a report or a configuration: its value, unit, text and description."""
    plain = float(np.asarray(value))
    unit = declared.unit if isinstance(declared, Quantity) else ""
    return {
        "value": plain if math.isfinite(plain) else None,
        "unit": unit,
        "text": show(value, declared),
        "doc": declared.doc,
    }


def _outputs(report: eqx.Module) -> dict[str, Any]:
    """Every number of a report by path."""
    return {path: number(value, declared) for path, (declared, value) in outputs(report).items()}


def _wholes(module: eqx.Module, prefix: str = "") -> list[dict[str, Any]]:
    """The modules of a report whose numbers are parts of a whole: the path, and the paths of the parts."""
    wholes = []
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if not isinstance(value, eqx.Module):
            continue
        path = f"{prefix}{field.name}"
        if has_total(value):
            names = [name for name in outputs(value) if name != "total" and "." not in name]
            wholes.append({"path": path, "parts": [f"{path}.{name}" for name in names]})
        wholes += _wholes(value, f"{path}.")
    return wholes


def _memory(report: eqx.Module) -> dict[str, Any]:
    """Parts of a device's memory in bytes, and its capacity."""
    memory = locate(report, "memory")[0]
    parts = [
        {"doc": doc, "value": value, "text": units.show(value, "byte")}
        for doc, value in memory_parts(memory).items()
    ]
    return {"parts": parts, "peak": float(memory.peak), "capacity": float(memory.capacity)}


def _training(configuration: Configuration, layout: Layout, tokens: float) -> dict[str, Any]:
    """Totals of a training on a number of tokens, by the names of `LongRun`."""
    step: Any = layout.report
    whole = long_run(configuration, step, real(tokens))
    return {path: number(value, declared) for path, (declared, value) in outputs(whole).items()}


def _interval(fitted_interval: Interval) -> dict[str, Any]:
    low, high = map(float, fitted_interval.ends)
    text = f"± {fitted_interval.relative:.1%} (90 %: {units.show(low, 's')} to {units.show(high, 's')})"
    return {"low": low, "high": high, "text": text, "estimated_stack": bool(fitted_interval.stack)}


def _operators(configuration: Configuration, phase: str) -> dict[str, Any]:
    """The operators of a phase with what bounds them, collectives, and the roofs over them."""
    accelerator, precision = configuration.system.accelerator, configuration.strategy.precision
    operators, collectives = listing(configuration, phase)
    rows = [
        dataclasses.asdict(operator) | {"bound": operator.bound, "time_text": units.show(operator.time, "s")}
        for operator in operators
    ]
    sent = [
        dataclasses.asdict(row)
        | {"time_text": units.show(row.time, "s"), "exposed_text": units.show(row.exposed, "s")}
        for row in collectives
    ]
    levels = {str(level.name): float(level.bandwidth) for level in accelerator.memory[1:]}
    return {
        "rows": rows,
        "collectives": sent,
        "roofs": {
            "compute": float(accelerator.matrix_rate(precision)),
            "precision": precision.likeliest(),
            "levels": levels,
            "device_memory": str(accelerator.device_memory.name),
        },
    }


def _sensitivities(configuration: Configuration, phase: str, report: Any) -> dict[str, Any]:
    """The inputs that move each of some outputs most, and what a dollar buys.

    A row has the input, its elasticity, and the kind of derivative: "slope", or a step such as "+1" of a
    number that is whole in reality, as in `diffperf sensitivity`.
    """
    slopes, whole = elasticities(configuration, phase), whole_numbers(configuration)
    steps = whole_steps_of_outputs(configuration, phase, ELASTIC_OUTPUTS, GROUPS)
    ranked = {}
    for output in ELASTIC_OUTPUTS:
        if slopes.outputs.get(output):
            rows = [(path, slope, SLOPE) for path, slope in slopes.of(output).items() if path not in whole]
            rows += [(step.path, step.elasticity, step.step) for step in steps.get(output, [])]
            rows.sort(key=lambda row: -abs(row[1]))
            ranked[output] = [list(row) for row in rows[:_SHOWN_INPUTS] if abs(row[1]) > _NO_EFFECT]
    shown = {path for rows in ranked.values() for path, *_ in rows}
    inputs = {
        path: number(value, declared) for path, (declared, value) in slopes.inputs.items() if path in shown
    }
    return {"inputs": inputs, "ranked": ranked, "dollars": purchases(slopes, report).as_dict()}
