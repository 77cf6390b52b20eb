"""Slots: groups of variables that take whole values together. A slot is one whole number, one definite
choice, or all degrees of a layout.

A slot lists the values that it can take, and lays them out along a coordinate between 0 and 1, so that values
which are alike lie close together.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from diffperf.explore.codesign.layouts import Layouts
from diffperf.explore.codesign.variables import DesignVector, Variable
from diffperf.quantity import Choice

# Whole numbers whose greatest is this many times the least lie along the coordinate by their logarithms.
_DECADES = 8.0
# More layouts than these are laid out by the logarithm of their rank: the first of them are the likeliest.
_MANY_LAYOUTS = 32
_ROUNDING = 1e-9  # relative, by which a real number may lie below the whole one that it stands for
# Whole numbers of so many values are close enough together for a search that takes them for real ones first.
_MANY_NUMBERS = 32


def by_ratio(low: float, high: float) -> bool:
    """Whether numbers between two are laid out by their logarithms."""
    return bool(low > 0 and high >= _DECADES * low)


class Slot(abc.ABC):
    """One or more entries of the vector of variables that are rounded to a possible value together."""

    name: str  # how progress messages call the slot
    indices: list[int]  # the entries of the vector of variables that belong to the slot

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """Number of values that the slot can take."""

    @property
    def relaxes(self) -> bool:
        """Whether the values are numbers, so many that real ones between them can stand for them."""
        return len(self.indices) == 1 and self.count >= _MANY_NUMBERS

    def rounded(self, number: Float[np.ndarray, " 1"], *, down: bool) -> Float[np.ndarray, " 1"]:
        """The number nearest to a real one, of a slot that relaxes; `down`: the next one below."""
        numbers = np.sort(self.values()[:, 0])
        below = max(int(np.searchsorted(numbers, number[0] * (1 + _ROUNDING), side="right")) - 1, 0)
        two = numbers[below : below + (1 if down else 2)]
        return two[[np.argmin(np.abs(two - number[0]))]]

    @abc.abstractmethod
    def at(self, share: Float[np.ndarray, " designs"]) -> Float[np.ndarray, "designs entries"]:
        """The values at coordinates from 0 to 1."""

    @abc.abstractmethod
    def share(self, values: Float[np.ndarray, "designs entries"]) -> Float[np.ndarray, " designs"]:
        """Coordinates at which values lie, or those nearest to them."""

    @abc.abstractmethod
    def values(self) -> Float[np.ndarray, "count entries"]:
        """Everything that the slot can be."""


@dataclasses.dataclass(frozen=True)
class CountSlot(Slot):
    """One variable that is a whole number from `low` to `high`."""

    name: str
    indices: list[int]
    low: int
    high: int

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def _by_ratio(self) -> bool:
        return by_ratio(self.low, self.high)

    # Every whole number has the coordinates from its own to the next one's.
    def at(self, share: Float[np.ndarray, " designs"]) -> Float[np.ndarray, "designs entries"]:
        if self._by_ratio:
            number = self.low * ((self.high + 1) / self.low) ** share
        else:
            number = self.low + self.count * share
        # Rounding errors of the power must not lead below the number whose coordinate it is.
        return np.clip(np.floor(number * (1 + 1e-12)), self.low, self.high)[:, None]

    def share(self, values: Float[np.ndarray, "designs entries"]) -> Float[np.ndarray, " designs"]:
        middle = np.clip(np.round(values[:, 0]), self.low, self.high) + 0.5
        if self._by_ratio:
            return np.log(middle / self.low) / np.log((self.high + 1) / self.low)
        return (middle - self.low) / self.count

    def values(self) -> Float[np.ndarray, "count entries"]:
        return np.arange(self.low, self.high + 1, dtype=float)[:, None]


@dataclasses.dataclass(frozen=True)
class ListedSlot(Slot):
    """One of a list of `rows`: alternatives of a choice, or possible layouts.

    `by_rank`: the rows are sorted, likely ones first, and lie along the coordinate by the logarithm of their
    rank.
    """

    name: str
    indices: list[int]
    rows: Float[np.ndarray, "count entries"]
    by_rank: bool = False

    @property
    def count(self) -> int:
        return len(self.rows)

    def at(self, share: Float[np.ndarray, " designs"]) -> Float[np.ndarray, "designs entries"]:
        number = (self.count + 1) ** share - 1 if self.by_rank else self.count * share
        return self.rows[np.clip(np.floor(number * (1 + 1e-12)).astype(int), 0, self.count - 1)]

    def share(self, values: Float[np.ndarray, "designs entries"]) -> Float[np.ndarray, " designs"]:
        _, nearest = self._neighbours.query(np.log1p(values), p=1)
        middle = np.asarray(nearest) + 0.5
        return np.log(middle + 1) / np.log(self.count + 1) if self.by_rank else middle / self.count

    @functools.cached_property
    def _neighbours(self) -> KDTree:
        """Finds the row that is nearest to another one, in ratios."""
        return KDTree(np.log1p(self.rows))

    def values(self) -> Float[np.ndarray, "count entries"]:
        return self.rows


def slots(vector: DesignVector, layouts: Sequence[Layouts]) -> list[Slot]:
    """Everything that has to become whole: the layouts, and each other whole number and choice."""
    of_layouts: list[Slot] = []
    for each in layouts:
        entries = [int(entry) for entry in each.entries]
        of_layouts.append(ListedSlot(each.name, entries, each.values, len(each) > _MANY_LAYOUTS))
    taken = {index for slot in of_layouts for index in slot.indices}
    return of_layouts + [
        _slot(begin, variable) for begin, variable in vector.placed() if variable.whole and begin not in taken
    ]


def _slot(begin: int, variable: Variable) -> Slot:
    """The slot of one whole variable that belongs to no layout."""
    if isinstance(variable.declared, Choice):
        return ListedSlot(variable.path, list(range(begin, begin + variable.size)), variable.choices)
    if variable.values is not None:
        return ListedSlot(variable.path, [begin], np.array(variable.values)[:, None])
    low, high = variable.whole_numbers()
    return CountSlot(variable.path, [begin], low, high)
