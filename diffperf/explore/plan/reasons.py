"""Why one strategy loses against another: by how much, and which parts of its time or energy grew."""

import dataclasses

import numpy as np

from diffperf import units
from diffperf.estimate.training import TrainingReport
from diffperf.report.tables import outputs

# The objectives that strategies may be ranked by, with the paths of their outputs in the report.
OBJECTIVES = {"time": "time", "cost": "cost.run", "energy": "energy.total"}

_SAME = 5e-4  # relative: a smaller difference is shown as none, as it would read "0.0 %" or "0.1 %"
_MOST_PARTS = 3  # parts that a reason names, at most
# Share of all changes that the named parts make up, where that takes no more than `_MOST_PARTS`.
_NEARLY_ALL = 0.9
_WORTH_NAMING = 0.2  # gains below this share of the losses are not named


@dataclasses.dataclass(frozen=True)
class Reason:
    """Excess of a strategy over the best one: in the objective, in the parts of time or energy, and in
    memory.

    - `by`: the objective that ranks strategies; `more`: by how much more this strategy takes of it.
    - `of`: "time" or "energy", the whole that is split into parts; `more_of`: by how much more the strategy
      takes of it.
    - `parts`: description and change of every part of that whole, relative to the whole of the best strategy.
    - `memory`: bytes by which the peak of the memory is higher.
    """

    by: str
    more: float
    of: str
    more_of: float
    parts: tuple[tuple[str, float], ...]
    memory: float

    @property
    def grown(self) -> list[tuple[str, float]]:
        """The parts that grew, the most first, as many as make up nearly all of the growth."""
        return _leading([part for part in self.parts if part[1] > 0])

    @property
    def shrunk(self) -> list[tuple[str, float]]:
        """The part that shrank the most, where that is worth naming beside what grew; at most one."""
        lost = sum(change for _, change in self.parts if change > 0)
        leading = _leading([part for part in self.parts if part[1] < 0])[:1]
        return [(name, change) for name, change in leading if -change > _WORTH_NAMING * lost]

    def __str__(self) -> str:
        """The reason in words, such as "+6.2 % time: time of the pipeline bubble +4.1 %"."""
        if abs(self.more) < _SAME:
            size = units.show(abs(self.memory), "byte", 3)
            return f"the same {self.by}, and {size} {'more' if self.memory >= 0 else 'less'} memory"
        whole = f"{_percent(self.more)} {self.by}"
        if self.of != self.by:
            whole += f", {_percent(self.more_of)} {self.of}"
        changes = [f"{name} {_percent(change)}" for name, change in self.grown]
        changes += [f"against {name} {_percent(change)}" for name, change in self.shrunk]
        return f"{whole}: {', '.join(changes)}"


def reason_against(winner: TrainingReport, loser: TrainingReport, by: str) -> Reason:
    """Why the strategy of one report loses against that of another, by an objective.

    The parts are those of the energy where that is the objective. Else they are those of the time: all of a
    cost but the electricity is proportional to it.
    """
    of, breakdown = ("energy", "energy") if by == "energy" else ("time", "breakdown")
    of_winner, of_loser = (outputs(getattr(report, breakdown)) for report in (winner, loser))
    whole, whole_of_loser = (float(parts.pop("total")[1]) for parts in (of_winner, of_loser))
    parts = tuple(
        (declared.doc, float(of_loser[name][1] - value) / whole)
        for name, (declared, value) in of_winner.items()
    )
    least, value = (float(outputs(report)[OBJECTIVES[by]][1]) for report in (winner, loser))
    return Reason(
        by=by,
        more=value / least - 1,
        of=of,
        more_of=whole_of_loser / whole - 1,
        parts=parts,
        memory=float(loser.memory.peak - winner.memory.peak),
    )


def _leading(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The parts that changed the most, until they make up nearly all or are `_MOST_PARTS`."""
    ordered = sorted(parts, key=lambda part: -abs(part[1]))
    cumulative = np.cumsum([abs(change) for _, change in ordered])
    if not ordered:
        return []
    return ordered[: min(_MOST_PARTS, 1 + int(np.sum(cumulative < _NEARLY_ALL * cumulative[-1])))]


def _percent(change: float) -> str:
    """A relative change in per cent: "−4.1 %"."""
    return f"{100 * change:+.1f} %".replace("-", "−")
