"""Why no design satisfies every constraint: which constraints conflict, and what would make room.

Irreducible infeasible sets (Chinneck, "Feasibility and Infeasibility in Optimization", 2008, §6, deletion
filter): constraints that no design satisfies together, though one does without any one of them. Without the
constraints of the first set the others may still be in conflict, so the filter is applied to what is left
until some design satisfies it. Whether some constraints can be satisfied is decided by a search for a design
that does, so a set that is called infeasible may, in principle, have a design that the search has missed.

A way out moves one limit of every set. Of all designs that satisfy the other constraints it is the one whose
excesses over these limits have the least sum.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.descent import Descended
from diffperf.explore.codesign.scoring import Goal

if TYPE_CHECKING:  # the search calls this module
    from diffperf.explore.codesign.search import Search

MOST_WAYS = 4  # ways out that are looked for where there are several sets


@dataclasses.dataclass(frozen=True)
class Relief:
    """The least change of some limits that leaves a design which satisfies every constraint.

    - `constraints`: their indices; `limits`: what their limits would have to be.
    - `x`: the design that is possible then.
    """

    constraints: tuple[int, ...]
    limits: tuple[float, ...]
    x: Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Constraints that no design satisfies together.

    - `sets`: the indices of the constraints of every irreducible set; no constraint is in two of them.
    - `reliefs`: the changes of limits that would do, the smallest relative change first.
    """

    sets: tuple[tuple[int, ...], ...]
    reliefs: tuple[Relief, ...]


def conflict_of(search: "Search") -> Conflict:
    """The conflict of a problem for which the search has come to no feasible design."""
    sets: list[tuple[int, ...]] = []
    left = tuple(range(len(search.limits)))
    while not sets or not satisfiable(search, left):
        found = irreducible(search, left)
        if not found:  # the rules of layouts allow none of the designs
            break
        sets.append(found)
        left = tuple(index for index in left if index not in found)
    ways = list(itertools.product(*sets)) if sets else []
    if len(sets) > 1:
        ways = ways[:MOST_WAYS]
    reliefs = [relief for moved in ways if (relief := _relief(search, moved)) is not None]
    if sets and not reliefs:
        reliefs = _least_violating(search)
    reliefs.sort(key=lambda relief: _change(search, relief))
    return Conflict(tuple(sets), tuple(reliefs))


def irreducible(search: "Search", infeasible: tuple[int, ...]) -> tuple[int, ...]:
    """Of constraints that no design satisfies together, some that conflict, none of them dispensable."""
    held = list(infeasible)
    for index in infeasible:
        others = tuple(other for other in held if other != index)
        if not satisfiable(search, others):
            held.remove(index)
    return tuple(held)


def satisfiable(search: "Search", constraints: tuple[int, ...]) -> bool:
    """Whether a search for a design that satisfies some constraints comes to one."""
    goal = Goal((0,), constraints)
    return any(design.violation == 0 for design in search.excursion(goal, satisfied=True))


def _relief(search: "Search", moved: tuple[int, ...]) -> Relief | None:
    """The least total excess of some constraints under which all others hold, as limits; None where they
    cannot."""
    goal = Goal(
        tuple(1 + index for index in moved),
        tuple(other for other in range(len(search.limits)) if other not in moved),
    )
    best: Descended | None = None
    for design in search.excursion(goal):
        if best is None or (design.violation, design.objective) < (best.violation, best.objective):
            best = design
    if best is None or best.violation > 0:
        return None
    return _relief_at(search, moved, best.x)


def _least_violating(search: "Search") -> list[Relief]:
    """What the least-violating design misses, as one way out; none where it breaks rules of layouts."""
    scores = search.scorer.exact(search.best.x[None], search.limits)
    missed = tuple(int(index) for index in np.flatnonzero(scores.values[0, 1:] > 0))
    return [] if scores.broken[0] or not missed else [_relief_at(search, missed, search.best.x)]


def _relief_at(search: "Search", moved: tuple[int, ...], x: Float[np.ndarray, " n"]) -> Relief:
    """The limits that a design reaches."""
    excess = search.scorer.exact(x[None], search.limits).values[0, 1:]
    limits = []
    for index in moved:
        constraint, limit = search.problem.constraints[index], search.limits[index]
        beyond = constraint.sense * excess[index]
        limits.append(float(beyond if constraint.limit == 0 else limit * (1 + beyond)))
    return Relief(moved, tuple(limits), x)


def _change(search: "Search", relief: Relief) -> float:
    """Sum of the changes that the limits would need, relative to their values."""
    limits = search.limits[list(relief.constraints)]
    moved = np.abs(np.array(relief.limits) - limits)
    return float(np.sum(moved / np.where(limits == 0, 1.0, np.abs(limits))))
