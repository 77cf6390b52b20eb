"""The rows that a calibration is fitted to, and what became of the rows of its tables that it is not."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from diffperf.errors import ConfigError, counted, did_you_mean
from diffperf.explore.measured.platforms import Platforms, double_precision, stated_network
from diffperf.explore.measured.predictions import Prediction, predict
from diffperf.explore.measured.schemas import measured_columns, speed_columns, unit_of
from diffperf.explore.measured.stacking import system_of
from diffperf.explore.measured.table import Measurements, Row
from diffperf.software.stack import Stack

# For every kind of table, the columns that tell families of configurations apart: the rows of a family are
# near repetitions of each other.
_MODEL = ("model", "layers", "hidden", "heads", "ffn")
FAMILIES = {
    "training": (*_MODEL, "tp", "pp", "dp", "cp", "ep"),
    "inference": (*_MODEL, "tp", "pp", "ep"),
    "serving": (*_MODEL, "disaggregated", "decode_tp", "decode_ep", "decode_dp_attention", "spec_method"),
    "energy": (*_MODEL, "tp", "pp", "ep", "dp"),
    "gemm": ("n", "k"),
    "attention": ("heads", "kv_heads", "head_dim", "phase"),
    "collectives": ("collective", "n_devices", "interconnect"),
}
# For every kind of table, the column by which errors are reported.
PART_COLUMNS = {
    "training": "precision",
    "inference": "activation_dtype",
    "serving": "weight_dtype",
    "energy": "weight_dtype",
    "gemm": "dtype",
    "attention": "dtype",
    "collectives": "interconnect",
}


_FIRST_TOKEN, _PER_TOKEN = "ttft", "tpot"  # how the names of columns of these times begin


@dataclasses.dataclass(frozen=True)
class Observation:
    """A measured row of a table of some kind.

    - `column`: the measured column that is fitted.
    - `family`: a name that rows share which cross-validation leaves out together: by default those of
      nearly the same configuration.
    - `part`: the value of the column by which errors are reported.
    """

    kind: str
    row: Row
    column: str
    family: str
    part: str

    @property
    def sign(self) -> float:
        """−1 for a rate, +1 for a time, a power or an energy: residuals have the sense of times."""
        return 1.0 if unit_of(self.kind, self.column) in ("s", "W", "J/token") else -1.0

    @property
    def quantity(self) -> str:
        """The name of what was measured, which rows share whose errors are alike in size."""
        return f"{self.kind} {self.column}"


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of measurements, the number of rows that were fitted, and why others were skipped."""

    name: str
    kind: str
    sha256: str
    rows: int
    skipped: dict[str, int]


def chosen_hardware(hardware: str | None, tables: Sequence[Measurements]) -> str:
    """The text in the column `hardware` of the rows that are fitted: that of one system.

    `hardware` is that text, or the name of the accelerator; None where the rows are all of one system.
    **Raises:** `ConfigError`.
    """
    of_rows = {row["hardware"]: table.platforms for table in tables for row in table.rows}
    present = sorted(of_rows)
    if not present:
        raise _none_left(
            tables, collections.Counter(fault.reason for table in tables for fault in table.faults)
        )
    if hardware in present:
        return str(hardware)
    if hardware is None:
        candidates, found, expected = present, f"rows of {len(present)} accelerators", "one accelerator"
    else:
        candidates = [name for name in present if of_rows[name][name].accelerator == hardware]
        found, expected = f"rows of {len(candidates)} systems of {hardware}", "one system"
    if not candidates:
        expected = "hardware of a row that can be read"
        hint = did_you_mean(str(hardware), present)
        raise ConfigError("command line", "--hardware", f'"{hardware}"', expected, hint)
    if len(candidates) > 1:
        remedy = f"choose one: {', '.join(candidates)}"
        raise ConfigError("command line", "--hardware", found, expected, remedy)
    return candidates[0]


def of_hardware(hardware: str) -> Callable[[Row], str | None]:
    """The function that says why a row says nothing of a system's hardware; None for a row that does.

    Collectives whose interconnect means the network of another system are evaluated on that one.
    """

    def refusal(row: Row) -> str | None:
        if row["hardware"] != hardware:
            return "other hardware"
        if row.kind != "collectives":
            return None
        stated = stated_network(row["interconnect"] or "", double_precision())
        return None if stated is None else "network of another system"

    return refusal


def of_stack(stack: Stack, platforms: Platforms) -> Callable[[Row], str | None]:
    """The function that says why a row was not driven by a stack; None for a row that was."""

    return lambda row: None if _driver(row, platforms) == str(stack.name) else "other software"


def _driver(row: Row, platforms: Platforms) -> str:
    """The name of the stack that drove a row: the one that the row names, or that of its system and phase."""
    return str(system_of(row, platforms).stack_of(row.kind).name)


