"""A design problem: which numbers may change, what to optimize, what must hold; all pure functions."""

import dataclasses
import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf import units
from diffperf.compiler import digest_of
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.layouts import Layouts, broken_rules
from diffperf.explore.codesign.variables import Bounds, Candidate, DesignVector, Variable
from diffperf.hardware.chip import Chip, chip, system_of
from diffperf.quantity import Quantity, locate
from diffperf.relax import Relaxation
from diffperf.workload.configuration import Configuration


class Outcome(eqx.Module):
    """What a candidate comes to: the chip, and the report of the phase on a system built of that chip."""

    chip: Chip
    report: eqx.Module


@dataclasses.dataclass(frozen=True)
class Constraint:
    """`sense` · quantity ≤ `sense` · limit, with sense 1 for "at most" and −1 for "at least"."""

    quantity: str
    declared: Quantity
    sense: int
    limit: float

    @property
    def relation(self) -> str:
        return "≤" if self.sense > 0 else "≥"

    def __str__(self):
        return f"{self.quantity} {self.relation} {units.show(self.limit, self.declared.unit)}"

    def excess(self, value: Array, limit: Array) -> Array:
        """How far a value lies beyond the limit, at most 0 where the constraint holds.

        The excess is relative to the limit, and absolute for a limit of zero, which only relative quantities
        have.
        """
        absolute = self.limit == 0
        return self.sense * (value - limit if absolute else value / limit - 1)


@dataclasses.dataclass(frozen=True)
class DesignProblem:
    """A loaded design problem; every array is float64.

    - `vector`: the variables, and the baseline that they change.
    - `objective`: the output to optimize, by path; `sense` is 1 to minimize it and −1 to maximize it.
    - `layouts`: the possible values of those variables that lay the model out on devices, None where none do.
    """

    name: str
    vector: DesignVector
    baseline_outcome: Outcome
    phase: str
    objective: str
    objective_declared: Quantity
    sense: int
    constraints: tuple[Constraint, ...]
    layouts: Layouts | None

    @property
    def baseline(self) -> Candidate:
        return self.vector.baseline

    @property
    def variables(self) -> tuple[Variable, ...]:
        return self.vector.variables

    @property
    def all_whole(self) -> bool:
        """Whether no variable is a real number."""
        return all(variable.whole for variable in self.variables)

    @property
    def bounds(self) -> Bounds:
        return self.vector.bounds

    @property
    def limits(self) -> Float[np.ndarray, " constraints"]:
        """The limit of every constraint, in the unit of its quantity."""
        return np.array([constraint.limit for constraint in self.constraints])

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the problem but for its limits: equal for problems whose programs are equal."""
        asked = (
            self.phase,
            self.objective,
            self.sense,
            [(c.quantity, c.sense, c.limit == 0) for c in self.constraints],
        )
        searched = (self.variables, self.vector.derives_dp, len(self.vector.nodes))
        return digest_of(
            repr(asked), repr(searched), self.baseline, *self.vector.nodes, self.baseline_outcome
        )

    def outcome(self, x: Float[Array, " n"], relax: Relaxation) -> Outcome:
        """Chip and report of a vector of variables; pure JAX."""
        candidate = self.vector.candidate(x)
        system = system_of(candidate.design, candidate.technology, candidate.system)
        made = chip(candidate.design, candidate.technology, candidate.system.accelerator)
        configuration = Configuration(candidate.model, system, candidate.strategy, relax)
        return Outcome(made, estimate(configuration, self.phase))

    def score(self, outcome: Outcome, limits: Float[Array, " constraints"]) -> tuple[Array, Array]:
        """(f, g): `sense` · log of the objective over the baseline's, and the excess of every constraint."""
        base = output_of(self.baseline_outcome, self.objective)
        objective = self.sense * jnp.log(output_of(outcome, self.objective) / base)
        excess = [
            constraint.excess(output_of(outcome, constraint.quantity), limits[index])
            for index, constraint in enumerate(self.constraints)
        ]
        return objective, jnp.stack(excess)

    def broken_rules(self, x: Float[Array, " n"]) -> Array:
        """How many rules of layouts (`diffperf.workload.rules`) a vector of variables breaks; pure JAX."""
        return broken_rules(self.vector, self.phase, x)


def output_of(outcome: Outcome, path: str) -> Array:
    """An output of the chip (`chip.power`) or of the report (`time`, or `report.time`) by path."""
    full = path if path.startswith(("chip.", "report.")) else f"report.{path}"
    return locate(outcome, full)[0]
