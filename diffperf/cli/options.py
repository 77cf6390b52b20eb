"""Options and what they mean. Those of the strategy are generated from its declarations."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from diffperf.cli.terminal import progress
from diffperf.estimate.phases import PHASES
from diffperf.explore.inputs import check_phase, full_path
from diffperf.explore.plan.candidates import DEGREES, Layout, best_layout
from diffperf.hardware.system import System
from diffperf.load import literal, load_calibrated, load_model, override
from diffperf.load.calibration import Calibration
from diffperf.quantity import Choice, declaration, walk
from diffperf.relax import Exact, Relaxation, Smooth
from diffperf.report.tables import show
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


def strategy_option(field: dataclasses.Field, searched: Iterable[str], how: str) -> Callable:
    """An option for a field of the strategy; the help says `how` one that is `searched` is chosen, and the default of others."""
    declared, flag = declaration(field), field.name.replace("_", "-")
    default = how if field.name in searched else field.default
    if field.name == "global_batch":
        default = f"{default}; in training one micro-batch per device"
    if not isinstance(declared, Choice):
        return click.option(
            f"--{flag}", field.name, metavar=declared.unit or "N", help=f"{declared.doc} [{default}]"
        )
    if declared.alternatives == ("off", "on"):
        return click.option(
            f"--{flag}/--no-{flag}",
            field.name,
            default=None,
            help=f"{declared.doc} [{'on' if default else 'off'}]",
        )
    return click.option(
        f"--{flag}", field.name, metavar="|".join(declared.alternatives), help=f"{declared.doc} [{default}]"
    )


def options(*decorators: Callable) -> Callable:
    """Several options as one decorator, in the order of the help text."""

    def decorate(command):
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _phase(ctx, parameter, value):
    return check_phase(value, "command line", "--phase")


def _relaxation(ctx, parameter, value: float | None) -> Relaxation:
    if value is not None and not (math.isfinite(value) and value >= 1):
        raise click.BadParameter("a sharpness is a number of at least 1")
    return Exact() if value is None else Smooth(value)


def _assignments(ctx, parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(
                f'"{value}" has no "=": write path=value, such as hbm.bandwidth="4 TB/s"'
            )
    return {path.strip(): text.strip() for path, text in (value.split("=", 1) for value in values)}


def _figure_file(ctx, parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    from diffperf.report.plots import check_format

    return check_format(value)


calibration_option = click.option(
    "--calibration",
    metavar="NAME|FILE|none",
    help="fitted values in place of the system's own (see diffperf list calibrations)",
)
system_options = options(
    click.option("--devices", metavar="N", help="devices in the system [as configured]"),
    click.option(
        "--stack", metavar="NAME", help="software stack in place of the system's (see diffperf list stacks)"
    ),
    calibration_option,
    click.option(
        "--set",
        "settings",
        metavar="PATH=VALUE",
        multiple=True,
        callback=_assignments,
        help='override one input, such as hbm.bandwidth="4 TB/s" or model.hidden=8192 (repeatable)',
    ),
)
phase_option = click.option(
    "--phase",
    default="training",
    show_default=True,
    metavar="|".join(PHASES),
    callback=_phase,
    help="what to estimate",
)
smooth_option = click.option(
    "--smooth",
    "relax",
    type=float,
    metavar="SHARPNESS",
    callback=_relaxation,
    help="smooth estimate of this sharpness, not the exact one",
)
json_option = click.option(
    "--json", "json_file", metavar="FILE", help="write the answer as JSON in SI units (- for stdout)"
)
plot_option = click.option(
    "--plot", metavar="FILE", callback=_figure_file, help="draw the answer (.png, .svg or .pdf)"
)


def strategy_options(searched: Iterable[str] = DEGREES, how: str = "best layout") -> Callable:
    """An option for every field of the strategy."""
    return options(*(strategy_option(field, searched, how) for field in dataclasses.fields(Strategy)))


@dataclasses.dataclass(frozen=True)
class Question:
    """Model, system with its calibration, and the given fields of the strategy, as the command line names them."""

    model: Model
    system: System
    calibration: Calibration | None
    table: dict[str, Any]

    @classmethod
    def read(
        cls,
        model: str,
        system: str,
        devices: str | None,
        stack: str | None,
        calibration: str | None,
        settings: dict[str, str],
        strategy: dict[str, Any],
    ):
        loaded, fitted = read_system(system, devices, stack, calibration)
        inputs = Configuration(load_model(model, "command line"), loaded, Strategy())
        paths = {full_path(inputs, path): text for path, text in settings.items()}
        ours = {path: text for path, text in paths.items() if path.startswith("strategy.")}
        inputs = override(
            inputs, {path: text for path, text in paths.items() if path not in ours}, "command line"
        )
        given = {name: value for name, value in strategy.items() if value is not None}
        given |= {path.removeprefix("strategy."): literal(text) for path, text in ours.items()}
        return cls(inputs.model, inputs.system, fitted, given)

    def layout(self, phase: str, relax: Relaxation) -> Layout:
        with progress(f"compiling and estimating {phase}"):
            return best_layout(self.model, self.system, self.table, phase, relax)

    def summary(self, phase: str) -> str:
        return f"{self.model.name} {phase} on {describe_system(self.system)}"


def read_system(
    name: str, devices: str | None = None, stack: str | None = None, calibration: str | None = None
) -> tuple[System, Calibration | None]:
    """The system and the calibration whose values it has."""
    file = "command line"
    system, fitted = load_calibrated(name, stack=stack, calibration=calibration, file=file)
    return (system if devices is None else override(system, {"n_devices": devices}, file)), fitted


def describe_system(system: System) -> str:
    fitted = "" if str(system.calibration) == "none" else f", calibration {system.calibration}"
    return f"{float(system.n_devices):,.0f} × {system.accelerator.name} ({system.name}, {system.stack.name}{fitted})"


def describe_strategy(strategy: Strategy, phase: str) -> str:
    """The strategy in one line: sizes always, everything else where it is not the default."""
    sizes = [
        "tp",
        "pp",
        "dp",
        *(["micro_batch"] if phase == "training" else []),
        "global_batch",
        "sequence_length",
    ]
    sizes += ["output_length"] if phase in ("decode", "generate") else []
    shown = [f"{name.replace('_', ' ')} {float(getattr(strategy, name)):g}" for name in sizes]
    default = {path: np.asarray(value) for path, _, value in walk(Strategy())}
    for path, declared, value in walk(strategy):
        if path not in sizes and not np.array_equal(np.asarray(value), default[path]):
            shown.append(f"{path.replace('_', ' ')} {show(value, declared)}")
    return " · ".join(shown)
