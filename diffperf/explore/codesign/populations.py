"""The populations of a search: how they begin, how long they evolve, and which of their designs descend.

A population is a set of points of the unit cube (`cube`), about a thousand, each of which stands for a whole
design. Populations are what finds the promising regions of a problem with many local optima; descents then
find the optimum of a region (`descent`). There are two ways to begin a population:

- A global population covers the whole cube. It consists of the baseline and of the best points of a Sobol
  sample, which fills the cube more evenly than random points do.
- A local population lies around the best design so far. The steps from that design to the others have a
  standard deviation of 2 to 20 % of a variable's range.

A population then evolves by differential evolution (`evolution`) for a fixed number of generations. The
designs of a generation are scored exactly, in one call of a compiled and vectorized program. When it has
evolved, its elites, which are its best designs that differ from each other, are where descents start.

Everything that is drawn at random comes from one generator. A checkpoint stores its state, so that a search
that is resumed draws the same numbers.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from jaxtyping import Float
from scipy.stats import qmc

from diffperf.explore.codesign.cube import Cube
from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.evolution import Evolution, Score
from diffperf.explore.codesign.scoring import Goal, Ranking

SAMPLE = 8  # points of the Sobol sample for every design of the global population that is chosen from it
GENERATIONS = 120  # the generations that a population evolves for
CHUNK = 10  # the generations between two looks at the population
SPREADS = (0.02, 0.2)  # the least and the greatest standard deviation of the steps of a local population
MOVED = 0.5  # the probability that a design of a local population differs from the centre in a coordinate
# Of two elites with the same whole numbers, choices and layout, some coordinate differs by at least this.
APART = 0.1


@dataclasses.dataclass(frozen=True)
class Populations:
    """Makes the populations of one search, and chooses their elites.

    - `cube`: the unit cube whose points are the members of the populations.
    - `score`: returns exact scores of points of the cube for a goal.
    - `size`: the number of designs in every population.
    - `random`: the generator of all random numbers, those of the evolution of a population included.
    """

    cube: Cube
    score: Callable[[Float[np.ndarray, "designs size"], Goal], Ranking]
    size: int
    random: np.random.Generator

    def sobol_sample(
        self, count: int, starts: Float[np.ndarray, "starts n"]
    ) -> Float[np.ndarray, "designs size"]:
        """A scrambled Sobol sample of `count` points of the cube.

        Its first points are replaced by those of `starts`, designs that have to be among them.
        """
        # Sobol spawns generators from the one that it is given, and a generator's state, which is what a
        # checkpoint stores, does not count how many it has spawned. So it is given a generator of its own.
        generator = np.random.default_rng(self.random.integers(2**63))
        points = qmc.Sobol(self.cube.size, rng=generator).random(count)
        points[: len(starts)] = self.cube.points(starts)
        return points

    def global_population(self, goal: Goal, starts: Float[np.ndarray, "starts n"]) -> Evolution:
        """A population over the whole cube, which consists of the best points of a Sobol sample for a goal.

        The sample contains all of `starts`. The first of them, the baseline, is in the population even where
        its score is bad.
        """
        points = self.sobol_sample(SAMPLE * self.size, starts)
        ranking = self.score(points, goal)
        chosen = np.concatenate([[0], ranking.order[ranking.order != 0]])[: self.size]
        return Evolution(self._score_for(goal), self.random, points[chosen].copy(), ranking.take(chosen))

    def local_population(self, goal: Goal, centre: Float[np.ndarray, " n"]) -> Evolution:
        """A population around one design, which is its first.

        The others differ from it in about half of their coordinates, by normally distributed steps. The
        standard deviation of the steps rises from design to design, from the first of `SPREADS` to the
        second.
        """
        point, shape = self.cube.points(centre[None]), (self.size, self.cube.size)
        # The coordinate of a whole number with few values takes larger steps, which lead to the next value.
        least = [0.0] * len(self.cube.reals) + [1.0 / slot.count for slot in self.cube.slots]
        spread = np.maximum(np.geomspace(*SPREADS, self.size)[:, None], least)
        # Coordinates that leave the cube are reflected at its faces.
        moved = np.abs(point + spread * self.random.standard_normal(shape))
        moved = np.clip(np.where(moved > 1, 2 - moved, moved), 0.0, 1.0)
        points = np.where(self.random.random(shape) < MOVED, moved, point)
        points[0] = point[0]
        return Evolution.of(self._score_for(goal), self.random, points)

    def evolved_for(self, goal: Goal, starts: Float[np.ndarray, "starts n"], *, satisfied: bool) -> Evolution:
        """A global population that has evolved for a goal.

        Where it is enough that the constraints of the goal are `satisfied`, it has stopped evolving once one
        of its designs satisfied them.
        """
        evolution = self.global_population(goal, starts)
        for _ in range(GENERATIONS // CHUNK):
            if satisfied and evolution.ranking.violation.min() == 0:
                break
            evolution.run(CHUNK)
        return evolution

    def elites(
        self,
        evolution: Evolution,
        ended: Mapping[tuple[float, ...], Descended],
        *,
        most: int,
        tolerance: float,
    ) -> list[Float[np.ndarray, " n"]]:
        """The elites of a population, the best first: designs from which a descent may find a better one.

        They are the best designs without two kinds of them:

        - designs close to a better elite: both have the same whole numbers, choices and layout, and all their
          coordinates differ by less than `APART`;
        - designs whose whole numbers, choices and layout have descended before, to a design in `ended` that
          is as good, or worse by no more than `tolerance` in the log of the objective.

        There are at most `most` elites.
        """
        order = evolution.ranking.order
        designs = self.cube.designs(evolution.points[order])
        combinations = self.cube.combinations(designs)
        chosen: list[int] = []
        for rank, row in enumerate(order):
            descended = ended.get(combinations[rank])
            violation = float(evolution.ranking.violation[row])
            objective = float(evolution.ranking.objective[row]) + tolerance
            if descended is not None and (descended.violation, descended.objective) <= (violation, objective):
                continue
            alike = [order[other] for other in chosen if combinations[other] == combinations[rank]]
            if any(np.abs(evolution.points[row] - evolution.points[other]).max() < APART for other in alike):
                continue
            chosen.append(rank)
            if len(chosen) == most:
                break
        return [designs[rank] for rank in chosen]

    def _score_for(self, goal: Goal) -> Score:
        """The exact scores of points for one goal, as a function of the points alone."""
        return lambda points: self.score(points, goal)


def evolve_in_chunks(evolution: Evolution) -> Iterator[float]:
    """Lets a population evolve for `GENERATIONS` generations.

    After every `CHUNK` of them it yields the share that is done, so that the caller can look at the
    population and report progress.
    """
    for done in range(CHUNK, GENERATIONS + 1, CHUNK):
        evolution.run(CHUNK)
        yield done / GENERATIONS
