"""Values that a user's own files give a system: they go before those that a calibration has fitted.

    extends = "h100-sxm5-80gb"
    matrix.bf16.efficiency = 0.3

This accelerator multiplies bf16 at 30 % of its peak, whatever was fitted for an H100.
"""

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.system import System
from diffperf.load.builder import FOLDERS
from diffperf.load.calibration import Calibration
from diffperf.load.extending import EXTENDS
from diffperf.load.files import available, config_root, display, find, read_toml
from diffperf.load.similar_inputs import module_class


@dataclasses.dataclass(frozen=True)
class OwnFile:
    """A system's table as a user gives it, and where its file lies.

    - `file`: the file as error messages name it.
    - `folder`: the folder of the file; None for a table that comes from no file.
    - `table`: the keys of the file; empty for one that is shipped, whose values a calibration replaces.
    """

    file: str
    folder: Path | None = None
    table: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> "OwnFile":
        """The file at a path. Raises `ConfigError` where it cannot be read."""
        return cls(display(path), path.parent, {} if _is_shipped(path) else read_toml(path))

    def gives(self, path: str) -> bool:
        """Whether this file, or another one of the user's that it names or extends, gives the value at a path
        of a system itself.
        """
        return _Search(()).table(System, self.table, self.folder, path.split("."))

    def given(self, paths: Iterable[str], calibration: Calibration, name: str) -> tuple[str, ...]:
        """Those of some paths of a system whose values this file, or another one of the user's that it names
        or extends, gives itself.

        Files that the calibration was fitted on, or that these extend, do not count: the fitted values are
        for them. `name` is the name of the system.
        """
        is_shipped = calibration.name in available(FOLDERS[Calibration]) and calibration.file == display(
            config_root() / FOLDERS[Calibration] / f"{calibration.name}.toml"
        )
        fitted = () if is_shipped else (calibration.system, calibration.hardware)
        if not self.table or name in fitted:
            return ()
        search = _Search(fitted)
        return tuple(path for path in paths if search.table(System, self.table, self.folder, path.split(".")))


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search for a value in the tables of a user's files; those of the names `fitted` end it."""

    fitted: Collection[str]

    def table(self, cls: type, table: dict[str, Any], folder: Path | None, names: list[str]) -> bool:
        """Whether a table of the class `cls`, or a file that it extends, gives the value at a path."""
        key, rest = names[0], names[1:]
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        if key in table and (not rest or self.part(types[key], table[key], folder, rest)):
            return True
        # A figure of attention beside its formats is that of bf16, which fp8 takes where it has none.
        if cls is AttentionKernels and key == "bf16" and rest[0] in table:
            return True
        base = table.get(EXTENDS)
        return cls in FOLDERS and isinstance(base, str) and self.file(cls, base, folder, names)

    def part(self, annotation: Any, value: Any, folder: Path | None, names: list[str]) -> bool:
        """Whether the value of a key, which is a part of the table's module, gives the value at a path."""
        cls = module_class(annotation)
        if cls is not annotation and isinstance(value, list | dict):  # members by their names
            value, names = _member(value, names[0]), names[1:]
        if isinstance(value, str):
            return cls in FOLDERS and self.file(cls, value, folder, names)
        return isinstance(value, dict) and self.table(cls, value, folder, names)

    def file(self, cls: type, name: str, folder: Path | None, names: list[str]) -> bool:
        """Whether the file of a config, unless it is shipped, gives the value at a path."""
        path = find(name, FOLDERS[cls], folder)
        if _is_shipped(path):
            return False
        table = read_toml(path)
        return table.get("name", path.stem) not in self.fitted and self.table(cls, table, path.parent, names)


def _member(members: list[Any] | dict[str, Any], name: str) -> Any:
    """The table of the member of this name, from an array or from a table of tables."""
    if isinstance(members, dict):
        return members.get(name)
    tables = [member for member in members if isinstance(member, dict)]
    return next((each for index, each in enumerate(tables) if each.get("name", str(index)) == name), None)


def _is_shipped(path: Path) -> bool:
    """Whether a file is one of the shipped configs."""
    return path.resolve().is_relative_to(config_root().resolve())
