"""The best designs along one limit of a problem, such as the budget: what every dollar buys.

Each search starts from the designs of the limits below. Where the limit is an upper one, it allows these
designs too, so that the objective improves along the front.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.search import Search

NEIGHBOURS = 2  # designs of smaller limits that a search starts from


@dataclasses.dataclass(frozen=True)
class Front:
    """The best design of every limit.

    - `constraint`: the index of the constraint whose limit varies; `limits`: its limits, increasing.
    """

    constraint: int
    limits: Float[np.ndarray, " points"]
    designs: tuple[Codesign, ...]


def front(
    search: Search,
    constraint: int,
    limits: Float[np.ndarray, " points"],
    progress: Callable[[float], None] = lambda done: None,
) -> Front:
    """The best designs of a problem under increasing limits of one constraint."""
    designs: list[Codesign] = []
    for done, limit in enumerate(limits, start=1):
        changed = search.problem.limits
        changed[constraint] = limit
        search.reset(changed)
        search.known = [design.x for design in designs[-NEIGHBOURS:]]
        designs.append(search.answer(explain=False))
        progress(done / len(limits))
        if designs[-1].stopped == "interrupted":
            break
    return Front(constraint, limits[: len(designs)], tuple(designs))
