"""Values of inputs by path, as a user gives them: texts with units, or numbers in internal units."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.inputs import own_path
from diffperf.load import declared_at
from diffperf.quantity import Quantity, is_traced


def with_paths_and_units(module: eqx.Module, assignments: Mapping[str, Any], asker: str) -> dict[str, Any]:
    """Values by full path, ready for `diffperf.load.override`: numbers have the internal unit of their input.

    Traced values stay as they are.

    **Raises:** `ConfigError` that names `asker`, for a path that leads to no input, and for two paths that
    mean the same one.
    """
    values, paths = {}, {}
    for written, value in assignments.items():
        path = own_path(module, written, asker)
        if (first := paths.setdefault(path, written)) != written:
            found, expected = f"the same input as {first}", "every input once"
            raise ConfigError(asker, written, found, expected, "leave one of them out")
        declared, number = declared_at(module, path, asker, written), plain(value)
        if isinstance(declared, Quantity) and not is_traced(number) and np.ndim(number):
            remedy = "write one of them; dp.sweep, or jax.vmap of dp.override, estimate many"
            raise ConfigError(asker, written, f"{np.size(number)} numbers", "one number", remedy)
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        unit = declared.unit if is_number and isinstance(declared, Quantity) else ""
        values[path] = f"{number!r} {unit}" if unit else number
    return values


def plain(value: Any) -> Any:
    """A number of NumPy or JAX as one of Python; anything else as it is."""
    if is_traced(value):
        return value
    if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0:
        return np.asarray(value).item()
    return value
