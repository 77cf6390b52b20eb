"""How sure an estimate is, where its system is calibrated: the 90 % interval of its time."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np

from diffperf.explore.plan.candidates import reports_of
from diffperf.hardware.formats import PRECISIONS
from diffperf.load import checked, declared_at
from diffperf.load.calibration import Calibration, followers
from diffperf.quantity import declaration, locate, replace
from diffperf.report.tables import has_total
from diffperf.workload.configuration import Configuration

Z90 = 1.6448536  # a normal variable is within so many standard deviations with a probability of 90 %
_STEP = 1e-3  # of a value's logarithm: errors of a square of it in float64, and below 1 % in float32
_PHASE_TABLES = {
    "training": "training",
    "generate": "inference",
}  # the kind of table whose rows are whole estimates of a phase


@dataclasses.dataclass(frozen=True)
class Interval:
    """The 90 % interval of a time.

    - `parameters`, `model`: standard deviations of log(time) for what is not known of the fitted values, and for what no value of
      theirs explains.
    """

    time: float
    parameters: float
    model: float

    @property
    def relative(self) -> float:
        """Half its width on a logarithmic scale: 0.1 is ± 10 %."""
        return Z90 * float(np.hypot(self.parameters, self.model))

    @property
    def ends(self) -> tuple[float, float]:
        return self.time * np.exp(-self.relative), self.time * np.exp(self.relative)

    def as_dict(self) -> dict[str, float]:
        low, high = map(float, self.ends)
        return {"probability": 0.9, "low": low, "high": high, "relative": self.relative,
                "parameters": self.parameters, "model": self.model}  # fmt: skip


def interval(calibration: Calibration, inputs: Configuration, phase: str) -> Interval:
    """The interval of the time of a phase on a calibrated system.

    The variance of log(time) is J·Σ·Jᵀ, with J the derivatives by the logarithms of the fitted values and Σ their covariance, plus
    (share · spread)² for every kind of table: errors of the same kind go together, those of different kinds do not. The shares of
    the time are those of the breakdown's parts that the kind measures; parts that none measures, such as the pipeline bubble,
    divide as the others do. A kind that was not calibrated has the largest spread of those that were. Where whole runs of the
    phase were calibrated on, their spread is the model's. A value that has been overridden since counts as known.
    """
    paths = tuple(path for path in calibration.parameters if _in_place(calibration, inputs, path))
    report = next(reports_of([inputs], phase))
    time, slopes, parts = report.time, _slopes(inputs, phase, paths), _parts(report, inputs)
    which = [calibration.parameters.index(path) for path in paths]
    variance = slopes @ calibration.covariance[np.ix_(which, which)] @ slopes if paths else 0.0
    return Interval(
        float(time),
        float(np.sqrt(max(variance, 0.0))),
        _model_error(_spreads(calibration, inputs), parts, phase),
    )


def _spreads(calibration: Calibration, inputs: Configuration) -> dict[str, float]:
    """The calibration's spreads by kind of table, for the number format that most of the operands have."""
    operands = PRECISIONS[int(np.argmax(inputs.strategy.precision))]
    kinds = {name for name in calibration.spread if " " not in name}
    return {kind: calibration.spread.get(f"{kind} {operands}", calibration.spread[kind]) for kind in kinds}


def _in_place(calibration: Calibration, inputs: Configuration, path: str) -> bool:
    """Whether the system has the calibration's value at a path."""
    if not calibration.holds(path, inputs.system):
        return False
    declared = declared_at(inputs.system, path, calibration.file)
    fitted = checked(declared, calibration.values[path], calibration.file, path)
    return bool(np.isclose(float(locate(inputs.system, path)[0]), fitted, rtol=1e-6))


def _model_error(spread: dict[str, float], parts: dict[str, float], phase: str) -> float:
    if _PHASE_TABLES.get(phase) in spread:
        return spread[_PHASE_TABLES[phase]]
    whole = max(sum(parts.values()), 1e-30)
    return float(
        np.sqrt(
            sum(
                (float(time) / whole * spread.get(kind, max(spread.values()))) ** 2
                for kind, time in parts.items()
            )
        )
    )


def _slopes(inputs: Configuration, phase: str, paths: Sequence[str]) -> np.ndarray:
    """Derivatives of log(time) by the logs of the values at some paths of the system: central differences, as exact as an interval
    needs, by a program that is compiled already."""

    def grown(path: str, growth: float) -> Configuration:
        value = locate(inputs.system, path)[0] * np.exp(growth)
        values = {path: value} | dict.fromkeys(followers(path, paths), value)
        return dataclasses.replace(inputs, system=replace(inputs.system, values))

    moved = (grown(path, sign * _STEP) for path in paths for sign in (1, -1))
    times = np.log([report.time for report in reports_of(moved, phase)]).reshape(-1, 2)
    return (times[:, 0] - times[:, 1]) / (2 * _STEP)


def _parts(report: eqx.Module, inputs: Configuration) -> dict[str, jax.Array]:
    """Seconds of the report's time by the kind of table that measures them; a generation decodes after each token but the last."""
    counts = {"breakdown": 1.0, "prefill": 1.0, "decode": inputs.strategy.output_length - 1}
    result: dict[str, jax.Array] = {}
    for name, count in counts.items():
        breakdown = getattr(report, name, None)
        if breakdown is None or not has_total(breakdown):
            continue
        for field in dataclasses.fields(breakdown):
            kind = declaration(field).table
            if kind:
                result[kind] = result.get(kind, 0.0) + count * getattr(breakdown, field.name)
    return result
