"""Names of systems and software in measured tables: the key `measured` in their config files."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from diffperf.errors import ConfigError, did_you_mean
from diffperf.load import display, read_toml

NO_NODE = "none"  # as a node tier: no tier of the system is a machine


@dataclasses.dataclass(frozen=True)
class SystemNames:
    """Names of a system in the rows of a table, and the part of the system that their columns describe.

    - `hardware`: the texts in the column `hardware` that mean the system, beside the system's own name.
    - `tables`: the kinds of tables in which those texts mean this system, and another one in all others;
      without any, they mean it in every table.
    - `source`: how texts in the column `source` begin in whose rows those texts of `hardware` mean this
      system, and another one in all others: a cluster of which a source tells.
    - `interconnect`: the texts in the column `interconnect` that name a network between nodes and say no
      more of it; the outermost tier of the system stands for that network.
    - `node`: the name of the network tier whose domains are machines of `devices_per_node` devices; the
      innermost tier where this is empty. "none" for the axes of a torus, and for devices alone in their
      machines.
    """

    hardware: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    interconnect: tuple[str, ...] = ()
    node: str = ""


@dataclasses.dataclass(frozen=True)
class StackNames:
    """Names of a software stack in the rows of a table, and properties of its attention kernels.

    - `framework`, `library`, `kernel`: how texts in the column of that name begin (in lower case) that mean
      the stack, such as "vllm"; "vllm >= 0.11" from that version on.
    - `trains`: how texts in the column `framework` begin that mean the stack in tables of training runs, and
      another one in all others.
    - `table`: the kinds of tables without such a column whose rows mean the stack.
    - `source`: how texts in the column `source` begin whose rows mean the stack, whatever their software is
      called.
    - `assumptions`: texts of which the column `assumptions` has one in rows that mean the stack, whatever
      their software is called.
    - `replaces`, `on`, `models`: the stacks that this one stands in for, on accelerators whose names begin
      with a text of `on`, and for models whose names begin with a text of `models`; without either, on any
      accelerator and for any model.
    - `served`: whether it does so for servers alone, not for single batches.
    - `fused`: whether the attention kernels keep the scores on the chip.
    - `prepares_inputs`: whether the measured calls of attention also rotate queries and keys, and write
      keys and values to the cache, in a kernel before the attention kernel.
    """

    framework: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    served: bool = False
    fused: bool = True
    prepares_inputs: bool = False


Names = TypeVar("Names", SystemNames, StackNames)


def read_names(cls: type[Names], path: Path) -> Names:
    """The names under `measured` in the file of a system or a stack. Raises `ConfigError`."""
    file, table = display(path), read_toml(path).get("measured", {})
    if not isinstance(table, dict):
        raise ConfigError(file, "measured", "no table", "a table", "write measured = { … }")
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    values = {}
    for key, value in table.items():
        if key not in defaults:
            expected = "a key of " + cls.__name__
            raise ConfigError(
                file, f"measured.{key}", f'unknown key "{key}"', expected, did_you_mean(key, list(defaults))
            )
        values[key] = _checked(value, defaults[key], file, f"measured.{key}")
    return cls(**values)


def _checked(value: Any, default: Any, file: str, key: str) -> Any:
    """A value of the type that its default has: a tuple of texts, a text, or a truth value."""
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        raise ConfigError(file, key, str(value), "an array of texts", 'write ["…", "…"]')
    if isinstance(value, type(default)):
        return value
    expected = "true or false" if isinstance(default, bool) else "a text"
    raise ConfigError(file, key, str(value), expected, "correct the value")
