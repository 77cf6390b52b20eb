"""The estimator's answers to measured rows: one vmapped program a kind of table serves them all, block by block.

Hardware, framework, layout, precision and recomputation are traced numbers and weights over alternatives; only the numbers of
memory levels and network tiers and the structure of models tell programs apart.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from diffperf.explore.measured.kernel_rows import ATTENTION, COLLECTIVES, GEMM
from diffperf.explore.measured.platforms import system_of
from diffperf.explore.measured.run_rows import INFERENCE, TRAINING
from diffperf.explore.measured.table import Row
from diffperf.workload.rules import first_violation

BLOCK = 256  # rows a program evaluates at once: one shape for tables of any length, and intermediates that stay in cache

EVALUATORS = {
    "training": TRAINING,
    "inference": INFERENCE,
    "gemm": GEMM,
    "attention": ATTENTION,
    "collectives": COLLECTIVES,
}
_PROGRAMS = {kind: jax.jit(jax.vmap(ways.estimate)) for kind, ways in EVALUATORS.items()}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The estimator's values for one row by column and whether it runs out of memory, or why there are none."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    out_of_memory: bool | None = None
    skipped: str | None = None


def inputs_of(kind: str, row: Row) -> tuple:
    """The estimator's inputs that describe one row: for training and inference (model, system, strategy, …)."""
    return jax.tree.map(lambda leaf: leaf[0], EVALUATORS[kind].stack([row]))


def predict(kind: str, rows: Sequence[Row]) -> list[Prediction]:
    """The estimator's answer for each row, in order."""
    found: dict[int, Prediction] = {}
    alike: dict[Any, list[int]] = {}
    for index, row in enumerate(rows):
        reason = EVALUATORS[kind].unrepresentable(row)
        if reason is None:
            system = jax.tree.structure(system_of(row["hardware"], row.values.get("framework")))
            alike.setdefault((system, EVALUATORS[kind].structure(row)), []).append(index)
        else:
            found[index] = Prediction(skipped=reason)
    for indices in alike.values():
        for start in range(0, len(indices), BLOCK):
            block = indices[start : start + BLOCK]
            found |= zip(block, _predict_block(kind, [rows[i] for i in block]), strict=True)
    return [found[index] for index in range(len(rows))]


def _predict_block(kind: str, rows: list[Row]) -> list[Prediction]:
    """At most a block of rows; a shorter one is filled up with its last row."""
    filled = rows + rows[-1:] * (BLOCK - len(rows))
    outputs = jax.tree.map(np.asarray, _PROGRAMS[kind](*EVALUATORS[kind].stack(filled)))
    return [
        _prediction(kind, row, {name: values[i] for name, values in outputs.items()})
        for i, row in enumerate(rows)
    ]


def _prediction(kind: str, row: Row, outputs: dict[str, np.ndarray]) -> Prediction:
    values = {name: float(value) for name, value in outputs.items()}
    if values.pop("possible", 1.0) == 0.0:
        phase = {"training": "training", "inference": "generate"}[kind]
        key, _, expected, _ = first_violation(*inputs_of(kind, row)[:3], phase)
        return Prediction(skipped=f"{key}: not {expected}")
    if not np.isfinite(list(values.values())).all():
        return Prediction(skipped="estimate is not finite")
    excess = values.pop("excess", None)
    return Prediction(values, None if excess is None else excess > 0)
