"""The next-best choices of a design: what it would have been without the value that it chose, by how much
that loses, and what would have to be true for it to win.

A runner-up is searched like the design, from which it starts, with the chosen value of one variable left out.
"""

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.search import MOST_ENUMERATED, Search
from diffperf.explore.codesign.slots import ListedSlot, Slot
from diffperf.explore.codesign.tipping import Condition, Tipping
from diffperf.explore.codesign.variables import Variable
from diffperf.report import tables

MOST_VALUES = 16  # of a variable that is a choice: the neighbour of one of many numbers is no other design
_ROUNDS = 2  # of evolution and descent
_MANY_ROWS = 32  # as of layouts


@dataclasses.dataclass(frozen=True)
class RunnerUp:
    """The best design without the value that one variable has in the best design of all.

    - `chosen`, `other`: the values of the variable in both designs, as text with their units.
    - `loss`: the log of the objective over that of the best design, more is worse; None where no other value
      leaves a design that satisfies every constraint.
    - `conditions`: changes of one input that would make both equally good, the smallest first.
    """

    variable: Variable
    chosen: str
    other: str
    loss: float | None
    conditions: tuple[Condition, ...] = ()


def runners_up(search: Search) -> list[RunnerUp]:
    """The next-best value of every choice, from a search that has come to a feasible design."""
    best, cube, limits = search.best, search.cube, search.limits
    best_without = []
    with jax.enable_x64(True):
        tipping = Tipping(search.problem)
        placed = search.problem.vector.placed()
        for number, (begin, variable) in enumerate(placed):
            search.progress(f"without {variable.name}", number / len(placed))
            restricted = _without(cube, begin, variable, best.x)
            if restricted is not None:
                search.cube = search.scorer.cube = restricted
                search.reset(limits)
                best_without.append(_runner_up(search, tipping, best, begin, variable))
        search.cube = search.scorer.cube = cube
        search.reset(limits)
    search.incumbent = best
    return best_without


def _runner_up(search: Search, tipping: Tipping, best: Descended, begin: int, variable: Variable) -> RunnerUp:
    """The runner-up that a search with a restricted cube comes to."""
    search.known = [best.x]
    other, vector = _searched(search), search.problem.vector

    def text(x: Float[np.ndarray, " n"]) -> str:
        return tables.show(vector.value(x, begin, variable), variable.declared)

    if other.violation > 0:
        return RunnerUp(variable, text(best.x), "", None)
    conditions = tipping.conditions(best, other) if math.isfinite(other.residual + best.residual) else []
    loss = max(other.objective - best.objective, 0.0)
    return RunnerUp(
        variable=variable, chosen=text(best.x), other=text(other.x), loss=loss, conditions=tuple(conditions)
    )


def _searched(search: Search) -> Descended:
    """The best design of a short search, with its multipliers."""
    if not len(search.cube.reals) and math.prod(slot.count for slot in search.cube.slots) <= MOST_ENUMERATED:
        search.enumerate()
        return search.best
    for number in range(_ROUNDS):
        evolution = search.population_of_round(number)
        search.evolve(evolution, "evolution")
        if len(search.cube.reals):
            search.descend(evolution, "descent")
    if search.best.violation == 0 and len(search.cube.reals):
        search.refine()
    return search.best


def _without(cube: Cube, begin: int, variable: Variable, x: Float[np.ndarray, " n"]) -> Cube | None:
    """The cube without the value that a variable has; None where it is no choice, or has no other value."""
    slots: list[Slot] = list(cube.slots)
    place = next((place for place, slot in enumerate(slots) if begin in slot.indices), None)
    if place is None:
        return None
    slot, entries = slots[place], list(range(begin, begin + variable.size))
    rows = slot.values()
    own = rows[:, [slot.indices.index(entry) for entry in entries]]
    if not 2 <= len(np.unique(own, axis=0)) <= MOST_VALUES:
        return None
    kept = rows[np.any(own != x[entries], axis=1)]
    if not len(kept):
        return None
    slots[place] = ListedSlot(slot.name, slot.indices, kept, len(kept) > _MANY_ROWS)
    return dataclasses.replace(cube, slots=tuple(slots))
