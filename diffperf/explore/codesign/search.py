"""Which chip and package to build: gradient-based search for the best design of a problem.

1. Relaxed: all variables real, but for the layout on devices, of which every start holds a possible one; many
   starts, sharpness annealed (`lagrangian`).
2. Whole: whole numbers, choices and layouts are held at values around the best starts (`rounding`) and the
   rest is polished again, for many combinations at once; then each is moved over its whole range, and the
   neighbourhood searched, until nothing improves.
3. Exact: what is reported is evaluated without relaxation, and satisfies every constraint as stated.

Shadow prices are the multipliers of the last polish: what the objective gains per unit of each limit, whole
numbers held.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.lagrangian import Fixed, Schedule, Solver, State
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.result import Codesign, TracePoint
from diffperf.explore.codesign.rounding import (
    Combination,
    LayoutSlot,
    Slot,
    held,
    hold,
    ladder,
    neighbours,
    slots,
)
from diffperf.explore.codesign.scoring import MARGIN, Ranking, Scorer

# A smooth maximum of ten terms is then within 0.28 % of exact.
FINAL_SHARPNESS = 1000.0
ANNEAL = Schedule(outer=25, inner=80, sharpness=(5.0, 300.0))
# Rounded designs start far off their constraints' prices, which a stiff penalty finds quickly.
POLISH = Schedule(
    outer=20, inner=80, sharpness=(300.0, FINAL_SHARPNESS), penalty=(100.0, 5000.0), step=(0.05, 1e-5)
)
REFINE = Schedule(
    outer=30,
    inner=80,
    sharpness=(FINAL_SHARPNESS, FINAL_SHARPNESS),
    penalty=(100.0, 2000.0),
    step=(0.02, 2e-6),
)
STARTS = 64
CENTRES = 8  # relaxed designs that are rounded
ROUNDS = 6  # neighbourhoods searched at most
EXACT_TRIED = 1024  # combinations tried at once where no variable is left to descend on
# Where every start of the relaxed search violates by more than this share, the problem looks infeasible.
HOPELESS = 0.05
# Designs whose log objectives differ by less are equal.
EQUAL = 1e-7
# The objective gives way by this much to the multipliers of a refined design.
REFINED = 1e-6

Progress = Callable[[str, float], None]  # (what is going on, fraction done)


def _silent(stage: str, done: float) -> None:
    """Reports no progress."""


@dataclasses.dataclass(frozen=True)
class Incumbent:
    """The best whole design so far: its exact violation and objective, its variables, and its multipliers."""

    violation: float
    objective: float
    x: Float[np.ndarray, " n"]
    multipliers: Float[np.ndarray, " constraints"]

    def better_than(self, other: "Incumbent | None") -> bool:
        """Whether it violates less, or as much with a better objective."""
        if other is None:
            return True
        return (self.violation, self.objective) < (other.violation, other.objective - EQUAL)


@dataclasses.dataclass(frozen=True)
class Designs:
    """Designs to go on from, and their multipliers."""

    x: Float[np.ndarray, "designs n"]
    multipliers: Float[np.ndarray, "designs constraints"]

    def __len__(self):
        return len(self.x)

    def take(self, rows: np.ndarray) -> "Designs":
        return Designs(self.x[rows], self.multipliers[rows])


class Search:
    """The search for the best design of one problem, with one compiled program for all its stages."""

    def __init__(
        self, problem: DesignProblem, *, starts: int = STARTS, seed: int = 0, progress: Progress = _silent
    ):
        self.problem, self.starts, self.seed, self.progress = problem, starts, seed, progress
        self.bounds, self.baseline = problem.bounds, problem.vector.start
        self.slots = slots(problem)
        self.all_whole = all(variable.whole for variable in problem.variables)
        self.tried = max(starts, EXACT_TRIED) if self.all_whole else starts
        self.scorer = Scorer(problem, block=starts)
        self.solver = Solver(self.scorer.smooth, self.bounds, ANNEAL.inner)
        self.reset(problem.limits)

    def reset(self, limits: Float[np.ndarray, " constraints"]) -> None:
        """Forgets everything but the compiled programs, to search again under other limits."""
        self.limits = limits
        self.random = np.random.default_rng(self.seed)
        self.evaluations = 0  # estimates so far, smooth and exact
        self.trace: list[TracePoint] = []
        self.latest: State | None = None
        self.incumbent: Incumbent | None = None

    @property
    def best(self) -> Incumbent:
        """The best whole design so far. Raises `RuntimeError` before there is any."""
        if self.incumbent is None:
            raise RuntimeError("the search has not come to a whole design yet")
        return self.incumbent

    @property
    def best_as_designs(self) -> Designs:
        return Designs(self.best.x[None], self.best.multipliers[None])

    def rank(self, x: Float[np.ndarray, "designs n"]) -> Ranking:
        """Exact scores of some designs."""
        self.evaluations += len(x)
        return self.scorer.rank(x, self.limits)

    # --- where to start

    def initial(self) -> State:
        """The baseline, and a Latin hypercube over the bounds."""
        shape = (self.starts, len(self.baseline))
        share = self.random.permuted(
            (np.arange(self.starts)[:, None] + self.random.random(shape)) / self.starts, axis=0
        )
        z = np.log(share) - np.log1p(-share)
        z[0] = np.asarray(self.bounds.encode(jnp.asarray(self.baseline)))
        return State(jnp.asarray(z), jnp.zeros((self.starts, len(self.limits))))

    def held_layouts(self) -> list[Combination]:
        """A possible layout for each start.

        Of more layouts than starts, half are the best with the baseline's hardware, half are others.
        """
        if self.problem.layouts is None:
            return [{}]
        rungs = LayoutSlot(self.problem.layouts).rungs(self.starts)
        if len(rungs) <= self.starts:
            return [rungs[start % len(rungs)] for start in range(self.starts)]
        order = self.rank(self.problem.layouts.applied(self.baseline)).order
        best = order[: self.starts // 2]
        others = np.linspace(len(best), len(order) - 1, self.starts - len(best)).astype(int)
        return [rungs[number] for number in [*best, *order[others]]]

    # --- one descent

    def solve(
        self, state: State, fixed: Fixed, schedule: Schedule, stage: str, weight: float = 1.0
    ) -> Designs:
        """Runs a schedule from a state, and records how the best of all starts goes."""
        done = 0

        def watch(state: State, objectives: np.ndarray, excess: np.ndarray) -> None:
            nonlocal done
            done += 1
            self.latest = state
            self.evaluations += self.starts * schedule.inner
            violation = np.maximum(excess - MARGIN, 0).max(axis=1)
            close = violation <= max(violation.min(), 1e-3)
            objective = float(np.exp(objectives[close].min()))
            self.trace.append(TracePoint(stage, objective, float(violation.min())))
            self.progress(stage, done / schedule.outer)

        limits = jnp.asarray(self.limits)
        state = self.solver.solve(state, fixed, limits, schedule, weight=weight, watch=watch)
        x = np.asarray(fixed.apply(jax.vmap(self.bounds.decode)(state.z)))
        return Designs(x, np.asarray(state.multipliers))

    def polish(
        self,
        chosen: list[Combination],
        designs: Designs,
        stage: str,
        *,
        weight: float = 1.0,
        schedule: Schedule = POLISH,
    ) -> bool:
        """Descends from some designs, each with a combination held; whether the best design improved.

        Combinations without a design of their own start from the last one.
        """
        if self.all_whole:
            return self.keep_whole(chosen, stage)
        row = [min(start, len(designs) - 1) if start < len(chosen) else 0 for start in range(self.starts)]
        z = jax.vmap(self.bounds.encode)(jnp.asarray(designs.x))[np.array(row)]
        state = State(z, jnp.asarray(designs.multipliers)[np.array(row)])
        fixed = hold(chosen, len(self.baseline), self.starts)
        return self.keep(self.solve(state, fixed, schedule, stage, weight))

    def keep_whole(self, chosen: list[Combination], stage: str) -> bool:
        """Remembers the best of combinations that leave nothing to descend on, where no limit has a price."""
        x = np.asarray(hold(chosen, len(self.baseline), len(chosen)).values)
        improved = self.keep(Designs(x, np.zeros((len(x), len(self.limits)))))
        self.progress(stage, 1.0)
        return improved

    def keep(self, designs: Designs) -> bool:
        """Remembers the best of some whole designs; whether it improved on the incumbent."""
        ranking = self.rank(designs.x)
        first = ranking.order[0]
        challenger = Incumbent(
            violation=float(ranking.violation[first]),
            objective=float(ranking.objective[first]),
            x=designs.x[first].copy(),
            multipliers=designs.multipliers[first].copy(),
        )
        improved = challenger.better_than(self.incumbent)
        if improved:
            self.incumbent = challenger
        return improved

    # --- from relaxed to whole

    def relaxed(self, weight: float = 1.0) -> Designs:
        """The best designs of the relaxed search, best first; a weight of 0 looks for the least violation."""
        fixed = hold(self.held_layouts(), len(self.baseline), self.starts)
        designs = self.solve(self.initial(), fixed, ANNEAL, "relaxed", weight)
        return designs.take(self.rank(designs.x).order[:CENTRES])

    def round(self, designs: Designs, reach: int, stage: str, weight: float = 1.0) -> bool:
        """Polishes whole designs around some designs; whether the best improved."""
        chosen = neighbours(list(designs.x), self.slots, reach, self.tried)
        centres = designs.take(np.array([neighbour.centre for neighbour in chosen]))
        combinations = [neighbour.combination for neighbour in chosen]
        return self.polish(combinations, centres, stage, weight=weight)

    def climb(self, slot: Slot, stage: str, weight: float = 1.0) -> bool:
        """Moves a slot of the best design over its range and polishes each; whether the best improved."""
        rungs = ladder(self.best.x, self.slots, slot, self.tried)
        if len(rungs) > self.starts and not self.all_whole:
            fixed = hold(rungs, len(self.baseline), len(rungs))
            order = self.rank(np.asarray(fixed.apply(jnp.asarray(self.best.x)))).order
            rungs = [rungs[number] for number in order[: self.starts]]
        return self.polish(rungs, self.best_as_designs, stage, weight=weight)

    def settle(self, designs: Designs, weight: float = 1.0) -> None:
        """From relaxed designs to the best whole one: until no climb and no neighbour improves on it."""
        if not self.slots:
            self.polish([{}] * len(designs), designs, "polish", weight=weight)
        else:
            self.round(designs, 2, "whole numbers", weight)
            for number in range(1, ROUNDS + 1):
                if not self.improve(number, weight) or (weight == 0 and self.best.violation == 0):
                    break
        self.refine(weight)

    def improve(self, number: int, weight: float) -> bool:
        """One round: a climb of every slot, then the neighbours; whether the best design improved."""
        improved = False
        for slot in self.slots:
            improved |= self.climb(slot, f"round {number}: {slot.name}", weight)
        reach = 1 + number % 3
        return improved | self.round(self.best_as_designs, reach, f"round {number}: neighbourhood", weight)

    def refine(self, weight: float = 1.0) -> None:
        """Polishes the best once more, whole numbers held, until its multipliers can be read as prices."""
        designs, combination = self.best_as_designs, held(self.best.x, self.slots)
        # The multipliers improve even where the objective no longer does: the refined one of equals is kept.
        self.incumbent = dataclasses.replace(self.best, objective=self.best.objective + REFINED)
        self.polish([combination], designs, "refine", weight=weight, schedule=REFINE)

    def run(self) -> None:
        """The whole search; where nothing satisfies every constraint, for what violates them least."""
        designs = self.relaxed()
        if self.rank(designs.x).violation.min() <= HOPELESS:
            self.settle(designs)
            if self.best.violation == 0:
                return
        self.settle(self.relaxed(weight=0.0), weight=0.0)
        if self.best.violation == 0:
            self.settle(designs)

    def salvage(self) -> None:
        """After an interruption before any whole design: the latest starts, rounded down and up."""
        state = self.latest or self.initial()
        x = np.asarray(jax.vmap(self.bounds.decode)(state.z))
        for end in (0, -1):
            whole = x.copy()
            for row in whole:
                for slot in self.slots:
                    beside = sorted(slot.near(row, 0), key=lambda combination: tuple(combination.values()))
                    for index, value in beside[end].items():
                        row[index] = value
            self.keep(Designs(whole, np.asarray(state.multipliers)))

    def answer(self) -> Codesign:
        """Runs the search; interrupted by Ctrl-C, the best design so far is the answer."""
        interrupted = False
        with jax.enable_x64(True):
            try:
                self.run()
            except KeyboardInterrupt:
                interrupted = True
                if self.incumbent is None:
                    self.salvage()
            return self.result(interrupted)

    def residual(self) -> float:
        """The largest slope of the Lagrangian at the best design, whole variables held: 0 at an optimum."""
        if self.all_whole:
            return 0.0
        fixed = hold([held(self.best.x, self.slots)], len(self.baseline), 1)
        z = self.bounds.encode(jnp.asarray(self.best.x))[None]
        state = State(z, jnp.asarray(self.best.multipliers)[None])
        return float(self.solver.stationarity(state, fixed, jnp.asarray(self.limits), FINAL_SHARPNESS)[0])

    def result(self, interrupted: bool) -> Codesign:
        """The best design, evaluated exactly."""
        x = self.best.x
        outcome = self.scorer.exact_outcome(jnp.asarray(x))
        _, excess = self.problem.score(outcome, jnp.asarray(self.limits))
        return Codesign(
            problem=self.problem,
            x=x,
            outcome=outcome,
            excess=np.asarray(excess),
            broken_rules=int(self.problem.broken_rules(jnp.asarray(x))),
            multipliers=self.best.multipliers,
            stationarity=self.residual(),
            trace=self.trace,
            evaluations=self.evaluations,
            interrupted=interrupted,
        )


def codesign(
    problem: DesignProblem, *, starts: int = STARTS, seed: int = 0, progress: Progress = _silent
) -> Codesign:
    """The best design of a problem. Interrupted by Ctrl-C, the best so far.

    **Arguments:**

    - `starts`: points of the multi-start, and combinations of whole numbers tried at once.
    - `seed`: of the starting points; the result is deterministic in it.
    - `progress`: called with a word on what is going on and the fraction done.

    **Returns:** a `Codesign`; where no design satisfies every constraint, the least-violating one (`feasible`
    is False).
    """
    return Search(problem, starts=starts, seed=seed, progress=progress).answer()
