"""Variables that change neither the objective nor a limit: a search would leave them anywhere.

A variable counts as one where exact scores of many designs are the same over its whole range.
"""

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.variables import Variable

_NOTHING = 1e-9  # change of log objectives and of relative excesses that is a rounding error
_FEW = 32  # designs that tell most variables with an effect
_VALUES = 8  # of a variable's range, ends included


def without_effect(
    scorer: Scorer, limits: Float[np.ndarray, " constraints"], points: Float[np.ndarray, "designs size"]
) -> list[tuple[int, Variable]]:
    """The variables without effect, with the index of their first entry, judged from the designs at some
    points of the cube. Layouts are left out.
    """
    problem, cube = scorer.problem, scorer.cube
    laid_out = {int(entry) for layouts in problem.layouts for entry in layouts.entries}
    columns = [[int(entry)] for entry in cube.reals.entries] + [slot.indices for slot in cube.slots]
    begins = {entries[0]: column for column, entries in enumerate(columns)}
    return [
        (begin, variable)
        for begin, variable in problem.vector.placed()
        if begin not in laid_out
        and not _matters(scorer, limits, points[:_FEW], begins[begin])
        and not _matters(scorer, limits, points, begins[begin])
    ]


def _matters(scorer: Scorer, limits: np.ndarray, points: np.ndarray, column: int) -> bool:
    """Whether a coordinate of the cube changes a score of any of the designs."""
    first = None
    for share in np.linspace(0.0, 1.0, _VALUES):
        moved = points.copy()
        moved[:, column] = share
        scores = scorer.exact(scorer.cube.designs(moved), limits)
        found = np.column_stack([scores.values, scores.broken])
        first = found if first is None else first
        if not np.isfinite(found).any() or not np.allclose(found, first, _NOTHING, _NOTHING, equal_nan=True):
            return True
    return False