def driven_hardware(stack: Stack, tables: Sequence[Measurements], platforms: Platforms) -> list[str]:
    """The texts in the column `hardware` of the rows that a stack drove, in the order of the tables.

    **Raises:** `ConfigError` where the stack drove none.
    """
    refusal = of_stack(stack, platforms)
    driven = (row["hardware"] for table in tables for row in table.rows if refusal(row) is None)
    present = list(dict.fromkeys(driven))
    if not present:
        found, expected = f'"{stack.name}", which drove no row', "a stack that rows name"
        others = {_driver(row, platforms) for table in tables for row in table.rows}
        remedy = f"the rows name {', '.join(sorted(others))}" if others else "correct the rows"
        raise ConfigError("command line", "--stack", found, expected, remedy)
    return present


def observations_of(
    tables: Sequence[Measurements],
    refusal: Callable[[Row], str | None],
    platforms: Platforms,
    family: str | None = None,
    column: str | None = None,
) -> tuple[list[Observation], list[Source]]:
    """The rows that can be fitted, and the files that they are from.

    `refusal` says in a few words why a row is not to be fitted; None for one that is. Rows that agree in
    the column `family` are a family; by default those that agree in `FAMILIES`. `column` is the measured
    column to fit, None for the usual times and rates. **Raises:** `ConfigError` for a column that a table
    does not have.
    """
    for table in tables:
        results = measured_columns(table.kind)
        if column is not None and column not in results:
            hint = did_you_mean(column, results)
            expected = f"a result that {table.file} may have"
            raise ConfigError("command line", "--column", f'"{column}"', expected, hint)
        if family is not None and family not in table.columns:
            hint = did_you_mean(family, table.columns)
            raise ConfigError("command line", "--leave-out", f'"{family}"', f"a column of {table.file}", hint)
    observations, sources = [], []
    for table in tables:
        reasons = [refusal(row) for row in table.rows]
        rows = [row for row, reason in zip(table.rows, reasons, strict=True) if reason is None]
        skipped = collections.Counter(fault.reason for fault in table.faults)
        skipped.update(reason for reason in reasons if reason is not None)
        usable = []
        for row, prediction in zip(rows, predict(table.kind, rows, platforms), strict=True):
            columns = fitted_columns(row, prediction, column)
            if columns:
                usable.append(row)
                observations += [_observation(row, column, family) for column in columns]
            else:
                skipped[_reason(prediction)] += 1
        sources.append(_source(table, len(usable), skipped))
    return observations, sources


def fitted_columns(row: Row, prediction: Prediction, column: str | None = None) -> list[str]:
    """The first column of speeds that a row has and the estimator predicts, or the given `column`; none for
    no such column.

    Times per token and to first token say different things, so that a row that has both, and no latency from
    end to end before them, is fitted to both.
    """
    wanted = speed_columns(row.kind) if column is None else [column]
    names = [name for name in wanted if row[name] is not None and name in prediction.values]
    first_token = [name for name in names if name.startswith(_FIRST_TOKEN)][:1]
    per_token = [name for name in names if name.startswith(_PER_TOKEN)][:1]
    both = [*first_token, *per_token]
    return both if names[:1] and names[0] in both else names[:1]


def _reason(prediction: Prediction) -> str:
    """Why a row is not fitted."""
    return "nothing measured" if prediction.skipped is None else prediction.skipped


def _observation(row: Row, column: str, family: str | None) -> Observation:
    of_family = [str(row[name]) for name in FAMILIES[row.kind]] if family is None else [row.cells[family]]
    return Observation(
        kind=row.kind,
        row=row,
        column=column,
        family=" ".join([row.kind, *of_family]),
        part=str(row[PART_COLUMNS[row.kind]] or "all"),
    )


def _source(table: Measurements, rows: int, skipped: collections.Counter[str]) -> Source:
    """The record of a table of which some rows were fitted."""
    return Source(
        name=Path(table.file).name,
        kind=table.kind,
        sha256=hashlib.sha256(Path(table.file).read_bytes()).hexdigest(),
        rows=rows,
        skipped={reason: count for reason, count in skipped.most_common() if count},
    )


def check_enough(
    tables: Sequence[Measurements], sources: Sequence[Source], parameters: Collection[str] = ()
) -> None:
    """Raises `ConfigError` for no row to fit, or for fewer rows than parameters."""
    rows = sum(source.rows for source in sources)
    if not rows:
        reasons = (collections.Counter(source.skipped) for source in sources)
        raise _none_left(tables, sum(reasons, collections.Counter()))
    if rows < len(parameters):
        found = counted(rows, "usable row")
        expected = (
            f"at least one for each of {counted(len(parameters), 'parameter')}: {', '.join(parameters)}"
        )
        raise ConfigError(file_names(tables), "", found, expected, "name fewer --parameters or add rows")


def _none_left(tables: Sequence[Measurements], skipped: collections.Counter[str]) -> ConfigError:
    """The error of tables without any row to fit, with the most frequent reasons."""
    reasons = [f"{count:,} × {reason}" for reason, count in skipped.most_common()]
    shown = ", ".join(reasons[:4]) + (", …" if len(reasons) > 4 else "")
    found = f"no row left to fit ({shown})"
    expected = "rows that can be read and evaluated"
    return ConfigError(file_names(tables), "", found, expected, "correct the rows or add others")


def file_names(tables: Sequence[Measurements]) -> str:
    """The files of tables, for error messages."""
    return ", ".join(table.file for table in tables)
