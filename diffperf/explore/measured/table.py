"""Tables of measurements, read from CSV row by row.

The kind of a table is recognized from its columns. A row with a bad cell becomes a `Fault`, and the other
rows are read on.
"""

import collections
import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffperf.errors import ARGUMENTS, ConfigError, counted, did_you_mean
from diffperf.explore.measured.cells import BadCell, cell_value
from diffperf.explore.measured.columns import Column
from diffperf.explore.measured.implied import implied_values
from diffperf.explore.measured.meant_columns import meant_columns
from diffperf.explore.measured.named_model import MODEL_FILES, named_model
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.schemas import SCHEMAS, SOFTWARE, measured_columns
from diffperf.load import find

_PATHS = ("./", "../", "/")  # how texts begin that are paths for sure


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: its cells as written, and their values by column.

    The value of an empty cell is None or the default of its column; that of a cell with the path of a
    config is the path as seen from the working directory.
    """

    kind: str
    line: int
    cells: dict[str, str]
    values: dict[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    @property
    def software(self) -> tuple[str, str | None]:
        """The column that names the software, and what it says; for kinds without one, "table" and the
        kind.
        """
        column = SOFTWARE.get(self.kind)
        return ("table", self.kind) if column is None else (column, self.values.get(column))


def _name(cells: Mapping[str, str], line: int) -> str:
    """The id of a row, or its line where it has none."""
    return cells.get("id") or f"line {line}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row that cannot be read.

    - `reason`: why, in a few words that other rows share.
    - `where`, `fault`: the row, and why it cannot be read, in words that rows with the same fault share.
    """

    line: int
    cells: dict[str, str]
    reason: str
    where: str
    fault: str

    @property
    def name(self) -> str:
        """The id of the row, or its line."""
        return _name(self.cells, self.line)

    @property
    def message(self) -> str:
        """Why, in a line that names the row."""
        return f"{self.where}: {self.fault}"


@dataclasses.dataclass(frozen=True)
class Measurements:
    """A table: what it measures, its columns as the file names them, and its rows.

    `platforms` is what the names in its column `hardware` mean.
    """

    file: str
    kind: str
    columns: list[str]
    rows: list[Row]
    faults: list[Fault]
    platforms: Platforms = dataclasses.field(default_factory=Platforms)


def messages(faults: Sequence[Fault]) -> list[str]:
    """The lines that name rows which cannot be read, one for all rows with the same fault."""
    shared = collections.Counter(fault.fault for fault in faults)
    lines: dict[str, str] = {}
    for fault in faults:
        others = shared[fault.fault] - 1
        more = f" (and {others:,} more such row{'s' * (others > 1)})" if others else ""
        lines.setdefault(fault.fault, fault.message + more)
    return list(lines.values())


def read_measurements(path: str | Path, platforms: Platforms | None = None) -> Measurements:
    """Reads a table.

    Its hardware is that of `platforms` (by default the shipped systems), or of files that its cells name.

    **Raises:** `ConfigError` where there is no table of a known kind in the file.
    """
    return _Reader(Path(path), platforms or Platforms()).read()


def check_used(systems: Sequence[str], tables: Sequence[Measurements], file: str = ARGUMENTS) -> None:
    """Raises `ConfigError` for a system that no row of some tables ran on.

    `file` is what names the systems, for error messages.
    """
    rows = [(row["hardware"], table.platforms) for table in tables for row in table.rows]
    used = {platforms[hardware] for hardware, platforms in rows}
    for name in systems:
        platform = tables[0].platforms[name]
        if rows and platform not in used:
            names = ", ".join(dict.fromkeys((platform.accelerator, *platform.names)))
            present = ", ".join(sorted({hardware for hardware, _ in rows}))
            expected = f"rows whose hardware is one of {names}; those of the table have {present}"
            raise ConfigError(file, "--system", f'"{name}"', expected, "name the hardware so")


