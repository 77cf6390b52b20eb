"""Variables that nothing pays for: more of them only ever helps, so the search takes them to their bound.

A problem with such a variable answers with its bound, whatever that is. Mostly a price, an area or a power
is missing among the constraints. A variable counts as unpaid where, from many designs, moving it to one end
of its range never worsens the objective or any constraint, and improves the objective somewhere.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.variables import Variable
from diffperf.quantity import Choice, Quantity

# Changes of log objectives and of relative excesses that are too small to count.
_NOTHING = 1e-9
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
        low, high = variable.whole_numbers() if variable.whole else (variable.low, variable.high)
        at_low, at_high = x.copy(), x.copy()
        at_low[:, begin], at_high[:, begin] = low, high
        scores = scorer.exact(np.concatenate([at_low, at_high]), limits).values
        change = scores[len(x) :] - scores[: len(x)]  # from the low end to the high one
        for end, towards in ((high, change), (low, -change)):
            harmless = np.all(np.nan_to_num(towards, nan=np.inf) <= _NOTHING)
            if harmless and towards[:, 0].min() < -_GAIN:
                unpaid.append(Unpaid(variable, variable.declared, float(end)))
    return unpaid
