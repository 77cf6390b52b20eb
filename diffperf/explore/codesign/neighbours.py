"""The neighbours of a design: one or two other whole numbers, choices or layouts, and what they promise.

Take an optimum of the real variables, and change a whole number. What the objective comes to once the real
variables have followed is, to first order, the Lagrangian of the changed design, with the multipliers of the
optimum: an excess over a limit has its price, where a plain comparison would refuse it. So exact scores of
designs whose real variables have not moved yet say from which of them a descent is worth its time. The terms
of second order that augment the Lagrangian weigh against designs that exceed a limit by so much that its
price no longer holds.

**Source:** the augmented Lagrangian with inequalities of Rockafellar, SIAM J. Control 12 (1974) 268; Nocedal
and Wright, Numerical Optimization, 2nd ed. (2006), § 17.3.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.scoring import ExactScores, Goal, Scorer
from diffperf.explore.codesign.slots import Slot

PENALTY = 10.0  # the curvature of an excess: 1 % more than a limit costs 0.05 % beside its price
MOST_VALUES = 4096  # of a slot that are tried one by one; of more, those that lie nearest
MOST_PAIRS = 2**15  # designs with two changes that are scored
MOST_PAIRED = 32  # values of a slot that are tried together with those of others
TRIED = 4  # designs with one change, and as many with two, that are worth a descent
# The price of a constraint that does not hold the design back yet is unknown: 1 % above its limit counts as
# much as 1 % of the objective.
_UNKNOWN_PRICE = 1.0
_ACTIVE = 1e-9  # multipliers below are those of constraints that do not hold the design back
_BROKEN = 10.0  # what a broken rule of layouts adds to the log of the objective


def promising(
    scorer: Scorer,
    limits: Float[np.ndarray, " constraints"],
    goal: Goal,
    best: Descended,
    below: float,
) -> Iterator[Float[np.ndarray, " n"]]:
    """The neighbours of a design that promise an objective below a bound, the most promising first.

    Those with one change come before those with two, and no two of either change the same slots.
    """
    cube, x = scorer.cube, best.x

    def ranked(designs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        merit = merits(scorer.exact(designs, limits), best.multipliers, goal)
        order = np.argsort(merit, kind="stable")
        return designs[order], merit[order]

    def worth_a_descent(designs: np.ndarray, merit: np.ndarray) -> Iterator[np.ndarray]:
        """Designs that promise enough, at most one for each set of changed slots and `TRIED` of them."""
        tried: set[tuple[int, ...]] = set()
        for design in designs[merit < below]:
            where = tuple(i for i, slot in enumerate(cube.slots) if np.any((design != x)[slot.indices]))
            if where not in tried:
                tried.add(where)
                yield design
            if len(tried) == TRIED:
                return

    by_slot = [ranked(changed(x, slot, changes(slot, x))) for slot in cube.slots]
    designs, merit = (np.concatenate(parts) for parts in zip(*by_slot, strict=True))
    order = np.argsort(merit, kind="stable")
    yield from worth_a_descent(designs[order], merit[order])
    values = [designs[:, slot.indices] for slot, (designs, _) in zip(cube.slots, by_slot, strict=True)]
    yield from worth_a_descent(*ranked(pairs(cube, x, values)))


def merits(
    scores: ExactScores, multipliers: Float[np.ndarray, " constraints"], goal: Goal
) -> Float[np.ndarray, " designs"]:
    """The augmented Lagrangian of designs: about the log of the objective that a descent would come to."""
    constraints = list(goal.constraints)
    price, excess = multipliers[constraints], scores.values[:, 1:][:, constraints]
    augmented = (np.maximum(price + PENALTY * excess, 0.0) ** 2 - price**2) / (2 * PENALTY)
    augmented += np.where(price < _ACTIVE, _UNKNOWN_PRICE * np.maximum(excess, 0.0), 0.0)
    merit = goal.of_rows(scores.values) + augmented.sum(axis=1) + _BROKEN * scores.broken
    return np.where(np.isfinite(merit), merit, np.inf)


def changes(slot: Slot, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "values entries"]:
    """The values of a slot other than that of a design: all, or those that lie nearest."""
    values, own = slot.values(), x[slot.indices]
    values = values[np.any(values != own, axis=1)]
    if len(values) > MOST_VALUES:
        distance = np.abs(slot.share(values) - slot.share(own[None]))
        values = values[np.sort(np.argsort(distance, kind="stable")[:MOST_VALUES])]
    return values


def changed(
    x: Float[np.ndarray, " n"], slot: Slot, values: Float[np.ndarray, "values entries"]
) -> Float[np.ndarray, "values n"]:
    """The designs that a design becomes with each value of a slot."""
    designs = np.repeat(x[None], len(values), axis=0)
    designs[:, slot.indices] = values
    return designs


def pairs(cube: Cube, x: Float[np.ndarray, " n"], values: list[np.ndarray]) -> Float[np.ndarray, "designs n"]:
    """The designs with other values of two slots: of each slot the first of `values`, (values, entries)."""
    couples = math.comb(len(cube.slots), 2)
    most = min(MOST_PAIRED, math.isqrt(MOST_PAIRS // max(couples, 1)))
    return np.concatenate([np.empty((0, len(x))), *_paired(cube, x, [each[:most] for each in values])])


def _paired(cube: Cube, x: np.ndarray, values: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The designs of every two slots."""
    for (slot, first), (other, second) in itertools.combinations(zip(cube.slots, values, strict=True), 2):
        designs = np.repeat(changed(x, slot, first), len(second), axis=0)
        designs[:, other.indices] = np.tile(second, (len(first), 1))
        yield designs
