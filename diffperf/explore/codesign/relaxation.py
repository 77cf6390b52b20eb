"""Whole numbers that are many, such as batches or compute units, taken for real ones and rounded.

Whole numbers that trade with one another, as the batches of several services on one chip do, have to move
together, where a neighbour of a design has one or two others. So all of them descend along true slopes with
the real variables, from a design and from those with another value of a slot that cannot be relaxed, and are
rounded then. Work that a chip does in waves goes faster by some numbers than by those between them, which
smooth slopes do not show: exact scores along each number do, and the best of these are held while the others
are relaxed again.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.descent import Descended, Descent
from diffperf.explore.codesign.neighbours import changed, changes, merits
from diffperf.explore.codesign.scoring import Goal, Scorer

VIOLATION = 0.01  # of a relaxed design, which rounding settles
WITHIN_REACH = 0.005  # by which a design may be worse than another one, and better once it is settled
BESIDE = 2  # values of a slot next to its own that are tried while other whole numbers are relaxed
MOST_BESIDE = 64  # of a slot's values: layouts that are more are not tried so
HELD = 4  # numbers that are held while others are relaxed again


class Relaxation:
    """Descends from designs of one problem with relaxed whole numbers, under given limits, towards a goal."""

    def __init__(self, scorer: Scorer, limits: Float[np.ndarray, " constraints"], goal: Goal):
        self.scorer, self.limits, self.goal = scorer, limits, goal
        self.descent = Descent(scorer, limits, goal, relaxed=True)

    def near(self, x: Float[np.ndarray, " n"], hold: Sequence[int] = ()) -> Descended:
        """About the relaxed optimum near a design, the variables at the entries of `hold` as they are."""
        return self.descent.approached(x, hold)

    def beside(self, relaxed: Descended) -> Iterator[Descended]:
        """Relaxed optima with another value of one slot that is not relaxed, the next ones or any of a few,
        which are about as good."""
        for slot in self.scorer.cube.slots:
            if slot.relaxes or slot.count > MOST_BESIDE:
                continue
            values, own = changes(slot, relaxed.x), relaxed.x[slot.indices]
            distance = np.abs(slot.share(values) - slot.share(own[None]))
            for value in values[np.argsort(distance, kind="stable")[:BESIDE]]:
                other = self.near(changed(relaxed.x, slot, value[None])[0])
                if other.violation < VIOLATION and other.objective < relaxed.objective + WITHIN_REACH:
                    yield other

    def rounded(self, relaxed: Descended) -> Iterator[Float[np.ndarray, " n"]]:
        """Whole designs near a relaxed one: it itself rounded, and with one number or another held."""
        yield self._whole(relaxed.x)
        for x, entries in self._local_optima(relaxed):
            yield self._whole(self.near(x, entries).x)

    def _whole(self, x: np.ndarray) -> np.ndarray:
        """A relaxed design with the nearest whole numbers, or with those below if that violates less."""
        designs = np.stack([self.scorer.cube.rounded(x, down=down) for down in (False, True)])
        return designs[self.scorer.exact(designs, self.limits).ranking(self.goal).order[0]]

    def _local_optima(self, relaxed: Descended) -> list[tuple[np.ndarray, list[int]]]:
        """Designs with another value of a relaxed slot that promises more than the values on both of its
        sides, the most promising first, and the entries of that slot.

        The values that a relaxed one lies between are left out, since rounding comes to these.
        """
        optima = []
        for slot in self.scorer.cube.slots:
            if not slot.relaxes:
                continue
            values = np.sort(slot.values(), axis=0)
            designs = changed(relaxed.x, slot, values)
            merit = merits(self.scorer.exact(designs, self.limits), relaxed.multipliers, self.goal)
            around = np.concatenate([[np.inf], merit, [np.inf]])
            optimal = (merit < around[:-2]) & (merit < around[2:])
            above = int(np.searchsorted(values[:, 0], relaxed.x[slot.indices[0]]))
            optimal[max(above - 1, 0) : above + 1] = False
            optima += [(merit[place], designs[place], slot.indices) for place in np.flatnonzero(optimal)]
        optima.sort(key=lambda one: one[0])
        return [(design, entries) for _, design, entries in optima[:HELD]]
