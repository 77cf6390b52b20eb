"""The next whole numbers of a design that would improve it, but that a limit refuses.

Between two whole numbers there is no slope, and so no shadow price: a limit with room for less than one step
holds the design back all the same.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.variables import Variable
from diffperf.quantity import Choice

_GAIN = 1e-6  # the least improvement of the log of the objective that makes a step worth naming


@dataclasses.dataclass(frozen=True)
class Step:
    """A variable with its next whole number, everything else of the design as it is.

    - `value`: after the step; `before`: in the design.
    - `gain`: by how much the log of the objective, less is better, falls.
    - `needs`: how far each limit that refuses the step would have to move, in its unit, by the constraint's
      index.
    """

    variable: Variable
    before: float
    value: float
    gain: float
    needs: dict[int, float]


def refused_steps(
    scorer: Scorer, limits: Float[np.ndarray, " constraints"], x: Float[np.ndarray, " n"]
) -> tuple[Step, ...]:
    """The steps of a feasible design that only limits refuse, the greatest gain first; of layouts none."""
    problem, steps = scorer.problem, []
    laid_out = {int(entry) for layouts in problem.layouts for entry in layouts.entries}
    objective = scorer.exact(x[None], limits).values[0, 0]
    for slot in scorer.cube.slots:
        begin = slot.indices[0]
        variable = dict(problem.vector.placed()).get(begin)
        if variable is None or isinstance(variable.declared, Choice) or begin in laid_out:
            continue
        numbers = np.unique(slot.values()[:, 0])
        place = int(np.searchsorted(numbers, x[begin]))
        for value in numbers[[each for each in (place - 1, place + 1) if 0 <= each < len(numbers)]]:
            moved = x.copy()
            moved[begin] = value
            scores = scorer.exact(moved[None], limits)
            gain, excess = objective - scores.values[0, 0], scores.values[0, 1:]
            if scores.broken[0] or not np.isfinite(excess).all() or not gain > _GAIN or excess.max() <= 0:
                continue
            needs = {int(i): float(excess[i] * (limits[i] or 1.0)) for i in np.flatnonzero(excess > 0)}
            steps.append(
                Step(
                    variable=variable,
                    before=float(x[begin]),
                    value=float(value),
                    gain=float(gain),
                    needs=needs,
                )
            )
    return tuple(sorted(steps, key=lambda step: -step.gain))
