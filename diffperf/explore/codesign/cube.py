"""The unit cube that the search moves in, and the designs that its points stand for.

A point has one coordinate between 0 and 1 for every variable that is a real number, and one for every slot:
a whole number, a choice, or all variables of the layout together. Every point of the cube stands for a whole
design, which is why exact scores of points can be compared at once.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Bool, Float, Int

from diffperf.explore.codesign.slots import Slot, by_ratio
from diffperf.explore.codesign.variables import DesignVector


@dataclasses.dataclass(frozen=True)
class Reals:
    """The real variables: their places in the vector of variables, and their ranges.

    A share of a range is that of its logarithm where the variable spans decades.
    """

    entries: Int[np.ndarray, " reals"]
    low: Float[np.ndarray, " reals"]
    high: Float[np.ndarray, " reals"]
    log: Bool[np.ndarray, " reals"]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def _log_low(self) -> np.ndarray:
        return np.log(np.where(self.log, self.low, 1.0))

    @property
    def _log_range(self) -> np.ndarray:
        return np.log(np.where(self.log, self.high, np.e)) - self._log_low

    def take(self, chosen: Int[np.ndarray, " some"]) -> "Reals":
        """Some of the variables."""
        return Reals(self.entries[chosen], self.low[chosen], self.high[chosen], self.log[chosen])

    def at(self, share: Float[np.ndarray, "*designs reals"]) -> Float[np.ndarray, "*designs reals"]:
        """The values at shares of the ranges."""
        by_log = np.exp(self._log_low + self._log_range * share)
        value = np.where(self.log, by_log, self.low + (self.high - self.low) * share)
        return np.clip(value, self.low, self.high)

    def share(self, x: Float[np.ndarray, "*designs n"]) -> Float[np.ndarray, "*designs reals"]:
        """The shares of the ranges at which designs are."""
        value = x[..., self.entries]
        by_log = (np.log(np.where(self.log, value, 1.0)) - self._log_low) / self._log_range
        return np.clip(np.where(self.log, by_log, (value - self.low) / (self.high - self.low)), 0.0, 1.0)

    def moved(
        self, x: Float[np.ndarray, "*designs n"], share: Float[np.ndarray, "*designs reals"]
    ) -> Float[np.ndarray, "*designs n"]:
        """Designs with their real variables at shares of the ranges."""
        moved = x.copy()
        moved[..., self.entries] = self.at(share)
        return moved

    def slope(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " reals"]:
        """d value / d share of a design."""
        return np.where(self.log, x[self.entries] * self._log_range, self.high - self.low)


@dataclasses.dataclass(frozen=True)
class Cube:
    """The coordinates of a problem's designs: first those of `reals`, then those of `slots`.

    - `entries`: the length of the vector of variables, which is longer than a point where choices have
      several alternatives and layouts several degrees.
    """

    reals: Reals
    slots: tuple[Slot, ...]
    entries: int

    @classmethod
    def of(cls, vector: DesignVector, slots: list[Slot]) -> "Cube":
        """The cube of a vector of variables of which some entries belong to slots."""
        bounds = vector.bounds
        taken = [index for slot in slots for index in slot.indices]
        entries = np.setdiff1d(np.arange(len(bounds.low)), taken)
        reals = Reals(entries, bounds.low[entries], bounds.high[entries], bounds.log[entries])
        return cls(reals, tuple(slots), len(bounds.low))

    @functools.cached_property
    def relaxed(self) -> Reals:
        """The real variables, followed by the whole-number variables that are relaxed to real ones before
        they are rounded.

        Whole-number variables with many values are relaxed, if there are at least two of them. A single one
        trades with no other, and a search among the neighbours of a design finds its best value.
        """
        numbers = [slot for slot in self.slots if slot.relaxes]
        if len(numbers) < 2:
            return self.reals
        ranges = [(slot.values().min(), slot.values().max()) for slot in numbers]
        low, high = np.array(ranges).reshape(-1, 2).T
        return Reals(
            np.concatenate([self.reals.entries, *(slot.indices for slot in numbers)]).astype(int),
            np.concatenate([self.reals.low, low]),
            np.concatenate([self.reals.high, high]),
            np.concatenate([self.reals.log, [by_ratio(*each) for each in ranges]]).astype(bool),
        )

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return len(self.reals) + len(self.slots)

    def designs(self, points: Float[np.ndarray, "designs size"]) -> Float[np.ndarray, "designs n"]:
        """The vectors of variables that points stand for."""
        x = self.reals.moved(np.empty((len(points), self.entries)), points[:, : len(self.reals)])
        for column, slot in enumerate(self.slots, start=len(self.reals)):
            x[:, slot.indices] = slot.at(points[:, column])
        return x

    def points(self, x: Float[np.ndarray, "designs n"]) -> Float[np.ndarray, "designs size"]:
        """Points that stand for vectors of variables, or for the nearest whole designs."""
        columns = [slot.share(x[:, slot.indices])[:, None] for slot in self.slots]
        return np.concatenate([self.reals.share(x), *columns], axis=1)

    @property
    def relaxes(self) -> bool:
        """Whether there are whole numbers that are taken for real ones."""
        return len(self.relaxed) > len(self.reals)

    def rounded(self, x: Float[np.ndarray, " n"], *, down: bool = False) -> Float[np.ndarray, " n"]:
        """A design with its relaxed whole numbers moved to the nearest ones, or to the next ones below."""
        whole = x.copy()
        for slot in self.slots:
            if slot.relaxes:
                whole[slot.indices] = slot.rounded(x[slot.indices], down=down)
        return whole

    def combinations(self, x: Float[np.ndarray, "designs n"]) -> list[tuple[float, ...]]:
        """The values of each design in its slots: equal for designs that differ in real variables alone."""
        indices = [index for slot in self.slots for index in slot.indices]
        return [tuple(row) for row in x[:, indices].tolist()]
