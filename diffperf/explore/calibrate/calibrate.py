"""Calibration: efficiencies and overheads of one accelerator's system, fitted to measured kernels, collectives and runs.

A parameter is a number of the system, the same for all shapes. What is configured is the prior; measurements move it as far as they
tell more. The fit is robust, cross-validated by families of configurations, and says how sure it is.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.calibrate import cross_validation
from diffperf.explore.calibrate.cross_validation import GroupErrors
from diffperf.explore.calibrate.fitting import (
    Fit,
    NotConverged,
    Observation,
    Prior,
    Problem,
    covariance,
    fit,
    speed_columns,
)
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.inputs import full_path
from diffperf.explore.measured.platforms import PLATFORMS, calibrations
from diffperf.explore.measured.predictions import Prediction, predict
from diffperf.explore.measured.table import Measurements, Row, read_measurements
from diffperf.hardware.system import System
from diffperf.load import declared_at, load_system
from diffperf.load.calibration import part_of, parts
from diffperf.quantity import Choice, Quantity, locate, numeric

# Columns that tell configurations from their near repetitions, and the one that errors are reported by, for every kind of table.
_MODEL = ("model", "layers", "hidden", "heads", "ffn")
FAMILIES = {
    "training": (*_MODEL, "tp", "pp", "dp", "cp", "ep"),
    "inference": (*_MODEL, "tp", "pp", "ep"),
    "gemm": ("n", "k"),
    "attention": ("heads", "kv_heads", "head_dim", "phase"),
    "collectives": ("collective", "n_devices", "interconnect"),
}
PARTS = {
    "training": "precision",
    "inference": "activation_dtype",
    "gemm": "dtype",
    "attention": "dtype",
    "collectives": "interconnect",
}
NO_EFFECT = 1e-9  # a derivative of log(time) below it, on every row, is none


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of measurements, and what became of its rows."""

    name: str
    kind: str
    sha256: str
    rows: int
    skipped: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A fitted number of the system: its configured value, the fitted one, and the standard deviations of their logarithms."""

    path: str
    declared: Quantity
    before: float
    prior_spread: float
    after: float
    spread: float

    @property
    def at_bound(self) -> bool:
        return any(abs(np.log(self.after / bound)) < 1e-3 for bound in self.declared.bounds)

    @property
    def surprise(self) -> float:
        """How many of its prior's standard deviations the value has moved."""
        return float(np.log(self.after / self.before) / self.prior_spread)


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """What `calibrate` found. Of every row used, in one order: `kinds`, `times` in s, and log(predicted / measured) before and
    after the fit, of a fit without its family, and half the width of its 90 % interval."""

    hardware: str
    system: System
    parameters: list[Parameter]
    covariance: np.ndarray
    spread: dict[str, float]
    groups: dict[str, GroupErrors]
    sources: list[Source]
    without_effect: list[str]
    faults: list[str]
    kinds: np.ndarray
    times: np.ndarray
    before: np.ndarray
    after: np.ndarray
    held_out: np.ndarray
    half_width: np.ndarray

    @property
    def parts(self) -> dict[str, str]:
        """The replaceable parts of the system that parameters lie in, by path (see `diffperf.load.calibration`)."""
        known = parts(self.system)
        owners = {part_of(one.path, known) for one in self.parameters} - {None, "accelerator"}
        return {owner: known[owner] for owner in sorted(owners)}

    def as_dict(self) -> dict[str, Any]:
        values = {
            one.path: {"unit": one.declared.unit, "before": one.before, "prior_spread": one.prior_spread, "after": one.after,
                       "spread": one.spread, "at_bound": one.at_bound}
            for one in self.parameters
        }  # fmt: skip
        return {
            "hardware": self.hardware,
            "system": str(self.system.name),
            "parameters": values,
            "covariance": self.covariance.tolist(),
            "spread": self.spread,
            "errors": {name: dataclasses.asdict(one) for name, one in self.groups.items()},
            "sources": [dataclasses.asdict(one) for one in self.sources],
            "without_effect": self.without_effect,
        }


class _Offer(eqx.Module):
    """What a parameter may be a path into."""

    system: System


