"""Order of design, baseline and sold systems under the uncertainty of calibrated values.

Fitted values are drawn from their posterior (a normal distribution of their logarithms, with the covariance
of the calibration), and every system is estimated anew with the values drawn for it. Systems of one
calibration share the draws, the design those of the system that is its template. What no fitted value
explains (the `spread` of a calibration) is not drawn: most of it is common to systems of one stack.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import digest_of, stored_closure
from diffperf.errors import ConfigError
from diffperf.explore.calibrate.interval import fitted_places
from diffperf.explore.codesign.against import BoughtSystem, sold_problem
from diffperf.explore.codesign.problem import DesignProblem
from diffperf.explore.codesign.result import Codesign
from diffperf.explore.codesign.variables import Candidate
from diffperf.load import load_calibration
from diffperf.load.calibration import Calibration, followers
from diffperf.quantity import locate, replace
from diffperf.relax import Exact

SAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Order:
    """The design beside one other system, over samples of the calibrated values.

    - `share`: of the samples in which the design is better.
    - `low`, `high`: the 5 % and 95 % quantiles of how many times as good it is.
    - `calibrated`: whether the other system has fitted values of its own that were drawn, too.
    """

    name: str
    share: float
    low: float
    high: float
    calibrated: bool


class Posterior:
    """Draws of fitted values, the same for all systems of a calibration."""

    def __init__(self, samples: int = SAMPLES):
        self.samples, self.random = samples, np.random.default_rng(0)
        self.drawn: dict[str, Float[np.ndarray, "samples parameters"]] = {}

    def factors(self, calibration: Calibration) -> Float[np.ndarray, "samples parameters"]:
        """Factors by which the fitted values are multiplied."""
        if calibration.name not in self.drawn:
            mean = np.zeros(len(calibration.parameters))
            normal = self.random.multivariate_normal(mean, calibration.covariance, self.samples)
            self.drawn[calibration.name] = np.exp(normal)
        return self.drawn[calibration.name]

    def values(self, candidate: Candidate) -> dict[str, Float[np.ndarray, " samples"]]:
        """The drawn values of a candidate's system by path, within their bounds; none if not calibrated."""
        calibration = _calibration(candidate)
        if calibration is None:
            return {}
        places, drawn = fitted_places(calibration, candidate.configuration), {}
        factors = dict(zip(calibration.parameters, self.factors(calibration).T, strict=True))
        for path, fitted in places.items():
            for place in (*fitted, *followers(path, list(places), candidate.system.accelerator)):
                value, declared = locate(candidate.system, place)
                low, high = getattr(declared, "bounds", (-np.inf, np.inf))
                drawn[f"system.{place}"] = np.clip(float(value) * factors[path], low, high)
        return drawn


def orders(result: Codesign, bought: Sequence[BoughtSystem]) -> list[Order]:
    """The design beside its baseline and sold systems; none where nothing of it was calibrated."""
    problem, posterior = result.problem, Posterior()
    with jax.enable_x64(True):
        ours = posterior.values(result.design)
        if not ours or problem.objective.startswith("chip."):
            return []
        design = _scores(problem, result.design, ours, posterior.samples)
        baseline = sold_problem(problem, problem.baseline.system, "baseline")
        others = [("the baseline", baseline, problem.baseline)]
        others += [(each.name, each.problem, each.candidate) for each in bought]
        return [
            _order(name, design, _scores(other, candidate, drawn, posterior.samples), bool(drawn))
            for name, other, candidate in others
            for drawn in [posterior.values(candidate)]
        ]


def _order(
    name: str, ours: Float[np.ndarray, " samples"], theirs: Float[np.ndarray, " samples"], drawn: bool
) -> Order:
    """The order by the logs of the objective, less is better."""
    ratio = np.exp(theirs - ours)
    low, high = np.quantile(ratio, (0.05, 0.95))
    return Order(
        name=name, share=float(np.mean(ratio > 1)), low=float(low), high=float(high), calibrated=drawn
    )


def _calibration(candidate: Candidate) -> Calibration | None:
    """The calibration whose values a system has, None for one without, or with one that is no config."""
    name = str(candidate.system.calibration)
    if name == "none":
        return None
    try:
        return load_calibration(name)
    except ConfigError:
        return None


def _scores(
    problem: DesignProblem,
    candidate: Candidate,
    drawn: dict[str, Float[np.ndarray, " samples"]],
    samples: int,
) -> Float[np.ndarray, " samples"]:
    """`sense` · log of the objective over the baseline's of a candidate, with values drawn for its system."""

    def of(values: Array) -> Array:
        changed = replace(candidate, dict(zip(drawn, values, strict=True))) if drawn else candidate
        return problem.score(problem.outcome_of(changed, Exact()), jnp.asarray(problem.limits))[0]

    if not drawn:
        return np.full(samples, float(_stored(of, problem, candidate, "")(jnp.zeros(0))))
    many = _stored(jax.vmap(of), problem, candidate, repr(list(drawn)))
    return np.asarray(many(jnp.asarray(np.stack(list(drawn.values()), axis=1))))


def _stored(
    function: Callable[[Array], Array], problem: DesignProblem, candidate: Candidate, asked: str
) -> Callable[[Array], Array]:
    """The function compiled, or from where its programs are stored."""
    return stored_closure(function, digest_of(problem.digest, asked, candidate))