class _Reader:
    """Reads one table: keeps the rows and faults so far, and the platforms of files that cells name."""

    def __init__(self, path: Path, platforms: Platforms):
        self.path, self.platforms = path, platforms
        self.rows: list[Row] = []
        self.faults: list[Fault] = []
        self.line_of: dict[str, int] = {}  # by the row's id

    def read(self) -> Measurements:
        lines = _lines(self.path)
        header = [name.strip() for name in next(lines, (0, []))[1]]
        if not header:
            remedy = "begin with a line that names the columns"
            raise ConfigError(self.path, "", "an empty file", "a table of measurements", remedy)
        kind = _kind(str(self.path), header)
        for line, texts in lines:
            cells = dict(zip(header, (text.strip() for text in texts), strict=False))
            try:
                if len(texts) != len(header):
                    expected = f"{len(header)}, one for each column"
                    remedy = "quote cells that hold commas"
                    raise BadCell(
                        column="",
                        found=f"{len(texts)} cells",
                        reason="wrong number of cells",
                        expected=expected,
                        remedy=remedy,
                    )
                self.rows.append(Row(kind, line, cells, self._values(kind, cells, line)))
            except BadCell as bad:
                self.faults.append(self._fault(bad, cells, line))
        if not self.rows and not self.faults:
            expected = "at least one measurement below the header"
            raise ConfigError(self.path, "", "no rows", expected, "add rows")
        return Measurements(
            file=str(self.path),
            kind=kind,
            columns=header,
            rows=self.rows,
            faults=self.faults,
            platforms=self.platforms,
        )

    def _fault(self, bad: BadCell, cells: dict[str, str], line: int) -> Fault:
        where = f"{self.path} line {line}" + (f" ({cells['id']})" if cells.get("id") else "")
        message = str(ConfigError(where, bad.column, bad.found, bad.expected, bad.remedy))
        reason = f"{bad.column}: {bad.reason}" if bad.column else bad.reason
        return Fault(
            line=line, cells=cells, reason=reason, where=where, fault=message.removeprefix(f"{where}: ")
        )

    def _values(self, kind: str, cells: dict[str, str], line: int) -> dict[str, Any]:
        """The values of a row by column. Raises `BadCell`."""
        row_id = _name(cells, line)
        if (earlier := self.line_of.get(row_id)) is not None:
            expected = f"an id of its own (line {earlier} has this one)"
            raise BadCell(
                column="id",
                found=f'"{row_id}"',
                reason="duplicate",
                expected=expected,
                remedy="rename or drop the row",
            )
        schema: dict[str, Column] = SCHEMAS[kind]
        values = {name: cell_value(name, column, cells.get(name, "")) for name, column in schema.items()}
        values["id"] = row_id
        if self._names_model_file(values.get("model") or ""):
            values["model"] = self._model_file(values["model"])
        values |= implied_values(kind, cells, values)
        named = self.platforms.name_in(kind, values["hardware"], values.get("source"))
        values["hardware"] = self._hardware(named)
        if (column := SOFTWARE.get(kind)) is not None and str(values[column]).endswith(".toml"):
            values[column] = self._stack(column, values[column])
        elif column is not None:
            values[column] = self.platforms.software_in(
                values[column], values.get("source"), values.get("assumptions")
            )
        self.line_of[row_id] = line
        return values

    def _hardware(self, text: str) -> str:
        """The name of a platform, that of a file in the cell if the cell holds a path. Raises `BadCell`."""
        if text in self.platforms:
            return text
        if not text.endswith(".toml"):
            expected = "the name of an accelerator or a system, or the path of its file"
            hint = did_you_mean(text, self.platforms.hardware, "diffperf list systems")
            raise BadCell(
                column="hardware",
                found=f'"{text}"',
                reason="unknown hardware",
                expected=expected,
                remedy=hint,
            )
        path = self._file("hardware", text)
        if str(path) not in self.platforms:
            try:
                self.platforms = self.platforms.with_file(path)
            except ConfigError as wrong:
                raise self._unusable("hardware", text, wrong) from None
        return str(path)

    def _stack(self, column: str, text: str) -> str:
        """The path of a stack's file. Raises `BadCell`."""
        path = self._file(column, text)
        if str(path) not in self.platforms.own_software:
            try:
                self.platforms = self.platforms.with_stack(path)
            except ConfigError as wrong:
                raise self._unusable(column, text, wrong) from None
        return str(path)

    def _names_model_file(self, text: str) -> bool:
        """Whether a cell is the path of a model's file, or of a folder with a `config.json`. Names as of
        Hugging Face have a slash too, and are no paths where there is no such folder.
        """
        if text.endswith(MODEL_FILES) or text.startswith(_PATHS):
            return True
        folders = [base / text for base in (self.path.parent, Path())] if "/" in text else []
        return any((folder / "config.json").is_file() for folder in folders)

    def _model_file(self, text: str) -> str:
        """The path of a model's file. Raises `BadCell`."""
        path = self._file("model", text, "models")
        try:
            named_model(str(path))
        except ConfigError as wrong:
            raise self._unusable("model", text, wrong) from None
        return str(path)

    def _file(self, column: str, text: str, kind: str = "systems") -> Path:
        """The file of a path relative to the table or to the working directory. Raises `BadCell`."""
        try:
            return find(text, kind, beside=self.path.parent)
        except ConfigError as wrong:
            raise BadCell(
                column=column,
                found=str(wrong.found),
                reason=f"unknown {column}",
                expected=wrong.expected,
                remedy=wrong.remedy,
            ) from None

    def _unusable(self, column: str, text: str, wrong: ConfigError) -> BadCell:
        """The fault of a row whose cell names a file that holds no system, accelerator, stack or model."""
        return BadCell(
            column=column,
            found=f'"{text}", which cannot be used ({wrong})',
            reason="unusable file",
            expected="a correct file",
            remedy="mend it",
        )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line number and the cells of every line that is not empty. Raises `ConfigError`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except OSError as problem:
        found = f"no table that can be read ({problem.strerror})"
        raise ConfigError(path, "", found, "a CSV file", "check the path") from None
    except (csv.Error, UnicodeDecodeError) as problem:
        found = f"an unreadable table ({problem})"
        raise ConfigError(path, "", found, "a CSV file in UTF-8", "check the file") from None


