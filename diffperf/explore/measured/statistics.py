"""Statistics of errors of predictions, and of how well running out of memory is foretold."""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One row of a table: what was measured and what is predicted, by column, or why the row was skipped.

    - `ran_out`: whether the run ran out of memory; None where the table does not say.
    - `runs_out`: whether the estimator says that it does; None where the estimator does not say.
    - `found`: what a skipped row has where a layout breaks a rule, such as "8 devices for …".
    - `name`: the id of the row, or its line; `doubts`: what does not go together in it, though it counts.
    """

    cells: dict[str, str]
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    predicted: dict[str, float] = dataclasses.field(default_factory=dict)
    ran_out: bool | None = None
    runs_out: bool | None = None
    skipped: str | None = None
    name: str = ""
    doubts: tuple[str, ...] = ()
    found: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values for JSON: the measured columns beside their estimates, or why it was
        skipped."""
        named: dict[str, Any] = {"row": self.name}
        if self.skipped is not None:
            return named | {"skipped": self.skipped} | ({"found": self.found} if self.found else {})
        memory = {"ran_out": self.ran_out, "runs_out": self.runs_out}
        return named | {
            "measured": self.measured,
            "predicted": {
                column: self.predicted[column] for column in self.measured if column in self.predicted
            },
            **{key: value for key, value in memory.items() if value is not None},
        }


@dataclasses.dataclass(frozen=True)
class Errors:
    """Statistics of the relative errors e = predicted / measured − 1 of n rows.

    Mean, median and 90th percentile of |e|, and the mean of e.
    """

    n: int
    mean_ape: float
    median_ape: float
    p90_ape: float
    bias: float

    @classmethod
    def of(cls, predicted: Float[np.ndarray, " rows"], measured: Float[np.ndarray, " rows"]) -> "Errors":
        """The relative errors of predictions against measurements, row by row."""
        errors = predicted / measured - 1
        size = np.abs(errors)
        return cls(
            n=len(errors),
            mean_ape=float(size.mean()),
            median_ape=float(np.median(size)),
            p90_ape=float(np.percentile(size, 90)),
            bias=float(errors.mean()),
        )


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """Quality of the predictions that n rows run out of memory; a ratio is None where it divides by
    nothing.
    """

    n: int
    accuracy: float
    precision: float | None
    recall: float | None

    @classmethod
    def of(cls, foretold: Bool[np.ndarray, " rows"], happened: Bool[np.ndarray, " rows"]) -> "OutOfMemory":
        """The quality of predictions, from whether each row was predicted to run out of memory and did."""
        hits = int((foretold & happened).sum())
        precision, recall = (
            hits / int(whole.sum()) if whole.any() else None for whole in (foretold, happened)
        )
        return cls(len(happened), float((foretold == happened).mean()), precision, recall)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The statistics of some rows.

    - `skipped`: how many rows were skipped, by reason.
    - `metrics`: the errors by column.
    - `oom`: how well running out of memory is foretold; None where no row ran out of it.
    """

    rows: int
    skipped: dict[str, int]
    metrics: dict[str, Errors]
    oom: OutOfMemory | None

    @classmethod
    def of(cls, evaluations: list[Evaluation], columns: Iterable[str]) -> "Summary":
        """The statistics of some rows, of the errors in some columns."""
        skipped = collections.Counter(row.skipped for row in evaluations if row.skipped)
        pairs = {column: points(evaluations, column) for column in columns}
        metrics = {column: Errors.of(*pair) for column, pair in pairs.items() if pair[0].size}
        known = [row for row in evaluations if row.ran_out is not None and row.runs_out is not None]
        foretold = np.array([row.runs_out for row in known], dtype=bool)
        happened = np.array([row.ran_out for row in known], dtype=bool)
        oom = OutOfMemory.of(foretold, happened) if happened.any() else None
        return cls(len(evaluations), dict(skipped.most_common()), metrics, oom)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values for JSON."""
        result = dataclasses.asdict(self)
        if self.oom is None:
            del result["oom"]
        return result


def points(
    evaluations: Iterable[Evaluation], column: str
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """The predicted and the measured values in a column, of the rows that have both."""
    both = [
        (row.predicted[column], row.measured[column])
        for row in evaluations
        if {column} <= row.predicted.keys() & row.measured
    ]
    predicted, measured = np.array(both, dtype=float).reshape(-1, 2).T
    return predicted, measured
