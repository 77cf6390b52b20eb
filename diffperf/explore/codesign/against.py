"""What systems that one can buy make of the workloads of a design problem, beside the design."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np

from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.problem_file import estimated
from diffperf.hardware.system import System
from diffperf.load import check, load
from diffperf.quantity import replace
from diffperf.trees import as_float64


@dataclasses.dataclass(frozen=True)
class BoughtSystem:
    """A system as it is sold, with the problem's number of devices and layouts.

    - `reports`: of every workload, by name.
    - `relative`: the log of its objective over the baseline's, less is better.
    """

    name: str
    reports: dict[str, eqx.Module]
    relative: float


def bought_systems(problem: DesignProblem, names: Sequence[str], asker: str) -> list[BoughtSystem]:
    """The workloads of a problem on some systems of the configs.

    **Raises:** `ConfigError` for a system that does not exist, or on which a layout is not possible.
    """
    with jax.enable_x64(True):
        return [_bought(problem, name, asker) for name in names]


def _bought(problem: DesignProblem, name: str, asker: str) -> BoughtSystem:
    """The workloads of a problem on one system."""
    system: System = load(System, name, asked_by=(asker, "against"))
    system = as_float64(replace(system, {"n_devices": float(problem.baseline.system.n_devices)}))
    reports, relative = {}, 0.0
    configurations = problem.baseline.configurations(system)
    for configuration, workload in zip(configurations, problem.workloads, strict=True):
        check(configuration.model, system, configuration.strategy, workload.phase, f"{asker}: {name}")
        reports[workload.name] = estimated(configuration, workload.phase)
        value = float(problem.of_report(reports[workload.name]))
        relative += workload.share * np.exp(problem.sense * np.log(value / problem.base(workload)))
    return BoughtSystem(name, reports, float(np.log(relative)))
