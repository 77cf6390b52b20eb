"""Why no design satisfies every constraint: which constraints conflict, and what would make room.

An irreducible infeasible set (Chinneck, "Feasibility and Infeasibility in Optimization", 2008, §6, deletion
filter): constraints that no design satisfies together, though one does without any one of them. Whether some
constraints can be satisfied is decided by a search for a design that does, so a set that is called
infeasible may, in principle, have a design that the search has missed.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.scoring import Goal

if TYPE_CHECKING:  # the search calls this module
    from diffperf.explore.codesign.search import Search


@dataclasses.dataclass(frozen=True)
class Relief:
    """The least change of one limit alone that leaves a design which satisfies every constraint.

    - `constraint`: its index; `limit`: what its limit would have to be.
    - `x`: the design that is possible then.
    """

    constraint: int
    limit: float
    x: Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Constraints that no design satisfies together.

    - `constraints`: their indices; without any one of them the others can be satisfied.
    - `reliefs`: the limits whose change alone would do, the smallest relative change first.
    """

    constraints: tuple[int, ...]
    reliefs: tuple[Relief, ...]


def conflict_of(search: "Search") -> Conflict:
    """The conflict of a problem for which the search has come to no feasible design."""
    conflicting = list(range(len(search.limits)))
    for index in list(conflicting):
        others = tuple(other for other in conflicting if other != index)
        if not satisfiable(search, others):
            conflicting.remove(index)
    reliefs = [relief for index in conflicting if (relief := _relief(search, index)) is not None]
    reliefs.sort(key=lambda relief: _change(search, relief))
    return Conflict(tuple(conflicting), tuple(reliefs))


def satisfiable(search: "Search", constraints: tuple[int, ...]) -> bool:
    """Whether a search for a design that satisfies some constraints comes to one."""
    goal = Goal(0, constraints)
    return any(design.violation == 0 for design in search.excursion(goal, satisfied=True))


def _relief(search: "Search", index: int) -> Relief | None:
    """The least excess of a constraint under which all others hold, as a limit; None where they cannot."""
    goal = Goal(1 + index, tuple(other for other in range(len(search.limits)) if other != index))
    best: Descended | None = None
    for design in search.excursion(goal):
        if best is None or (design.violation, design.objective) < (best.violation, best.objective):
            best = design
    if best is None or best.violation > 0:
        return None
    constraint, limit = search.problem.constraints[index], search.limits[index]
    excess = constraint.sense * best.objective
    return Relief(index, float(excess if constraint.limit == 0 else limit * (1 + excess)), best.x)


def _change(search: "Search", relief: Relief) -> float:
    """Change that a limit would need, relative to its value."""
    limit = search.limits[relief.constraint]
    return abs(relief.limit - limit) / (abs(limit) or 1.0)
