"""What a calibration found: fitted efficiencies and overheads of one accelerator's system, and how sure they are.

`diffperf calibrate` writes it as a config; the loader puts its values in place of the system's own, and the interval of an
estimate reads its covariance and its spread. It is kept beside the system, not in it.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import numpy as np

from diffperf.errors import ConfigError, did_you_mean
from diffperf.hardware.system import System

# Number formats that the same kernels serve: what is fitted for one holds for those that were not measured.
_SAME_KERNELS = (("bf16", "fp16"), ("fp8", "mxfp8", "int8"), ("nvfp4", "fp4", "int4"))

_TEXTS = ("hardware", "system")
_TABLES = ("parts", "values", "uncertainty", "spread")
# Read by people only: where the values come from, and what they are worth.
_PROVENANCE = ("date", "version", "files", "errors")


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted values of a system of one accelerator.

    - `hardware`, `system`: names of the accelerator and the system it was fitted on.
    - `parts`: names of the system's replaceable parts that values lie in, by path: a value of `stack` holds for the stack of that
      name alone.
    - `values`: by path into the system, as its file would give them.
    - `parameters`, `covariance`: the covariance of the logarithms of the values, and the paths of its rows and columns.
    - `spread`: by kind of table, and by kind and number format ("gemm fp8") where formats differ, the standard deviation of
      log(predicted / measured) that no value explains, such that 90 % of the rows left out of a fit lie within 1.645 of it.
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

    @classmethod
    def from_table(cls, table: dict[str, Any], file: str, name: str) -> "Calibration":
        """The calibration that a file's table holds. Raises `ConfigError`."""

        def expect(holds: bool, key: str, expected: str) -> None:
            if not holds:
                found = table.get(key.split(".")[0], "no such key")
                raise ConfigError(
                    file, key, str(found)[:80], expected, "write the file with diffperf calibrate"
                )

        known = (*_TEXTS, *_TABLES, *_PROVENANCE)
        for key in table:
            if key not in known:
                raise ConfigError(
                    file, key, f'unknown key "{key}"', "a key of a calibration", did_you_mean(key, known)
                )
        for key in _TEXTS:
            expect(isinstance(table.get(key), str), key, "a name")
        for key in _TABLES:
            expect(isinstance(table.get(key), dict), key, "a table")
        parts, values, uncertainty, spread = (table[key] for key in _TABLES)
        parameters = uncertainty.get("parameters")
        expect(parameters == list(values), "uncertainty.parameters", "the keys of [values], in their order")
        covariance = _matrix(uncertainty.get("covariance"), len(values))
        expect(
            covariance is not None,
            "uncertainty.covariance",
            "a symmetric matrix, one row a parameter, no variance below 0",
        )
        known_kinds = bool(spread) and all(name.split(" ")[0] in spread for name in spread)
        expect(
            known_kinds and all(map(_nonnegative, spread.values())),
            "spread",
            "a number of at least 0 for each kind of table",
        )
        return cls(
            name, file, *(table[key] for key in _TEXTS), parts, values, tuple(parameters), covariance, spread
        )

    def holds(self, path: str, system: System) -> bool:
        """Whether the part of the system that the path leads into is the one that was calibrated."""
        owner = part_of(path, self.parts)
        return owner is None or parts(system).get(owner) == self.parts[owner]


def parts(module: eqx.Module, prefix: str = "") -> dict[str, str]:
    """The names of a module's nested configs, by path: what another config may stand in for."""
    found = {}
    for field in dataclasses.fields(module):
        child, path = getattr(module, field.name), prefix + field.name
        if isinstance(child, eqx.Module):
            found |= ({path: str(child.name)} if hasattr(child, "name") else {}) | parts(child, path + ".")
    return found


def part_of(path: str, parts: Iterable[str]) -> str | None:
    """The innermost of some parts that a path leads into."""
    return max((part for part in parts if path.startswith(part + ".")), key=len, default=None)


def followers(path: str, fitted: Iterable[str]) -> list[str]:
    """Paths that take the value fitted at one: those of number formats that the same kernels serve, unless fitted themselves."""
    formats = next(
        (
            group
            for group in _SAME_KERNELS
            for name in group
            if path.startswith(f"accelerator.matrix.{name}.")
        ),
        (),
    )
    head, _, rest = path.removeprefix("accelerator.matrix.").partition(".")
    alike = {name: f"accelerator.matrix.{name}.{rest}" for name in formats if name != head}
    return [other for other in alike.values() if other not in set(fitted)]


def _nonnegative(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )


def _matrix(rows: Any, size: int) -> np.ndarray | None:
    try:
        matrix = np.array(rows, dtype=float)
    except (TypeError, ValueError):
        return None
    if matrix.shape != (size, size) or not np.isfinite(matrix).all() or (matrix.diagonal() < 0).any():
        return None
    return matrix if np.allclose(matrix, matrix.T, rtol=1e-4, atol=0) else None
