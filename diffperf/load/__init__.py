"""From files to modules: TOML and Hugging Face `config.json` become accelerators, systems, models and strategies.

A file's keys are the fields of a module, checked against their declarations (`diffperf.quantity`). A nested module is a
table, an array of tables, or the name of another config. Everything wrong with a file is a `ConfigError`: one line with file,
key, found, expected, remedy.
"""

import dataclasses
import functools
import importlib.resources
import json
import math
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.package import Packaging, Process
from diffperf.hardware.system import Prices, System
from diffperf.hardware.technology import Technology
from diffperf.load.calibration import Calibration, followers
from diffperf.load.huggingface import model_table
from diffperf.quantity import Choice, Label, Quantity, locate, replace, segment
from diffperf.software.collective_library import CollectiveLibrary
from diffperf.software.stack import Stack
from diffperf.workload.model import Model
from diffperf.workload.rules import first_violation
from diffperf.workload.strategy import Strategy

# Where the configs of each kind of module lie, below configs/.
FOLDERS = {
    Accelerator: "accelerators",
    System: "systems",
    Model: "models",
    Technology: "technology",
    Process: "processes",
    Packaging: "packages",
    Stack: "stacks",
    CollectiveLibrary: "collectives",
    Prices: "prices",
    Calibration: "calibrations",
}


@functools.cache
def config_root() -> Path:
    """The shipped configs: inside an installed package, or beside it in a checkout."""
    package = Path(str(importlib.resources.files("diffperf")))
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def available(folder: str) -> list[str]:
    """Names of the shipped configs in a folder of configs/."""
    return sorted(path.stem for path in (config_root() / folder).glob("*.toml"))


