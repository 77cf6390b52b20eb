"""The answer of a co-design search: the design, its report, what constrains it, what each limit is worth."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.layouts import broken_rule
from diffperf.explore.codesign.problem import Constraint, DesignProblem, Outcome, output_of
from diffperf.explore.codesign.refused_steps import Step
from diffperf.explore.codesign.variables import Candidate
from diffperf.report import tables

if TYPE_CHECKING:
    from diffperf.explore.codesign.conflict import Conflict

# What ended a search before it was through; empty where nothing did.
Stopped = Literal["", "interrupted", "out of time"]

# A constraint with a smaller multiplier does not hold the design back: 1 % of its limit changes the objective
# by 1e-5.
ACTIVE_MULTIPLIER = 1e-3


@dataclasses.dataclass(frozen=True)
class TracePoint:
    """One point of the convergence figure: the best design so far."""

    stage: str
    objective: float  # over the baseline's
    violation: float
    seconds: float  # since the search began


@dataclasses.dataclass(frozen=True)
class ConstraintRow:
    """One constraint at the design: its value, its excess and the worth of its limit.

    - `limit`: the limit that the design was found under, in the unit of the quantity.
    - `value`: of its quantity, in its unit; over uncertain inputs the one that the limit is judged by: the
      worst of the samples, their mean or a quantile.
    - `nominal`: of its quantity without uncertainty.
    - `excess`: how far the value lies beyond the limit, relative to it; the constraint holds where this is at
      most 0.
    - `multiplier`: per cent that the objective improves by where the limit relaxes by 1 %.
    - `percent`: per cent that the objective changes by, up or down, where the limit rises by 1 %.
    - `price`: the shadow price, in the unit of the objective for one unit of the limit.

    - `steps`: the next whole numbers of variables that would improve the design, but that the limit refuses,
      where its multiplier is nothing.

    The multiplier and what follows from it mean nothing at a design that is not feasible, or of a search that
    was stopped: they are None there.
    """

    constraint: Constraint
    limit: float
    value: float
    nominal: float
    excess: float
    multiplier: float | None
    percent: float | None
    price: float | None
    steps: tuple[Step, ...] = ()

    @property
    def sloped(self) -> bool:
        """Whether a little more of the limit improves the design."""
        return self.multiplier is not None and self.multiplier > ACTIVE_MULTIPLIER

    @property
    def active(self) -> bool:
        """Whether the constraint holds the design back."""
        return self.sloped or bool(self.steps)

    def as_dict(self) -> dict[str, Any]:
        """The row in internal units, for JSON."""
        return {
            "quantity": self.constraint.quantity,
            "limit": self.limit,
            "value": self.value,
            "nominal": self.nominal,
            "excess": self.excess,
            "multiplier": self.multiplier,
            "shadow_price": self.price,
            "steps": [
                {
                    "variable": step.variable.name,
                    "value": step.value,
                    "needs": list(step.needs.values()),
                    "gain": step.gain,
                }
                for step in self.steps
            ],
        }


@dataclasses.dataclass(frozen=True)
class VariableRow:
    """A variable's value in the baseline and in the design, as text with its unit."""

    path: str
    baseline: str
    design: str


