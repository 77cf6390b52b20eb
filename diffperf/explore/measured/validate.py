"""Errors of the estimator on a table of measurements: by group, and with the rows that were skipped."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.explore.measured.conditions import where as rows_where
from diffperf.explore.measured.doubts import doubts_of
from diffperf.explore.measured.meant_columns import meant_columns
from diffperf.explore.measured.platforms import Platforms, platforms_with
from diffperf.explore.measured.predictions import Prediction, predict
from diffperf.explore.measured.schemas import SCHEMAS, measured_columns
from diffperf.explore.measured.statistics import Evaluation, Summary, points
from diffperf.explore.measured.table import Fault, Measurements, Row, check_used, read_measurements
from diffperf.load import load_calibration
from diffperf.load.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Validation:
    """A table and the estimator's values for its rows."""

    kind: str
    columns: list[str]
    evaluations: list[Evaluation]
    faults: list[Fault]

    @property
    def unread(self) -> dict[str, str]:
        """Columns that no table of this kind has, which are not read but may group rows: to each the column
        that was likely meant and that the table lacks, "" for none.
        """
        meant = meant_columns(self.kind, self.columns)
        return {name: meant.get(name, "") for name in self.columns if name not in SCHEMAS[self.kind]}

    def by(self, column: str = "group") -> dict[str, list[Evaluation]]:
        """The rows by their text in a column. Raises `ConfigError` for an unknown column."""
        if column not in self.columns and column != "group":
            hint = did_you_mean(column, self.columns)
            raise ConfigError("command line", "--by", f'"{column}"', "a column of the table", hint)
        empty = "all" if column == "group" else "(empty)"
        groups: dict[str, list[Evaluation]] = {}
        for row in self.evaluations:
            groups.setdefault(row.cells.get(column) or empty, []).append(row)
        return groups

    def summaries(self, by: str = "group") -> dict[str, Summary]:
        """The statistics of the groups that a column divides the rows into."""
        return {name: self.summary(rows) for name, rows in self.by(by).items()}

    def points_by(
        self, by: str, column: str
    ) -> dict[str, tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]]:
        """The predicted and the measured values in a column, for every group that has any."""
        pairs = {name: points(rows, column) for name, rows in self.by(by).items()}
        return {name: pair for name, pair in pairs.items() if pair[0].size}

    def summary(self, evaluations: list[Evaluation] | None = None) -> Summary:
        """The statistics of some rows, or of all."""
        rows = self.evaluations if evaluations is None else evaluations
        return Summary.of(rows, measured_columns(self.kind))

    @property
    def doubtful(self) -> dict[str, list[str]]:
        """The names of rows that count although something about them does not go together, by what that is;
        the most frequent first.
        """
        return _by_reason((doubt, row.name) for row in self.evaluations for doubt in row.doubts)

    @property
    def skipped(self) -> dict[str, list[str]]:
        """The names of the rows that were skipped, by reason; the most frequent first."""
        return _by_reason((row.skipped, row.name) for row in self.evaluations if row.skipped is not None)

    @property
    def described_skips(self) -> dict[str, list[str]]:
        """`skipped` with what the first row of each reason has, where that breaks a rule of layouts."""
        found: dict[str | None, str] = {}
        for row in self.evaluations:
            found.setdefault(row.skipped, row.found)
        described = {}
        for reason, names in self.skipped.items():
            example = (
                f" ({'found' if len(names) == 1 else 'such as'} {found[reason]})" if found[reason] else ""
            )
            described[reason + example] = names
        return described

    def as_dict(self, by: str = "group") -> dict[str, Any]:
        """The statistics of all groups, and every row, as nested plain values for JSON."""
        groups = {name: summary.as_dict() for name, summary in self.summaries(by).items()}
        found = {"table": self.kind, "groups": groups, "overall": self.summary().as_dict()}
        doubtful = {"doubtful": self.doubtful} if self.doubtful else {}
        return found | doubtful | {"rows": [row.as_dict() for row in self.evaluations]}


def validate(
    path: str | Path,
    calibration: str | Path | None = None,
    *,
    systems: Sequence[str] = (),
    where: Sequence[str] = (),
    file: str = ARGUMENTS,
) -> Validation:
    """Evaluates the rows of a table.

    **Arguments:**

    - `calibration`: the fitted values that rows of its accelerator have in place of those that systems'
      files name; "none" for no calibration of any system.
    - `systems`: systems by their shipped names, or by the paths of systems' or accelerators' files. Rows
      whose hardware is the name of such a system or of its accelerator ran on it.
    - `where`: conditions on cells, such as `framework=vllm*`; rows that meet all of them are evaluated.
    - `file`: what names the calibration, the systems and the conditions, for error messages.

    **Raises:** `ConfigError` where there is no table of a known kind in the file, for a condition that is
    wrong or that no row meets, and for a system or a calibration of which no row is left. A row that cannot
    be read is a fault of the result.
    """
    table = rows_where(read_measurements(path, platforms_with(systems, file)), where, file)
    check_used(systems, [table], file)
    platforms = table.platforms.with_calibration(_chosen_calibration(calibration, table, file))
    return evaluate(dataclasses.replace(table, platforms=platforms))


def evaluate(table: Measurements) -> Validation:
    """Evaluates the rows of a table that is read already; the calibrations are those of its platforms."""
    evaluations = {
        fault.line: Evaluation(fault.cells, skipped=fault.reason, name=fault.name) for fault in table.faults
    }
    for row, prediction in zip(table.rows, predict(table.kind, table.rows, table.platforms), strict=True):
        evaluations[row.line] = _evaluation(row, prediction, table.platforms)
    in_order = [evaluations[line] for line in sorted(evaluations)]
    return Validation(table.kind, table.columns, in_order, table.faults)


def _by_reason(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of rows by a reason, from pairs of both; the most frequent reason first."""
    rows: dict[str, list[str]] = {}
    for reason, name in named:
        rows.setdefault(reason, []).append(name)
    return dict(sorted(rows.items(), key=lambda reason: -len(reason[1])))


def _evaluation(row: Row, prediction: Prediction, platforms: Platforms) -> Evaluation:
    """A row's measured values beside the predicted ones."""
    columns = measured_columns(row.kind)
    measured = {column: row[column] for column in columns if row[column] is not None}
    # A run that has been timed had memory enough, whether or not the table says so.
    ran_out = row.values.get("oom")
    ran_out = False if ran_out is None and measured else ran_out
    skipped = prediction.skipped
    if skipped is None and not measured and ran_out is None:
        skipped = "nothing measured"
    return Evaluation(
        cells=row.cells,
        measured=measured,
        predicted=prediction.values,
        ran_out=ran_out,
        runs_out=prediction.out_of_memory,
        skipped=skipped,
        name=row["id"],
        found=prediction.found,
        doubts=doubts_of(row, prediction, platforms) if measured and skipped is None else (),
    )


def _chosen_calibration(
    calibration: str | Path | None, table: Measurements, file: str
) -> Calibration | Literal["none"] | None:
    """The calibration of that name or path, whose accelerator some row of the table has to have."""
    if calibration is None or str(calibration) == "none":
        return "none" if calibration is not None else None
    chosen = load_calibration(calibration, file)
    present = sorted({table.platforms[row["hardware"]].accelerator for row in table.rows})
    if present and chosen.hardware not in present:
        found = f'a calibration of "{chosen.hardware}"'
        expected = f"hardware of {table.file}: {', '.join(present)}"
        raise ConfigError(chosen.file, "hardware", found, expected, "name another one")
    return chosen
