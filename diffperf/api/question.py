"""Questions of a user, read from names, files and texts with units: one reader for every way of asking."""

import dataclasses
from collections.abc import Collection
from typing import Any

import equinox as eqx
import numpy as np

from diffperf import units
from diffperf.api.context_window import check_phase
from diffperf.api.input_values import with_paths_and_units
from diffperf.api.price_notes import describe_prices
from diffperf.errors import ConfigError
from diffperf.explore.plan.best_layout import Layout, best_layout
from diffperf.explore.plan.candidates import starting_strategy
from diffperf.explore.whole_steps import describe_kept_rates
from diffperf.hardware.system import System
from diffperf.load import Source, literal, load_calibrated, load_model, override, refuse_other_stack
from diffperf.load.calibration import Calibration
from diffperf.quantity import locate, walk
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

COMMAND_LINE = "command line"  # named in place of a file in errors about arguments and options
_LISTED = 4  # values of a user's files that a line lists


@dataclasses.dataclass(frozen=True)
class Question:
    """Question of a user: a model on a system, and the fields of the strategy that are given.

    - `calibration`: the fitted values that the system has, if it is calibrated.
    - `table`: the fields of the strategy that the user gives; the others are searched or have their defaults.
    - `gives_devices`: whether the user gives the devices, rather than the system's file.
    - `overrides`: the inputs that the user sets by path, with their values and those before, as texts.
    - `asker`: what errors about the question name in place of a file, such as "command line".
    """

    model: Model
    system: System
    calibration: Calibration | None
    table: dict[str, Any]
    gives_devices: bool = False
    asker: str = COMMAND_LINE
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(
        cls,
        *,
        model: Source,
        system: Source,
        devices: str | None,
        stack: Source,
        calibration: Source,
        settings: dict[str, Any],
        strategy: dict[str, Any],
        asker: str = COMMAND_LINE,
    ) -> "Question":
        """Loads what a user names; the settings are values by dotted path, those of `--set` being texts."""
        loaded, fitted = read_system(system, devices, stack, calibration, asker)
        return cls.about(
            model=load_model(model, asker, "model"),
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
        settings: dict[str, Any],
        strategy: dict[str, Any],
        gives_devices: bool = False,
        asker: str = COMMAND_LINE,
    ) -> "Question":
        """Question about a model and a system that are loaded already."""
        before = Configuration(model, system, Strategy())
        paths = with_paths_and_units(before, settings, asker)
        of_strategy = {path: text for path, text in paths.items() if path.startswith("strategy.")}
        others = {path: text for path, text in paths.items() if path not in of_strategy}
        given = {name: value for name, value in strategy.items() if value is not None}
        options = {f"strategy.{name}": (_option(name), value) for name, value in given.items()}
        if gives_devices:
            options["system.n_devices"] = "--devices", float(system.n_devices)
        _refuse_two_values(options, paths, asker)
        inputs = override(before, others, asker)
        given |= {path.removeprefix("strategy."): literal(text) for path, text in of_strategy.items()}
        overrides = {path: described_change(before, inputs, path) for path in others}
        overrides |= {path: str(value) for path, value in of_strategy.items()}
        return cls(
            model=inputs.model,
            system=inputs.system,
            calibration=calibration,
            table=given,
            gives_devices=gives_devices,
            asker=asker,
            overrides=overrides,
        )

    def on(self, system: Source, key: str = "system") -> "Question":
        """This question about another system, as it is configured: with the same devices if they are given.

        What is overridden of the first system is not overridden of the other.
        """
        devices = str(float(self.system.n_devices)) if self.gives_devices else None
        loaded, fitted = read_system(system, devices, asker=self.asker, key=key)
        kept = {path: text for path, text in self.overrides.items() if not path.startswith("system.")}
        return dataclasses.replace(self, system=loaded, calibration=fitted, overrides=kept)

    def configuration(self, phase: str, relax: Relaxation | None = None) -> Configuration:
        """The model and the system with the best layout for what the user leaves open, exact by default."""
        self.refuse_unused(phase)
        relax = Exact() if relax is None else relax
        return self.with_layout(self.layout(phase, relax), relax)

    def with_layout(self, layout: Layout, relax: Relaxation | None = None) -> Configuration:
        """The model and the system with a layout, exact by default."""
        return Configuration(self.model, self.system, layout.strategy, Exact() if relax is None else relax)

    def refuse_unused(self, *phases: str) -> None:
        """Refuses overridden inputs of software that drives none of the phases. **Raises:** `ConfigError`."""
        refuse_other_stack(self.overrides, phases, self.asker)

    def check_values(self, phase: str) -> None:
        """Refuses values that no layout of the model can have in a phase. **Raises:** `ConfigError`."""
        strategy = starting_strategy(self.system, self.table, phase, self.asker)
        check_phase(self.model, strategy, self.table, phase, self.asker)

    def layout(self, phase: str, relax: Relaxation) -> Layout:
        """The best layout for what the user leaves open, with its report.

        **Raises:** `ConfigError` for what no layout is possible with, and for sequences in inference that the
        model is not made for.
        """
        layout = best_layout(
            self.model, system=self.system, table=self.table, phase=phase, relax=relax, file=self.asker
        )
        check_phase(self.model, layout.strategy, self.table, phase, self.asker)
        return layout

    def described_overrides(self) -> list[str]:
        """A line that repeats what the user overrides, and one of the values that the user's files give over
        fitted ones; none where that is nothing.
        """
        return [
            *described_overrides(self.overrides),
            *describe_kept_rates(self.overrides, str(self.system.accelerator.name)),
            *describe_prices(self.overrides, self.system),
            *self._described_own_values(),
        ]

    def _described_own_values(self) -> list[str]:
        """A line of the values that the user's files give and that the calibration's therefore do not
        replace; none where there are none.
        """
        if self.calibration is None:
            return []
        fitted = dataclasses.replace(self.calibration, kept=()).all_values_in(self.system)
        own = [path for path in self.calibration.kept if f"system.{path}" not in self.overrides]
        texts = [f"{path} = {_shown_input(self.system, path)} (fitted: {fitted[path]})" for path in own]
        if len(texts) > _LISTED:
            texts[_LISTED:] = [f"and {len(texts) - _LISTED} more"]
        name = self.calibration.name
        line = f"Your files' own values go before those of calibration {name}: {', '.join(texts)}"
        return [line] if texts else []

    def headline(self, phase: str) -> str:
        """The model, the phase and the system in two lines, as figures have room for."""
        return f"{self.model.name} {phase}\non {describe_system(self.system, phase)}"

    def summary(self, phase: str) -> str:
        """The model, the phase and the system in one line."""
        return f"{self.model.name} {phase} on {describe_system(self.system, phase)}"