@dataclasses.dataclass(frozen=True)
class Codesign:
    """The best design that a search came to.

    - `x`: the vector of its variables; `outcome` is its exact chip and report.
    - `limits`: that the search kept, one for each constraint; in a front one of them is not the problem's.
    - `excess`: of every constraint over its limit, at most 0 where the constraint holds exactly.
    - `broken_rules`: how many rules of layouts the design breaks.
    - `multipliers`: of every constraint, from the last polish.
    - `stationarity`: the largest slope of the Lagrangian, 0 at an optimum of the variables that are not
      whole.
    - `trace`: how the search converged; `evaluations` counts the estimates it took.
    - `stopped`: what ended the search before it was through, empty where nothing did; `seconds`: how long it
      took.
    - `conflict`: the constraints that no design satisfies together, where the search came to none.
    - `steps`: the next whole numbers of variables that would improve a feasible design, but for limits.
    - `remade`: what the baseline's own design comes to in the baseline's technology; None where the bounds of
      the variables leave it out.
    """

    problem: DesignProblem
    x: Float[np.ndarray, " n"]
    outcome: Outcome
    limits: Float[np.ndarray, " constraints"]
    excess: Float[np.ndarray, " constraints"]
    broken_rules: int
    multipliers: Float[np.ndarray, " constraints"]
    stationarity: float
    trace: list[TracePoint]
    evaluations: int
    stopped: Stopped
    seconds: float
    conflict: "Conflict | None" = None
    steps: tuple[Step, ...] = ()
    remade: Outcome | None = None

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds, and the layout obeys every rule."""
        return self.broken_rules == 0 and bool(np.all(self.excess <= 0))

    @property
    def priced(self) -> bool:
        """Whether the multipliers can be read as prices: not where the search was stopped before."""
        return self.feasible and (self.problem.all_whole or bool(np.isfinite(self.stationarity)))

    @functools.cached_property
    def design(self) -> Candidate:
        """The design with everything it was not free to change: its layout is `design.strategy`."""
        return self.problem.vector.candidate(jnp.asarray(self.x))

    @property
    def broken_rule(self) -> str:
        """The first rule of layouts that the design breaks, in words; empty where it breaks none."""
        broken = broken_rule(self.problem.vector, self.problem.phases, self.x) if self.broken_rules else None
        if broken is None:
            return ""
        number, violation = broken
        workload = self.problem.workloads[number]
        key = f"{workload.name}: {violation.key}" if self.relative else violation.key
        return f"{key} is {violation.found}, which has to be {violation.expected}"

    @property
    def relative(self) -> bool:
        """Whether the objective is a mean over several workloads, relative to the baseline."""
        return len(self.problem.workloads) > 1

    @functools.cached_property
    def objective(self) -> float:
        """The objective in its own unit; that of several workloads is relative to the baseline."""
        if not self.relative:
            return float(output_of(self.outcome, self.problem.objective))
        score, _ = self.problem.score(self.outcome, jnp.asarray(self.problem.limits))
        return float(jnp.exp(self.problem.sense * score))

    @property
    def objective_unit(self) -> str:
        """The unit of the objective; empty where it is relative to the baseline's."""
        return "" if self.relative else self.problem.objective_declared.unit

    @property
    def baseline_objective(self) -> float:
        """The objective of the baseline, like that of the design."""
        return (
            1.0 if self.relative else float(output_of(self.problem.baseline_outcome, self.problem.objective))
        )

    def shadow_price(self, index: int) -> float:
        """d objective / d limit of a constraint, in the objective's unit per unit of the limit.

        The multiplier λ belongs to ±log(objective) and ±(value/limit − 1), so a minimized objective changes
        by −λ · objective / limit per unit of an upper limit (per unit of slack where the limit is zero).
        """
        return self.signed_multiplier(index) * self.objective / (float(self.limits[index]) or 1.0)

    def signed_multiplier(self, index: int) -> float:
        """d log(objective) / d log(limit) of a constraint (d limit where the limit is zero)."""
        signs = self.problem.sense * self.problem.constraints[index].sense
        return float(-self.multipliers[index] * signs)

    def constraints(self) -> list[ConstraintRow]:
        """A row for each constraint."""
        return [
            ConstraintRow(
                constraint=constraint,
                limit=float(self.limits[index]),
                value=self._judged_value(index),
                nominal=self._nominal_value(index),
                excess=float(self.excess[index]),
                multiplier=float(self.multipliers[index]) if self.priced else None,
                percent=self.signed_multiplier(index) if self.priced else None,
                price=self.shadow_price(index) if self.priced else None,
                steps=tuple(step for step in self.unpriced_steps if index in step.needs),
            )
            for index, constraint in enumerate(self.problem.constraints)
        ]

    def _nominal_value(self, index: int) -> float:
        """The quantity of a constraint where no input is uncertain."""
        return float(self.problem.value(self.outcome, self.problem.constraints[index].quantity))

    def _judged_value(self, index: int) -> float:
        """The quantity of a constraint as its excess measures it, over all samples of what is uncertain."""
        if self.problem.uncertainty is None:
            return self._nominal_value(index)
        excess, limit = float(self.excess[index]), float(self.limits[index])
        return self.problem.constraints[index].value_of(excess, limit)

    @functools.cached_property
    def unpriced_steps(self) -> list[Step]:
        """The steps that only limits without a shadow price refuse."""
        if not self.priced:
            return []
        sloped = {index for index, price in enumerate(self.multipliers) if price > ACTIVE_MULTIPLIER}
        return [step for step in self.steps if not sloped & step.needs.keys()]

    def variables(self) -> list[VariableRow]:
        """A row for each variable."""
        vector = self.problem.vector

        return [
            VariableRow(
                variable.name,
                variable.shown_in(vector.baseline),
                tables.show(vector.value(self.x, begin, variable), variable.declared),
            )
            for begin, variable in vector.placed()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything, in internal units, for JSON."""
        uncertainty = self.problem.uncertainty
        return {
            "problem": self.problem.name,
            "feasible": self.feasible,
            "judged_by": None if uncertainty is None else uncertainty.as_dict(),
            "stopped": self.stopped,
            "objective": {
                "name": self.problem.objective,
                "baseline": self.baseline_objective,
                "design": self.objective,
            },
            "variables": {
                row.path: {"baseline": row.baseline, "design": row.design} for row in self.variables()
            },
            "x": self.x.tolist(),
            "strategy": tables.as_dict(self.design.strategy),
            "constraints": [row.as_dict() for row in self.constraints()],
            "stationarity": self.stationarity,
            "evaluations": self.evaluations,
            "chip": tables.as_dict(self.outcome.chip),
            "report": tables.as_dict(self.outcome.report),
            "baseline_report": tables.as_dict(self.problem.baseline_outcome.report),
            "beside": {name: tables.as_dict(report) for name, report in self.outcome.beside.items()},
        }
