"""Configs by name or path: models, calibrations, and systems with a chosen stack and calibrated values."""

import dataclasses
from pathlib import Path
from typing import Any

from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.hardware.system import System
from diffperf.load.builder import FOLDERS, read_module
from diffperf.load.calibration import Calibration, followers
from diffperf.load.files import display, find, read_toml
from diffperf.load.override import override
from diffperf.software.stack import Stack
from diffperf.workload.model import Model


def load(
    cls: type, name: str | Path, *, beside: Path | None = None, asked_by: tuple[str, str] = (ARGUMENTS, "")
) -> Any:
    """What a config holds: a module of class `cls`, which is a key of `FOLDERS`.

    A system has the values of the calibration that its file names. `name` is the name of a shipped config or
    the path of a file; see `find` for `beside` and `asked_by`.
    **Raises:** `ConfigError`, in one line.
    """
    path = find(str(name), FOLDERS[cls], beside, asked_by)
    if cls is Calibration:
        return Calibration.from_table(read_toml(path), display(path), path.stem)
    return _calibrated_system(path)[0] if cls is System else read_module(cls, path)


def load_model(name: str | Path, file: str = ARGUMENTS) -> Model:
    """A model by the name of a shipped config, the path of a TOML file, or of a Hugging Face `config.json`.

    `file` is what gave the name, such as "command line". **Raises:** `ConfigError` that names it.
    """
    return load(Model, name, asked_by=(file, ""))


def load_calibration(name: str | Path, file: str = ARGUMENTS) -> Calibration:
    """A calibration by the name of a shipped config or the path of a TOML file; `file` gave the name."""
    return load(Calibration, name, asked_by=(file, ""))


def load_system(
    name: str | Path,
    n_devices: float | None = None,
    *,
    stack: str | None = None,
    calibration: Calibration | str | Path | None = None,
) -> System:
    """A system by the name of a shipped config or the path of a TOML file.

    **Arguments:**

    - `n_devices`: how many devices it has, in place of the number in its file.
    - `stack`: the config of the software that drives training and inference, in place of the system's own two
      stacks.
    - `calibration`: the fitted values, in place of those of the calibration that the system's file names;
      "none" keeps the system's own values.

    **Raises:** `ConfigError`.
    """
    system, _ = load_calibrated(name, stack=stack, calibration=calibration)
    return system if n_devices is None else override(system, {"n_devices": n_devices})


def load_calibrated(
    name: str | Path,
    *,
    stack: str | None = None,
    calibration: Calibration | str | Path | None = None,
    file: str = ARGUMENTS,
) -> tuple[System, Calibration | None]:
    """A system with the values of its calibration, and that calibration (arguments as of `load_system`)."""
    path = find(str(name), FOLDERS[System], asked_by=(file, ""))
    return _calibrated_system(path, stack, calibration, file)


def _calibrated_system(
    path: Path,
    stack: str | None = None,
    calibration: Calibration | str | Path | None = None,
    file: str = ARGUMENTS,
) -> tuple[System, Calibration | None]:
    """The system of a file with the values of a calibration, and that calibration, None where it has none."""
    system: System = read_module(System, path)
    if stack is not None:
        chosen = load(Stack, stack, asked_by=(file, ""))
        system = dataclasses.replace(system, stack=chosen, inference_stack=chosen)
    if isinstance(calibration, Calibration):
        return calibrated(system, calibration), calibration
    name = str(system.calibration if calibration is None else calibration)
    if name == "none":
        return dataclasses.replace(system, calibration="none"), None
    if calibration is None:
        fitted = load(Calibration, name, beside=path.parent, asked_by=(display(path), "calibration"))
    else:
        fitted = load_calibration(name, file)
    return calibrated(system, fitted), fitted


def calibrated(system: System, calibration: Calibration) -> System:
    """The system with the fitted values in place of its own; those of a part it does not have are left out.

    **Raises:** `ConfigError` for a calibration of another accelerator, or with a path that the system does
    not have.
    """
    if str(system.accelerator.name) != calibration.hardware:
        found = f'"{calibration.hardware}"'
        expected = f"a calibration of {system.accelerator.name}, the accelerator of {system.name}"
        raise ConfigError(calibration.file, "hardware", found, expected, "name another one, or none")
    values = calibration.values_in(system)
    values |= {
        other: value for path, value in values.items() for other in followers(path, calibration.values)
    }
    return dataclasses.replace(override(system, values, calibration.file), calibration=calibration.name)
