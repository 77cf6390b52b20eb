"""Reading the tables of a TOML file that asks a question: what the files of spaces and of design problems
share."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx

from diffperf.errors import ConfigError, did_you_mean
from diffperf.load import load


@dataclasses.dataclass(frozen=True)
class TableReader:
    """The top table of one file. Whatever is wrong with the file becomes a `ConfigError`, in one line.

    - `file`: the name of the file in errors.
    - `folder`: where the file is; the paths in it are relative to this folder.
    """

    file: str
    folder: Path
    table: dict[str, Any]

    def error(self, key: str, found: object, expected: str, remedy: str) -> ConfigError:
        """An error about a key of this file."""
        return ConfigError(self.file, key, found, expected, remedy)

    def known_keys(self, table: dict[str, Any], known: tuple[str, ...], prefix: str, expected: str) -> None:
        """Refuses a table with a key that is not known; `prefix` leads to the table."""
        for key in table:
            if key not in known:
                raise self.error(prefix + key, f'unknown key "{key}"', expected, did_you_mean(key, known))

    def config(self, cls: type[eqx.Module], key: str) -> Any:
        """The module of a class that the config named under a key holds."""
        name = self.table.get(key)
        if not isinstance(name, str):
            found = "no such key" if name is None else repr(name)
            raise self.error(key, found, f"the name of a {key}", f'add {key} = "…", see `diffperf list`')
        return load(cls, name, beside=self.folder, asked_by=(self.file, key))

    def sub_table(self, key: str) -> dict[str, Any]:
        """The table under a key, empty where the file has none."""
        table = self.table.get(key, {})
        if not isinstance(table, dict):
            raise self.error(key, repr(table), "a table", f"write [{key}] before its keys")
        return dict(table)

    def tables(self, key: str) -> list[dict[str, Any]]:
        """The array of tables under a key, which has at least one."""
        tables = self.table.get(key)
        if not isinstance(tables, list) or not tables:
            found = "no such key" if tables is None else repr(tables)
            raise self.error(key, found, f"at least one {key}", f"write [[{key}]] before its keys")
        for index, table in enumerate(tables):
            if not isinstance(table, dict):
                raise self.error(
                    f"{key}[{index}]", repr(table), "a table", f"write [[{key}]] before its keys"
                )
        return tables

    def whole(self, value: Any, most: int, key: str, remedy: str) -> int:
        """A whole number from 1 to `most`."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, repr(value), f"a whole number from 1 to {most}", remedy)
        return value
