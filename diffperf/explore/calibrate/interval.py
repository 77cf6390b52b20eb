"""The 90 % interval of an estimate's time, on a system that is calibrated."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from diffperf.explore.plan.ranking import report_of
from diffperf.explore.points import outputs_at
from diffperf.load import checked, declared_at
from diffperf.load.calibration import Calibration, followers
from diffperf.quantity import Quantity, declaration, locate, numeric
from diffperf.report.tables import has_total
from diffperf.workload.configuration import Configuration

Z90 = 1.6448536  # standard deviations within which 90 % of a normal variable lie
# Standard deviation of log(predicted / measured) of training steps whose framework was left out of all fits
# (the table `frameworks_left_out` of studies/stacks).
UNMEASURED_STACK = 0.18
# The step of a central difference, of a value's logarithm: an error of its square in float64, below 1 % in
# float32.
_STEP = 1e-3
_NO_TIME = 1e-30  # s, in place of a sum of times that is zero
# The kind of table whose rows are whole estimates of a phase.
_PHASE_TABLES = {"training": "training", "generate": "inference"}


@dataclasses.dataclass(frozen=True)
class Interval:
    """The 90 % interval of a time in s.

    - `parameters`: the standard deviation of log(time) that the uncertainty of the fitted values gives.
    - `model`: the standard deviation of log(time) that no fitted value explains.
    - `stack`: the standard deviation of log(time) of a software stack whose numbers are estimates; 0 for one
      whose numbers were fitted to measured runs.
    """

    time: float
    parameters: float
    model: float
    stack: float = 0.0

    @property
    def relative(self) -> float:
        """Half the width of the interval on a logarithmic scale: 0.1 is ± 10 %."""
        return Z90 * math.hypot(self.parameters, self.model, self.stack)

    @property
    def ends(self) -> tuple[float, float]:
        """The shortest and the longest time in the interval, in s."""
        return self.time * np.exp(-self.relative), self.time * np.exp(self.relative)

    def as_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        low, high = map(float, self.ends)
        return {
            "probability": 0.9,
            "low": low,
            "high": high,
            "relative": self.relative,
            "parameters": self.parameters,
            "model": self.model,
            "stack": self.stack,
        }


def least_interval(time: float) -> Interval:
    """The interval of a time in s where neither hardware nor software was fitted: that of a stack that nobody
    has measured, on fitted hardware. The figures of the hardware add an error that is not known.
    """
    return Interval(time=time, parameters=0.0, model=0.0, stack=UNMEASURED_STACK)


def interval(calibration: Calibration, inputs: Configuration, phase: str) -> Interval:
    """The interval of the time of a phase on a calibrated system.

    The variance of log(time) is J·Σ·Jᵀ, with J the derivatives by the logarithms of the fitted values and Σ
    their covariance, plus (share · spread)² for every kind of table: errors of the same kind go together,
    those of different kinds do not. The shares of the time are those of the breakdown's parts that the kind
    measures; parts that none measures, such as the pipeline bubble, divide as the others do. A kind that
    was not calibrated has the largest spread of those that were. Where whole runs of the phase were
    calibrated on, their spread is the model's. A value that has been overridden since counts as known. A
    software stack whose numbers are estimates adds the error of training frameworks that nobody has measured.
    """
    places = fitted_places(calibration, inputs)
    report: Any = report_of(inputs, phase)  # of any phase: all have a time
    time, slopes, parts = report.time, _slopes(inputs, phase, places), _parts(report, inputs)
    which = [calibration.parameters.index(path) for path in places]
    variance = slopes @ calibration.covariance[np.ix_(which, which)] @ slopes if places else 0.0
    return Interval(
        time=float(time),
        parameters=float(np.sqrt(max(variance, 0.0))),
        model=_model_error(_spreads(calibration, inputs), parts, phase),
        stack=0.0 if inputs.system.stack_of(phase).is_measured else UNMEASURED_STACK,
    )


def _spreads(calibration: Calibration, inputs: Configuration) -> dict[str, float]:
    """The calibration's spreads by kind of table, for the number format that most of the operands have."""
    operands = inputs.strategy.precision.likeliest()
    kinds = {name for name in calibration.spread if " " not in name}
    return {kind: calibration.spread.get(f"{kind} {operands}", calibration.spread[kind]) for kind in kinds}


def fitted_places(calibration: Calibration, inputs: Configuration) -> dict[str, list[str]]:
    """By parameter of the calibration, the paths of the system that have its fitted value."""
    places = {
        path: [
            place
            for place in calibration.places(path, inputs.system)
            if _has(calibration, inputs, path, place)
        ]
        for path in calibration.parameters
    }
    return {path: found for path, found in places.items() if found}


def _has(calibration: Calibration, inputs: Configuration, path: str, place: str) -> bool:
    """Whether the system has a parameter's fitted value at a place."""
    declared = declared_at(inputs.system, place, calibration.file)
    fitted = checked(declared, calibration.values[path], calibration.file, path)
    return bool(np.isclose(float(locate(inputs.system, place)[0]), fitted, rtol=1e-6))


def _model_error(spread: dict[str, float], parts: dict[str, float], phase: str) -> float:
    """The standard deviation of log(time) that no fitted value explains.

    `parts` has the seconds of the time by kind of table.
    """
    if (table := _PHASE_TABLES.get(phase)) in spread:
        return spread[table]
    whole = max(sum(parts.values()), _NO_TIME)
    largest = max(spread.values())
    shares = {kind: time / whole for kind, time in parts.items()}
    return float(np.sqrt(sum((share * spread.get(kind, largest)) ** 2 for kind, share in shares.items())))


def _slopes(
    inputs: Configuration, phase: str, places: dict[str, list[str]]
) -> Float[np.ndarray, " parameters"]:
    """The derivatives of log(time) by the logarithms of fitted values, which the system has at some places.

    Central differences: as exact as an interval needs, at points that are evaluated together.
    """
    if not places:
        return np.zeros(0)
    at = {f"system.{path}": float(value) for path, (_, value) in numeric(inputs.system).items()}
    changes: dict[str, np.ndarray] = {}
    for row, (path, own) in enumerate(places.items()):
        ends = at[f"system.{own[0]}"] * np.exp([_STEP, -_STEP])
        # Those that follow have the same value.
        for place in (*own, *followers(path, list(places), inputs.system.accelerator)):
            full = f"system.{place}"
            changes.setdefault(full, np.full(2 * len(places), at[full]))[2 * row : 2 * row + 2] = ends
    times = np.log(outputs_at(inputs, changes, phase)["time"]).reshape(-1, 2)
    return (times[:, 0] - times[:, 1]) / (2 * _STEP)


def _parts(report: eqx.Module, inputs: Configuration) -> dict[str, float]:
    """The seconds of a report's time by the kind of table that measures them.

    A generation decodes after each token but the last.
    """
    counts = {"breakdown": 1.0, "prefill": 1.0, "decode": float(inputs.strategy.output_length) - 1}
    result: dict[str, float] = {}
    for name, count in counts.items():
        breakdown = getattr(report, name, None)
        if breakdown is None or not has_total(breakdown):
            continue
        for field in dataclasses.fields(breakdown):
            declared = declaration(field)
            if isinstance(declared, Quantity) and declared.table:
                seconds = count * float(getattr(breakdown, field.name))
                result[declared.table] = result.get(declared.table, 0.0) + seconds
    return result
