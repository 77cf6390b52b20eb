"""Which strategy to train with: all integer strategies of a system's devices, ranked, and why those behind the best lose."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import numpy as np

from diffperf import units
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.candidates import FIELDS, SEARCHED, Columns, Ranking, candidates, rank, started
from diffperf.hardware.system import System
from diffperf.load import check
from diffperf.quantity import replace
from diffperf.report.tables import memory_parts, outputs
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import SCHEDULES, Strategy

# What a plan may be ranked by: where the report has it.
OBJECTIVES = {"time": "time", "cost": "cost.run", "energy": "energy.total"}

_SAME = 5e-4  # relative: differences below it are none
_SHOWN = 3  # parts that a reason names, at most


@dataclasses.dataclass(frozen=True)
class Search:
    """All strategies to choose from: those of the system's devices that keep what the user gives.

    - `table`: the fields of the strategy that are given; `searched`: those that are not, and take the values of `rows`.
    - `inputs`: their strategy has the given fields, and the defaults of what is neither given nor searched.
    """

    inputs: Configuration
    table: dict[str, Any]
    schedules: tuple[str, ...]
    rows: Columns

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: dict[str, Any],
        schedules: Iterable[str] = ("1f1b",),
        file: str = "command line",
    ) -> "Search":
        """The strategies of a system. Raises `ConfigError` for a bad value in the table, or among the schedules."""
        schedules = tuple(schedules)
        for name in schedules:
            if name not in SCHEDULES:
                raise ConfigError(
                    file,
                    "--schedules",
                    f'"{name}"',
                    "some of " + ", ".join(SCHEDULES),
                    did_you_mean(name, SCHEDULES),
                )
        strategy = started(system, table, file=file)
        rows = candidates(model, system, table, strategy, FIELDS, schedules)
        return cls(Configuration(model, system, strategy), table, schedules, rows)

    def __len__(self) -> int:
        return len(self.rows["tp"])

    @property
    def searched(self) -> dict[str, str]:
        """The fields that are searched, and among what; those that could only be one thing are left out."""
        shown = [
            name
            for name in SEARCHED
            if name not in self.table and (name == "cp" or len(np.unique(self.rows[name], axis=0)) > 1)
        ]
        return {name: SEARCHED[name] for name in shown}

    def on(self, n_devices: float) -> "Search":
        """The same question on as many devices of the same kind."""
        system = replace(self.inputs.system, {"n_devices": n_devices})
        return Search.of(self.inputs.model, system, self.table, self.schedules)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy, its report, and why it loses against the best one (none for that itself)."""

    strategy: Strategy
    report: eqx.Module
    behind: "Behind | None"


@dataclasses.dataclass(frozen=True)
class Behind:
    """What a candidate takes more than the best, relative to what that takes: `more`, and the parts that add up to it."""

    by: str
    more: float
    of: str  # "time" or "energy", whose parts they are
    more_of: float
    parts: tuple[tuple[str, float], ...]
    memory: float  # bytes

    @property
    def grown(self) -> list[tuple[str, float]]:
        """The parts that grew, the most first: those that make up nearly all of it."""
        return _leading([part for part in self.parts if part[1] > 0])

    @property
    def shrunk(self) -> list[tuple[str, float]]:
        """The part that shrank the most, where it matters."""
        lost = sum(change for _, change in self.parts if change > 0)
        return [
            part
            for part in _leading([part for part in self.parts if part[1] < 0])[:1]
            if -part[1] > 0.2 * lost
        ]

    def __str__(self):
        """ "+6.2 % time: pipeline bubble +4.1 %, tensor-parallel communication +2.5 %"."""
        if abs(self.more) < _SAME:
            return f"the same {self.by}, and {units.show(abs(self.memory), 'byte', 3)} {'more' if self.memory >= 0 else 'less'} memory"
        whole = f"{_percent(self.more)} {self.by}" + (
            f", {_percent(self.more_of)} {self.of}" if self.of != self.by else ""
        )
        told = [f"{name} {_percent(change)}" for name, change in self.grown]
        spared = [f"against {name} {_percent(change)}" for name, change in self.shrunk]
        return f"{whole}: {', '.join(told)}" + (f", {spared[0]}" if spared else "")


