"""Inputs that vary over stated ranges, and what an output does at the ends of each: a tornado of swings."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from diffperf.explore.points import outputs_at
from diffperf.explore.whole_steps import tied_inputs
from diffperf.quantity import Quantity, numeric
from diffperf.workload.configuration import Configuration


@dataclasses.dataclass(frozen=True)
class Range:
    """An input that varies between two values, in internal units.

    - `path`, `declared`: the input. Where its declaration spans decades, the range is even in logarithms.
    - `asked`: the ends that were asked for, of which those beyond the bounds of the input are cut there.
    """

    path: str
    declared: Quantity
    low: float
    high: float
    asked: tuple[float, float] | None = None

    @property
    def log(self) -> bool:
        """Whether the range is divided evenly in logarithms."""
        return bool(self.declared.log and self.low > 0)

    def at(self, shares: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """The values at some shares of the way from the low end (0) to the high end (1).

        Whole numbers are rounded, each value in between as likely as any other.
        """
        if self.declared.integer:
            steps = np.floor(self.high) - np.ceil(self.low) + 1
            return np.ceil(self.low) + np.minimum(np.floor(shares * steps), steps - 1)
        if self.log:
            return np.exp(np.log(self.low) + shares * np.log(self.high / self.low))
        return self.low + shares * (self.high - self.low)

    def grid(self, points: int) -> Float[np.ndarray, " points"]:
        """`points` values from end to end, or of a whole number all that there are if those are fewer."""
        if not self.declared.integer:
            return self.at(np.linspace(0.0, 1.0, points))
        ends = np.ceil(self.low), np.floor(self.high)
        spaced = np.geomspace(*ends, points) if self.log else np.linspace(*ends, points)
        return np.unique(np.round(spaced))


@dataclasses.dataclass(frozen=True)
class Swing:
    """Values of an output at the low and the high end of a range, with all other inputs unchanged.

    - `value`: of the input, in the configuration.
    - `before`: of the output, there.
    """

    range: Range
    value: float
    before: float
    at_low: float
    at_high: float

    @property
    def size(self) -> float:
        """Distance of the outputs at the two ends."""
        return abs(self.at_high - self.at_low)


def with_tied(
    configuration: Configuration, columns: Mapping[str, Float[np.ndarray, " points"]]
) -> dict[str, Float[np.ndarray, " points"]]:
    """Values of inputs at some points, and with them what changes in proportion to them and is not given:
    to several of them, if these multiply to it.
    """
    inputs, changes = numeric(configuration), dict(columns)
    for path, values in columns.items():
        ratio = np.asarray(values) / float(inputs[path][1])
        for tied in tied_inputs(configuration, path):
            if tied not in columns:
                changes[tied] = changes.get(tied, float(inputs[tied][1])) * ratio
    return changes


def swings(configuration: Configuration, ranges: Sequence[Range], phase: str, output: str) -> list[Swing]:
    """The output at both ends of every range, one input at a time; the widest swing first."""
    inputs = numeric(configuration)
    points = 2 * len(ranges) + 1  # the last is the configuration itself
    changes: dict[str, np.ndarray] = {}
    for place, each in enumerate(ranges):
        ends = with_tied(configuration, {each.path: np.array([each.low, each.high])})
        for path, values in ends.items():
            column = changes.setdefault(path, np.full(points, float(inputs[path][1])))
            column[2 * place : 2 * place + 2] = values
    *ends, before = outputs_at(configuration, changes, phase)[output].tolist()
    swings_of_ranges = [
        Swing(range=each, value=float(inputs[each.path][1]), before=before, at_low=low, at_high=high)
        for each, low, high in zip(ranges, ends[::2], ends[1::2], strict=True)
    ]
    return sorted(swings_of_ranges, key=lambda swing: -swing.size)
