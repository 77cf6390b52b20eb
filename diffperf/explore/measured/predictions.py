"""The estimator's values for measured rows: a vmapped program for each kind of table.

Hardware, software, layout, precision and recomputation are traced numbers, and weights over alternatives.
Only the number of memory levels, the number of network tiers and the structure of models need programs of
their own.
"""

import dataclasses
from collections.abc import Hashable, Sequence

import jax
import numpy as np

from diffperf.compiler import stored
from diffperf.explore.measured.generation_rows import INFERENCE
from diffperf.explore.measured.kernel_rows import ATTENTION, COLLECTIVE_ROWS, GEMM
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.run_rows import TRAINING
from diffperf.explore.measured.served_rows import ENERGY, SERVING
from diffperf.explore.measured.stacking import system_of
from diffperf.explore.measured.table import Row
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import first_violation

# Rows that a program evaluates at once: one shape for tables of any length, and intermediates that stay in
# cache.
BLOCK = 256

EVALUATORS = {
    "training": TRAINING,
    "inference": INFERENCE,
    "serving": SERVING,
    "energy": ENERGY,
    "gemm": GEMM,
    "attention": ATTENTION,
    "collectives": COLLECTIVE_ROWS,
}
_PHASES = {
    "training": "training",
    "inference": "generate",
    "energy": "decode",
}  # what the rows of tables of runs are estimates of
# NumPy evaluates thousands of rows in less time than XLA takes to compile one of these programs.
_PROGRAMS = {
    kind: stored(by_numpy=True)(jax.vmap(evaluator.estimate)) for kind, evaluator in EVALUATORS.items()
}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The estimator's values for one row by column, or why there are none.

    - `out_of_memory`: whether the run does not fit into the device's memory; None where the estimator does
      not say.
    - `skipped`: why there are none, in words that other rows share; `found`: what this row has, in the words
      of the rule that it breaks.
    """

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    out_of_memory: bool | None = None
    skipped: str | None = None
    found: str = ""


def inputs_of(kind: str, row: Row, platforms: Platforms | None = None) -> tuple:
    """The estimator's inputs of one row; for training and inference (model, system, strategy, …)."""
    inputs = EVALUATORS[kind].stack([row], platforms or Platforms())
    return jax.tree.map(lambda leaf: leaf[0], inputs)


def predict(kind: str, rows: Sequence[Row], platforms: Platforms | None = None) -> list[Prediction]:
    """The estimator's values for each row, in order; `platforms` are those the rows were read with."""
    platforms = platforms or Platforms()
    predictions: dict[int, Prediction] = {}
    by_program: dict[Hashable, list[int]] = {}
    for index, row in enumerate(rows):
        reason = _unrepresentable(kind, row, platforms)
        if reason is None:
            by_program.setdefault(structure_of(kind, row, platforms), []).append(index)
        else:
            predictions[index] = Prediction(skipped=reason)
    for indices in by_program.values():
        for start in range(0, len(indices), BLOCK):
            block = indices[start : start + BLOCK]
            of_block = _predict_block(kind, [rows[i] for i in block], platforms)
            predictions |= zip(block, of_block, strict=True)
    return [predictions[index] for index in range(len(rows))]


def structure_of(kind: str, row: Row, platforms: Platforms) -> Hashable:
    """Key of the compiled program that a row needs: the structures of its system and of its model."""
    return jax.tree.structure(system_of(row, platforms)), EVALUATORS[kind].structure(row)


def _unrepresentable(kind: str, row: Row, platforms: Platforms) -> str | None:
    """Why the estimator cannot represent a row."""
    if platforms[row["hardware"]].alone and row.values.get("n_devices", 1) > 1:
        return "several devices of an accelerator whose file gives no network"
    return EVALUATORS[kind].unrepresentable(row)


def _predict_block(kind: str, rows: list[Row], platforms: Platforms) -> list[Prediction]:
    """Predictions of at most a block of rows, which is filled up with the last row to the size of a block."""
    filled = rows + rows[-1:] * (BLOCK - len(rows))
    outputs = _PROGRAMS[kind](*EVALUATORS[kind].stack(filled, platforms))
    columns = {name: np.asarray(values) for name, values in outputs.items()}
    return [
        _prediction(kind, row, {name: float(values[index]) for name, values in columns.items()}, platforms)
        for index, row in enumerate(rows)
    ]


def _prediction(kind: str, row: Row, values: dict[str, float], platforms: Platforms) -> Prediction:
    """The prediction that the outputs of the estimator for a row amount to."""
    if values.pop("possible", 1.0) == 0.0:
        model, system, strategy, *_ = inputs_of(kind, row, platforms)
        violation = first_violation(Configuration(model, system, strategy), _PHASES[kind])
        assert violation is not None, "a layout is impossible where it breaks a rule"
        return Prediction(skipped=f"{violation.key}: not {violation.expected}", found=violation.found)
    if not np.isfinite(list(values.values())).all():
        return Prediction(skipped="estimate is not finite")
    excess = values.pop("excess", None)
    return Prediction(values, None if excess is None else excess > 0)
