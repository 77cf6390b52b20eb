"""Descent on the real variables of one design by sequential quadratic programming, whole ones held.

scipy's SLSQP (Kraft, DFVLR-FB 88-28, 1988) with the true derivatives of the smooth estimate, at a sharpness
that rises from one solve to the next. A smooth estimate differs from the exact one by a little: margins,
which are corrected until the exact constraints hold, make up for it. Multipliers are those that leave the
least of the Lagrangian's slope, found by nonnegative least squares over active constraints and bounds.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize, nnls

from diffperf.explore.codesign.scoring import Goal, Scorer, Smoothed

# A smooth maximum of two equal numbers is 0.07 % above the exact one at 1000.
SHARPNESS = (30.0, 300.0, 1000.0)
# From designs that are already near an optimum, smaller sharpness would lead away.
LAST_SHARPNESS = SHARPNESS[-1:]
_ITERATIONS = 60
_APPROACH, _FEW_ITERATIONS = (300.0, 1000.0), 15  # sharpness and iterations of a short descent
_PRECISION = 1e-11  # of the objective at which SLSQP stops
# Iterations of SLSQP in a row that move no variable by more than this share of its range, after which it is
# stopped: where constraints cannot hold, each of its line searches spends ten evaluations and finds nothing.
_STALLED, _STILL = 3, 1e-7
_CORRECTIONS = 4  # of the margins, at most
_SETTLED = 1e-9  # change of the objective that ends corrections
_ROOM = 1e-9  # by which exact constraints are cleared
_ROUNDING = 1e-6  # the greatest excess that is taken for a rounding error
_RESTORATIONS = 3
# A constraint or a bound that is this close, relative to its limit or range, holds the design back.
_ACTIVE = 1e-5


@dataclasses.dataclass(frozen=True)
class Descended:
    """The design at which a descent ended, with its exact scores.

    - `x`: the vector of variables; `violation` and `objective` are its exact scores.
    - `multipliers`: of every constraint.
    - `residual`: the largest component of the Lagrangian's gradient, by the share of a variable's range, less
      the multipliers of active bounds: 0 where the conditions of Karush, Kuhn and Tucker hold.
    """

    x: Float[np.ndarray, " n"]
    violation: float
    objective: float
    multipliers: Float[np.ndarray, " constraints"]
    residual: float


class Descent:
    """Descends from designs of one problem, under given limits, towards a goal.

    - `relaxed`: the whole numbers of `Cube.relaxed` move too, as if they were real.
    """

    def __init__(
        self,
        scorer: Scorer,
        limits: Float[np.ndarray, " constraints"],
        goal: Goal,
        *,
        relaxed: bool = False,
    ):
        self.scorer, self.limits, self.goal = scorer, limits, goal
        self.reals = scorer.cube.relaxed if relaxed else scorer.cube.reals
        self.constraints = np.array(goal.constraints, dtype=int)

    def smooth(self, x: np.ndarray, sharpness: float) -> Smoothed:
        """Smooth scores of a design, and their slopes by the variables that move."""
        smooth = self.scorer.smooth(x, self.limits, sharpness)
        return smooth._replace(slopes=smooth.slopes[:, : len(self.reals)])

    def __call__(self, x: Float[np.ndarray, " n"], sharpness: tuple[float, ...] = SHARPNESS) -> Descended:
        """The optimum near a design, its whole variables held."""
        margins = np.zeros(len(self.constraints))
        if not len(self.reals):
            return self.ended(x, margins)
        for value in sharpness:
            x = self.solve(x, margins, value)
        best = self.ended(x, margins)
        for _ in range(_CORRECTIONS):
            before, margins = margins, self._corrected(best.x, margins)
            if np.array_equal(margins, before):  # the last correction led nowhere, and so would this one
                break
            corrected = self.ended(self._restored(self.solve(best.x, margins, sharpness[-1])), margins)
            settled = corrected.violation == 0 and abs(corrected.objective - best.objective) < _SETTLED
            if (corrected.violation, corrected.objective) < (best.violation, best.objective) or settled:
                best = corrected
            if settled:
                break
        return best

    def approached(self, x: Float[np.ndarray, " n"], hold: Sequence[int] = ()) -> Descended:
        """About the optimum near a design, in a few steps and without corrections of the margins.

        The variables at the entries of `hold` stay as they are.
        """
        for value in _APPROACH:
            x = self.solve(x, np.zeros(len(self.constraints)), value, hold=hold, iterations=_FEW_ITERATIONS)
        return self.ended(x)

    def least_violating(self, x: Float[np.ndarray, " n"]) -> Descended:
        """The design near another whose greatest excess is least: min t under excess ≤ t (elastic SLSQP)."""
        if not len(self.reals) or not len(self.constraints):
            return self.ended(x, np.zeros(len(self.constraints)))
        for value in SHARPNESS:
            x = self.solve(x, np.zeros(len(self.constraints)), value, elastic=True)
        return self.ended(x, np.zeros(len(self.constraints)))

    def _corrected(self, x: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """Margins with which smooth constraints hold where exact ones do."""
        exact = self.scorer.exact(x[None], self.limits).values[0, 1:]
        smooth = self.smooth(x, SHARPNESS[-1]).values[1:]
        difference = (exact - smooth)[self.constraints]
        return np.where(np.isfinite(difference), difference, margins) + _ROOM

    def _restored(self, x: np.ndarray) -> np.ndarray:
        """The design, moved by Newton's method to where no exact constraint is violated by rounding errors.

        SLSQP stops as soon as its merit function resolves no descent, which leaves about 1e-12.
        """
        rows = 1 + self.constraints
        for _ in range(_RESTORATIONS):
            excess = self.scorer.exact(x[None], self.limits).values[0, rows]
            violated = excess > 0
            if not np.any(violated) or excess.max() > _ROUNDING:
                break
            slopes = self.smooth(x, SHARPNESS[-1]).slopes[rows][violated]
            step = np.linalg.lstsq(slopes, -(excess[violated] + _ROOM), rcond=None)[0]
            x = self.reals.moved(x, np.clip(self.reals.share(x) + step, 0.0, 1.0))
        return x

    def solve(
        self,
        x: np.ndarray,
        margins: np.ndarray,
        sharpness: float,
        *,
        elastic: bool = False,
        hold: Sequence[int] = (),
        iterations: int = _ITERATIONS,
    ) -> np.ndarray:
        """The design to which SLSQP leads from another one at one sharpness; where SLSQP fails, the other
        design itself.

        `margins` are added to the excess of every constraint of the goal. With `elastic`, the greatest
        excess is minimized in place of the goal. Variables at the entries of `hold` stay as they are.
        """
        latest: tuple[bytes, Smoothed] | None = None
        reals = self.reals

        def at(point: np.ndarray) -> Smoothed:
            nonlocal latest
            share = point[: len(self.reals)]
            if latest is None or latest[0] != share.tobytes():
                latest = share.tobytes(), self.smooth(reals.moved(x, share), sharpness)
            return latest[1]

        start = self.reals.share(x)
        rows = 1 + self.constraints
        still = np.isin(self.reals.entries, hold)
        bounds = np.where(still, start, 0.0), np.where(still, start, 1.0)
        # One more variable, where violations are to be least: what all excesses are at most.
        beside = np.ones((len(rows), 1)) if elastic else np.zeros((len(rows), 0))
        unit = np.zeros(len(start) + 1)
        unit[-1] = 1.0
        inequalities = {
            "type": "ineq",
            "fun": lambda point: beside @ point[len(start) :] - (at(point).values[rows] + margins),
            "jac": lambda point: np.hstack([-at(point).slopes[rows], beside]),
        }
        worst = [float(at(start).values[rows].max())] if elastic else []
        progress = _Progress()
        try:
            point = minimize(
                (lambda point: point[-1]) if elastic else (lambda point: self.goal.of_rows(at(point).values)),
                np.concatenate([start, worst]),
                jac=(lambda _: unit) if elastic else (lambda point: self.goal.of_rows(at(point).slopes.T)),
                method="SLSQP",
                bounds=[*zip(*bounds, strict=True)] + [(None, None)] * len(worst),
                constraints=[inequalities] if len(rows) else [],
                callback=progress,
                options={"maxiter": iterations, "ftol": _PRECISION},
            ).x
        except _NoProgress:
            point = progress.point
        share = point[: len(start)]
        return self.reals.moved(x, np.clip(share, 0.0, 1.0)) if np.all(np.isfinite(share)) else x

    def ended(
        self,
        x: Float[np.ndarray, " n"],
        margins: Float[np.ndarray, " goal_constraints"] | None = None,
        sharpness: float = SHARPNESS[-1],
    ) -> Descended:
        """The end of a descent: exact scores, multipliers and residual of a design."""
        ranking = self.scorer.exact(x[None], self.limits).ranking(self.goal)
        multipliers, residual = np.zeros(len(self.limits)), 0.0
        if len(self.reals):
            margins = np.zeros(len(self.constraints)) if margins is None else margins
            smooth = self.smooth(x, sharpness)
            rows = 1 + self.constraints
            chosen = Smoothed(
                np.concatenate([[self.goal.of_rows(smooth.values)], smooth.values[rows]]),
                np.vstack([self.goal.of_rows(smooth.slopes.T), smooth.slopes[rows]]),
            )
            multipliers[self.constraints], residual = lagrange_multipliers(
                chosen, self.reals.share(x), margins
            )
        return Descended(
            x=x,
            violation=float(ranking.violation[0]),
            objective=float(ranking.objective[0]),
            multipliers=multipliers,
            residual=residual,
        )


class _NoProgress(Exception):
    """SLSQP's iterations end where they begin."""


