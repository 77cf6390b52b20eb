"""The result of a calibration: values with their uncertainty, and how well they explain the measurements."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag

from diffperf.errors import ConfigError
from diffperf.explore.calibrate.cross_validation import GroupErrors
from diffperf.explore.calibrate.observations import Source
from diffperf.explore.calibrate.parameters import Parameter
from diffperf.hardware.system import System
from diffperf.load.calibration import Calibration, part_of, parts

# Bounds on the median of |log(predicted / measured)| on rows left out of the fit (estimates: fits to real
# measurements reach 0.03 to 0.25). Up to the first, a fit is kept whatever else. Beyond it, the fit has to be
# clearly better than one time for all rows; beyond the second, than the values before it as well. Beyond the
# third, no fit is kept.
EXPLAINED = np.log(1.25)
DOUBTFUL = np.log(1.5)
UNEXPLAINED = np.log(2.0)
CLEARLY_BETTER = 0.9  # largest ratio of an error to another that it is clearly below


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """The result of `calibrate`.

    - `hardware`: the name of the accelerator.
    - `system`: the system with the values before the fit.
    - `begun_from`: the calibration that it has values from, of which those stay that are not fitted.
    - `parameters`, `covariance`: the fitted parameters, and the covariance of the logarithms of their values.
    - `spread`: by kind of table, and by number format where formats differ, the standard deviation of
      log(predicted / measured) that no value explains.
    - `groups`: the errors by kind of table and by its parts.
    - `without_effect`: paths of the parameters that move no row.
    - `faults`: a line for each row that could not be read.

    Of every fitted row, in one order:

    - `kinds`, `times`: the kind of table, and the measured time in s (for a rate, its inverse).
    - `before`, `after`: log(predicted / measured) with the values before the fit and with the fitted ones.
    - `held_out`: the same by a fit that had not seen the row's family of configurations.
    - `half_width`: half the width of the 90 % interval of log(predicted / measured).
    """

    hardware: str
    system: System
    begun_from: Calibration | None
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
        """The names of the system's replaceable parts that values lie in, by path: parameters, and values
        that stay from the calibration before.
        """
        known = parts(self.system)
        owners = {part_of(parameter.path, known) for parameter in self.parameters} - {None, "accelerator"}
        fitted = {owner: known[owner] for owner in sorted(filter(None, owners))}
        return ({} if self.begun_from is None else self.begun_from.parts) | fitted

    @property
    def staying(self) -> dict[str, Any]:
        """The values of the calibration before that stay, by path, as its file gives them.

        Left out are values that are fitted now, values that the user's file sets itself, and values of a
        part, such as a stack, in place of which another one was fitted: a calibration is about one part at a
        path.
        """
        before = self.begun_from
        if before is None:
            return {}
        fitted = {parameter.path for parameter in self.parameters}
        return {
            path: value
            for path, value in before.values.items()
            if path not in fitted and path not in before.kept and self._is_of_same_part(path, before.parts)
        }

    def _is_of_same_part(self, path: str, known: dict[str, str]) -> bool:
        owner = part_of(path, known)
        return owner is None or self.parts[owner] == known[owner]

    @property
    def all_covariance(self) -> Float[np.ndarray, "values values"]:
        """The covariance of the logarithms of fitted and staying values, in this order."""
        staying = self.staying
        if self.begun_from is None or not staying:
            return self.covariance
        kept = [self.begun_from.parameters.index(path) for path in staying]
        return np.asarray(block_diag(self.covariance, self.begun_from.covariance[np.ix_(kept, kept)]))

    @property
    def all_spread(self) -> dict[str, float]:
        """`spread`, and for other kinds of tables that of the calibration before."""
        before = {} if self.begun_from is None else self.begun_from.spread
        kinds = {key.split(" ")[0] for key in self.spread}
        return self.spread | {key: one for key, one in before.items() if key.split(" ")[0] not in kinds}

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
            f"a factor of {_factor(left_out)} off, {_factor(before)} with the values before the fit"
        )
        expected = (
            f"at most a factor of {_factor(EXPLAINED)}, or of {_factor(UNEXPLAINED)} where that is clearly "
            f"better than one time for all rows and, from {_factor(DOUBTFUL)} on, than the values before it"
        )
        checks = "the unit of the measured times (s), the hardware, the shapes and the parameters"
        remedy = f"check {checks}; nothing was written"
        return ConfigError(files, f"fit of {kind}", found, expected, remedy)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values for JSON."""
        return {
            "hardware": self.hardware,
            "system": str(self.system.name),
            "begun_from": None if self.begun_from is None else self.begun_from.name,
            "staying": self.staying,
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
    with the values before the fit. One time for all rows, their median, is what a system predicts that
    explains nothing of them.
    """
    largest = [UNEXPLAINED]
    if left_out > EXPLAINED:
        largest.append(CLEARLY_BETTER * _median_size(log_times - np.median(log_times)))
    if left_out > DOUBTFUL:
        largest.append(CLEARLY_BETTER * before)
    return bool(left_out <= min(largest))
