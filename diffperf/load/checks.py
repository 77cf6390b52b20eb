"""Single values of a file, checked against the declarations of their fields: units, bounds, alternatives."""

import dataclasses
import json
import math
from typing import Any

import jax
import numpy as np

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.quantity import Choice, Quantity, is_traced

_LONGEST_SHOWN = 80  # characters of a wrong value that an error message repeats
_SUM_TOLERANCE = 1e-6  # by which weights may miss a sum of 1: six digits are enough to write thirds


def shown(value: Any) -> str:
    """A wrong value as error messages show it: as JSON, cut after 80 characters."""
    return json.dumps(value, default=str, ensure_ascii=False)[:_LONGEST_SHOWN]


def checked(declared: Quantity | Choice, value: Any, file: str, key: str) -> float | np.ndarray:
    """A value as a file gives it: a number in internal units, or the weights of a choice, (alternatives,).

    **Raises:** `ConfigError` that names `file` and `key`, where the declaration does not allow the value.
    """
    if isinstance(declared, Choice):
        return checked_weights(declared, value, file, key)
    return checked_number(declared, value, file, key)


def inconsistency_of(module: Any) -> tuple[str, str, str, str] | None:
    """What is wrong with the values of a module together, by the `inconsistency` of its class: (key, found,
    expected, remedy); None for nothing, for an array of modules, and where JAX traces a value.
    """
    inconsistency = getattr(type(module), "inconsistency", None)
    if inconsistency is None or any(map(is_traced, jax.tree.leaves(module))):
        return None
    module = jax.tree.map(np.asarray, module)  # JAX would compile each operation of a check
    return inconsistency({field.name: getattr(module, field.name) for field in dataclasses.fields(module)})


def checked_number(declared: Quantity, value: Any, file: str, key: str) -> float:
    """A number in internal units, from a number or a text such as "300 GB/s".

    **Raises:** `ConfigError` for a wrong unit, outside the declared bounds, and for parts of whole
    quantities.
    """
    kind = f"a quantity in {declared.unit}" if declared.unit else "a number"
    low, high = declared.bounds
    try:
        number = units.parse(value, declared.unit)
    except units.UnitError as problem:
        usual, allowed = units.example(declared.unit), units.example_between(declared.unit, low, high)
        raise ConfigError(file, key, shown(value), kind, str(problem).replace(usual, allowed)) from None
    if math.isnan(number) or not low <= number <= high:
        limits = f"{kind} from {units.show(low, declared.unit)} to {units.show(high, declared.unit)}"
        raise ConfigError(file, key, shown(value), limits, f"check the value and its unit ({declared.doc})")
    if declared.integer and number != round(number):
        raise ConfigError(file, key, shown(value), "a whole number", f"round it ({declared.doc})")
    return number


def checked_weights(declared: Choice, value: Any, file: str, key: str) -> np.ndarray:
    """The weights of a choice, (alternatives,), from an alternative's name, a boolean, or a table of weights.

    **Raises:** `ConfigError` for an unknown name, and for weights that do not add up to 1.
    """
    names = declared.alternatives
    is_switch = names == ("off", "on")
    expected = "true or false" if is_switch else "one of " + ", ".join(names)
    if isinstance(value, dict):
        if not _are_weights(value, names):
            expected = f"{expected} or weights of these that add up to 1"
            raise ConfigError(file, key, shown(value), expected, "correct the weights")
        return np.sum([weight * declared.one_hot(name) for name, weight in value.items()], axis=0)
    if isinstance(value, bool | int | str):
        try:
            return declared.one_hot(value)
        except ValueError:
            pass
    hint = "write true or false" if is_switch else did_you_mean(str(value), list(names))
    raise ConfigError(file, key, shown(value), expected, hint)


def _are_weights(table: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Whether a table gives some of these names numbers from 0 to 1 that add up to 1."""
    numbers = all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight <= 1
        for weight in table.values()
    )
    return (
        set(table) <= set(names) and numbers and math.isclose(sum(table.values()), 1, rel_tol=_SUM_TOLERANCE)
    )
