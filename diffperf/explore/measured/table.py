"""Reading a table of measurements from CSV, row by row.

A table's kind is recognized from its columns. A row with a bad cell becomes a `Fault`, told in one line, and the others are read
on.
"""

import csv
import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.measured.columns import SCHEMAS, Column, measured_columns
from diffperf.explore.measured.platforms import PLATFORMS
from diffperf.quantity import Choice


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: its cells as written, and their values by column (unknown ones are None or the column's default)."""

    line: int
    cells: dict[str, str]
    values: dict[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.values[column]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row that cannot be read: why, in a few words that other rows share, and in one line of its own."""

    line: int
    cells: dict[str, str]
    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Measurements:
    """A table: what it measures, its columns as the file names them, and its rows, good and bad."""

    file: str
    kind: str
    columns: list[str]
    rows: list[Row]
    faults: list[Fault]


class _Bad(Exception):
    """Why a row cannot be read: (column, found, reason, expected, remedy)."""


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = ("nan", "inf", "infinity")


def read_measurements(path: str | Path) -> Measurements:
    """Reads a table. Raises `ConfigError` where there is no table of a known kind in the file."""
    lines = _lines(Path(path))
    header = [name.strip() for name in next(lines, (0, []))[1]]
    kind = _kind(str(path), header)
    rows: list[Row] = []
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for line, texts in lines:
        cells = dict(zip(header, (text.strip() for text in texts), strict=False))
        try:
            rows.append(Row(line, cells, _values(SCHEMAS[kind], header, texts, cells, seen, line)))
        except _Bad as problem:
            column, found, reason, expected, remedy = problem.args
            where = f"{path} line {line}" + (f" ({cells['id']})" if cells.get("id") else "")
            message = str(ConfigError(where, column, found, expected, remedy))
            faults.append(Fault(line, cells, f"{column}: {reason}" if column else reason, message))
    if not rows and not faults:
        raise ConfigError(path, "", "no rows", "at least one measurement below the header", "add rows")
    return Measurements(str(path), kind, header, rows, faults)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError) as problem:
        raise ConfigError(
            path, "", f"an unreadable table ({problem})", "a CSV file in UTF-8", "check the file"
        ) from None


def _kind(file: str, header: list[str]) -> str:
    """The kind of table whose columns these are."""
    present = set(header)
    needed = {
        kind: {name for name, column in schema.items() if column.needed} for kind, schema in SCHEMAS.items()
    }
    # Columns that only this kind has tell most; among equals the kind with the fewest missing.
    kind = max(
        needed,
        key=lambda kind: (len(present & needed[kind]) / len(needed[kind]), len(present & set(SCHEMAS[kind]))),
    )
    missing = [name for name in SCHEMAS[kind] if name in needed[kind] - present]
    if len(missing) > len(needed[kind]) / 2:
        expected = "the columns of a table of " + ", ".join(SCHEMAS)
        raise ConfigError(
            file,
            "header",
            f"{len(header)} columns that belong to no kind of table",
            expected,
            "name the columns",
        )
    if missing:
        raise ConfigError(
            file,
            "header",
            f"no column {', '.join(missing)}",
            f"the columns of a {kind} table",
            "add what is missing",
        )
    if not present & set(measured_columns(kind)) | present & {"oom"}:
        raise ConfigError(
            file,
            "header",
            "nothing measured",
            f"one of {', '.join(measured_columns(kind))}",
            "add a measured column",
        )
    if len(present) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ConfigError(file, "header", f'two columns "{twice}"', "each column once", "drop or rename one")
    return kind


def _values(
    schema: dict[str, Column],
    header: list[str],
    texts: list[str],
    cells: dict[str, str],
    seen: dict[str, int],
    line: int,
) -> dict[str, Any]:
    """The values of a row by column. Raises `_Bad(column, found, reason, expected, remedy)`."""
    if len(texts) != len(header):
        wrong = f"{len(texts)} cells"
        raise _Bad(
            "",
            wrong,
            "wrong number of cells",
            f"{len(header)}, one for each column",
            "quote cells that hold commas",
        )
    name = cells["id"]
    if name in seen:
        raise _Bad(
            "id",
            f'"{name}"',
            "duplicate",
            f"an id of its own (line {seen[name]} has this one)",
            "rename or drop the row",
        )
    values = {column: _value(column, declared, cells.get(column, "")) for column, declared in schema.items()}
    if values["hardware"] not in PLATFORMS:
        hint = did_you_mean(values["hardware"], list(PLATFORMS))
        raise _Bad("hardware", f'"{values["hardware"]}"', "unknown hardware", "a hardware id", hint)
    seen[name] = line
    return values


def _value(name: str, column: Column, text: str) -> Any:
    if not text:
        if column.needed:
            raise _Bad(name, "an empty cell", "missing", column.expected, "fill it in or drop the row")
        return column.default
    if column.declared is None:
        return text
    if isinstance(column.declared, Choice):
        names = (
            ("false", "true")
            if column.declared.alternatives == ("off", "on")
            else column.declared.alternatives
        )
        if text.lower() not in names:
            raise _Bad(name, f'"{text}"', "unknown value", column.expected, did_you_mean(text, list(names)))
        return text.lower() == "true" if names == ("false", "true") else text.lower()
    return _number(name, column, text)


def _number(name: str, column: Column, text: str) -> float:
    def bad(reason: str, remedy: str) -> _Bad:
        return _Bad(name, f'"{text}"', reason, column.expected, remedy)

    if text.lower().lstrip("+-") in _NOT_FINITE:
        raise bad("not a finite number", "leave the cell empty where nothing is known")
    if not _NUMBER.fullmatch(text):
        unit = _NUMBER.match(text)
        raise (
            bad("a unit in the cell", "write the SI value alone")
            if unit
            else bad("not a number", "correct it or leave it empty")
        )
    number, (low, high) = float(text), column.declared.bounds
    if number < 0:
        raise bad("negative", "correct it or leave it empty")
    if not low <= number <= high or math.isinf(number):
        raise bad("out of range", "check the value and its unit")
    if column.declared.integer and number != round(number):
        raise bad("not whole", "round it")
    return number