def calibrate(
    files: Sequence[str | Path | Measurements],
    hardware: str | None = None,
    paths: Sequence[str] | None = None,
    *,
    stack: str | None = None,
    prior_spread: float | None = None,
    folds: int = 5,
    calibration: str | None = "none",
) -> Calibrated:
    """Fits parameters of the system of one hardware id to tables of measurements, jointly.

    **Arguments:**

    - `files`: the tables, or the paths of their files.
    - `hardware`: whose rows are used; needed where the tables have several.
    - `paths`: the parameters, as `--set` spells them; those declared calibratable by default. Those without effect on any row are
      left out.
    - `stack`: the software whose values are meant by paths into `stack`, in place of the system's own; rows of other software keep
      theirs.
    - `prior_spread`: standard deviation of the logarithm of every configured value, in place of the declared ones.
    - `folds`: of the cross-validation.
    - `calibration`: whose values all else has: "none", or None for those that systems' files name.

    **Raises:** `ConfigError` for tables, hardware or paths that are wrong, no row left, fewer rows than parameters, and a fit that
    does not converge. Rows that cannot be read or evaluated are counted by reason.
    """
    tables = [file if isinstance(file, Measurements) else read_measurements(file) for file in files]
    hardware = _chosen(hardware, tables)
    system = load_system(PLATFORMS[hardware].system, stack=stack, calibration=calibration)
    declared = _declared(system, paths)
    with calibrations(dict.fromkeys(PLATFORMS, calibration) if calibration else {}):
        observations, sources = _observations(tables, hardware)
        _check_enough(tables, sources, len(declared) if paths else 1)
        problem, prior = _problem(observations, system, declared, prior_spread)
        _check_enough(tables, sources, len(problem.paths))
        try:
            found = fit(problem, prior)
            uncertainty = covariance(problem, prior, found)
            fold_of = cross_validation.folds(observations, folds)
            held_out = cross_validation.held_out(problem, prior, found, fold_of)
        except NotConverged as why:
            remedy = "name fewer --parameters, narrow their prior or add rows"
            raise ConfigError(_names(tables), "fit", str(why), "a fit that converges", remedy) from None
        before, (after, slopes) = problem.at(prior.mean)[0], problem.at(found.logs)

    doubt = np.einsum("ri,ij,rj->r", slopes, uncertainty, slopes)
    classes = cross_validation.spread_classes(observations)
    covered = cross_validation.covered(classes, held_out, doubt, fold_of)
    spread = cross_validation.spreads(observations, held_out, doubt)
    return Calibrated(
        hardware=hardware,
        system=system,
        parameters=_parameters(problem, prior, declared, found, uncertainty),
        covariance=uncertainty,
        spread=spread,
        groups=cross_validation.group_errors(observations, before, after, held_out, covered),
        sources=sources,
        without_effect=[path for path in declared if path not in problem.paths],
        faults=[fault.message for table in tables for fault in table.faults],
        kinds=problem.kinds,
        times=np.exp(problem.measured),
        before=before,
        after=after,
        held_out=held_out,
        half_width=Z90 * np.sqrt(doubt + np.array([spread[name] for name in classes]) ** 2),
    )


def _parameters(
    problem: Problem, prior: Prior, declared: dict[str, Quantity], found: Fit, uncertainty: np.ndarray
) -> list[Parameter]:
    numbers = np.exp(prior.mean), prior.spread, np.exp(found.logs), np.sqrt(uncertainty.diagonal())
    rows = zip(problem.paths, *(column.tolist() for column in numbers), strict=True)
    return [Parameter(path, declared[path], *values) for path, *values in rows]


# --- what to fit


def _chosen(hardware: str | None, tables: list[Measurements]) -> str:
    """The hardware id whose rows are used."""
    present = sorted({row["hardware"] for table in tables for row in table.rows})
    if not present:
        raise _none_left(
            tables, collections.Counter(fault.reason for table in tables for fault in table.faults)
        )
    if hardware is None and len(present) > 1:
        found = f"rows of {len(present)} accelerators"
        raise ConfigError(
            "command line", "--hardware", found, "one accelerator", f"choose one: {', '.join(present)}"
        )
    if hardware is not None and hardware not in present:
        expected = "hardware of a row that can be read"
        raise ConfigError(
            "command line", "--hardware", f'"{hardware}"', expected, did_you_mean(hardware, present)
        )
    return hardware or present[0]