def find(
    name: str, folder: str, beside: Path | None = None, asked_by: tuple[str, str] = ("command line", "")
) -> Path:
    """The file that `name` means: a path (relative to the asking file, or to the working directory) or a shipped config."""
    file, key = asked_by
    if name.endswith((".toml", ".json")) or "/" in name:
        for base in ([beside] if beside else []) + [Path()]:
            if _is_file(base / name):
                return base / name
        raise ConfigError(file, key, f'"{name}"', "an existing file", "check the path")
    path = config_root() / folder / f"{name}.toml"
    if _is_file(path):
        return path
    hint = did_you_mean(name, available(folder))
    raise ConfigError(file, key, f'"{name}"', f"a name from configs/{folder} or a path ending in .toml", hint)


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """The table a TOML file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, OSError) as problem:
        raise ConfigError(
            display(path), "", f"an unreadable file ({problem})", "UTF-8 text", "check the file"
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as problem:  # besides syntax: numbers of thousands of digits, thousands of brackets
        raise ConfigError(
            display(path), "", f"invalid TOML ({problem})", "TOML", "mend the syntax there"
        ) from None


def display(path: Path) -> str:
    """A path as short as it can be understood."""
    try:
        return f"configs/{path.relative_to(config_root())}"
    except ValueError:
        return str(path)


class _Builder:
    """Builds modules from the tables of one file."""

    def __init__(self, file: str, folder: Path | None = None):
        self.file, self.folder = file, folder

    def error(self, key: str, found: object, expected: str, remedy: str) -> ConfigError:
        return ConfigError(self.file, key, found, expected, remedy)

    def module(self, cls: type[eqx.Module], table: Any, prefix: str = "", name: str | None = None) -> Any:
        """A module of class `cls` from a table."""
        if not isinstance(table, dict):
            raise self.error(
                prefix.rstrip("."),
                _found(table),
                f"a table of {cls.__name__} keys",
                "write it as a TOML table",
            )
        if hasattr(cls, "complete"):
            table = cls.complete(table)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in table:
            if key not in fields:
                raise self.error(
                    prefix + key,
                    f'unknown key "{key}"',
                    f"a key of {cls.__name__}",
                    _place(key, table, fields),
                )
        values = {}
        for field in fields.values():
            if field.name in table:
                values[field.name] = self.value(field, table[field.name], prefix + field.name)
            elif field.name == "name" and "label" in field.metadata and name is not None:
                values["name"] = name
            elif field.default is dataclasses.MISSING:
                raise self.error(
                    prefix + field.name, "no such key", _expected(field), f"add {field.name} = …"
                )
        return cls(**values)

    def value(self, field: dataclasses.Field, value: Any, key: str) -> Any:
        """One field's value, checked against its declaration."""
        if (declared := field.metadata.get("quantity")) is not None:
            return self.number(declared, value, key)
        if (declared := field.metadata.get("choice")) is not None:
            return self.weights(declared, value, key)
        if "label" in field.metadata:
            if not isinstance(value, str):
                raise self.error(key, _found(value), "a text", "quote it")
            return value
        cls = _member(field.type)
        if isinstance(field.type, types.GenericAlias):  # tuple[Module, ...]
            if not isinstance(value, list) or not value:
                raise self.error(key, _found(value), "an array of tables", f"write [[{key}]] before each")
            members = tuple(self.component(cls, item, f"{key}[{index}]") for index, item in enumerate(value))
            self.distinct(members, key)
            return members
        return self.component(cls, value, key)

    def distinct(self, members: tuple[eqx.Module, ...], key: str) -> None:
        """Names within an array are parts of paths: no two alike, and no dots."""
        names = [segment(member, index) for index, member in enumerate(members)]
        for index, name in enumerate(names):
            if not name or "." in name or name in names[:index]:
                expected = "a name without dots that no other has"
                raise self.error(f"{key}[{index}].name", _found(name), expected, "give each its own name")

    def component(self, cls: type[eqx.Module], value: Any, key: str) -> Any:
        """A nested module: its table, or the name of the config that holds it."""
        if isinstance(value, str):
            if cls not in FOLDERS:
                raise self.error(
                    key, _found(value), f"a table of {cls.__name__} keys", "write it as a TOML table"
                )
            return load(cls, value, beside=self.folder, asked_by=(self.file, key))
        member = key.endswith("]")  # of an array: there a name has to be given
        return self.module(cls, value, key + ".", name=None if member else key.rsplit(".", 1)[-1])

    def number(self, declared: Quantity, value: Any, key: str) -> float:
        kind = f"a quantity in {declared.unit}" if declared.unit else "a number"
        low, high = declared.bounds
        limits = f"{kind} from {units.show(low, declared.unit)} to {units.show(high, declared.unit)}"
        try:
            number = units.parse(value, declared.unit)
        except units.UnitError as problem:
            raise self.error(key, _found(value), kind, str(problem)) from None
        if math.isnan(number) or not low <= number <= high:
            raise self.error(key, _found(value), limits, f"check the value and its unit ({declared.doc})")
        if declared.integer and number != round(number):
            raise self.error(key, _found(value), "a whole number", f"round it ({declared.doc})")
        return number

    def weights(self, declared: Choice, value: Any, key: str) -> np.ndarray:
        names = declared.alternatives
        expected = "true or false" if names == ("off", "on") else "one of " + ", ".join(names)
        if isinstance(value, dict):
            numbers = all(
                isinstance(w, int | float) and not isinstance(w, bool) and 0 <= w <= 1 for w in value.values()
            )
            if set(value) <= set(names) and numbers and math.isclose(sum(value.values()), 1, rel_tol=1e-6):
                return sum(w * declared.one_hot(name) for name, w in value.items())
            raise self.error(
                key, _found(value), expected + " or weights of these that add up to 1", "correct the weights"
            )
        if isinstance(value, bool | int | str):
            try:
                return declared.one_hot(value)
            except ValueError:
                pass
        hint = "write true or false" if names == ("off", "on") else did_you_mean(str(value), list(names))
        raise self.error(key, _found(value), expected, hint)


def _member(annotation: Any) -> type[eqx.Module]:
    """The module that `Module`, `Module | None` or `tuple[Module, ...]` is of."""
    return next(iter(typing.get_args(annotation)), annotation)


