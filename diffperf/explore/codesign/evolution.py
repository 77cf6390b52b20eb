"""A global search with exact scores: differential evolution of many designs at once.

Success-history adaptive differential evolution (Tanabe and Fukunaga, CEC 2013, "SHADE"; mutation
current-to-pbest/1 with an archive from Zhang and Sanderson, IEEE Trans. Evol. Comput. 13, 2009, "JADE").
Designs are compared by Deb's rules (Comput. Methods Appl. Mech. Eng. 186, 2000): less violation first, and of
equal violations the better objective. A generation is scored in one call of a compiled program, which is why
the bookkeeping here, in NumPy, costs less than the estimates.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from diffperf.explore.codesign.scoring import Ranking

# Sizes of the memory of successful steps and, over the population's, of the archive (SHADE, §III).
MEMORY = 20
ARCHIVE = 1.0
# The share of the population that steps may lead to: drawn for every design between these two.
LEAST_BEST, MOST_BEST = 0.02, 0.2
# The spread of drawn step lengths and crossover rates around remembered ones (JADE, §IV).
SPREAD = 0.1

Score = Callable[[Float[np.ndarray, "designs size"]], Ranking]


@dataclasses.dataclass
class Evolution:
    """A population of points of a unit cube, which every generation improves.

    - `points`, `ranking`: the population and its exact scores.
    - `steps`, `crossovers`: the remembered means of step lengths and crossover rates that succeeded.
    - `archive`: points that better ones replaced, which keep steps diverse.
    """

    score: Score
    random: np.random.Generator
    points: Float[np.ndarray, "designs size"]
    ranking: Ranking
    steps: np.ndarray = dataclasses.field(default_factory=lambda: np.full(MEMORY, 0.5))
    crossovers: np.ndarray = dataclasses.field(default_factory=lambda: np.full(MEMORY, 0.5))
    archive: np.ndarray | None = None
    turn: int = 0

    @classmethod
    def of(cls, score: Score, random: np.random.Generator, points: np.ndarray) -> "Evolution":
        """A population that starts at some points."""
        return cls(score, random, points, score(points))

    def __len__(self) -> int:
        return len(self.points)

    def run(self, generations: int) -> None:
        """Lets the population evolve."""
        for _ in range(generations):
            self.generation()

    def generation(self) -> None:
        """One trial for every design, which replaces the design where it is no worse."""
        slot = self.random.integers(MEMORY, size=len(self))
        step, crossover = self._step_lengths(slot), self._crossover_rates(slot)
        trials = self._trials(step, crossover)
        scored = self.score(trials)
        better = scored.better_than(self.ranking)
        replace = better | scored.equals(self.ranking)
        self._remember(step, crossover, scored, better)
        self._store(self.points[better])
        self.points[replace] = trials[replace]
        self.ranking = self.ranking.replaced(replace, scored)

    def _step_lengths(self, slot: Int[np.ndarray, " designs"]) -> np.ndarray:
        """Cauchy-distributed around remembered ones, between 0 and 1."""
        step = np.full(len(self), -1.0)
        while np.any(low := step <= 0):
            step[low] = self.steps[slot[low]] + SPREAD * self.random.standard_cauchy(int(low.sum()))
        return np.minimum(step, 1.0)

    def _crossover_rates(self, slot: Int[np.ndarray, " designs"]) -> np.ndarray:
        """Normally distributed around remembered ones, between 0 and 1."""
        return np.clip(self.crossovers[slot] + SPREAD * self.random.standard_normal(len(self)), 0.0, 1.0)

    def _trials(self, step: np.ndarray, crossover: np.ndarray) -> np.ndarray:
        """A trial for every design: a step towards one of the best and along the difference of two others."""
        count, size = self.points.shape
        best = self._among_best()
        first = self.random.integers(count, size=count)
        pool = self.points if self.archive is None else np.concatenate([self.points, self.archive])
        second = self.random.integers(len(pool), size=count)
        length = step[:, None]
        mutants = self.points + length * (self.points[best] - self.points + self.points[first] - pool[second])
        mutants = _reflected(mutants, self.points)
        crossed = self.random.random((count, size)) < crossover[:, None]
        crossed[np.arange(count), self.random.integers(size, size=count)] = True
        return np.where(crossed, mutants, self.points)

    def _among_best(self) -> Int[np.ndarray, " designs"]:
        """For every design one of the best, among a share of the population drawn for it."""
        count = len(self)
        share = self.random.uniform(LEAST_BEST, MOST_BEST, count)
        among = np.maximum(2, np.ceil(share * count)).astype(int)
        return self.ranking.order[(self.random.random(count) * np.minimum(among, count)).astype(int)]

    def _remember(self, step: np.ndarray, crossover: np.ndarray, scored: Ranking, better: np.ndarray) -> None:
        """Moves one remembered pair to the means of the steps and rates that improved a design.

        The means are weighted by the improvement; the mean of steps is Lehmer's, which prefers long ones.
        """
        if not np.any(better):
            return
        gain = np.abs(self.ranking.merit(better) - scored.merit(better))
        weight = np.where(np.isfinite(gain), gain, 0.0) + 1e-300
        weight /= weight.sum()
        succeeded = step[better]
        self.steps[self.turn] = (weight @ succeeded**2) / (weight @ succeeded)
        self.crossovers[self.turn] = weight @ crossover[better]
        self.turn = (self.turn + 1) % MEMORY

    def _store(self, replaced: np.ndarray) -> None:
        """Adds replaced points to the archive, at random in place of others once it is full."""
        archive = replaced if self.archive is None else np.concatenate([self.archive, replaced])
        limit = int(ARCHIVE * len(self))
        if len(archive) > limit:
            archive = archive[self.random.choice(len(archive), limit, replace=False)]
        self.archive = archive if len(archive) else None


def _reflected(mutants: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Coordinates that leave the cube come to lie halfway between the parent's and the face (JADE, §IV)."""
    inside = np.where(mutants < 0.0, parents / 2, mutants)
    return np.where(mutants > 1.0, (1.0 + parents) / 2, inside)
