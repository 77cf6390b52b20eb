"""Controls of the page: names of shipped configs, fields of a layout, and every number of the hardware
and the model.
"""

import dataclasses
from typing import Any

import numpy as np

from diffperf import load, units
from diffperf.estimate.phases import PHASES
from diffperf.explore.plan.candidates import DEGREES
from diffperf.load import literal
from diffperf.page.state import DEFAULTS, FOLDERS, State
from diffperf.quantity import Choice, Quantity, declaration, walk
from diffperf.report.tables import show
from diffperf.workload.strategy import Strategy

# Fields of a layout that the page shows at once; all others are behind a button.
_FIRST = (
    "tp", "pp", "dp", "cp", "ep", "global_batch", "micro_batch", "sequence_length", "output_length",
    "recompute", "zero", "precision",
)  # fmt: skip
# Digits of a number in a control where fewer do not say it exactly, and what counts as exact.
_DIGITS, _EXACT = 8, 1e-7


def catalog() -> dict[str, Any]:
    """The names that controls offer, and the fields of a layout."""
    return {
        "defaults": DEFAULTS,
        "phases": list(PHASES),
        **{folder: load.available(folder) for folder in FOLDERS.values()},
        "strategy": [_field(field) for field in dataclasses.fields(Strategy)],
    }


def _field(field: dataclasses.Field) -> dict[str, Any]:
    """The control of a field of the strategy."""
    declared = declaration(field)
    assert declared is not None  # every field of a strategy is declared
    return {
        "name": field.name,
        "first": field.name in _FIRST,
        "searched": field.name in DEGREES,
        "default": show(getattr(Strategy(), field.name), declared),
        "training_only": declared.training_only,
        **_described(declared),
    }


def inputs(state: State) -> list[dict[str, Any]]:
    """Every number and choice of the state's system and model, as configured: without its overrides."""
    parts = {"system": state.read_system()[0], "model": state.read_model()}
    return [
        {"path": f"{group}.{path}", "text": written(value, declared), **_described(declared)}
        for group, part in parts.items()
        for path, declared, value in walk(part)
        if np.ndim(value) == 0 or isinstance(declared, Choice)
    ]


def written(value: Any, declared: Quantity | Choice) -> str:
    """The text of a value in a control, as a user may write it: with as many digits as it has."""
    if isinstance(declared, Choice):
        return show(value, declared)
    exact, unit = float(np.asarray(value)), declared.unit
    texts = (units.show(exact, unit), units.show(exact, unit, _DIGITS))
    for text in texts:
        if np.isclose(units.parse(text if unit else literal(text), unit), exact, rtol=_EXACT, atol=0):
            return text
    return f"{exact:.{_DIGITS}g} {unit}".strip()


def _described(declared: Quantity | Choice) -> dict[str, Any]:
    """The description, and the unit and bounds or the alternatives, of an input."""
    if isinstance(declared, Choice):
        return {"doc": declared.doc, "alternatives": list(declared.alternatives)}
    low, high = (units.show(bound, declared.unit) for bound in declared.bounds)
    return {
        "doc": declared.doc,
        "unit": declared.unit,
        "bounds": f"{low} to {high}",
        "example": units.example(declared.unit).strip('"'),
        "integer": declared.integer,
        "kind": declared.kind,
    }
