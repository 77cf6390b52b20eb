"""Which chip and package to build: gradient-based co-design of a study.

1. Relaxed: all variables real, many starts, sharpness annealed (`lagrangian`).
2. Whole: integers and choices are held at values around the best starts (`rounding`) and the rest is polished again, for many
   combinations at once; then each is moved over its whole range, and the neighbourhood searched, until nothing improves.
3. Exact: what is reported is evaluated without relaxation, and satisfies every constraint as stated.

Shadow prices are the multipliers of the last polish: what the objective gains per unit of each limit, integers held.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.explore.codesign.lagrangian import Fixed, Schedule, Solver, State
from diffperf.explore.codesign.problem import Constraint, Outcome, Study, output_of
from diffperf.explore.codesign.rounding import Combination, hold, ladder, neighbours, slots
from diffperf.quantity import Choice
from diffperf.relax import Exact, Smooth
from diffperf.report import tables

# Constraints are solved for with this much room, so that what the solver leaves over still satisfies them exactly.
MARGIN = 2e-5
# A p-norm maximum of ten terms is then within 0.23 % of exact.
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

Progress = Callable[[str, float], None]  # (what is going on, fraction done)


@dataclasses.dataclass(frozen=True)
class Trace:
    """One point of the convergence figure: the best of all starts after an outer iteration."""

    stage: str
    objective: float  # over the baseline's
    violation: float


@dataclasses.dataclass(frozen=True)
class Codesign:
    """What a search found."""

    study: Study
    x: np.ndarray
    outcome: Outcome
    excess: np.ndarray  # g of the exact evaluation of each constraint: it holds where ≤ 0
    multipliers: np.ndarray
    stationarity: float
    trace: list[Trace]
    evaluations: int
    interrupted: bool

    @property
    def feasible(self) -> bool:
        return bool(np.all(self.excess <= 0))

    @property
    def objective(self) -> float:
        """The objective in its own unit."""
        return float(output_of(self.outcome, self.study.objective))

    @property
    def objective_unit(self) -> str:
        return self.study.objective_declared.unit

    @property
    def baseline_objective(self) -> float:
        return float(output_of(self.study.baseline_outcome, self.study.objective))

    def shadow_price(self, index: int) -> float:
        """d objective / d limit of a constraint, in the objective's unit per unit of the limit.

        The multiplier λ belongs to ±log(objective) and ±(value/limit − 1), so a minimized objective changes by −λ · objective
        / limit per unit of an upper limit (per unit of slack where the limit is zero).
        """
        constraint = self.study.constraints[index]
        signs = self.study.sense * constraint.sense
        return float(-self.multipliers[index] * signs * self.objective / (constraint.limit or 1.0))

    def variables(self) -> list[tuple[str, str, str]]:
        """(path, baseline, design) of every variable, as text."""
        rows, begin = [], 0
        for variable in self.study.variables:
            part = slice(begin, begin + variable.size) if isinstance(variable.declared, Choice) else begin
            rows.append(
                (
                    variable.path,
                    *(tables.show(x[part], variable.declared) for x in (self.study.start, self.x)),
                )
            )
            begin += variable.size
        return rows

    def constraints(self) -> list[tuple[Constraint, float, float, float]]:
        """(constraint, value, multiplier, shadow price) of each."""
        values = [float(output_of(self.outcome, c.quantity)) for c in self.study.constraints]
        prices = map(self.shadow_price, range(len(values)))
        return list(zip(self.study.constraints, values, map(float, self.multipliers), prices, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Everything, in internal units, for JSON."""
        return {
            "study": self.study.name,
            "feasible": self.feasible,
            "interrupted": self.interrupted,
            "objective": {
                "name": self.study.objective,
                "baseline": self.baseline_objective,
                "design": self.objective,
            },
            "variables": {path: {"baseline": was, "design": now} for path, was, now in self.variables()},
            "x": self.x.tolist(),
            "constraints": [
                {
                    "quantity": c.quantity,
                    "limit": c.limit,
                    "value": v,
                    "excess": float(g),
                    "multiplier": m,
                    "shadow_price": p,
                }
                for (c, v, m, p), g in zip(self.constraints(), self.excess, strict=True)
            ],
            "stationarity": self.stationarity,
            "evaluations": self.evaluations,
            "chip": tables.as_dict(self.outcome.chip),
            "report": tables.as_dict(self.outcome.report),
            "baseline_report": tables.as_dict(self.study.baseline_outcome.report),
        }


