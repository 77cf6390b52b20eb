"""Fitting parameters of a system to measured times: a robust fit, and how sure it is.

Everything is in logarithms: of the parameters, so that they stay positive and their priors are factors, and
of the times, so that every row counts by its relative error whatever its size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult, least_squares

from diffperf.errors import counted
from diffperf.explore.calibrate.observations import Observation
from diffperf.explore.calibrate.residuals import Problem

MAX_STEPS = 200  # of the optimizer, after which a fit has not converged
FIRST_SCALE = 0.1  # residuals are of the order of 10 % before their scale is known
LEAST_SCALE = 1e-3  # measurements repeat no better
STARTS = 3  # points to start from, beside the prior's mean
_RESCALINGS = 3  # most fits after the first, each with the scale of the residuals of the fit before
_SAME_SCALE = 0.02  # change of the logarithm of a scale below which it has settled
_OF_MEDIAN = 0.6745  # median of the absolute value of a standard normal variable
_SINGULAR = 1e-9  # least eigenvalue of the precision, scaled to ones on its diagonal, that can be inverted


@dataclasses.dataclass(frozen=True)
class Prior:
    """Normal distribution of the logarithms of the parameters before any measurement."""

    mean: Float[np.ndarray, " parameters"]
    spread: Float[np.ndarray, " parameters"]
    lower: Float[np.ndarray, " parameters"]
    upper: Float[np.ndarray, " parameters"]

    def inside(self, logs: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, " parameters"]:
        """The nearest point that is a little within the bounds."""
        margin = 1e-6 * (self.upper - self.lower)
        return np.clip(logs, self.lower + margin, self.upper - margin)


@runtime_checkable
class Residuals(Protocol):
    """Rows of a problem, and their residuals with slopes, from which the covariance of a fit follows."""

    quantities: np.ndarray

    @property
    def observations(self) -> Sequence[Observation]: ...

    def at(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals of all rows, and their derivatives by the parameters' logarithms."""
        ...


@dataclasses.dataclass(frozen=True)
class Fit:
    """The most probable logarithms of the parameters.

    - `scale`: by measured quantity, the robust standard deviation of its residuals that the fit assumed.
    - `result`: the optimizer's report.
    """

    logs: Float[np.ndarray, " parameters"]
    scale: dict[str, float]
    result: OptimizeResult


class NotConverged(Exception):
    """A fit that failed, with the reason in a few words."""


