"""Configs by name or path: models, calibrations, and systems with a chosen stack and calibrated values."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffperf.errors import ARGUMENTS, ConfigError, type_of
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load.builder import FOLDERS, Builder, read_module
from diffperf.load.calibration import STACKS, Calibration
from diffperf.load.files import available, display, find, read_toml
from diffperf.load.huggingface import huggingface_table, is_huggingface, naming_keys_of
from diffperf.load.override import override
from diffperf.load.own_values import OwnFile
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

# What configs are loaded from: a shipped name, the path of a file, the table of a file, or a module.
Source = Any


def load(
    cls: type, source: Any, *, beside: Path | None = None, asked_by: tuple[str, str] = (ARGUMENTS, "")
) -> Any:
    """Contents of a config: a module of class `cls`, which is a key of `FOLDERS`.

    A system has the values of the calibration that its file names. `source` is the name of a shipped config,
    the path of a file, the table that a file would hold, or a module of the class, which is returned as it
    is. A model may be the table of a Hugging Face config, or a config object that has a method `to_dict`. See
    `find` for `beside` and `asked_by`.
    **Raises:** `ConfigError`, in one line.
    """
    if isinstance(source, cls):
        return source
    module, own = _read(cls, source, beside, asked_by)
    return _calibrated_system(module, own)[0] if cls is System else module


def _read(cls: type, source: Any, beside: Path | None, asked_by: tuple[str, str]) -> tuple[Any, OwnFile]:
    """Contents of a config, and its file; systems without their calibrated values."""
    if not isinstance(source, Mapping) and hasattr(source, "to_dict"):
        source = source.to_dict()
    if isinstance(source, Mapping):
        origin = ": ".join(filter(None, asked_by))
        return _from_table(cls, dict(source), origin), OwnFile(origin, table=dict(source))
    if not isinstance(source, str | Path):
        expected = (
            f"the name of a config in configs/{FOLDERS[cls]}, a path, or a table of {cls.__name__} keys"
        )
        found = type_of(source)
        raise ConfigError(*asked_by, found, expected, "see `diffperf list` for the shipped names")
    path = find(str(source), FOLDERS[cls], beside, asked_by)
    if cls is Calibration:
        return Calibration.from_table(read_toml(path), display(path), path.stem), OwnFile(display(path))
    module = read_module(cls, path)
    return module, OwnFile.at(path) if cls is System else OwnFile(display(path))


def _from_table(cls: type, table: dict[str, Any], origin: str) -> Any:
    """Contents of the table of a config; `origin` names it in errors."""
    name = FOLDERS[cls].removesuffix("s")
    if cls is Calibration:
        return Calibration.from_table(table, origin, str(table.get("name", name)))
    if cls is Model and is_huggingface(table):
        name = Path(str(table.get("_name_or_path") or table.get("model_type") or name)).name
        with naming_keys_of(table):
            return Builder(origin).module(cls, huggingface_table(table, origin), name=name)
    return Builder(origin).module(cls, table, name=name)


def load_model(source: Source, file: str = ARGUMENTS, key: str = "") -> Model:
    """A model by the name of a shipped config, the path of a TOML file or of a Hugging Face `config.json`, or
    by the table of either.

    `file` and `key` are what gave the name, such as "command line". **Raises:** `ConfigError` that names it.
    """
    return load(Model, source, asked_by=(file, key))


def load_accelerator(source: Source, file: str = ARGUMENTS, key: str = "") -> Accelerator:
    """An accelerator by the name of a shipped config, the path of a TOML file, or its table.

    `{"extends": "h100-sxm5-80gb", "memory": {"hbm": {"bandwidth": "4 TB/s"}}}` is an H100 with faster memory.
    **Raises:** `ConfigError` that names `file` and `key`.
    """
    return load(Accelerator, source, asked_by=(file, key))


def load_stack(source: Source, file: str = ARGUMENTS, key: str = "") -> Stack:
    """A software stack by the name of a shipped config, the path of a TOML file, or its table.

    **Raises:** `ConfigError` that names `file` and `key`.
    """
    return load(Stack, source, asked_by=(file, key))


def load_calibration(source: Source, file: str = ARGUMENTS, key: str = "") -> Calibration:
    """A calibration by the name of a shipped config or the path of a TOML file; `file` gave the name."""
    return load(Calibration, source, asked_by=(file, key))


def load_system(
    source: Source,
    n_devices: float | None = None,
    *,
    stack: Source = None,
    calibration: Source = None,
    file: str = ARGUMENTS,
    key: str = "",
) -> System:
    """A system by the name of a shipped config, the path of a TOML file, or its table.

    **Arguments:**

    - `n_devices`: how many devices it has, in place of the number in its file.
    - `stack`: the config of the software that drives training and inference, in place of the system's own two
      stacks.
    - `calibration`: the fitted values, in place of those of the calibration that the system's file names;
      "none" keeps the system's own values.

    **Raises:** `ConfigError` that names `file`, and `key` for the system itself.
    """
    system, _ = load_calibrated(source, stack=stack, calibration=calibration, file=file, key=key)
    return system if n_devices is None else override(system, {"n_devices": n_devices}, file)


def load_calibrated(
    source: Source,
    *,
    stack: Source = None,
    calibration: Source = None,
    file: str = ARGUMENTS,
    key: str = "",
) -> tuple[System, Calibration | None]:
    """A system with the values of its calibration, and that calibration (arguments as of `load_system`).

    A system that is loaded already keeps its numbers, but for those of another stack or calibration.
    """
    if isinstance(source, System):
        return _changed_system(source, stack, calibration, file)
    system, own = _read(System, source, None, (file, key))
    return _calibrated_system(system, own, stack, calibration, file)


def _calibrated_system(
    system: System,
    own: OwnFile,
    stack: Source = None,
    calibration: Source = None,
    file: str = ARGUMENTS,
) -> tuple[System, Calibration | None]:
    """A system with the values of a calibration, and that calibration, None where it has none.

    `own` is the system's file: the values that it gives itself, unless it is shipped, go before the fitted
    ones.
    """
    system = _with_stack(system, stack, file)
    if calibration is None:
        fitted = _named_calibration(system, own)
    else:
        fitted = _chosen_calibration(calibration, file)
    if fitted is None:
        return dataclasses.replace(system, calibration="none"), None
    _refuse_other_hardware(system, fitted)
    kept = own.given(fitted.all_values_in(system), fitted, str(system.name))
    fitted = dataclasses.replace(fitted, kept=kept) if kept else fitted
    return calibrated(system, fitted), fitted


def _with_stack(system: System, stack: Source, file: str) -> System:
    """The system, driven by another stack where there is one."""
    if stack is None:
        return system
    chosen = load(Stack, stack, asked_by=(file, "stack"))
    return dataclasses.replace(system, stack=chosen, inference_stack=chosen)


def _named_calibration(system: System, own: OwnFile) -> Calibration | None:
    """The calibration that a system's file names; None for "none".

    A calibration that the file has from the one that it extends is None where it is of another accelerator:
    what the file's own one reaches was not fitted. One that a user's file names itself has to fit.
    """
    name, asked_by = str(system.calibration), (own.file, "calibration")
    if name == "none":
        return None
    fitted = load(Calibration, name, beside=own.folder, asked_by=asked_by)
    if fitted.hardware in system.accelerator.lineage:
        return fitted
    if own.table and not own.gives("calibration"):
        return None
    expected = f"a calibration of {system.accelerator.name}, the accelerator of {system.name}"
    remedy = 'name another one, or say calibration = "none"'
    raise ConfigError(*asked_by, f'"{name}", which was fitted to {fitted.hardware}', expected, remedy)


def _chosen_calibration(calibration: Source, file: str) -> Calibration | None:
    """The calibration that a user names; None for "none"."""
    if isinstance(calibration, str) and calibration == "none":
        return None
    return load_calibration(calibration, file, "calibration")


def _changed_system(
    system: System, stack: Source, calibration: Source, file: str
) -> tuple[System, Calibration | None]:
    """A system that is loaded already with another stack or calibration, and the calibration that it has.

    Its other numbers stay: they are calibrated, or changed since. A calibration whose file is not found by
    its name any more is None.
    """
    system = _with_stack(system, stack, file)
    if calibration is not None:
        fitted = _chosen_calibration(calibration, file)
        label = dataclasses.replace(system, calibration="none")
        return (label, None) if fitted is None else (calibrated(system, fitted), fitted)
    name = str(system.calibration)
    if name not in available(FOLDERS[Calibration]):
        return system, None
    fitted = load_calibration(name, file)
    values = {path: value for path, value in fitted.values_in(system).items() if path.startswith(STACKS)}
    return (system if stack is None else override(system, values, fitted.file)), fitted


def calibrated(system: System, calibration: Calibration) -> System:
    """The system with the fitted values in place of its own; those of a part it does not have are left out,
    and those that a user's file gives itself (`kept` of the calibration).

    An accelerator that extends the one that was calibrated has its fitted values too.

    **Raises:** `ConfigError` for a calibration of another accelerator, or with a path that the system does
    not have.
    """
    _refuse_other_hardware(system, calibration)
    values = calibration.all_values_in(system)
    return dataclasses.replace(override(system, values, calibration.file), calibration=calibration.name)


def _refuse_other_hardware(system: System, calibration: Calibration) -> None:
    """Raises `ConfigError` for a calibration of another accelerator than the system's."""
    if calibration.hardware not in system.accelerator.lineage:
        found = f'"{calibration.hardware}"'
        expected = f"a calibration of {system.accelerator.name}, the accelerator of {system.name}"
        raise ConfigError(calibration.file, "hardware", found, expected, "name another one, or none")