def _place(key: str, table: dict[str, Any], fields: dict[str, dataclasses.Field]) -> str:
    """Where an unknown key of a table belongs: in the optional part that has such a key, else under the most similar name."""
    for field in fields.values():
        if isinstance(field.type, types.UnionType):
            part = dataclasses.fields(_member(field.type))
            if any(inner.name == key for inner in part):
                asked = [
                    inner.name
                    for inner in part
                    if inner.name in table or inner.default is dataclasses.MISSING
                ]
                keys = ", ".join(
                    f"{name} = {_found(table[name]) if name in table else '…'}" for name in asked
                )
                return f"write {field.name} = {{ {keys} }}"
    return did_you_mean(key, list(fields))


def _found(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)[:80]


def _expected(field: dataclasses.Field) -> str:
    declared = field.metadata.get("quantity")
    if declared is not None:
        return f"{declared.doc}, such as {units.example(declared.unit)}"
    if (declared := field.metadata.get("choice")) is not None:
        return "one of " + ", ".join(declared.alternatives)
    return field.metadata.get("label", field.name.replace("_", " "))


def load(
    cls: type[eqx.Module],
    name: str | Path,
    *,
    beside: Path | None = None,
    asked_by: tuple[str, str] = ("command line", ""),
) -> Any:
    """A module of class `cls` from a shipped config's name or a file's path; a system with the calibration that its file names.

    **Raises:** `ConfigError`, in one line.
    """
    path = find(str(name), FOLDERS[cls], beside, asked_by)
    return _load_system(path)[0] if cls is System else _read(cls, path)


def _read(cls: type[eqx.Module], path: Path) -> Any:
    """What a file holds, as it stands."""
    if cls is Calibration:
        return Calibration.from_table(read_toml(path), display(path), path.stem)
    if path.suffix == ".json":
        return _Builder(display(path), path.parent).module(
            cls, _huggingface(path), name=path.parent.name or path.stem
        )
    return _Builder(display(path), path.parent).module(cls, read_toml(path), name=path.stem)


