"""Whole numbers, definite choices and layouts: what to try around a relaxed design.

A slot is what becomes whole together: one whole variable on its own, or all variables of the layout at once.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.lagrangian import Fixed
from diffperf.explore.codesign.layouts import Layouts
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.variables import Variable
from diffperf.quantity import Choice

# A combination says which entries of the vector of variables are held, and at what: {index of the entry:
# value}.
Combination = dict[int, float]

# Around a large count, steps of this share of it are tried as well as steps of 1.
STRIDE = 0.02
# Nearest layouts tried around a design, for each unit of reach.
LAYOUTS_NEAR = 4


class Slot(abc.ABC):
    """What becomes whole together."""

    name: str  # how progress messages call the slot
    indices: list[int]  # the entries of the vector of variables that belong to the slot

    @abc.abstractmethod
    def near(self, x: Float[np.ndarray, " n"], reach: int) -> list[Combination]:
        """Whole values around x, nearest first; with a reach of 0 only those right beside x."""

    @abc.abstractmethod
    def rungs(self, limit: int) -> list[Combination]:
        """Whole values over the whole range of the slot, about `limit` of them where their number is free."""

    def held(self, x: Float[np.ndarray, " n"]) -> Combination:
        """The slot at its values in x."""
        return {index: float(x[index]) for index in self.indices}

    def combination(self, values: Iterable[float]) -> Combination:
        """The slot at other values, one for each of its entries."""
        return dict(zip(self.indices, map(float, values), strict=True))


class CountSlot(Slot):
    """One variable that is a whole number."""

    def __init__(self, begin: int, variable: Variable):
        self.name, self.indices = variable.path, [begin]
        self.low, self.high = variable.whole_numbers()

    def near(self, x: Float[np.ndarray, " n"], reach: int) -> list[Combination]:
        """Neighbours, and for large counts also `reach` steps of 2 %."""
        centre = x[self.indices[0]]
        stride = max(1, round(STRIDE * centre))
        steps = {0, *range(1, min(reach, 1) + 1), *(stride * k for k in range(1, reach + 1))}
        near = {np.floor(centre) + step for step in steps} | {np.ceil(centre) - step for step in steps}
        whole = {float(np.clip(value, self.low, self.high)) for value in near}
        return [self.combination([value]) for value in sorted(whole, key=lambda value: abs(value - centre))]

    def rungs(self, limit: int) -> list[Combination]:
        """The whole range, in at most `limit` steps of equal ratio (or difference, from 0).

        Whole waves of tiles make time a sawtooth in the number of compute units: its better teeth can be far
        from where a slope leads.
        """
        numbers = np.arange(self.low, self.high + 1)
        if len(numbers) > limit:
            space = np.geomspace if self.low > 0 else np.linspace
            numbers = np.unique(np.round(space(self.low, self.high, limit)))
        return [self.combination([float(number)]) for number in numbers]


class ChoiceSlot(Slot):
    """One variable that is a choice, which becomes definite."""

    def __init__(self, begin: int, variable: Variable):
        self.name, self.indices = variable.path, list(range(begin, begin + variable.size))

    def near(self, x: Float[np.ndarray, " n"], reach: int) -> list[Combination]:
        """All alternatives, the heaviest first; with a reach of 0 only the heaviest."""
        order = np.argsort(-x[self.indices])[: None if reach else 1]
        return [self.combination(row) for row in np.eye(len(self.indices))[order]]

    def rungs(self, limit: int) -> list[Combination]:
        return [self.combination(row) for row in np.eye(len(self.indices))]


class LayoutSlot(Slot):
    """All variables of the layout, which only together obey the rules."""

    def __init__(self, layouts: Layouts):
        self.name, self.indices, self.values = "layout", [int(i) for i in layouts.entries], layouts.values

    def near(self, x: Float[np.ndarray, " n"], reach: int) -> list[Combination]:
        """The layouts whose degrees are nearest to those of x in ratio."""
        distance = np.abs(np.log1p(self.values) - np.log1p(x[self.indices])).sum(axis=1)
        nearest = np.argsort(distance, kind="stable")[: 1 + LAYOUTS_NEAR * reach]
        return [self.combination(row) for row in self.values[nearest]]

    def rungs(self, limit: int) -> list[Combination]:
        """Every layout."""
        return [self.combination(row) for row in self.values]


def slots(problem: DesignProblem) -> list[Slot]:
    """Everything that has to become whole: the layout, and each other whole number and choice."""
    layout: list[Slot] = [] if problem.layouts is None else [LayoutSlot(problem.layouts)]
    taken = {index for slot in layout for index in slot.indices}
    return layout + [
        ChoiceSlot(begin, variable) if isinstance(variable.declared, Choice) else CountSlot(begin, variable)
        for begin, variable in problem.vector.placed()
        if variable.whole and begin not in taken
    ]


def held(x: Float[np.ndarray, " n"], where: list[Slot]) -> Combination:
    """Every slot at its values in x."""
    return {index: value for slot in where for index, value in slot.held(x).items()}


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """A combination of whole values to try, and the index of the design that it lies near."""

    centre: int
    combination: Combination


def neighbours(centres: list[np.ndarray], where: list[Slot], reach: int, limit: int) -> list[Neighbour]:
    """At most `limit` combinations of whole values: the centres take turns, each with its nearest first."""
    pools = [_nearest_first(centre, where, reach) for centre in centres]
    seen: set[tuple] = set()
    chosen: list[Neighbour] = []
    for turn in itertools.zip_longest(*pools):
        for index, combination in enumerate(turn):
            if combination is None or (key := tuple(combination.items())) in seen:
                continue
            seen.add(key)
            chosen.append(Neighbour(index, combination))
    return chosen[:limit]


def _nearest_first(centre: np.ndarray, where: list[Slot], reach: int) -> list[Combination]:
    """All combinations of the slots' values around a centre, by the sum of their ranks."""
    ranked = [list(enumerate(slot.near(centre, reach))) for slot in where]
    products = sorted(itertools.product(*ranked), key=lambda parts: sum(rank for rank, _ in parts))
    return [{i: v for _, part in parts for i, v in part.items()} for parts in products]


def ladder(x: Float[np.ndarray, " n"], where: list[Slot], slot: Slot, limit: int) -> list[Combination]:
    """The whole design x with one slot moved over its whole range."""
    return [held(x, where) | rung for rung in slot.rungs(limit)]


def hold(chosen: list[Combination], size: int, starts: int) -> Fixed:
    """Holds one combination in each start; the first combination in the starts that are left over."""
    mask, values = np.zeros((starts, size), dtype=bool), np.ones((starts, size))
    for start in range(starts):
        for index, value in chosen[start if start < len(chosen) else 0].items():
            mask[start, index], values[start, index] = True, value
    return Fixed(jnp.asarray(mask), jnp.asarray(values))
