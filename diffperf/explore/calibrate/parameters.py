"""Parameters of a calibration: numbers of a system by path, their priors, and which of them matter."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.calibrate.fitting import Fit, Prior, Problem
from diffperf.explore.calibrate.observations import Observation
from diffperf.explore.inputs import full_path
from diffperf.explore.measured.platforms import Platforms
from diffperf.hardware.system import System
from diffperf.load import declared_at
from diffperf.load.calibration import Calibration, followers
from diffperf.quantity import Choice, Quantity, locate, numeric

# A parameter has no effect where no row's derivative of log(time) by its logarithm is larger.
NO_EFFECT = 1e-9
# Prior standard deviations from the values before the fit at which derivatives are taken.
_TRIED = (0.0, -2.0, 2.0)
# Standard deviation of the logarithm of an efficiency or a latency between devices of one kind and their
# software of some years: an estimate. Of devices alone, Sinha et al. ("Not All GPUs Are Created Equal", SC
# 2022) measure 8 % of variation in performance.
_BETWEEN_DEVICES = 0.15
_STACK = "stack."  # how the paths of parameters of a stack begin
_AT_BOUND = 1e-3  # relative distance within which a value counts as at the end of its range


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A fitted number of the system.

    - `before`, `prior_spread`: the value before the fit, configured or calibrated, and the standard deviation
      of its logarithm.
    - `after`, `spread`: the fitted value, and the standard deviation of its logarithm.
    """

    path: str
    declared: Quantity
    before: float
    prior_spread: float
    after: float
    spread: float

    @property
    def at_bound(self) -> bool:
        """Whether the fitted value is at an end of its declared range."""
        return any(abs(np.log(self.after / bound)) < _AT_BOUND for bound in self.declared.bounds)

    @property
    def surprise(self) -> float:
        """Standard deviations of its prior by which the value has moved."""
        return float(np.log(self.after / self.before) / self.prior_spread)


class _Inputs(eqx.Module):
    """The tree that paths to parameters lead into."""

    system: System


def declared_parameters(system: System, paths: Sequence[str] | None) -> dict[str, Quantity]:
    """The declarations of parameters by their paths in the system.

    Without `paths`, those of all numbers that are declared calibratable.

    **Raises:** `ConfigError` for a path to what is no efficiency, rate or time of the system.
    """
    if paths is None:
        return {path: declared for path, (declared, _) in numeric(system).items() if declared.calibratable}
    inputs, parameters = _Inputs(system), {}
    for path in paths:
        full = full_path(inputs, path, key="--parameters")
        declared = declared_at(inputs, full, "command line", "--parameters")
        if isinstance(declared, Choice) or not _is_positive_input(declared):
            expected = "an efficiency, a rate or a time of the system"
            raise ConfigError("command line", "--parameters", f'"{path}"', expected, "leave it to the config")
        parameters[full.removeprefix("system.")] = declared
    return parameters


def stack_parameters(system: System, paths: Sequence[str]) -> dict[str, Quantity]:
    """The declarations of parameters of the system's stack by their paths in the system.

    `paths` may leave the leading `stack.` out. **Raises:** `ConfigError` for no path, and for a path to
    what is no efficiency, rate or time of the stack.
    """
    if not paths:
        known = [path for path, (one, _) in numeric(system.stack).items() if _is_positive_input(one)]
        known = [path for path in known if "." not in path]
        remedy = f"name some of {', '.join(known)}"
        raise ConfigError("command line", "--parameters", "none", "parameters of the stack", remedy)
    for path in paths:
        if "." in path.removeprefix(_STACK):
            expected = "a parameter of the stack itself, not of another part of the system"
            raise ConfigError("command line", "--parameters", f'"{path}"', expected, "leave it out")
    return declared_parameters(system, [_STACK + path.removeprefix(_STACK) for path in paths])


def _is_positive_input(declared: Quantity) -> bool:
    """Whether a number is positive, continuous, and neither a price nor a result."""
    return declared.bounds[0] > 0 and not declared.integer and declared.kind == "input"


def fit_problem(
    observations: Sequence[Observation],
    system: System,
    declared: dict[str, Quantity],
    spreads: dict[str, float],
    platforms: Platforms,
) -> tuple[Problem, Prior]:
    """The parameters that move any row as a function to fit, and what is known of them before the fit.

    `spreads` has the standard deviations of the logarithms of their values (`prior_spreads`). **Raises:**
    `ConfigError` where no parameter matters.
    """
    prior = _prior(system, declared, spreads)
    matters = _matter(Problem(observations, list(declared), system, platforms), prior)
    kept = {path: declared[path] for path, moves in zip(declared, matters, strict=True) if moves}
    if not kept:
        found, expected = "none that a row depends on", "one that matters"
        raise ConfigError("command line", "--parameters", found, expected, "name others")
    problem = Problem(observations, list(kept), system, platforms)
    return problem, _prior(system, kept, spreads)


def prior_spreads(
    system: System, declared: dict[str, Quantity], chosen: float | None, calibration: Calibration | None
) -> dict[str, float]:
    """The standard deviation of the logarithm of each parameter before the fit.

    It is the `chosen` one, else the declared one. What the system has from a calibration is known better:
    as well as that calibration knows it, and as devices of one kind are alike.
    """
    if chosen is not None:
        return dict.fromkeys(declared, chosen)
    spreads = {path: parameter.prior_spread for path, parameter in declared.items()}
    if calibration is not None:
        deviations = np.sqrt(calibration.covariance.diagonal()).tolist()
        for path, deviation in zip(calibration.parameters, deviations, strict=True):
            following = followers(path, calibration.values, system.accelerator)
            for place in (*calibration.places(path, system), *following):
                if place in spreads and place not in calibration.kept:
                    known = float(np.hypot(deviation, _BETWEEN_DEVICES))
                    spreads[place] = min(spreads[place], known)
    return spreads


def _prior(system: System, declared: dict[str, Quantity], spreads: dict[str, float]) -> Prior:
    """Prior of parameters, from the system and their declarations."""
    values = np.array([float(locate(system, path)[0]) for path in declared])
    lower, upper = np.log([parameter.bounds for parameter in declared.values()]).T
    widths = [spreads[path] for path in declared]
    prior = Prior(mean=np.log(values), spread=np.array(widths), lower=lower, upper=upper)
    return dataclasses.replace(prior, mean=prior.inside(prior.mean))


def _matter(problem: Problem, prior: Prior) -> np.ndarray:
    """Whether each parameter moves any row, at the values before the fit or a factor away from them."""
    points = [prior.inside(prior.mean + shift * prior.spread) for shift in _TRIED]
    return np.max([np.abs(problem.at(point)[1]).max(axis=0) for point in points], axis=0) > NO_EFFECT


def fitted_parameters(
    problem: Problem, prior: Prior, declared: dict[str, Quantity], fit: Fit, covariance: np.ndarray
) -> list[Parameter]:
    """The parameters of a problem with their values before and after a fit."""
    before, after = np.exp(prior.mean).tolist(), np.exp(fit.logs).tolist()
    spread = np.sqrt(covariance.diagonal()).tolist()
    return [
        Parameter(
            path=path,
            declared=declared[path],
            before=before[index],
            prior_spread=float(prior.spread[index]),
            after=after[index],
            spread=spread[index],
        )
        for index, path in enumerate(problem.paths)
    ]