def _leading(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The largest parts, until nine tenths of all are told."""
    ordered = sorted(parts, key=lambda part: -abs(part[1]))
    told = np.cumsum([abs(change) for _, change in ordered])
    return ordered[: min(_SHOWN, 1 + int(np.sum(told < 0.9 * told[-1])))] if ordered else []


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The best strategies, the best first.

    - `best`: those that are possible and fit memory, as many as were asked for; where none fits, there are none.
    - `least`: where none fits, the one that is the least too large.
    - `searched`, `possible`, `fitting`: how many strategies there are, break no rule, and fit memory as well.
    """

    by: str
    best: tuple[Candidate, ...]
    least: Candidate | None
    searched: int
    possible: int
    fitting: int


def plan(
    search: Search,
    by: str = "time",
    top: int = 10,
    progress: Callable[[int], None] = lambda candidates: None,
    file: str = "command line",
) -> Plan:
    """The best `top` strategies by an objective (a name from `OBJECTIVES`): of those that fit memory.

    `progress` is called with a number of strategies each time some are done.

    **Raises:** `ConfigError` for an unknown objective, or when no strategy is possible: a rule that the likeliest one breaks.
    """
    if by not in OBJECTIVES:
        raise ConfigError(
            file, "--by", f'"{by}"', "one of " + ", ".join(OBJECTIVES), did_you_mean(by, tuple(OBJECTIVES))
        )
    inputs = search.inputs
    found = rank(inputs, search.rows, by=OBJECTIVES[by], top=top, progress=progress)
    if not found.possible:
        check(inputs.model, inputs.system, found.strategy(inputs, 0), file=file)
    return _plan(found, inputs, by)


def _plan(found: Ranking, inputs: Configuration, by: str) -> Plan:
    reports = [found.report(index) for index in range(len(found))]
    ranked = tuple(
        Candidate(found.strategy(inputs, index), report, behind(reports[0], report, by) if index else None)
        for index, report in enumerate(reports)
    )
    best = ranked[: found.fitting]
    return Plan(by, best, None if best else ranked[0], found.searched, found.possible, found.fitting)


def behind(winner: eqx.Module, loser: eqx.Module, by: str) -> Behind:
    """Why a report loses against another: by how much, and which parts of its time (of its energy, where that is asked) grew.

    A cost is that of the time, but for electricity, and is told by the parts of the time.
    """
    of, part = ("energy", "energy") if by == "energy" else ("time", "breakdown")
    before, after = outputs(getattr(winner, part)), outputs(getattr(loser, part))
    whole, more_of = (float(found.pop("total")[1]) for found in (before, after))
    parts = tuple(
        (declared.doc, float(after[name][1] - value) / whole) for name, (declared, value) in before.items()
    )
    best, worse = (float(outputs(report)[OBJECTIVES[by]][1]) for report in (winner, loser))
    return Behind(
        by, worse / best - 1, of, more_of / whole - 1, parts, float(loser.memory.peak - winner.memory.peak)
    )


def smallest_system(search: Search) -> tuple[Search, Plan] | None:
    """The smallest system of the same kind that a strategy fits, by doubling its devices up to those of its outermost network
    tier, and the best strategy there; none where none does."""
    devices, most = float(search.inputs.system.n_devices), float(search.inputs.system.network[-1].size)
    while (devices := 2 * devices) <= most:
        larger = search.on(devices)
        found = rank(larger.inputs, larger.rows)
        if found.fitting:
            return larger, _plan(found, larger.inputs, "time")
    return None


def largest_part(memory: eqx.Module) -> tuple[str, float]:
    """What takes the most of a device's memory, and how many bytes."""
    return max(memory_parts(memory).items(), key=lambda part: part[1])
