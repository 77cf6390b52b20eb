"""Strategies from tables of their fields, and whether a strategy is possible for a model on a system."""

from collections.abc import Collection, Iterable
from typing import Any

from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.hardware.system import System
from diffperf.load.builder import Builder
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules import first_violation
from diffperf.workload.strategy import INFERENCE_FIELDS, TRAINING_FIELDS, Strategy


def load_strategy(table: dict[str, Any], file: str = ARGUMENTS, n_devices: float | None = None) -> Strategy:
    """A strategy from a table of its fields, such as {"tp": 8, "recompute": "full"}.

    Where the table has no `dp`, the data-parallel degree is what the other degrees leave of `n_devices`.
    **Raises:** `ConfigError` that names `file` and the field.
    """
    strategy: Strategy = Builder(file).module(Strategy, table)
    if "dp" in table or n_devices is None:
        return strategy
    return replace(strategy, {"dp": max(1.0, n_devices / float(strategy.devices))})


def refuse_training_fields(given: Iterable[str], phase: str, file: str = ARGUMENTS) -> None:
    """Raises `ConfigError`, in a phase of inference, for the first of the given fields of a strategy that
    says how a model is trained.
    """
    for name in given:
        if phase != "training" and name in TRAINING_FIELDS:
            found, expected = f"an input of training in the phase {phase}", "inputs of inference"
            raise ConfigError(file, f"strategy.{name}", found, expected, "leave it out")


def refuse_inference_fields(given: Iterable[str], phase: str, file: str = ARGUMENTS) -> None:
    """Raises `ConfigError`, in training, for the first of the given fields of a strategy that says how
    answers are generated.
    """
    for name in given:
        if phase == "training" and name in INFERENCE_FIELDS:
            found, expected = "an input of inference in the phase training", "inputs of training"
            raise ConfigError(file, f"strategy.{name}", found, expected, "leave it out")


def refuse_other_stack(paths: Iterable[str], phases: Collection[str], file: str = ARGUMENTS) -> None:
    """Raises `ConfigError` for the first of some inputs of a configuration that belongs to a stack which
    drives none of the phases.
    """
    idle = [("stack", "inference_stack", "training")] if "training" not in phases else []
    idle += [("inference_stack", "stack", "inference")] if set(phases) == {"training"} else []
    for path in paths:
        for part, other, driven in idle:
            if path.startswith(prefix := f"system.{part}."):
                found = f"an input of the software of {driven}"
                expected = f"inputs of the software of {' and '.join(dict.fromkeys(phases))}"
                remedy = f"write system.{other}.{path.removeprefix(prefix)}"
                raise ConfigError(file, path, found, expected, remedy)


def check(
    model: Model, system: System, strategy: Strategy, phase: str = "training", file: str = ARGUMENTS
) -> None:
    """Raises `ConfigError` when a rule of the phase refuses the strategy (see `diffperf.workload.rules`)."""
    violation = first_violation(Configuration(model, system, strategy), phase)
    if violation is not None:
        raise ConfigError(file, *violation)
