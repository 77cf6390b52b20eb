"""The result of a calibration: values with their uncertainty, and how well they explain the measurements."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from diffperf.errors import ConfigError
from diffperf.explore.calibrate.cross_validation import GroupErrors
from diffperf.explore.calibrate.observations import Source
from diffperf.explore.calibrate.parameters import Parameter
from diffperf.hardware.system import System
from diffperf.load.calibration import part_of, parts

# Bounds on the median of |log(predicted / measured)| on rows left out of the fit (estimates: fits to real
# measurements reach 0.03 to 0.25). Up to the first, a fit is kept whatever else. Beyond it, the fit has to be
# clearly better than one time for all rows; beyond the second, than the configured values as well. Beyond the
# third, no fit is kept.
EXPLAINED = np.log(1.25)
DOUBTFUL = np.log(1.5)
UNEXPLAINED = np.log(2.0)
CLEARLY_BETTER = 0.9  # largest ratio of an error to another that it is clearly below


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """The result of `calibrate`.

    - `hardware`: the name of the accelerator.
    - `system`: the system with its configured values.
    - `parameters`, `covariance`: the fitted parameters, and the covariance of the logarithms of their values.
    - `spread`: by kind of table, and by number format where formats differ, the standard deviation of
      log(predicted / measured) that no value explains.
    - `groups`: the errors by kind of table and by its parts.
    - `without_effect`: paths of the parameters that move no row.
    - `faults`: a line for each row that could not be read.

    Of every fitted row, in one order:

    - `kinds`, `times`: the kind of table, and the measured time in s (for a rate, its inverse).
    - `before`, `after`: log(predicted / measured) with the configured and with the fitted values.
    - `held_out`: the same by a fit that had not seen the row's family of configurations.
    - `half_width`: half the width of the 90 % interval of log(predicted / measured).
    """

    hardware: str
    system: System
    parameters: list[Parameter]
    covariance: Float[np.ndarray, "parameters parameters"]
    spread: dict[str, float]
    groups: dict[str, GroupErrors]
    sources: list[Source]
    without_effect: list[str]
    faults: list[str]
    kinds: np.ndarray
    times: Float[np.ndarray, " rows"]
    before: Float[np.ndarray, " rows"]
    after: Float[np.ndarray, " rows"]
    held_out: Float[np.ndarray, " rows"]
    half_width: Float[np.ndarray, " rows"]

    @property
    def parts(self) -> dict[str, str]:
        """The names of the system's replaceable parts that parameters lie in, by path."""
        known = parts(self.system)
        owners = {part_of(parameter.path, known) for parameter in self.parameters} - {None, "accelerator"}
        return {owner: known[owner] for owner in sorted(filter(None, owners))}

    def check_explains(self) -> None:
        """Raises `ConfigError` where the fit explains nothing of the rows of some kind of table."""
        for kind in sorted({str(kind) for kind in self.kinds}):
            rows = self.kinds == kind
            left_out, before = (_median_size(errors[rows]) for errors in (self.held_out, self.before))
            if not _is_explained(left_out, before, np.log(self.times[rows])):
                raise self._unexplained(kind, left_out, before)

    def _unexplained(self, kind: str, left_out: float, before: float) -> ConfigError:
        """The error of a fit that explains nothing of the rows of a kind of table."""
        files = ", ".join(source.name for source in self.sources if source.kind == kind)
        found = (
            "that the fit does not explain these rows: in the median, rows left out of the fit are predicted "
            f"a factor of {_factor(left_out)} off, {_factor(before)} with the configured values"
        )
        expected = (
            f"at most a factor of {_factor(EXPLAINED)}, or of {_factor(UNEXPLAINED)} where that is clearly "
            f"better than one time for all rows and, from {_factor(DOUBTFUL)} on, than the configured values"
        )
        checks = "the unit of the measured times (s), the hardware, the shapes and the parameters"
        remedy = f"check {checks}; nothing was written"
        return ConfigError(files, f"fit of {kind}", found, expected, remedy)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values for JSON."""
        return {
            "hardware": self.hardware,
            "system": str(self.system.name),
            "parameters": {parameter.path: _plain(parameter) for parameter in self.parameters},
            "covariance": self.covariance.tolist(),
            "spread": self.spread,
            "errors": {name: dataclasses.asdict(errors) for name, errors in self.groups.items()},
            "sources": [dataclasses.asdict(source) for source in self.sources],
            "without_effect": self.without_effect,
        }


def _plain(parameter: Parameter) -> dict[str, Any]:
    """A parameter as plain values for JSON."""
    return {
        "unit": parameter.declared.unit,
        "before": parameter.before,
        "prior_spread": parameter.prior_spread,
        "after": parameter.after,
        "spread": parameter.spread,
        "at_bound": parameter.at_bound,
    }


def _median_size(errors: Float[np.ndarray, " rows"]) -> float:
    """The median of the absolute values."""
    return float(np.median(np.abs(errors)))


def _factor(log: float) -> str:
    """A factor by its logarithm, for people."""
    return f"{np.exp(log):,.0f}" if log > np.log(100) else f"{np.exp(log):.3g}"


def _is_explained(left_out: float, before: float, log_times: Float[np.ndarray, " rows"]) -> bool:
    """Whether a fit is worth keeping.

    `left_out` and `before` are the medians of |log(predicted / measured)| on rows left out of the fit, and
    with the configured values. One time for all rows, their median, is what a system predicts that explains
    nothing of them.
    """
    largest = [UNEXPLAINED]
    if left_out > EXPLAINED:
        largest.append(CLEARLY_BETTER * _median_size(log_times - np.median(log_times)))
    if left_out > DOUBTFUL:
        largest.append(CLEARLY_BETTER * before)
    return bool(left_out <= min(largest))