def _soft_l1_of_data(rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """The loss of squared residuals z² and its first two derivatives, (3, residuals).

    soft_l1, 2·(√(1 + z²) − 1), for the first `rows` residuals, and z² for those of the prior.
    """

    def loss(squares: np.ndarray) -> np.ndarray:
        result = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[:rows])
        result[:, :rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return result

    return loss


def solve(
    problem: Problem, prior: Prior, scale: dict[str, float], start: np.ndarray, rows: np.ndarray | None = None
) -> Fit:
    """The fit to some rows (all by default) from a starting point. Raises `NotConverged`."""
    rows = np.arange(len(problem.measured)) if rows is None else rows
    width = np.array([scale[quantity] for quantity in problem.quantities[rows]])

    def residuals(logs: np.ndarray) -> np.ndarray:
        both = np.concatenate([problem.at(logs)[0][rows] / width, (logs - prior.mean) / prior.spread])
        if not np.isfinite(both).all():
            raise NotConverged("an estimate that is not finite")
        return both

    def slopes(logs: np.ndarray) -> np.ndarray:
        both = np.concatenate([problem.at(logs)[1][rows] / width[:, None], np.diag(1 / prior.spread)])
        if not np.isfinite(both).all():
            raise NotConverged("a derivative that is not finite")
        return both

    # SciPy's annotations know names of losses and of difference schemes only, not functions in their place.
    derivatives, loss = cast(str, slopes), cast(str, _soft_l1_of_data(len(rows)))
    bounds = (prior.lower, prior.upper)
    result = least_squares(
        residuals, prior.inside(start), derivatives, bounds=bounds, loss=loss, max_nfev=MAX_STEPS
    )
    if result.status <= 0:
        raise NotConverged(f"no convergence in {counted(MAX_STEPS, 'step')}")
    return Fit(result.x, scale, result)


def robust_scale(residuals: Float[np.ndarray, " rows"]) -> float:
    """The standard deviation of normal residuals around zero whose median size is that of the given ones."""
    return max(LEAST_SCALE, float(np.median(np.abs(residuals)) / _OF_MEDIAN))


def fit(problem: Problem, prior: Prior, seed: int = 0) -> Fit:
    """The best fit from several starts. Raises `NotConverged`.

    The exact estimate is smooth but for kinks, so a single start may end in a valley of its own. The scale
    of the residuals of each measured quantity is that of the fit itself, so the fit is repeated until the
    scale settles.
    """
    quantities = sorted(map(str, set(problem.quantities)))
    best = _best_of_starts(problem, prior, dict.fromkeys(quantities, FIRST_SCALE), seed)
    for _ in range(_RESCALINGS):
        residuals = problem.at(best.logs)[0]
        scale = {name: robust_scale(residuals[problem.quantities == name]) for name in quantities}
        settled = all(abs(np.log(scale[name] / best.scale[name])) < _SAME_SCALE for name in quantities)
        best = solve(problem, prior, scale, best.logs)
        if settled:
            break
    return best


def _best_of_starts(problem: Problem, prior: Prior, scale: dict[str, float], seed: int) -> Fit:
    """The fit of least cost from the prior's mean and from points drawn from the prior.

    **Raises:** `NotConverged` where no start leads to a fit.
    """
    draws = np.random.default_rng(seed).standard_normal((STARTS, len(prior.mean)))
    fits: list[Fit] = []
    failure = NotConverged("no start")
    for start in (prior.mean, *(prior.mean + prior.spread * draws)):
        try:
            fits.append(solve(problem, prior, scale, start))
        except NotConverged as why:
            failure = why
    if not fits:
        raise failure
    return min(fits, key=lambda fit: fit.result.cost)


def covariance(problem: Residuals, prior: Prior, best: Fit) -> Float[np.ndarray, "parameters parameters"]:
    """The covariance of the logarithms of the parameters at the fit: Laplace's approximation.

    **Raises:** `NotConverged` for rows that cannot tell parameters apart.

    The precision is the prior's plus, for each measured quantity, Σ JᵀJ/σ² times the information that a row
    has under the robust loss ψ, (E ψ′)²/E ψ² (Huber, Robust Statistics, §7.6), over the design effect of its
    families: their rows err together, so they count as fewer, Σ_families (Σ ψ)² / Σ ψ² (Kish, Survey
    Sampling, §5.4).
    """
    residuals, slopes = problem.at(best.logs)
    families = [observation.family for observation in problem.observations]
    precision = np.diag(prior.spread**-2)
    for quantity, scale in best.scale.items():
        rows = np.flatnonzero(problem.quantities == quantity)
        z, jacobian = residuals[rows] / scale, slopes[rows] / scale
        influence, curvature = z / np.sqrt(1 + z * z), (1 + z * z) ** -1.5
        squares = max(float(np.sum(influence**2)), 1e-12)  # no division by zero where all residuals are zero
        information = np.mean(curvature) ** 2 / (squares / len(rows))
        effect = _design_effect([families[row] for row in rows], influence, squares)
        precision += jacobian.T @ jacobian * (information / effect)
    return _inverse(precision)


def _design_effect(families: Sequence[str], influence: np.ndarray, squares: float) -> float:
    """Number of rows of common families that count as one independent row."""
    total: dict[str, float] = {}
    for family, pull in zip(families, influence, strict=True):
        total[family] = total.get(family, 0.0) + pull
    return max(1.0, sum(pull**2 for pull in total.values()) / squares)


def _inverse(precision: np.ndarray) -> np.ndarray:
    """The inverse of a precision. Raises `NotConverged` for a singular one.

    The precision is scaled to ones on its diagonal first.
    """
    size = np.sqrt(precision.diagonal())
    scaled = precision / np.outer(size, size)
    values = np.linalg.eigvalsh(scaled)
    if not np.isfinite(values).all() or values[0] < _SINGULAR:
        raise NotConverged("a singular Hessian: the rows cannot tell some of the parameters apart")
    return np.linalg.inv(scaled) / np.outer(size, size)
