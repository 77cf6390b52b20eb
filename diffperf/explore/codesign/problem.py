"""A design problem: which numbers may change, what to optimize, what must hold; all pure functions."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf import units
from diffperf.compiler import digest_of
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.alike_workloads import of_each
from diffperf.explore.codesign.layouts import Layouts
from diffperf.explore.codesign.variables import Bounds, Candidate, DesignVector, Variable
from diffperf.hardware.chip import Chip, chip
from diffperf.hardware.designed_accelerator import system_of
from diffperf.quantity import Quantity, locate, replace
from diffperf.relax import Relaxation
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import broken


class Outcome(eqx.Module):
    """Reports of a candidate's workloads on a system built of its chip.

    - `report`: of the first workload; `beside`: of the others, by their names.
    """

    chip: Chip
    report: eqx.Module
    beside: dict[str, eqx.Module] = eqx.field(default_factory=dict)

    def reports(self, first: str) -> dict[str, eqx.Module]:
        """The reports of all workloads by name; `first` is the name of the first."""
        return {first: self.report, **self.beside}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One workload of a problem: the phase to estimate, and its share of the baseline's time."""

    name: str
    phase: str
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """Inputs that are not known exactly, and how a design is judged over what they may be.

    - `paths`: the inputs; `factors`: what each is multiplied by, in every sample, within its bounds.
    - `measure`: the mean of every score over the samples, its worst value, or a `quantile` of it.
    """

    paths: tuple[str, ...]
    factors: Float[np.ndarray, "samples paths"]
    measure: str
    quantile: float

    def judged(self, scores: Float[Array, "samples outputs"], relax: Relaxation) -> Float[Array, " outputs"]:
        """One score of each, for which less is better, from those of all samples."""
        if self.measure == "mean":
            return jnp.mean(scores, axis=0)
        if self.measure == "quantile":
            return jnp.quantile(scores, self.quantile, axis=0)
        # The smooth maximum is one of numbers ≥ 0.
        least = jax.lax.stop_gradient(jnp.min(scores, axis=0))
        return least + relax.reduce_maximum(scores - least)

    def as_dict(self) -> dict[str, Any]:
        """How a design is judged, for JSON."""
        quantile = {"quantile": self.quantile} if self.measure == "quantile" else {}
        return {"measure": self.measure, **quantile, "samples": len(self.factors)}


@dataclasses.dataclass(frozen=True)
class Constraint:
    """`sense` · quantity ≤ `sense` · limit, with sense 1 for "at most" and −1 for "at least"."""

    quantity: str
    declared: Quantity
    sense: int
    limit: float

    @property
    def relation(self) -> str:
        """The sign of the constraint: ≤ or ≥."""
        return "≤" if self.sense > 0 else "≥"

    def __str__(self):
        return f"{self.quantity} {self.relation} {units.show(self.limit, self.declared.unit)}"

    def excess(self, value: Array, limit: Array) -> Array:
        """Excess of a value over the limit, at most 0 where the constraint holds.

        The excess is relative to the limit, and absolute for a limit of zero, which only relative quantities
        have.
        """
        absolute = self.limit == 0
        return self.sense * (value - limit if absolute else value / limit - 1)

    def value_of(self, excess: float, limit: float) -> float:
        """The value that has an excess over the limit: the inverse of `excess`."""
        return limit + self.sense * excess * (1.0 if self.limit == 0 else limit)


