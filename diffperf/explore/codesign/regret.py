"""Regret: what every workload of a mix loses to the design that is best for it alone."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import numpy as np

from diffperf.explore.codesign.problem import DesignProblem, Workload
from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.search import Search


@dataclasses.dataclass(frozen=True)
class Regret:
    """One workload on the design of the mix, and on the design for itself under the same limits.

    - `shared`, `alone`: its objective on both, in the objective's unit.
    """

    workload: Workload
    shared: float
    alone: float
    sense: int

    @property
    def loss(self) -> float:
        """The log of the objective over the best one's, more is worse."""
        return self.sense * float(np.log(self.shared / self.alone))


def regrets(
    result: Codesign, population: int, progress: Callable[[str, float], None] = lambda stage, done: None
) -> list[Regret]:
    """The regret of every workload; none where there is one workload, or where the chip is the objective."""
    problem = result.problem
    if len(problem.workloads) == 1 or problem.objective.startswith("chip.") or not result.feasible:
        return []
    of_workloads = []
    for number, workload in enumerate(problem.workloads):
        progress(f"best for {workload.name} alone", number / len(problem.workloads))
        search = Search(_alone(problem, workload.name), population=population)
        search.known = [result.x]
        own = search.answer(explain=False)
        first = problem.workloads[0].name
        shared, alone = (
            _objective(problem, each.outcome.reports(first)[workload.name]) for each in (result, own)
        )
        of_workloads.append(Regret(workload, shared, alone, sense=problem.sense))
    return of_workloads


def _alone(problem: DesignProblem, name: str) -> DesignProblem:
    """The problem in which one workload has the whole time; the limits of all stay."""
    shares = [
        dataclasses.replace(workload, share=float(workload.name == name)) for workload in problem.workloads
    ]
    return dataclasses.replace(problem, workloads=tuple(shares))


def _objective(problem: DesignProblem, report: eqx.Module) -> float:
    return float(problem.of_report(report))
