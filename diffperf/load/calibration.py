"""Calibrations: fitted efficiencies and overheads of a system of one accelerator, and their uncertainty.

`diffperf calibrate` writes calibrations as configs; loading a system puts their values in place of the
system's own, and the interval of an estimate reads their covariance and spread. A calibration lies beside the
system's config, not inside it.
"""

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import numpy as np

from diffperf.errors import ConfigError, did_you_mean
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.quantity import segment

# Number formats that the same kernels serve: a value fitted for one holds for those that were not measured.
_SAME_KERNELS = (("bf16", "fp16"), ("fp8", "mxfp8", "int8"), ("nvfp4", "fp4", "int4"))
_FORMATS = "accelerator.matrix."  # the path that parameters of number formats begin with

# The fields of a system that hold a software stack: a value fitted for a stack holds in both.
STACKS = ("stack", "inference_stack")

# The kinds of measured tables. A spread may also be of one number format of a kind ("gemm fp8").
MEASURED_KINDS = ("training", "inference", "serving", "energy", "gemm", "attention", "collectives")

# The keys that every calibration has, with the type of their values and its name.
_KEYS = dict.fromkeys(("hardware", "system"), (str, "a name")) | dict.fromkeys(
    ("parts", "values", "uncertainty", "spread"), (dict, "a table")
)
# Keys for people only, which may be left out: where the values come from, and how well they do.
_PROVENANCE = {
    "date": (datetime.date, "a date, such as 2026-01-31"),
    "version": (str, "a version of diffperf in quotes"),
    "begun_from": (str, "the name of a calibration"),
    "files": (list, "[[files]] tables"),
    "errors": (dict, "[errors.NAME] tables"),
}
_SYMMETRY = 1e-4  # relative difference across the diagonal that rounding in files may leave


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted values of a system of one accelerator.

    - `name`, `file`: of the config that holds the calibration.
    - `hardware`, `system`: names of the accelerator and the system that the values were fitted on.
    - `parts`: names of the system's replaceable parts that values lie in, by path. With {"stack":
      "megatron-lm"} a value at a path below `stack` holds for Megatron-LM alone, wherever a system uses that
      stack.
    - `values`: by path into the system, as the system's file would give them.
    - `parameters`, `covariance`: the covariance of the logarithms of the values, and the paths of its rows
      and columns.
    - `spread`: by kind of table, and by kind and number format ("gemm fp8") where formats differ, the
      standard deviation of log(predicted / measured) that no value explains, such that 90 % of the rows left
      out of a fit lie within 1.645 of it.
    - `kept`: the paths of the system whose own values go before the fitted ones: a user's file gives them.
    """

    name: str
    file: str
    hardware: str
    system: str
    parts: dict[str, str]
    values: dict[str, Any]
    parameters: tuple[str, ...]
    covariance: np.ndarray
    spread: dict[str, float]
    kept: tuple[str, ...] = ()

    @classmethod
    def from_table(cls, table: dict[str, Any], file: str, name: str) -> "Calibration":
        """The calibration that a file's table holds. Raises `ConfigError` that names `file`."""
        error = functools.partial(_error, table, file)
        _refuse_unknown_keys(table, file)
        given = {key: kind for key, kind in _PROVENANCE.items() if key in table}
        for key, (kind, expected) in (_KEYS | given).items():
            if not isinstance(table.get(key), kind):
                raise error(key, expected)
        values, uncertainty, spread = table["values"], table["uncertainty"], table["spread"]
        if uncertainty.get("parameters") != list(values):
            raise error("uncertainty.parameters", "the keys of [values], in their order")
        covariance = _covariance(uncertainty.get("covariance"), len(values))
        if covariance is None:
            expected = "a symmetric matrix, one row a parameter, no variance below 0"
            raise error("uncertainty.covariance", expected)
        kinds = [key.split(" ")[0] for key in spread]
        if not spread or not set(kinds) <= set(spread) or not all(map(_nonnegative, spread.values())):
            raise error("spread", "a number of at least 0 for each kind of table")
        for kind in kinds:
            if kind not in MEASURED_KINDS:
                hint = did_you_mean(kind, MEASURED_KINDS)
                raise ConfigError(file, "spread", f'"{kind}"', "a kind of measured table", hint)
        return cls(
            name=name,
            file=file,
            hardware=table["hardware"],
            system=table["system"],
            parts=table["parts"],
            values=values,
            parameters=tuple(values),
            covariance=covariance,
            spread=spread,
        )

    def places(self, path: str, system: System) -> list[str]:
        """The paths of the system that take the value fitted at `path` (see the function of this name)."""
        return places(path, self.parts, system)

    def holds(self, path: str, system: System) -> bool:
        """Whether the system has the part that the value at `path` was fitted for."""
        return bool(self.places(path, system))

    def values_in(self, system: System) -> dict[str, Any]:
        """The fitted values that hold for a system, by the paths of the system that take them."""
        copied, own = {}, {}
        for path, value in self.values.items():
            for place in self.places(path, system):
                (own if place == path else copied)[place] = value
        # A value fitted at the very path goes before one of the same stack in the other field.
        return {path: value for path, value in (copied | own).items() if path not in self.kept}

    def all_values_in(self, system: System) -> dict[str, Any]:
        """The fitted values that hold for a system, with those of number formats that the same kernels
        serve.

        Formats that were not measured follow the fitted value of another one, unless that one keeps its own.
        """
        values = self.values_in(system)
        following = {
            other: value
            for path, value in values.items()
            for other in followers(path, self.values, system.accelerator)
        }
        return values | {path: value for path, value in following.items() if path not in self.kept}


