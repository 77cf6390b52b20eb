"""A plan: which strategy to train with, of all integer strategies of a system's devices, and why the others
lose."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.estimate.training import TrainingReport
from diffperf.explore.plan.candidates import (
    FIELDS,
    SEARCHED,
    Candidates,
    enumerate_candidates,
    starting_strategy,
)
from diffperf.explore.plan.known_strategy import known_fields
from diffperf.explore.plan.ranking import Ranking, rank
from diffperf.explore.plan.reasons import OBJECTIVES, Reason, reason_against
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import replace
from diffperf.report.tables import memory_parts
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory
from diffperf.workload.model import Model
from diffperf.workload.strategy import SCHEDULES, Strategy


@dataclasses.dataclass(frozen=True)
class Search:
    """All strategies to choose from: those of the system's devices that keep the fields the user gives.

    - `inputs`: model, system, and a strategy with the given fields and the defaults of those that are not
      searched.
    - `table`: the fields of the strategy that are given.
    - `schedules`: the pipeline schedules to choose from.
    - `candidates`: the strategies, by the fields that are searched.
    - `known`: the fields that nobody gives and that the software stack is known to train with.
    """

    inputs: Configuration
    table: dict[str, Any]
    schedules: tuple[str, ...]
    candidates: Candidates
    known: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: dict[str, Any],
        schedules: Iterable[str] = ("1f1b",),
        file: str = ARGUMENTS,
    ) -> "Search":
        """The strategies of a system's devices.

        **Raises:** `ConfigError` that names `file` for a bad value in the table, or an unknown schedule.
        """
        schedules = tuple(schedules)
        for name in schedules:
            if name not in SCHEDULES:
                expected, hint = "some of " + ", ".join(SCHEDULES), did_you_mean(name, SCHEDULES)
                raise ConfigError(file, "--schedules", f'"{name}"', expected, hint)
        strategy = starting_strategy(system, table, file=file)
        schedule = strategy.schedule.likeliest() if "schedule" in table else " or ".join(schedules)
        known = known_fields(system.stack, strategy.precision.likeliest(), schedule)
        known = {name: value for name, value in known.items() if name not in table}
        if known:
            strategy = starting_strategy(system, table | known, file=file)
        inputs = Configuration(model, system, strategy)
        candidates = enumerate_candidates(inputs, table | known, FIELDS, schedules)
        return cls(inputs=inputs, table=table, schedules=schedules, candidates=candidates, known=known)

    def __len__(self) -> int:
        return len(self.candidates["tp"])

    @property
    def searched(self) -> dict[str, str]:
        """The fields that are searched, with a description of their values.

        Fields that can only have one value are left out, except cp: that sequences are not split deserves a
        mention.
        """
        return {
            name: description
            for name, description in SEARCHED.items()
            if name not in self.table and (name == "cp" or len(np.unique(self.candidates[name], axis=0)) > 1)
        }

    def on(self, n_devices: float) -> "Search":
        """This search on another number of devices of the same kind."""
        system = replace(self.inputs.system, {"n_devices": n_devices})
        return Search.of(self.inputs.model, system, self.table, self.schedules)


@dataclasses.dataclass(frozen=True)
class RankedStrategy:
    """A strategy, its report, and why it loses against the best one; the best one has no such reason."""

    strategy: Strategy
    report: TrainingReport
    behind: Reason | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The best strategies, the best first.

    - `by`: the objective that ranks them, a name from `OBJECTIVES`.
    - `best`: those that are possible and fit memory, as many as were asked for; empty where none fits.
    - `least`: where none fits, the strategy that exceeds the memory by the least.
    - `searched`, `possible`, `fitting`: how many strategies there are, how many of them break no rule, and
      how many of those fit memory.
    """

    by: str
    best: tuple[RankedStrategy, ...]
    least: RankedStrategy | None
    searched: int
    possible: int
    fitting: int


def plan(
    search: Search,
    by: str = "time",
    top: int = 10,
    progress: Callable[[int], None] = lambda candidates: None,
    file: str = ARGUMENTS,
) -> Plan:
    """The best `top` strategies by an objective (a name from `OBJECTIVES`), of those that fit memory.

    `progress` is called with a number of strategies each time so many more are evaluated.

    **Raises:** `ConfigError` that names `file` for an unknown objective, or where no strategy is possible,
    with the first rule that the likeliest strategy breaks.
    """
    if by not in OBJECTIVES:
        expected, hint = "one of " + ", ".join(OBJECTIVES), did_you_mean(by, tuple(OBJECTIVES))
        raise ConfigError(file, "--by", f'"{by}"', expected, hint)
    inputs = search.inputs
    ranking = rank(inputs, search.candidates, by=OBJECTIVES[by], top=top, progress=progress)
    if not ranking.possible:
        check(inputs.model, inputs.system, ranking.strategy(inputs, 0), file=file)
    return _plan(ranking, inputs, by)


def _plan(ranking: Ranking, inputs: Configuration, by: str) -> Plan:
    """The plan of a ranking, with a reason for each strategy behind the best."""
    reports = [cast(TrainingReport, ranking.report(index)) for index in range(len(ranking))]
    strategies = tuple(
        RankedStrategy(
            strategy=ranking.strategy(inputs, index),
            report=report,
            behind=reason_against(reports[0], report, by) if index else None,
        )
        for index, report in enumerate(reports)
    )
    best = strategies[: ranking.fitting]
    return Plan(
        by=by,
        best=best,
        least=None if best else strategies[0],
        searched=ranking.searched,
        possible=ranking.possible,
        fitting=ranking.fitting,
    )


def smallest_system(search: Search) -> tuple[Search, Plan] | None:
    """The smallest larger system of the same kind that some strategy fits, with its best strategy by time.

    Systems are tried by doubling the devices, up to those of the outermost network tier; None where no
    system fits.
    """
    devices, most = float(search.inputs.system.n_devices), float(search.inputs.system.network[-1].size)
    while (devices := 2 * devices) <= most:
        larger = search.on(devices)
        ranking = rank(larger.inputs, larger.candidates)
        if ranking.fitting:
            return larger, _plan(ranking, larger.inputs, "time")
    return None


def largest_part(memory: Memory) -> tuple[str, float]:
    """The part of a memory report that takes the most, and its bytes."""
    return max(memory_parts(memory).items(), key=lambda part: part[1])