def _huggingface(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as problem:
        raise ConfigError(
            path, "", f"invalid JSON ({problem})", "a Hugging Face config.json", "check the file"
        ) from None
    if not isinstance(config, dict):
        raise ConfigError(
            path, "", f"a {type(config).__name__}", "a Hugging Face config.json (an object)", "check the file"
        )
    try:
        return model_table(config)
    except KeyError as missing:
        raise ConfigError(path, *missing.args[0]) from None


def load_model(name: str | Path) -> Model:
    """A model by the name of a shipped config, the path of a TOML file, or of a Hugging Face `config.json`."""
    return load(Model, name)


def load_system(
    name: str | Path,
    n_devices: float | None = None,
    *,
    stack: str | None = None,
    calibration: Calibration | str | Path | None = None,
) -> System:
    """A system by the name of a shipped config or the path of a TOML file; `n_devices` scales it out.

    `stack` names the software in place of the system's own, `calibration` the fitted values in place of those of the calibration
    that the system's file names; "none" is without any.
    """
    system, _ = load_calibrated(name, stack=stack, calibration=calibration)
    return system if n_devices is None else override(system, {"n_devices": n_devices})


def load_calibrated(
    name: str | Path, *, stack: str | None = None, calibration: Calibration | str | Path | None = None
) -> tuple[System, Calibration | None]:
    """A system with the values of its calibration, and that calibration (see `load_system`)."""
    return _load_system(find(str(name), FOLDERS[System]), stack, calibration)


def _load_system(
    path: Path, stack: str | None = None, calibration: Calibration | str | Path | None = None
) -> tuple[System, Calibration | None]:
    system = _read(System, path)
    if stack is not None:
        chosen = load(Stack, stack)
        system = dataclasses.replace(system, stack=chosen, inference_stack=chosen)
    if isinstance(calibration, Calibration):
        return calibrated(system, calibration), calibration
    chosen = str(system.calibration if calibration is None else calibration)
    if chosen == "none":
        return dataclasses.replace(system, calibration="none"), None
    if calibration is None:
        found = load(Calibration, chosen, beside=path.parent, asked_by=(display(path), "calibration"))
    else:
        found = load_calibration(chosen)
    return calibrated(system, found), found


def load_calibration(name: str | Path) -> Calibration:
    """A calibration by the name of a shipped config or the path of a TOML file."""
    return load(Calibration, name)


def calibrated(system: System, calibration: Calibration) -> System:
    """The system with the fitted values in place of its own; those of a part it does not have, such as a stack, are left out.

    **Raises:** `ConfigError` for a calibration of another accelerator, or with a path that the system does not have.
    """
    if str(system.accelerator.name) != calibration.hardware:
        expected = f"a calibration of {system.accelerator.name}, the accelerator of {system.name}"
        raise ConfigError(
            calibration.file, "hardware", f'"{calibration.hardware}"', expected, "name another one, or none"
        )
    values = {path: value for path, value in calibration.values.items() if calibration.holds(path, system)}
    values |= {
        other: value for path, value in values.items() for other in followers(path, calibration.values)
    }
    return dataclasses.replace(override(system, values, calibration.file), calibration=calibration.name)


def load_strategy(
    table: dict[str, Any], file: str = "command line", n_devices: float | None = None
) -> Strategy:
    """A strategy from a table of its fields. Without `dp` it is what the other degrees leave of `n_devices`."""
    strategy = _Builder(file).module(Strategy, table)
    if "dp" in table or n_devices is None:
        return strategy
    return replace(strategy, {"dp": max(1.0, n_devices / float(strategy.devices))})


def checked(declared: Quantity | Choice, value: Any, file: str, key: str) -> float | np.ndarray:
    """One value as a file would give it, in internal units or as weights over the alternatives, checked against its declaration."""
    builder = _Builder(file)
    return (
        builder.weights(declared, value, key)
        if isinstance(declared, Choice)
        else builder.number(declared, value, key)
    )


def declared_at(module: eqx.Module, path: str, file: str, key: str | None = None) -> Quantity | Choice:
    """The declaration of the input at a dotted path. A path to nothing, or to a group of inputs, is a `ConfigError` under `key`."""
    key = path if key is None else key
    try:
        node, declared = locate(module, path)
    except KeyError as problem:
        known, missing = problem.args[0]
        hint = did_you_mean(missing, known) if known else f"{path.rsplit('.', 1)[0]} has no parts"
        raise ConfigError(file, key, f'unknown name "{missing}"', "a path into the inputs", hint) from None
    if declared is None:
        if node is None:
            raise ConfigError(
                file, key, "a part that is not there", "one input", "give the part in its file first"
            )
        if isinstance(node, Label):
            raise ConfigError(file, key, "a name", "a number or a choice", "names are not inputs")
        members = enumerate(node) if isinstance(node, tuple) else []
        parts = [segment(child, index) for index, child in members] or [
            field.name for field in dataclasses.fields(node)
        ]
        raise ConfigError(
            file, key, "a group of inputs", "one input", f"go on with one of: {', '.join(parts)}"
        )
    return declared


def override(module: eqx.Module, assignments: dict[str, Any], file: str = "command line") -> eqx.Module:
    """The module with leaves replaced by dotted path, checked like a file's keys: {"memory.hbm.bandwidth": "4 TB/s"}."""
    values = {
        path: checked(declared_at(module, path, file), literal(text), file, path)
        for path, text in assignments.items()
    }
    return replace(module, values) if values else module


def literal(text: Any) -> Any:
    """Command-line text as TOML would read it: numbers and booleans bare, everything else a text."""
    if not isinstance(text, str):
        return text
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d{1,15}", text.strip()):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip()) else text


def check(
    model: Model, system: System, strategy: Strategy, phase: str = "training", file: str = "command line"
) -> None:
    """Raises `ConfigError` when no integer layout of the strategy exists (see `diffperf.workload.rules`)."""
    violation = first_violation(model, system, strategy, phase)
    if violation is not None:
        raise ConfigError(file, *violation)


__all__ = [
    "FOLDERS",
    "Label",
    "available",
    "calibrated",
    "check",
    "checked",
    "config_root",
    "declared_at",
    "display",
    "find",
    "literal",
    "load",
    "load_calibrated",
    "load_calibration",
    "load_model",
    "load_strategy",
    "load_system",
    "override",
    "read_toml",
]