def _declared(system: System, paths: Sequence[str] | None) -> dict[str, Quantity]:
    """The parameters by path into the system, with their declarations."""
    if paths is None:
        return {path: declared for path, (declared, _) in numeric(system).items() if declared.calibratable}
    offer, found = _Offer(system), {}
    for path in paths:
        full = full_path(offer, path, key="--parameters")
        declared = declared_at(offer, full, "command line", "--parameters")
        if (
            isinstance(declared, Choice)
            or declared.bounds[0] <= 0
            or declared.integer
            or declared.kind != "input"
        ):
            expected = "an efficiency, a rate or a time of the system"
            raise ConfigError("command line", "--parameters", f'"{path}"', expected, "leave it to the config")
        found[full.removeprefix("system.")] = declared
    return found


def _prior(system: System, declared: dict[str, Quantity], spread: float | None) -> Prior:
    values = np.array([float(locate(system, path)[0]) for path in declared])
    lower, upper = np.log([one.bounds for one in declared.values()]).T
    widths = np.array([one.prior_spread if spread is None else spread for one in declared.values()])
    prior = Prior(np.log(values), widths, lower, upper)
    return dataclasses.replace(prior, mean=prior.inside(prior.mean))


def _problem(
    observations: list[Observation], system: System, declared: dict[str, Quantity], prior_spread: float | None
) -> tuple[Problem, Prior]:
    """The parameters that matter as a function to fit, and what is known of them."""
    prior = _prior(system, declared, prior_spread)
    affecting = _affecting(Problem(observations, list(declared), system), prior)
    kept = {path: one for (path, one), matters in zip(declared.items(), affecting, strict=True) if matters}
    if not kept:
        raise ConfigError(
            "command line", "--parameters", "none that a row depends on", "one that matters", "name others"
        )
    return Problem(observations, list(kept), system), _prior(system, kept, prior_spread)


def _affecting(problem: Problem, prior: Prior) -> np.ndarray:
    """Which parameters move any row, at the configured values or a factor away from them."""
    points = [prior.inside(prior.mean + shift * prior.spread) for shift in (0.0, -2.0, 2.0)]
    return np.max([np.abs(problem.at(point)[1]).max(axis=0) for point in points], axis=0) > NO_EFFECT


# --- rows


def _names(tables: list[Measurements]) -> str:
    return ", ".join(table.file for table in tables)


def _none_left(tables: list[Measurements], skipped: collections.Counter[str]) -> ConfigError:
    reasons = [f"{count:,} × {reason}" for reason, count in skipped.most_common()]
    shown = ", ".join(reasons[:4]) + (", …" if len(reasons) > 4 else "")
    expected = "rows that can be read and evaluated"
    return ConfigError(
        _names(tables), "", f"no row left to fit ({shown})", expected, "correct the rows or add others"
    )


def _check_enough(tables: list[Measurements], sources: list[Source], parameters: int) -> None:
    """Raises `ConfigError` for fewer rows to fit than parameters."""
    rows = sum(source.rows for source in sources)
    if not rows:
        raise _none_left(
            tables, sum((collections.Counter(source.skipped) for source in sources), collections.Counter())
        )
    if rows < parameters:
        found = f"{rows} usable row{'s' if rows > 1 else ''}"
        expected = f"at least one for each of {parameters} parameters"
        raise ConfigError(_names(tables), "", found, expected, "name fewer --parameters or add rows")


def _observations(tables: list[Measurements], hardware: str) -> tuple[list[Observation], list[Source]]:
    """The rows to fit, and what became of the others."""
    observations, sources = [], []
    for table in tables:
        ours = [row for row in table.rows if row["hardware"] == hardware]
        skipped = collections.Counter(fault.reason for fault in table.faults)
        skipped["other hardware"] = len(table.rows) - len(ours)
        used = 0
        for row, prediction in zip(ours, predict(table.kind, ours), strict=True):
            column = next((name for name in speed_columns(table.kind) if row[name] is not None), None)
            reason = _unusable(column, prediction)
            if reason is None:
                observations.append(_observation(table.kind, row, column))
                used += 1
            else:
                skipped[reason] += 1
        digest = hashlib.sha256(Path(table.file).read_bytes()).hexdigest()
        sources.append(
            Source(
                Path(table.file).name,
                table.kind,
                digest,
                used,
                {why: n for why, n in skipped.most_common() if n},
            )
        )
    return observations, sources


def _unusable(column: str | None, prediction: Prediction) -> str | None:
    if prediction.skipped is not None:
        return prediction.skipped
    return "nothing measured" if column is None else None


def _observation(kind: str, row: Row, column: str) -> Observation:
    family = " ".join([kind, *(str(row[name]) for name in FAMILIES[kind])])
    return Observation(kind, row, column, family, str(row[PARTS[kind]] or "all"))