def places(path: str, fitted_parts: Mapping[str, str], system: System) -> list[str]:
    """The paths of a system that a value fitted at `path` holds for.

    `fitted_parts` has the names, by path, of the replaceable parts that were fitted. A value inside none of
    them holds at its own path. A value inside one holds where the system has the part of that name: for a
    stack, in training, inference or both.
    """
    owner = part_of(path, fitted_parts)
    if owner is None:
        return [path]
    present, rest = parts(system), path.removeprefix(owner)
    return [part + rest for part in _same_role(owner) if present.get(part) == fitted_parts[owner]]


def _same_role(part: str) -> list[str]:
    """The paths where a system may have a part: two for a stack and its parts, one for all others."""
    field, dot, rest = part.partition(".")
    return [f"{stack}{dot}{rest}" for stack in STACKS] if field in STACKS else [part]


def parts(module: eqx.Module, prefix: str = "") -> dict[str, str]:
    """The names of a module's nested configs, by path: the parts that another config can replace."""
    names: dict[str, str] = {}
    for field in dataclasses.fields(module):
        child, path = getattr(module, field.name), prefix + field.name
        if isinstance(child, eqx.Module):
            name = getattr(child, "name", None)
            names |= ({} if name is None else {path: str(name)}) | parts(child, path + ".")
        elif isinstance(child, tuple):
            # Members of an array of tables are no configs, but may name some.
            for index, member in enumerate(child):
                if isinstance(member, eqx.Module):
                    names |= parts(member, f"{path}.{segment(member, index)}.")
    return names


def part_of(path: str, known_parts: Iterable[str]) -> str | None:
    """The innermost of the known parts that a path leads into, None where it leads into none."""
    return max((part for part in known_parts if path.startswith(part + ".")), key=len, default=None)


def followers(path: str, fitted: Iterable[str], accelerator: Accelerator) -> list[str]:
    """The paths that take the value fitted at `path` because the same kernels serve their number formats, or
    because the accelerator has no matrix units for these and multiplies them in the fitted format.

    Paths in `fitted` have a value of their own.
    """
    name, _, rest = path.removeprefix(_FORMATS).partition(".")
    if not path.startswith(_FORMATS) or not rest:
        return []
    served = next((formats for formats in _SAME_KERNELS if name in formats), (name,))
    multiplied = [other for other, own in accelerator.multiplied_formats.items() if own in served]
    others = [f"{_FORMATS}{other}.{rest}" for other in dict.fromkeys((*served, *multiplied)) if other != name]
    return [other for other in others if other not in set(fitted)]


def _error(table: dict[str, Any], file: str, key: str, expected: str) -> ConfigError:
    """The error of a key of a calibration's table, which `diffperf calibrate` would have written right."""
    found = str(table.get(key.split(".")[0], "no such key"))[:80]
    return ConfigError(file, key, found, expected, "write the file with diffperf calibrate")


def _refuse_unknown_keys(table: dict[str, Any], file: str) -> None:
    """Raises `ConfigError` for the first key that no calibration has."""
    known = (*_KEYS, *_PROVENANCE)
    for key in table:
        if key not in known:
            remedy = did_you_mean(key, known)
            raise ConfigError(file, key, f'unknown key "{key}"', "a key of a calibration", remedy)


def _nonnegative(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def _covariance(rows: Any, size: int) -> np.ndarray | None:
    """A covariance, (size, size), from the rows that a file gives; None where they are none."""
    try:
        matrix = np.array(rows, dtype=float)
    except (TypeError, ValueError):
        return None
    if matrix.shape != (size, size) or not np.isfinite(matrix).all() or (matrix.diagonal() < 0).any():
        return None
    return matrix if np.allclose(matrix, matrix.T, rtol=_SYMMETRY, atol=0) else None