def _other_separator(header: list[str]) -> str:
    """The semicolon or the tab that separates the columns of a header in place of commas; empty for none."""
    only = header[0] if len(header) == 1 else ""
    return next((separator for separator in (";", "\t") if separator in only), "")


def _kind(file: str, header: list[str]) -> str:
    """The kind of table that a header belongs to. Raises `ConfigError` for the header of no kind."""
    present = set(header)
    needed = {
        kind: {name for name, column in schema.items() if column.needed} for kind, schema in SCHEMAS.items()
    }
    meant = {kind: meant_columns(kind, header) for kind in SCHEMAS}

    def measures(kind: str) -> bool:
        return bool(present & {*measured_columns(kind), "oom"})

    def likeness(kind: str) -> tuple[bool, int, float]:
        """Whether nothing is missing, the number of a kind's columns that are present or meant, and the share
        of its needed columns that are.
        """
        given = present | set(meant[kind].values())
        complete = needed[kind] <= present and measures(kind)
        return complete, len(given & set(SCHEMAS[kind])), len(given & needed[kind]) / len(needed[kind])

    kind = max(needed, key=likeness)
    missing = [name for name in SCHEMAS[kind] if name in needed[kind] - present]
    renamed = [f"{name} to {column}" for name, column in meant[kind].items()]
    nameless = set(missing) - set(meant[kind].values())

    def wrong(found: str, expected: str, remedy: str) -> ConfigError:
        return ConfigError(file, "header", found, expected, remedy)

    if separator := _other_separator(header):
        name = "tabs" if separator == "\t" else f'"{separator}"'
        raise wrong(f"fields separated by {name}", 'fields separated by ","', "write the table with commas")
    if len(nameless) > len(needed[kind]) / 2:
        found = f"{counted(len(header), 'column')} of no kind of table"
        raise wrong(found, "the columns of a table of " + ", ".join(SCHEMAS), "name the columns")
    rename = f"rename {', '.join(renamed)}" if renamed else ""
    if missing:
        found, article = f"no column {', '.join(missing)}", "an" if kind[0] in "aeiou" else "a"
        remedy = " and ".join(filter(None, (rename, "add what is missing" if nameless else "")))
        raise wrong(found, f"the columns of {article} {kind} table", remedy)
    if not measures(kind):
        expected = f"one of {', '.join(measured_columns(kind))}"
        raise wrong("nothing measured", expected, rename or "add a measured column")
    if len(present) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise wrong(f'two columns "{twice}"', "each column once", "drop or rename one")
    return kind
