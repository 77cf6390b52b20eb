"""The next whole numbers of a design that would improve it, but that a limit refuses.

Between two whole numbers there is no slope, and so no shadow price: a limit with room for less than one step
holds the design back all the same.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from diffperf.explore.codesign.scoring import Scorer
from diffperf.explore.codesign.slots import Slot
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
    """The steps of a feasible design that only limits refuse, the greatest gain first.

    Numbers of a layout, such as the batch, step to the next layout that differs in nothing else.
    """
    steps = [
        (begin, variable, value)
        for begin, variable in scorer.problem.vector.placed()
        if not isinstance(variable.declared, Choice)
        for value in _next_values(scorer.cube.slots, begin, x)
    ]
    moved = np.repeat(x[None], 1 + len(steps), axis=0)  # the design itself comes first
    for row, (begin, _, value) in enumerate(steps, start=1):
        moved[row, begin] = value
    scores = scorer.exact(moved, limits)
    gains, excesses = scores.values[0, 0] - scores.values[1:, 0], scores.values[1:, 1:]
    refused = []
    for (begin, variable, value), gain, excess, broken in zip(
        steps, gains, excesses, scores.broken[1:], strict=True
    ):
        if broken or not np.isfinite(excess).all() or not gain > _GAIN or excess.max(initial=0.0) <= 0:
            continue
        needs = {int(i): float(excess[i] * (limits[i] or 1.0)) for i in np.flatnonzero(excess > 0)}
        step = Step(
            variable=variable, before=float(x[begin]), value=float(value), gain=float(gain), needs=needs
        )
        refused.append(step)
    return tuple(sorted(refused, key=lambda step: -step.gain))


def _next_values(
    slots: Sequence[Slot], entry: int, x: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " values"]:
    """The next smaller and the next greater number that an entry of a design can be with all other entries as
    they are; none of an entry that is not whole.
    """
    for slot in slots:
        if entry not in slot.indices:
            continue
        column, values, own = slot.indices.index(entry), slot.values(), x[slot.indices]
        others = np.delete(values == own, column, axis=1).all(axis=1)
        numbers = np.unique(values[others, column])
        smaller, greater = numbers[numbers < own[column]], numbers[numbers > own[column]]
        return np.concatenate([smaller[-1:], greater[:1]])
    return np.empty(0)
