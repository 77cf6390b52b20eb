"""Variables that nothing pays for: more of them only ever helps, so the search takes them to their bound.

A problem with such a variable answers with its bound, whatever that is. Mostly a price, an area or a power
is missing among the constraints. A variable counts as unpaid where, from many designs, moving it to one end
of its range never worsens the objective or any constraint, whichever value between the ends it is moved from,
and improves the objective somewhere.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.variables import Variable
from diffperf.quantity import Choice, Quantity

# Changes of log objectives and of relative excesses that are too small to count.
_NOTHING = 1e-9
_VALUES = 9  # of a variable's range, ends included: the best one may lie between the ends
_GAIN = 1e-4  # the least improvement of the objective that makes a variable worth naming


@dataclasses.dataclass(frozen=True)
class Unpaid:
    """A variable that improves the objective toward one end of its range at the cost of no constraint.

    - `declared`: the declaration of the variable; `end`: the end of the range, in the variable's unit.
    """

    variable: Variable
    declared: Quantity
    end: float


def unpaid_variables(
    scorer: Scorer, limits: Float[np.ndarray, " constraints"], x: Float[np.ndarray, "designs n"]
) -> list[Unpaid]:
    """The variables whose move to one end of their range improves the objective of some designs, and worsens
    no score of any; layouts and choices are left out.
    """
    problem = scorer.problem
    laid_out = {int(entry) for layouts in problem.layouts for entry in layouts.entries}
    unpaid = []
    for begin, variable in problem.vector.placed():
        if isinstance(variable.declared, Choice) or begin in laid_out:
            continue
        values = _some_values(variable)
        moved = np.tile(x, (len(values), 1))
        moved[:, begin] = np.repeat(values, len(x))
        scores = scorer.exact(moved, limits).values.reshape(len(values), len(x), -1)
        for place in (-1, 0):
            change = np.nan_to_num(scores[place] - scores, nan=np.inf)
            if np.all(change <= _NOTHING) and change[..., 0].min() < -_GAIN:
                unpaid.append(Unpaid(variable, variable.declared, float(values[place])))
    return unpaid


def _some_values(variable: Variable) -> Float[np.ndarray, " values"]:
    """Values of a variable that is a number, in ascending order: the ends of its range and some between."""
    if variable.values is not None:
        return np.array(variable.values)
    low, high = variable.whole_numbers() if variable.whole else (variable.low, variable.high)
    values = np.geomspace(low, high, _VALUES) if low > 0 else np.linspace(low, high, _VALUES)
    return np.round(values) if variable.whole else values
