"""Search for the chip and the package to build: the best design of a problem.

1. Global: a population of whole designs evolves under exact scores, hundreds of thousands of estimates a
   second (`populations`, `evolution`). It starts from the baseline and a Sobol sample of the cube.
2. Descent: from the elites of the population, its best designs that differ from each other, the real
   variables descend along true slopes (`descent`).
3. Relaxation: whole numbers that are many are taken for real ones in a descent from the best design, and
   rounded (`relaxation`).
4. Neighbours: one or two other whole numbers, choices or layouts than the best design's, where its
   multipliers promise more (`neighbours`).
5. Rounds of the four follow each other until `UNIMPROVED` in a row have not improved the best design,
   `ROUNDS` at most. The population of every second round starts around the best design. Where all variables
   are whole and few enough, every combination is scored instead.
6. A last descent gives the multipliers. Where no design satisfies every constraint, the least-violating one
   and the constraints in conflict (`conflict`) are the answer.

What is reported is evaluated without relaxation, and satisfies every constraint as stated. Shadow prices are
the multipliers of the last descent: what the objective gains per unit of each limit, whole numbers held.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.explore.codesign.conflict import conflict_of
from diffperf.explore.codesign.descent import LAST_SHARPNESS, Descended, Descent
from diffperf.explore.codesign.evolution import Evolution
from diffperf.explore.codesign.neighbours import promising
from diffperf.explore.codesign.no_effect import without_effect
from diffperf.explore.codesign.populations import evolve_in_chunks
from diffperf.explore.codesign.refused_steps import refused_steps
from diffperf.explore.codesign.relaxation import WITHIN_REACH
from diffperf.explore.codesign.result import Codesign, Stopped
from diffperf.explore.codesign.scoring import Goal
from diffperf.explore.codesign.search_state import IMPROVED, OutOfTime, SearchState
from diffperf.explore.codesign.unpaid import Unpaid, unpaid_variables
from diffperf.explore.codesign.variables import Variable

# All of these are choices: they trade evaluations for better designs.
DESCENTS = 8  # the most designs that a stage descends from
FEW_DESCENTS = 3  # of such designs where descents prepare another stage, or the goal is not the search's
ROUNDS = 16  # at most
UNIMPROVED = 2  # rounds without an improvement that end the search
PROMISED = 1e-4  # improvement of the log of the objective by a neighbour that is worth a descent
# Where the best design of an evolved population violates its limits by more than this, descents minimize the
# violation, whatever becomes of the objective.
HOPELESS = 0.05
SAME = 1e-9  # difference of scores that is a rounding error
JUDGED = 32  # sampled designs in which each variable is moved, to see whether any limit stands against it
# Combinations of whole numbers, choices and layouts that are all tried, where no variable is real.
MOST_ENUMERATED = 500_000
# The objective gives way by this much to a design whose multipliers can be read as prices.
REFINED = 2e-5


class Search(SearchState):
    """The search for the best design of one problem: the stages, and the rounds that they make up.

    Its arguments are those of `SearchState`.
    """

    # --- stages

    def enumerate(self) -> None:
        """Scores every combination of whole numbers, choices and layouts."""
        values = [slot.values() for slot in self.cube.slots]
        numbers = np.indices([len(each) for each in values]).reshape(len(values), -1)
        blocks = np.array_split(numbers, math.ceil(numbers.shape[1] / (64 * self.population)), axis=1)
        for done, block in enumerate(blocks, start=1):
            self.look_at_the_clock()
            x = np.empty((block.shape[1], self.cube.entries))
            for slot, each, chosen in zip(self.cube.slots, values, block, strict=True):
                x[:, slot.indices] = each[chosen]
            ranking = self.scorer.exact(x, self.limits).ranking(self.goal)
            self.keep_best_of(self.cube.points(x), ranking)
            self.record("every combination", done / len(blocks))

    def evolve(self, evolution: Evolution, stage: str) -> bool:
        """Lets a population evolve for a round, and returns whether the best design improved by that."""
        improved = self.keep_best_of(evolution.points, evolution.ranking)
        for share in evolve_in_chunks(evolution):
            improved |= self.keep_best_of(evolution.points, evolution.ranking)
            self.record(stage, share)
        return improved

    def descend(self, evolution: Evolution, stage: str) -> bool:
        """Descends from the elites of a population, and returns whether the best design improved by that."""
        populations, improved = self.populations, False
        elites = populations.elites(evolution, self.descended, most=DESCENTS, tolerance=IMPROVED)
        hopeless = self.best.violation > HOPELESS
        # Where whole numbers are relaxed, that finds better ones, and few descents are enough before it.
        few = hopeless or self.cube.relaxes
        for number, x in enumerate(elites[:FEW_DESCENTS] if few else elites):
            improved |= self.descend_from(x, hopeless=hopeless)[1]
            self.record(stage, (number + 1) / len(elites))
        return improved

    def descend_from(
        self, x: np.ndarray, *, hopeless: bool = False, near: bool = False
    ) -> tuple[Descended, bool]:
        """Descends from a design to another; whether this is the best so far.

        `hopeless`: to the least violation, which is all that there is hope for. `near`: from a neighbour of
        an optimum.
        """
        self.look_at_the_clock()
        if hopeless:
            design = self.descent.least_violating(x)
        else:
            design = self.descent(x, LAST_SHARPNESS) if near else self.descent(x)
        combination = self.cube.combinations(x[None])[0]
        known = self.descended.get(combination)
        if known is None or (design.violation, design.objective) < (known.violation, known.objective):
            self.descended[combination] = design
        return design, self.keep(design)

    def visit_neighbours(self, stage: str) -> bool:
        """Moves to neighbours of the best design as long as they are better; whether any was."""
        return self.best.violation == 0 and self.polish(self.best, stage)

    def polish(self, design: Descended, stage: str) -> bool:
        """Moves from a feasible design to neighbours as long as they are better; whether the best design of
        all improved."""
        improved = False
        while design.x.tobytes() not in self.alone:
            # The best design of a population has no multipliers yet.
            here = design if math.isfinite(design.residual) else self.descent.ended(design.x)
            for x in promising(self.scorer, self.limits, self.goal, here, here.objective - PROMISED):
                other, better = self.descend_from(x, near=True)
                improved |= better
                if other.violation == 0 and other.objective < here.objective - IMPROVED:
                    design = other
                    break
            else:
                self.alone.add(design.x.tobytes())
            self.record(stage, 0.0)
        return improved

    def relax(self, stage: str) -> bool:
        """Takes whole numbers that are many for real ones, from the best design and from those beside it;
        whether the best design improved."""
        if self.best.violation > HOPELESS or self.best.x.tobytes() in self.relaxed:
            return False
        self.look_at_the_clock()
        own = self.relaxation.near(self.best.x)
        improved = self.settle(own, stage)
        for other in self.relaxation.beside(own):
            improved |= self.settle(other, stage)
        self.relaxed.add(self.best.x.tobytes())
        return improved

    def settle(self, relaxed: Descended, stage: str) -> bool:
        """Comes from a relaxed design to whole ones, and polishes the best of them if it is about as good as
        the best design of all; whether that improved."""
        ends, improved = [], False
        for x in self.relaxation.rounded(relaxed):
            end, better = self.descend_from(x, near=True)
            improved |= better
            ends.append(end)
            self.record(stage, 0.0)
        best = min(ends, key=lambda end: (end.violation, end.objective))
        if best.violation == 0 and best.objective < self.best.objective + WITHIN_REACH:
            improved |= self.polish(best, stage)
        return improved

    def refine(self) -> None:
        """Descends once more from the best design, for multipliers that can be read as prices."""
        refined = self.descent(self.best.x, LAST_SHARPNESS)
        if refined.violation <= self.best.violation and refined.objective < self.best.objective + REFINED:
            self.incumbent = refined
        elif not math.isfinite(self.best.residual):
            self.incumbent = self.descent.ended(self.best.x)
        self.record("refine", 1.0)

    def least_violating(self) -> None:
        """Descends from the best designs to where the greatest excess is least."""
        designs = [self.best, *sorted(self.descended.values(), key=lambda design: design.violation)]
        for design in designs[:DESCENTS]:
            self.look_at_the_clock()
            self.keep(self.descent.least_violating(design.x))
        self.record("least violation", 1.0)

    def excursion(self, goal: Goal, *, satisfied: bool = False) -> Iterator[Descended]:
        """Searches for another goal, and yields the designs that descents come to.

        The best design of the search and its trace stay as they are. Where it is enough that the constraints
        are `satisfied`, a population stops evolving once one of its designs satisfies them, and descents look
        for the least violation.
        """
        descent = Descent(self.scorer, self.limits, goal)
        evolution = self.populations.evolved_for(goal, self.starts, satisfied=satisfied)
        best = self.cube.designs(evolution.points[evolution.ranking.order[:FEW_DESCENTS]])
        for x in best:
            yield descent.ended(x)
            yield descent.least_violating(x) if satisfied else descent(x)

    # --- the whole search

    def unpaid(self) -> list[Unpaid]:
        """The variables that nothing in the problem pays for."""
        with jax.enable_x64(True):
            points = self.populations.sobol_sample(JUDGED, self.starts)
            self.random = np.random.default_rng(self.seed)
            return unpaid_variables(self.scorer, self.limits, self.cube.designs(points))

    @functools.cached_property
    def without_effect(self) -> list[tuple[int, Variable]]:
        """The variables that change neither the objective nor a limit, with the index of their first entry:
        the answer holds them at the baseline's value."""
        state, evaluations = self.random.bit_generator.state, self.scorer.evaluations
        with jax.enable_x64(True):
            points = self.populations.sobol_sample(self.population, self.starts)
            found = without_effect(self.scorer, self.limits, points)
        self.random.bit_generator.state, self.scorer.evaluations = state, evaluations
        return found

    def hold_what_has_no_effect(self) -> None:
        """Moves the variables without effect to the baseline's values, if the best design stays as good."""
        start, held = self.cube.designs(self.cube.points(self.starts[:1]))[0], self.best.x.copy()
        for begin, variable in self.without_effect:
            held[begin : begin + variable.size] = start[begin : begin + variable.size]
        scores = self.scorer.exact(np.stack([self.best.x, held]), self.limits)
        violation = scores.ranking(self.goal).violation
        best, other = scores.values
        if violation[1] <= violation[0] and np.allclose(best, other, SAME, SAME):
            self.incumbent = dataclasses.replace(self.best, x=held)

    def run(self, explain: bool) -> None:
        """The whole search; where nothing satisfies every constraint, for what violates them least.

        `explain` asks which constraints conflict there.
        """
        self.began = time.monotonic()
        self.deadline = self.began + self.budget_seconds
        combinations = math.prod(slot.count for slot in self.cube.slots)
        if not len(self.cube.reals) and combinations <= MOST_ENUMERATED:
            self.enumerate()
        else:
            self.rounds()
        if self.best.violation > 0:
            self.least_violating()
        if self.best.violation > 0 and explain:
            self.progress("which constraints conflict", 0.0)
            self.conflict = conflict_of(self)
        elif self.best.violation == 0 and len(self.cube.reals):
            self.refine()

    def rounds(self) -> None:
        """Rounds of evolution and descent, until several in a row have not improved the best design."""
        number, idle = self.resumed()
        while idle < UNIMPROVED and number < ROUNDS:
            evolution = self.population_of_round(number)
            number += 1
            improved = self.evolve(evolution, f"round {number}: evolution")
            if len(self.cube.relaxed):
                if self.slopes is None:  # no time for them: the population evolves until that is over
                    continue
                self.wait_for_slopes(self.slopes)
            if len(self.cube.reals):
                improved |= self.descend(evolution, f"round {number}: descent")
            if self.cube.relaxes:
                improved |= self.relax(f"round {number}: relaxation")
            if len(self.cube.slots):
                improved |= self.visit_neighbours(f"round {number}: neighbours")
            idle = 0 if improved else idle + 1
            self.save(number, idle)
        if len(self.cube.relaxed) and self.slopes is None:
            raise OutOfTime

    def answer(self, *, explain: bool = True) -> Codesign:
        """Runs the search; interrupted by Ctrl-C or out of time, the best design so far is the answer.

        Where no design satisfies every constraint, the answer is the least-violating one, and `explain` asks
        which constraints conflict. **Raises:** `ConfigError` for a checkpoint of another search.
        """
        stopped: Stopped = ""
        with jax.enable_x64(True):
            try:
                self.run(explain)
                if self.checkpoint is not None:
                    self.checkpoint.unlink(missing_ok=True)
            except OutOfTime:
                stopped = "out of time"
            except KeyboardInterrupt:
                stopped = "interrupted"
            if self.incumbent is None:
                points = self.cube.points(self.problem.vector.start[None])
                scores = self.scorer.exact(self.cube.designs(points), self.limits)
                self.keep_best_of(points, scores.ranking(self.goal))
            return self.result(stopped)

    def result(self, stopped: Stopped = "") -> Codesign:
        """The best design, evaluated exactly."""
        self.hold_what_has_no_effect()
        x, start = self.best.x, self.problem.vector.start
        seconds = time.monotonic() - self.began
        scores = self.scorer.exact(x[None], self.limits)
        return Codesign(
            problem=self.problem,
            x=x,
            outcome=self.scorer.outcome(jnp.asarray(x)),
            limits=np.array(self.limits),
            excess=scores.values[0, 1:],
            broken_rules=int(scores.broken[0]),
            multipliers=self.best.multipliers,
            stationarity=self.best.residual,
            conflict=self.conflict,
            trace=self.trace,
            evaluations=self.scorer.evaluations,
            stopped=stopped,
            steps=refused_steps(self.scorer, self.limits, x) if self.best.violation == 0 else (),
            remade=self.scorer.outcome(jnp.asarray(start)) if self.problem.vector.starts_as_sold else None,
            seconds=seconds,
        )
