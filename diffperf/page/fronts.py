"""A small sweep for the page: all layouts of the devices, and those that no other beats."""

from typing import Any

import numpy as np

from diffperf import units
from diffperf.api.question import describe_strategy
from diffperf.explore.plan.candidates import DEGREES, FIELDS, LAYOUT
from diffperf.explore.plan.front import Front, layout_front
from diffperf.page.programs import Compiling, Programs
from diffperf.page.state import PAGE, State
from diffperf.quantity import Choice, Quantity, locate, walk
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

_MOST_POINTS = 600  # that a browser draws; the layouts of the front are among them always


def front(state: State, programs: Programs) -> dict[str, Any]:
    """The layouts of the state's devices by time and memory; degrees and batches that the state gives stay.

    **Raises:** `ConfigError` for a state that cannot be used.
    """
    question = state.question()
    inputs = Configuration(question.model, question.system, Strategy())
    # Layouts of the page's devices are compared, whatever degrees it shows.
    table = {name: text for name, text in question.table.items() if name not in DEGREES}
    try:
        front = programs.run(
            f"front {state.phase} {sorted(set(table) & set(FIELDS))}",
            inputs,
            lambda: layout_front(question.model, question.system, table, state.phase, PAGE),
        )
    except Compiling:
        return {"compiling": ["layouts"]}
    return {"compiling": [], **_described(front, state.phase)}


def _described(front: Front, phase: str) -> dict[str, Any]:
    step = max(1, len(front.time) // _MOST_POINTS)
    best = []
    for strategy, report in front.best:
        time, peak = (float(np.asarray(locate(report, path)[0])) for path in ("time", "memory.peak"))
        best.append(
            {
                "time": time,
                "peak": peak,
                "time_text": units.show(time, "s"),
                "peak_text": units.show(peak, "byte"),
                "layout": describe_strategy(strategy, phase),
                "fields": _given(strategy, phase),
            }
        )
    return {
        "points": np.stack([front.time, front.peak], axis=-1)[::step].tolist(),
        "best": best,
        "searched": front.searched,
        "fitting": len(front.time),
    }


def _given(strategy: Strategy, phase: str) -> dict[str, str]:
    """The searched fields of a strategy that are not the default, as texts for controls."""
    fields = FIELDS if phase == "training" else LAYOUT
    values = {path: (declared, value) for path, declared, value in walk(strategy) if path in fields}
    default = {path: show(value, declared) for path, declared, value in walk(Strategy())}
    texts = {path: _text(value, declared) for path, (declared, value) in values.items()}
    return {path: text for path, text in texts.items() if path in DEGREES or text != default[path]}


def _text(value: Any, declared: Quantity | Choice) -> str:
    return show(value, declared) if isinstance(declared, Choice) else f"{float(np.asarray(value)):g}"
