"""Results of systems that one can buy on the workloads of a design problem, beside those of the design.

A system that is sold keeps its hardware. What else the problem leaves open (layouts, batches, precisions) is
its to choose as it is the design's: it runs in the best layout under the limits of the workloads' reports.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.codesign.layouts import possible_layouts
from diffperf.explore.codesign.problem import Constraint, DesignProblem, Outcome, reported
from diffperf.explore.codesign.problem_file import estimated
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.variables import Candidate
from diffperf.hardware.system import System
from diffperf.load import check, load
from diffperf.quantity import Quantity, replace
from diffperf.relax import Relaxation
from diffperf.report.tables import outputs
from diffperf.trees import as_float64
from diffperf.workload.strategy import Strategy

_MISSED = 1e-6  # excess of a limit, relative to it, that is worth telling
_POPULATION = 256  # layouts that are scored at once


@dataclasses.dataclass(frozen=True)
class BoughtSystem:
    """A system as it is sold, with the problem's number of devices, in the best layout it can have.

    - `reports`: of every workload, by name.
    - `relative`: the log of its objective over the baseline's, less is better.
    - `missed`: the limits of the workloads' reports that it exceeds in every layout, memory among them.
    - `candidate`: the system, the workloads and their layouts; `problem`: what was left open.
    """

    name: str
    reports: dict[str, eqx.Module]
    relative: float
    missed: tuple[Constraint, ...]
    candidate: Candidate
    problem: "SoldProblem"

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The layouts of the workloads, in the order of their reports."""
        return (self.candidate.strategy, *(job.strategy for job in self.candidate.beside))

    @property
    def fits(self) -> bool:
        """Whether some layout satisfies every limit."""
        return not self.missed

    @property
    def power_limit(self) -> float:
        """W for which one of its accelerators is cooled."""
        return float(self.candidate.system.accelerator.power_limit)

    @property
    def manufacturing(self) -> float:
        """USD that one of its accelerators costs to make."""
        report = next(iter(self.reports.values()))
        return float(outputs(report)["cost.manufacturing"][1])


@dataclasses.dataclass(frozen=True)
class SoldProblem(DesignProblem):
    """A design problem on hardware as it is sold: only what belongs to the strategies varies."""

    def outcome_of(self, candidate: Candidate, relax: Relaxation) -> Outcome:
        """The reports of a candidate on its system as configured; the chip is the baseline's."""
        configurations = candidate.configurations(candidate.system)
        return reported(self.baseline_outcome.chip, configurations, self.workloads, relax)


def bought_systems(problem: DesignProblem, names: Sequence[str], asker: str) -> list[BoughtSystem]:
    """The workloads of a problem on some systems of the configs.

    **Raises:** `ConfigError` for a system that does not exist, or on which no layout is possible.
    """
    if names and problem.objective.startswith("chip."):
        expected = "an objective in the report, which systems that are sold have too"
        raise ConfigError(asker, "against", f"the objective {problem.objective}", expected, "leave it out")
    with jax.enable_x64(True):
        return [_bought(problem, name, asker) for name in names]


def _bought(problem: DesignProblem, name: str, asker: str) -> BoughtSystem:
    """The workloads of a problem on one system."""
    system: System = load(System, name, asked_by=(asker, "against"))
    system = as_float64(replace(system, {"n_devices": float(problem.baseline.system.n_devices)}))
    sold = sold_problem(problem, system, f"{asker}: {name}")
    candidate = _best_layout(sold)
    reports = {}
    for configuration, workload in zip(candidate.configurations(system), problem.workloads, strict=True):
        check(configuration.model, system, configuration.strategy, workload.phase, f"{asker}: {name}")
        reports[workload.name] = estimated(configuration, workload.phase)
    others = dict(reports)
    outcome = Outcome(problem.baseline_outcome.chip, others.pop(problem.workloads[0].name), others)
    objective, excess = sold.score(outcome, jnp.asarray(sold.limits))
    beyond = zip(sold.constraints, np.asarray(excess), strict=True)
    missed = tuple(constraint for constraint, value in beyond if value > _MISSED)
    return BoughtSystem(
        name=name,
        reports=reports,
        relative=float(objective),
        missed=missed,
        candidate=candidate,
        problem=sold,
    )


def sold_problem(problem: DesignProblem, system: System, asked_by: str) -> SoldProblem:
    """The problem with a system as it is sold: without variables and limits of hardware and its prices."""
    vector = problem.vector
    varied = tuple(variable for variable in vector.variables if "strategy" in variable.path.split("."))
    baseline = dataclasses.replace(vector.baseline, system=system)
    vector = dataclasses.replace(vector, baseline=baseline, variables=varied, nodes=())
    own = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return SoldProblem(
        **own
        | {
            "vector": vector,
            "constraints": _limits_of_reports(problem),
            "layouts": possible_layouts(vector, problem.phases, asked_by),
            "uncertainty": None,
        }
    )


def _limits_of_reports(problem: DesignProblem) -> tuple[Constraint, ...]:
    """The limits on what the workloads take, but for costs; every workload has to fit into memory."""
    kept = [
        constraint
        for constraint in problem.constraints
        if not {"chip", "cost"} & set(constraint.quantity.split("."))
    ]
    several = len(problem.workloads) > 1
    known = [constraint.quantity.removeprefix("report.") for constraint in kept]
    for workload in problem.workloads:
        quantity = f"{workload.name}.memory.excess" if several else "memory.excess"
        report = problem.baseline_outcome.reports(problem.workloads[0].name)[workload.name]
        declared = outputs(report)["memory.excess"][0]
        if quantity not in known and isinstance(declared, Quantity):
            kept.append(Constraint(quantity, declared, 1, 0.0))
    return tuple(kept)


def _best_layout(sold: SoldProblem) -> Candidate:
    """The baseline on a system as it is sold, with the best of what may vary; itself where nothing may."""
    if not sold.variables:
        return sold.baseline
    search = Search(sold, population=_POPULATION)
    return search.answer(explain=False).design
