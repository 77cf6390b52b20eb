"""Break-even points of two configurations as an input varies, on the exact estimate."""

import dataclasses

import numpy as np
from jaxtyping import Float

from diffperf.explore.points import BLOCK, outputs_at
from diffperf.explore.ranges import Range, with_tied
from diffperf.workload.configuration import Configuration

_POINTS = 2 * BLOCK + 1  # of the first grid
_ROUNDS = 3  # in which the interval of a crossing is divided by `BLOCK`
_JUMP = 1e-3  # of the largest output: difference that is left at a crossing where an output jumps


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A value of the input at which the outputs of two configurations cross.

    - `below`, `above`: the last value of the input before the crossing, and the first after it: neighbours of
      a whole number, else next to each other.
    - `larger_above`: whether the first configuration's output is the larger one above the crossing.
    - `jump`: whether an output jumps there, so that the two are equal nowhere.
    """

    below: float
    above: float
    larger_above: bool
    jump: bool

    @property
    def value(self) -> float:
        """The middle of the interval."""
        return (self.below + self.above) / 2


@dataclasses.dataclass(frozen=True)
class BreakEven:
    """Two curves over a range, and all their crossings that lie at least a grid step apart."""

    values: Float[np.ndarray, " points"]
    first: Float[np.ndarray, " points"]
    second: Float[np.ndarray, " points"]
    crossings: list[Crossing]


class Pair:
    """Two configurations, and which of them an input varies in."""

    def __init__(
        self,
        configurations: tuple[Configuration, Configuration],
        varied: Range,
        varies_in: tuple[bool, bool],
        phase: str,
        output: str,
    ):
        self.configurations, self.range, self.varies_in = configurations, varied, varies_in
        self.phase, self.output = phase, output

    def at(self, values: Float[np.ndarray, " points"]) -> tuple[np.ndarray, np.ndarray]:
        """The output of both configurations at values of the input."""
        first, second = (
            self._one(c, values if varies else None, len(values))
            for c, varies in zip(self.configurations, self.varies_in, strict=True)
        )
        return first, second

    def _one(self, c: Configuration, values: np.ndarray | None, points: int) -> np.ndarray:
        if values is None:
            return np.full(points, outputs_at(c, {}, self.phase)[self.output][0])
        return outputs_at(c, with_tied(c, {self.range.path: values}), self.phase)[self.output]


def break_even(pair: Pair) -> BreakEven:
    """Both curves over the range, and where they cross: by a grid, and finer ones around each crossing."""
    values = pair.range.grid(_POINTS)
    first, second = pair.at(values)
    difference, scale = first - second, float(np.max(np.abs([first, second])))
    crossings = [
        _refined(pair, float(values[place]), float(values[place + 1]), _JUMP * scale)
        for place in range(len(values) - 1)
        # Curves that touch and are equal at a point of the grid cross in the interval that begins there.
        if np.sign(difference[place]) * np.sign(difference[place + 1]) < 0
        or (difference[place] == 0 and difference[place + 1] != 0 and place > 0)
    ]
    return BreakEven(values, first, second, crossings)


def _refined(pair: Pair, low: float, high: float, jump: float) -> Crossing:
    """The crossing between two values with different signs, in ever finer grids. Outputs that differ by more
    than `jump` beside it have jumped.
    """
    for _ in range(_ROUNDS):
        values = Range(pair.range.path, pair.range.declared, low, high).grid(BLOCK)
        if len(values) < 2:
            break
        first, second = pair.at(values)
        sign = np.sign(first - second)
        place = int(np.argmax(sign != sign[0])) or 1
        low, high = float(values[place - 1]), float(values[place])
    first, second = pair.at(np.array([low, high]))
    difference = first - second
    whole = pair.range.declared.integer
    return Crossing(
        below=float(low),
        above=float(high),
        larger_above=bool(difference[1] > 0),
        jump=not whole and bool(np.min(np.abs(difference)) > jump),
    )