class _Progress:
    """Called with the point of every iteration of SLSQP; raises `_NoProgress` where it stays the same."""

    def __init__(self) -> None:
        self.point = np.array(np.inf)
        self.stalled = 0

    def __call__(self, point: np.ndarray) -> None:
        moved = float(np.abs(point - self.point).max())
        self.stalled = self.stalled + 1 if moved <= _STILL else 0
        self.point = point.copy()
        if self.stalled >= _STALLED:
            raise _NoProgress


def lagrange_multipliers(
    smooth: Smoothed, share: Float[np.ndarray, " reals"], margins: Float[np.ndarray, " constraints"]
) -> tuple[Float[np.ndarray, " constraints"], float]:
    """The multipliers of constraints, and the largest slope of the Lagrangian that is left.

    min ‖∇f + Σ λ·∇g − Σ ν_low + Σ ν_high‖ over λ ≥ 0 of active constraints and ν ≥ 0 of active bounds.
    """
    active = np.flatnonzero(smooth.values[1:] + margins > -_ACTIVE)
    identity = np.eye(len(share))
    low, high = -identity[:, share < _ACTIVE], identity[:, share > 1 - _ACTIVE]
    columns = np.concatenate([smooth.slopes[1:][active].T, low, high], axis=1)
    multipliers = np.zeros(len(margins))
    left = smooth.slopes[0].copy()
    if columns.shape[1]:
        # Columns of one length, because least squares of columns that differ by decades lose digits.
        scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        weights = nnls(columns / scale, -smooth.slopes[0])[0] / scale
        multipliers[active] = weights[: len(active)]
        left += columns @ weights
    return multipliers, float(np.abs(left).max(initial=0.0))
