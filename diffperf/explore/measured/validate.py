"""How far the estimator is from a table of measurements: error statistics by group, and what it could not evaluate, by reason."""

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.measured.columns import measured_columns
from diffperf.explore.measured.platforms import PLATFORMS, calibrations
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import Fault, Measurements, read_measurements
from diffperf.load import load_calibration
from diffperf.load.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One row of the table: what was measured and what is predicted, by column, or why it was skipped.

    `ran_out` is whether the run ran out of memory and `runs_out` whether the estimator says so; None where nothing tells.
    """

    cells: dict[str, str]
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    predicted: dict[str, float] = dataclasses.field(default_factory=dict)
    ran_out: bool | None = None
    runs_out: bool | None = None
    skipped: str | None = None


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of the relative errors e = predicted/measured − 1 of n rows: mean, median and 90th percentile of |e|, and the mean of e."""

    n: int
    mean_ape: float
    median_ape: float
    p90_ape: float
    bias: float

    @classmethod
    def of(cls, predicted: np.ndarray, measured: np.ndarray) -> "Errors":
        errors = predicted / measured - 1
        size = np.abs(errors)
        return cls(
            len(errors), *map(float, (size.mean(), np.median(size), np.percentile(size, 90), errors.mean()))
        )


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """How well "out of memory" is foretold for n rows; precision and recall are None where they divide by nothing."""

    n: int
    accuracy: float
    precision: float | None
    recall: float | None

    @classmethod
    def of(cls, foretold: np.ndarray, happened: np.ndarray) -> "OutOfMemory":
        hits = int((foretold & happened).sum())
        ratio = [hits / int(whole.sum()) if whole.any() else None for whole in (foretold, happened)]
        return cls(len(happened), float((foretold == happened).mean()), *ratio)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The statistics of some rows. `oom` is None where none of them ran out of memory."""

    rows: int
    skipped: dict[str, int]
    metrics: dict[str, Errors]
    oom: OutOfMemory | None

    @classmethod
    def of(cls, evaluations: list[Evaluation], columns: Iterable[str]) -> "Summary":
        skipped = collections.Counter(one.skipped for one in evaluations if one.skipped)
        pairs = {column: points(evaluations, column) for column in columns}
        metrics = {column: Errors.of(*pair) for column, pair in pairs.items() if pair[0].size}
        told = [one for one in evaluations if one.ran_out is not None and one.runs_out is not None]
        foretold, happened = (
            np.array([getattr(one, name) for one in told], dtype=bool) for name in ("runs_out", "ran_out")
        )
        oom = OutOfMemory.of(foretold, happened) if happened.any() else None
        return cls(len(evaluations), dict(skipped.most_common()), metrics, oom)

    def as_dict(self) -> dict[str, Any]:
        result = dataclasses.asdict(self)
        if self.oom is None:
            del result["oom"]
        return result


def points(evaluations: Iterable[Evaluation], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(predicted, measured) of the rows that have both."""
    both = [
        (one.predicted[column], one.measured[column])
        for one in evaluations
        if {column} <= one.predicted.keys() & one.measured
    ]
    predicted, measured = np.array(both, dtype=float).reshape(-1, 2).T
    return predicted, measured


@dataclasses.dataclass(frozen=True)
class Validation:
    """A table held against the estimator."""

    kind: str
    columns: list[str]
    evaluations: list[Evaluation]
    faults: list[Fault]

    def by(self, column: str = "group") -> dict[str, list[Evaluation]]:
        """The rows by what stands in a column of the table. Raises `ConfigError` for a column it has not."""
        if column not in self.columns and column != "group":
            raise ConfigError(
                "command line",
                "--by",
                f'"{column}"',
                "a column of the table",
                did_you_mean(column, self.columns),
            )
        groups: dict[str, list[Evaluation]] = {}
        for one in self.evaluations:
            groups.setdefault(
                one.cells.get(column) or ("all" if column == "group" else "(empty)"), []
            ).append(one)
        return groups

    def summaries(self, by: str = "group") -> dict[str, Summary]:
        return {name: self.summary(rows) for name, rows in self.by(by).items()}

    def points_by(self, by: str, column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """(predicted, measured) of a column for every group that has any."""
        pairs = {name: points(rows, column) for name, rows in self.by(by).items()}
        return {name: pair for name, pair in pairs.items() if pair[0].size}

    def summary(self, evaluations: list[Evaluation] | None = None) -> Summary:
        """Of some rows, or of all."""
        return Summary.of(
            self.evaluations if evaluations is None else evaluations, measured_columns(self.kind)
        )

    def as_dict(self, by: str = "group") -> dict[str, Any]:
        groups = {name: summary.as_dict() for name, summary in self.summaries(by).items()}
        return {"table": self.kind, "groups": groups, "overall": self.summary().as_dict()}


def validate(path: str | Path, calibration: str | Path | None = None) -> Validation:
    """Evaluates every row of a table, on systems as they are configured or, those of its hardware, with a calibration ("none": all
    without any).

    **Raises:** `ConfigError` where there is no table of a known kind in the file; a bad row is a fault of the result.
    """
    table = read_measurements(path)
    columns = measured_columns(table.kind)
    evaluations = {fault.line: Evaluation(fault.cells, skipped=fault.reason) for fault in table.faults}
    with calibrations(_by_hardware(calibration, table)):
        predictions = predict(table.kind, table.rows)
    for row, prediction in zip(table.rows, predictions, strict=True):
        measured = {column: row[column] for column in columns if row[column] is not None}
        # A run that has been timed had memory enough, whether or not the table says so.
        ran_out = row.values.get("oom")
        ran_out = False if ran_out is None and measured else ran_out
        skipped = prediction.skipped
        if skipped is None and not measured and ran_out is None:
            skipped = "nothing measured"
        evaluations[row.line] = Evaluation(
            row.cells, measured, prediction.values, ran_out, prediction.out_of_memory, skipped
        )
    return Validation(
        table.kind, table.columns, [evaluations[line] for line in sorted(evaluations)], table.faults
    )


def _by_hardware(calibration: str | Path | None, table: Measurements) -> dict[str, Calibration | str]:
    """Which hardware of the table has which calibration in place of its own."""
    if calibration is None:
        return {}
    if str(calibration) == "none":
        return dict.fromkeys(PLATFORMS, "none")
    chosen, present = load_calibration(calibration), sorted({row["hardware"] for row in table.rows})
    if present and chosen.hardware not in present:
        found = f'a calibration of "{chosen.hardware}"'
        raise ConfigError(
            chosen.file,
            "hardware",
            found,
            f"hardware of {table.file}: {', '.join(present)}",
            "name another one",
        )
    return {chosen.hardware: chosen}