class Search:
    """The search for one study; compiled once, it may run again for other limits or with integers held."""

    def __init__(
        self, study: Study, starts: int = STARTS, seed: int = 0, progress: Progress = lambda *_: None
    ):
        self.study, self.starts, self.progress = study, starts, progress
        self.random = np.random.default_rng(seed)
        self.limits = study.limits
        self.bounds = study.bounds
        self.solver = Solver(self._smooth, self.bounds, ANNEAL.inner)
        self.exact = jax.jit(jax.vmap(self._exact, in_axes=(0, None)))
        self.trace: list[Trace] = []
        self.evaluations = 0
        self.latest: State | None = None
        self.best: tuple[tuple[float, float], np.ndarray, np.ndarray] | None = None  # (key, x, multipliers)

    def _smooth(self, x, sharpness, limits):
        objective, excess = self.study.score(self.study.outcome(x, Smooth(sharpness)), limits)
        return objective, excess + MARGIN

    def _exact(self, x, limits):
        return self.study.score(self.study.outcome(x, Exact()), limits)

    def initial(self) -> State:
        """The baseline, and a Latin hypercube over the bounds."""
        shape = (self.starts, len(self.study.start))
        share = self.random.permuted(
            (np.arange(self.starts)[:, None] + self.random.random(shape)) / self.starts, axis=0
        )
        z = np.log(share) - np.log1p(-share)
        z[0] = np.asarray(self.bounds.encode(jnp.asarray(self.study.start)))
        return State(jnp.asarray(z), jnp.zeros((self.starts, len(self.study.constraints))))

    def free(self) -> Fixed:
        return hold([{}], len(self.study.start), self.starts)

    def solve(
        self, state: State, fixed: Fixed, schedule: Schedule, stage: str, weight: float = 1.0
    ) -> tuple[State, np.ndarray]:
        """Runs a schedule; returns the final state and its x."""
        done = 0

        def watch(state, objectives, excess):
            nonlocal done
            done += 1
            self.latest = state
            self.evaluations += self.starts * schedule.inner
            violation = np.maximum(excess - MARGIN, 0).max(axis=1)
            close = violation <= max(violation.min(), 1e-3)
            self.trace.append(Trace(stage, float(np.exp(objectives[close].min())), float(violation.min())))
            self.progress(stage, done / schedule.outer)

        state = self.solver.solve(state, fixed, jnp.asarray(self.limits), schedule, weight, watch)
        return state, np.asarray(fixed.apply(jax.vmap(self.bounds.decode)(state.z)))

    def rank(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(order, violation, objective) of designs by exact evaluation: the least violating first, then the best."""
        objective, excess = (np.asarray(v) for v in self.exact(jnp.asarray(x), jnp.asarray(self.limits)))
        violation = np.linalg.norm(np.maximum(excess, 0), axis=1)
        self.evaluations += len(x)
        return np.lexsort((objective, violation)), violation, objective

    def keep(self, x: np.ndarray, multipliers: np.ndarray) -> bool:
        """Remembers the best of some whole designs; whether it improved on the one before."""
        order, violation, objective = self.rank(x)
        key = (float(violation[order[0]]), float(objective[order[0]]))
        if self.best is not None and key >= (self.best[0][0], self.best[0][1] - 1e-7):
            return False
        self.best = (key, x[order[0]].copy(), multipliers[order[0]].copy())
        return True

    def polish(
        self,
        chosen: list[Combination],
        x: np.ndarray,
        multipliers: np.ndarray,
        stage: str,
        weight: float = 1.0,
        schedule: Schedule = POLISH,
    ) -> bool:
        """Polishes from (x, multipliers) with each combination held (one row each, or one for all); whether the best improved."""
        rows = [min(i, len(x) - 1) if i < len(chosen) else 0 for i in range(self.starts)]
        z = jax.vmap(self.bounds.encode)(jnp.asarray(x))[np.array(rows)]
        state = State(z, jnp.asarray(multipliers)[np.array(rows)])
        state, x = self.solve(state, hold(chosen, x.shape[1], self.starts), schedule, stage, weight)
        return self.keep(x, np.asarray(state.multipliers))

    def round(
        self, x: np.ndarray, multipliers: np.ndarray, reach: int, stage: str, weight: float = 1.0
    ) -> bool:
        """Polishes whole designs around some designs x; whether the best improved."""
        chosen = neighbours(list(x), self.study.variables, reach, self.starts)
        of = np.array([index for index, _ in chosen])
        return self.polish([combination for _, combination in chosen], x[of], multipliers[of], stage, weight)

    def run(self, weight: float = 1.0) -> None:
        """Relaxed search, then whole designs, until moving one variable or searching the neighbourhood finds none better."""
        variables = self.study.variables
        state, x = self.solve(self.initial(), self.free(), ANNEAL, "relaxed", weight)
        order, *_ = self.rank(x)
        good, multipliers = x[order[:CENTRES]], np.asarray(state.multipliers)[order[:CENTRES]]
        if not slots(variables):
            self.polish([{}] * len(good), good, multipliers, "polish", weight)
            self.refine(weight)
            return
        self.round(good, multipliers, 2, "whole numbers", weight)
        for number in range(1, ROUNDS + 1):
            improved = False
            for slot, (_, variable) in enumerate(slots(variables)):
                _, x, multipliers = self.best
                stage = f"round {number}: {variable.path}"
                improved |= self.polish(
                    ladder(x, variables, slot, self.starts), x[None], multipliers[None], stage, weight
                )
            _, x, multipliers = self.best
            improved |= self.round(
                x[None], multipliers[None], 1 + number % 3, f"round {number}: neighbourhood", weight
            )
            if not improved:
                break
        self.refine(weight)

    def refine(self, weight: float = 1.0) -> None:
        """Polishes the best once more, its whole numbers held, until its multipliers can be read as prices."""
        (violation, objective), x, multipliers = self.best
        held = {begin: x[begin : begin + variable.size] for begin, variable in slots(self.study.variables)}
        # The multipliers improve even where the objective no longer does: equal designs give way to the refined one.
        self.best = ((violation, objective + 1e-6), x, multipliers)
        self.polish([held], x[None], multipliers[None], "refine", weight, REFINE)

    def salvage(self) -> None:
        """After an interruption before any whole design: the latest starts with their integers rounded down and up."""
        state = self.latest or self.initial()
        x = np.asarray(jax.vmap(self.bounds.decode)(state.z))
        for way in (np.floor, np.ceil):
            whole = x.copy()
            for begin, variable in slots(self.study.variables):
                part = slice(begin, begin + variable.size)
                if isinstance(variable.declared, Choice):
                    whole[:, part] = np.eye(variable.size)[x[:, part].argmax(axis=1)]
                else:
                    whole[:, part] = np.clip(way(x[:, part]), np.ceil(variable.low), np.floor(variable.high))
            self.keep(whole, np.asarray(state.multipliers))

    def result(self, interrupted: bool) -> Codesign:
        """The best design, evaluated exactly."""
        _, x, multipliers = self.best
        outcome = jax.jit(lambda x: self.study.outcome(x, Exact()))(jnp.asarray(x))
        _, excess = self.study.score(outcome, jnp.asarray(self.limits))
        combination = {begin: x[begin : begin + v.size] for begin, v in slots(self.study.variables)}
        fixed = hold([combination], len(x), 1)
        at_best = State(self.bounds.encode(jnp.asarray(x))[None], jnp.asarray(multipliers)[None])
        slope = self.solver.stationarity(at_best, fixed, jnp.asarray(self.limits), FINAL_SHARPNESS)
        return Codesign(
            self.study,
            x,
            outcome,
            np.asarray(excess),
            multipliers,
            float(slope[0]),
            self.trace,
            self.evaluations,
            interrupted,
        )


def codesign(
    study: Study, *, starts: int = STARTS, seed: int = 0, progress: Progress = lambda *_: None
) -> Codesign:
    """The best design of a study. Interrupted by Ctrl-C, the best so far.

    **Arguments:**

    - `starts`: points of the multi-start, and combinations of integers tried at once.
    - `seed`: of the starting points; the result is deterministic in it.
    - `progress`: called with a word on what is going on and the fraction done.

    **Returns:** a `Codesign`; where no design satisfies every constraint, the least-violating one (`feasible` is False).
    """
    with jax.enable_x64(True):
        search = Search(study, starts, seed, progress)
        interrupted = False
        try:
            search.run()
            if search.best[0][0] > 0:
                # Nothing satisfies every constraint: forget the objective and find what violates them least.
                search.run(weight=0.0)
        except KeyboardInterrupt:
            interrupted = True
            if search.best is None:
                search.salvage()
        return search.result(interrupted)
