"""The table `[set]` of the files of spaces and of design problems: values of inputs by their full paths."""

from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx

from diffperf.errors import ConfigError
from diffperf.explore.inputs import full_path
from diffperf.quantity import Choice, locate


def settings_of(inputs: eqx.Module, table: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The values of a table `[set]` by full path: nested tables, which TOML makes of keys with dots that are
    not in quotes, are flattened, and endings of paths become whole paths.

    **Raises:** `ConfigError` that names `file`, for a path that leads nowhere, and for one input twice.
    """
    settings: dict[str, Any] = {}
    for path, value in _flattened(inputs, table, file, ""):
        whole = full_path(inputs, path, file, f"set.{path}")
        if whole in settings:
            raise ConfigError(file, f"set.{path}", f'"{whole}" twice', "every input once", "leave one out")
        settings[whole] = value
    return settings


def _flattened(
    inputs: eqx.Module, table: Mapping[str, Any], file: str, prefix: str
) -> Iterator[tuple[str, Any]]:
    """The paths of a table of tables with their values; a table of the weights of a choice is a value."""
    for key, value in table.items():
        path = prefix + key
        if isinstance(value, dict) and not _is_choice(inputs, path, file):
            yield from _flattened(inputs, value, file, f"{path}.")
        else:
            yield path, value


def _is_choice(inputs: eqx.Module, path: str, file: str) -> bool:
    """Whether a path leads to a choice."""
    try:
        return isinstance(locate(inputs, full_path(inputs, path, file))[1], Choice)
    except (ConfigError, KeyError):
        return False
