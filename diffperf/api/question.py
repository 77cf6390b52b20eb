"""What a user asks about, read from names, files and texts with units: one reader for every way of asking."""

import dataclasses
from typing import Any

import numpy as np

from diffperf.explore.inputs import full_path
from diffperf.explore.plan.best_layout import Layout, best_layout
from diffperf.hardware.system import System
from diffperf.load import literal, load_calibrated, load_model, override
from diffperf.load.calibration import Calibration
from diffperf.quantity import walk
from diffperf.relax import Relaxation
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

COMMAND_LINE = "command line"  # named in place of a file in errors about arguments and options


@dataclasses.dataclass(frozen=True)
class Question:
    """What a user asks about: a model on a system, and the fields of the strategy that are given.

    - `calibration`: the fitted values that the system has, if it is calibrated.
    - `table`: the fields of the strategy that the user gives; the others are searched or have their defaults.
    - `gives_devices`: whether the user gives the devices, rather than the system's file.
    - `asker`: what errors about the question name in place of a file, such as "command line".
    """

    model: Model
    system: System
    calibration: Calibration | None
    table: dict[str, Any]
    gives_devices: bool = False
    asker: str = COMMAND_LINE

    @classmethod
    def read(
        cls,
        *,
        model: str,
        system: str,
        devices: str | None,
        stack: str | None,
        calibration: str | None,
        settings: dict[str, str],
        strategy: dict[str, Any],
        asker: str = COMMAND_LINE,
    ) -> "Question":
        """Loads what a user names; the settings are dotted paths with texts, those of `--set`."""
        loaded, fitted = read_system(system, devices, stack, calibration, asker)
        return cls.about(
            model=load_model(model, asker),
            system=loaded,
            calibration=fitted,
            settings=settings,
            strategy=strategy,
            gives_devices=devices is not None,
            asker=asker,
        )

    @classmethod
    def about(
        cls,
        *,
        model: Model,
        system: System,
        calibration: Calibration | None,
        settings: dict[str, str],
        strategy: dict[str, Any],
        gives_devices: bool = False,
        asker: str = COMMAND_LINE,
    ) -> "Question":
        """What a user asks about a model and a system that are loaded already."""
        inputs = Configuration(model, system, Strategy())
        paths = {full_path(inputs, path, asker): text for path, text in settings.items()}
        of_strategy = {path: text for path, text in paths.items() if path.startswith("strategy.")}
        others = {path: text for path, text in paths.items() if path not in of_strategy}
        inputs = override(inputs, others, asker)
        given = {name: value for name, value in strategy.items() if value is not None}
        given |= {path.removeprefix("strategy."): literal(text) for path, text in of_strategy.items()}
        return cls(inputs.model, inputs.system, calibration, given, gives_devices, asker)

    def layout(self, phase: str, relax: Relaxation) -> Layout:
        """The best layout for what the user leaves open, with its report."""
        return best_layout(self.model, self.system, self.table, phase, relax, self.asker)

    def summary(self, phase: str) -> str:
        """The model, the phase and the system in one line."""
        return f"{self.model.name} {phase} on {describe_system(self.system, phase)}"


def read_system(
    name: str,
    devices: str | None = None,
    stack: str | None = None,
    calibration: str | None = None,
    asker: str = COMMAND_LINE,
) -> tuple[System, Calibration | None]:
    """The system, and the calibration whose values it has."""
    system, fitted = load_calibrated(name, stack=stack, calibration=calibration, file=asker)
    return (system if devices is None else override(system, {"n_devices": devices}, asker)), fitted


def describe_system(system: System, phase: str = "training") -> str:
    """The system in one line: how many of which accelerator, its name, the phase's stack and its
    calibration.
    """
    stack = system.stack if phase == "training" else system.inference_stack
    fitted = "" if str(system.calibration) == "none" else f", calibration {system.calibration}"
    devices = f"{float(system.n_devices):,.0f} × {system.accelerator.name}"
    return f"{devices} ({system.name}, {stack.name}{fitted})"


def describe_strategy(strategy: Strategy, phase: str) -> str:
    """The strategy in one line: degrees and batches always, everything else where it is not the default."""
    always = ["tp", "pp", "dp"]
    always += ["micro_batch"] if phase == "training" else []
    always += ["global_batch", "sequence_length"]
    always += ["output_length"] if phase in ("decode", "generate") else []
    shown = [f"{name.replace('_', ' ')} {float(getattr(strategy, name)):g}" for name in always]
    default = {path: np.asarray(value) for path, _, value in walk(Strategy())}
    for path, declared, value in walk(strategy):
        if path not in always and not np.array_equal(np.asarray(value), default[path]):
            shown.append(f"{path.replace('_', ' ')} {show(value, declared)}")
    return " · ".join(shown)