def described_overrides(overrides: dict[str, str]) -> list[str]:
    """A line that repeats what a user overrides; none where that is nothing."""
    listed = ", ".join(f"{path} = {text}" for path, text in overrides.items())
    return [f"Overridden: {listed}"] if listed else []


def _option(name: str) -> str:
    """The option that gives a field of the strategy."""
    return f"--{name.replace('_', '-')}"


def _refuse_two_values(options: dict[str, tuple[str, Any]], settings: dict[str, Any], asker: str) -> None:
    """Raises `ConfigError` where an option and a setting give an input different values.

    `options` are the options that are given, with their values, by the path of their input.
    """
    for path, (option, value) in options.items():
        if path in settings and literal(settings[path]) != literal(value):
            found = f"{_shown(value)} beside --set {path}={settings[path]}"
            raise ConfigError(asker, option, found, "one value", "leave one of them out")


def _shown(value: Any) -> str:
    """A value of an option, as it is written on the command line."""
    return units.plain(value) if isinstance(value, float) else str(value)


def _shown_input(system: System, path: str) -> str:
    """The value of an input of a system, as a text with its unit."""
    value, declared = locate(system, path)
    assert declared is not None  # what is fitted is an input
    return show(value, declared)


def described_change(before: eqx.Module, after: eqx.Module, path: str) -> str:
    """The value of an input, and what it was before."""
    (old, declared), (new, _) = locate(before, path), locate(after, path)
    assert declared is not None  # an override of anything else is an error
    return f"{show(new, declared)} (was {show(old, declared)})"


def read_system(
    name: Source,
    devices: str | None = None,
    stack: Source = None,
    calibration: Source = None,
    asker: str = COMMAND_LINE,
    key: str = "system",
) -> tuple[System, Calibration | None]:
    """The system, and the calibration whose values it has; errors about its name say that `key` gives it."""
    system, fitted = load_calibrated(name, stack=stack, calibration=calibration, file=asker, key=key)
    return (system if devices is None else override(system, {"n_devices": devices}, asker)), fitted


def describe_system(system: System, phase: str = "training") -> str:
    """The system in one line: how many of which accelerator, its name, the phase's stack and its
    calibration.
    """
    stack = system.stack_of(phase)
    fitted = "" if str(system.calibration) == "none" else f", calibration {system.calibration}"
    devices = f"{float(system.n_devices):,.0f} × {system.accelerator.name}"
    return f"{devices} ({system.name}, {stack.name}{fitted})"


def describe_strategy(strategy: Strategy, phase: str, without: Collection[str] = ()) -> str:
    """The strategy in one line: degrees and batches always, everything else where it is not the default; no
    fields `without` which it is to be described.
    """
    always = ["tp", "pp", "dp"]
    always += ["micro_batch"] if phase == "training" else []
    always += ["global_batch", "sequence_length"]
    always += ["output_length"] if phase in ("decode", "generate") else []
    shown = [
        f"{name.replace('_', ' ')} {units.plain(getattr(strategy, name))}"
        for name in always
        if name not in without
    ]
    default = {path: np.asarray(value) for path, _, value in walk(Strategy())}
    for path, declared, value in walk(strategy):
        if path not in (*always, *without) and not np.array_equal(np.asarray(value), default[path]):
            shown.append(f"{path.replace('_', ' ')} {show(value, declared)}")
    return " · ".join(shown)