@dataclasses.dataclass(frozen=True)
class DesignProblem:
    """A loaded design problem; every array is float64.

    - `vector`: the variables, and the baseline that they change.
    - `workloads`: what runs; the first is that of the candidate's own model and strategy.
    - `objective`: the output to optimize, by path; `sense` is 1 to minimize it and −1 to maximize it. Of
      several workloads it is the mean over them, relative to the baseline and weighted by their shares.
    - `uncertainty`: of inputs, over which a design is judged, if there is any.
    - `layouts`: the possible values of those variables that lay the models out on devices, of each workload
      that has such variables.
    """

    name: str
    vector: DesignVector
    baseline_outcome: Outcome
    workloads: tuple[Workload, ...]
    objective: str
    objective_declared: Quantity
    sense: int
    constraints: tuple[Constraint, ...]
    layouts: tuple[Layouts, ...]
    uncertainty: Uncertainty | None = None

    @property
    def phase(self) -> str:
        """The phase of the first workload."""
        return self.workloads[0].phase

    @property
    def phases(self) -> list[str]:
        """The phase of every workload."""
        return [workload.phase for workload in self.workloads]

    @property
    def baseline(self) -> Candidate:
        """The candidate to start from."""
        return self.vector.baseline

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, in the order of the vector."""
        return self.vector.variables

    @property
    def all_whole(self) -> bool:
        """Whether no variable is a real number."""
        return all(variable.whole for variable in self.variables)

    @property
    def bounds(self) -> Bounds:
        """The bounds of every entry of the vector of variables."""
        return self.vector.bounds

    @property
    def limits(self) -> Float[np.ndarray, " constraints"]:
        """The limit of every constraint, in the unit of its quantity."""
        return np.array([constraint.limit for constraint in self.constraints])

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the problem but for its limits: equal for problems whose programs are equal."""
        asked = (
            type(self).__name__,
            self.workloads,
            self.objective,
            self.sense,
            [(c.quantity, c.sense, c.limit == 0) for c in self.constraints],
        )
        searched = (self.variables, self.vector.derives_dp, len(self.vector.nodes), self.vector.kept)
        doubted = self.uncertainty and (self.uncertainty, self.uncertainty.factors.tolist())
        options = [option for variable in self.variables for option in variable.options or ()]
        trees = (self.baseline, *self.vector.nodes, *options, self.baseline_outcome)
        return digest_of(repr(asked), repr(searched), repr(doubted), *trees)

    def outcome(self, x: Float[Array, " n"], relax: Relaxation) -> Outcome:
        """Chip and reports of a vector of variables; pure JAX."""
        return self.outcome_of(self.vector.candidate(x), relax)

    def outcome_of(self, candidate: Candidate, relax: Relaxation) -> Outcome:
        """Chip and reports of a candidate; pure JAX."""
        system = system_of(candidate.design, candidate.technology, candidate.system)
        made = chip(candidate.design, candidate.technology, candidate.system.accelerator)
        return reported(made, candidate.configurations(system), self.workloads, relax)

    def score(self, outcome: Outcome, limits: Float[Array, " constraints"]) -> tuple[Array, Array]:
        """(f, g): the log of the objective over the baseline's, and the excess of every constraint.

        Of an objective to be maximized, and of several workloads, f is the log of Σ share · baseline/value.
        """
        relative = sum(
            workload.share * jnp.exp(self.sense * jnp.log(self._of(outcome, workload) / self.base(workload)))
            for workload in self.workloads
        )
        excess = [
            constraint.excess(self.value(outcome, constraint.quantity), limits[index])
            for index, constraint in enumerate(self.constraints)
        ]
        return jnp.log(relative), jnp.stack(excess) if excess else jnp.zeros(0)

    def scores(self, x: Float[Array, " n"], limits: Float[Array, " constraints"], relax: Relaxation) -> Array:
        """f and then g of a vector of variables, judged over what is uncertain; pure JAX."""
        candidate, uncertainty = self.vector.candidate(x), self.uncertainty

        def of(candidate: Candidate) -> Array:
            objective, excess = self.score(self.outcome_of(candidate, relax), limits)
            return jnp.concatenate([objective[None], excess])

        if uncertainty is None:
            return of(candidate)

        def sampled(factors: Array) -> Array:
            inputs = {}
            for path, factor in zip(uncertainty.paths, factors, strict=True):
                value, declared = locate(candidate, path)
                low, high = getattr(declared, "bounds", (-jnp.inf, jnp.inf))
                inputs[path] = jnp.clip(value * factor, low, high)
            return of(replace(candidate, inputs))

        return uncertainty.judged(jax.vmap(sampled)(jnp.asarray(uncertainty.factors)), relax)

    def value(self, outcome: Outcome, path: str) -> Array:
        """An output of the chip, of a workload by its name, or of the first workload."""
        return output_of(outcome, path, self.workloads[0].name)

    def base(self, workload: Workload) -> float:
        """The objective of one workload in the baseline."""
        return float(self._of(self.baseline_outcome, workload))

    def _of(self, outcome: Outcome, workload: Workload) -> Array:
        """The objective of one workload."""
        if self.objective.startswith("chip."):
            return output_of(outcome, self.objective)
        return self.of_report(outcome.reports(self.workloads[0].name)[workload.name])

    def of_report(self, report: eqx.Module) -> Array:
        """The objective in a report, where it is not one of the chip."""
        return locate(report, self.objective.removeprefix("report."))[0]

    def broken_rules(self, x: Float[Array, " n"]) -> Array:
        """Number of rules of layouts (`diffperf.workload.rules`) that a vector of variables breaks; pure
        JAX.
        """
        candidate = self.vector.candidate(x)
        counts = of_each(broken, candidate.configurations(candidate.system), self.phases)
        return sum(counts, jnp.zeros(()))


def reported(
    made: Chip, configurations: list[Configuration], workloads: tuple[Workload, ...], relax: Relaxation
) -> Outcome:
    """A chip with the reports of all workloads."""
    relaxed = [dataclasses.replace(configuration, relax=relax) for configuration in configurations]
    estimates = of_each(estimate, relaxed, [workload.phase for workload in workloads])
    reports = {workload.name: report for workload, report in zip(workloads, estimates, strict=True)}
    return Outcome(made, reports.pop(workloads[0].name), reports)


def output_of(outcome: Outcome, path: str, first: str = "") -> Array:
    """An output of the chip (`chip.power`), of the first report (`time`, or `report.time`), or of a workload
    by its name (`chat.time`); `first` is the name of the first workload.
    """
    name, _, rest = path.partition(".")
    reports = outcome.reports(first)
    if name in reports and rest:
        return locate(reports[name], rest)[0]
    full = path if path.startswith(("chip.", "report.")) else f"report.{path}"
    return locate(outcome, full)[0]
