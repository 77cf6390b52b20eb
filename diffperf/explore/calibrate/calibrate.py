"""Calibration: numbers of one accelerator's system, or of a software stack, fitted to measurements.

The measurements are kernels, collectives and whole runs; the numbers are efficiencies, overheads and
latencies.

A parameter is a number of the system, the same for all shapes. What is configured, or calibrated before, is
the prior; measurements move it as far as they say more. The fit is robust, cross-validated by families of
configurations, and says how sure it is.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from diffperf.errors import ConfigError
from diffperf.explore.calibrate import cross_validation
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.fitting import Fit, NotConverged, Prior, Problem, covariance, fit
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.calibrate.observations import (
    Source,
    check_enough,
    chosen_hardware,
    driven_hardware,
    file_names,
    observations_of,
    of_hardware,
    of_stack,
)
from diffperf.explore.calibrate.parameters import (
    declared_parameters,
    fit_problem,
    fitted_parameters,
    prior_spreads,
    stack_parameters,
)
from diffperf.explore.measured.names import StackNames
from diffperf.explore.measured.platforms import Platforms, Software
from diffperf.explore.measured.table import Measurements, Row, messages, read_measurements
from diffperf.hardware.system import System
from diffperf.load import load
from diffperf.load.calibration import Calibration
from diffperf.quantity import Quantity
from diffperf.software.stack import Stack


def calibrate(
    files: Sequence[str | Path | Measurements],
    hardware: str | None = None,
    paths: Sequence[str] | None = None,
    *,
    stack: str | None = None,
    prior_spread: float | None = None,
    folds: int = 5,
    leave_out: str | None = None,
    column: str | None = None,
    calibration: Calibration | Literal["none"] | None = "none",
) -> Calibrated:
    """Fits parameters of the system of one hardware to tables of measurements, jointly.

    **Arguments:**

    - `files`: the tables, or the paths of their files.
    - `hardware`: whose rows are used: the text in their column `hardware`, or the name of their
      accelerator; needed where the tables have rows of several systems.
    - `paths`: the parameters, as `--set` spells them; by default those that are declared calibratable.
      Parameters without effect on any row are left out.
    - `stack`: the software that paths into `stack` are about, in place of the system's own; rows of other
      software keep their values.
    - `prior_spread`: the standard deviation of the logarithm of every configured value, in place of the
      declared ones.
    - `folds`: the number of parts that the rows are divided into for cross-validation.
    - `leave_out`: the column of the tables whose rows of one text stay in one part; by default rows of
      nearly the same configuration do.
    - `column`: the measured column that is fitted, such as a power; by default the first time or rate of
      every row, or its times to first token and per token.
    - `calibration`: the calibration whose values the fit begins from, and which stay where nothing is
      fitted: None for the one that the system's file names, "none" for the values of configs alone.

    **Raises:** `ConfigError` for tables, hardware or paths that are wrong, a calibration of another
    accelerator, no row left, fewer rows than parameters, and a fit that does not converge. Rows that cannot
    be read or evaluated are counted by reason.
    """
    tables, platforms = _read(files)
    hardware = chosen_hardware(hardware, tables)
    if isinstance(calibration, Calibration) and calibration.hardware != platforms[hardware].accelerator:
        found = f'a calibration of "{calibration.hardware}"'
        expected = f'one of "{platforms[hardware].accelerator}"'
        remedy = 'name another, or "none" to begin from the values of configs'
        raise ConfigError(calibration.file, "hardware", found, expected, remedy)
    platforms = platforms.with_calibration(calibration)
    software = None if stack is None else Software(load(Stack, stack), StackNames())
    system = platforms.system(hardware, software)
    target = _Target(
        hardware=str(system.accelerator.name),
        system=system,
        refusal=of_hardware(hardware),
        declared=declared_parameters(system, paths),
        named=bool(paths),
        begun_from=platforms.calibration_of(hardware),
    )
    return _fit_and_check(tables, platforms, target, _Options(prior_spread, folds, leave_out, column))


def calibrate_stack(
    files: Sequence[str | Path | Measurements],
    stack: str,
    paths: Sequence[str],
    *,
    prior_spread: float | None = None,
    folds: int = 5,
    leave_out: str | None = None,
    column: str | None = None,
) -> Calibrated:
    """Fits parameters of a software stack to the rows that it drove, on any hardware, jointly.

    Everything else has the values that it is shipped with, calibrations included.

    **Arguments** (others as of `calibrate`):

    - `stack`: the name of a shipped stack, or the path of a stack's file that the tables name.
    - `paths`: the parameters, all of the stack, with or without the leading `stack.`.

    **Raises:** `ConfigError` as `calibrate`, and for a parameter that is not of the stack.
    """
    tables, platforms = _read(files)
    driver = load(Stack, stack)
    present = driven_hardware(driver, tables, platforms)
    system = platforms.system(present[0], Software(driver, StackNames()))
    target = _Target(
        hardware=", ".join(dict.fromkeys(platforms[name].accelerator for name in present)),
        system=system,
        refusal=of_stack(driver, platforms),
        declared=stack_parameters(system, paths),
        named=bool(paths),
    )
    return _fit_and_check(tables, platforms, target, _Options(prior_spread, folds, leave_out, column))


def _read(files: Sequence[str | Path | Measurements]) -> tuple[list[Measurements], Platforms]:
    """The tables, and what the names in their columns mean."""
    tables = [file if isinstance(file, Measurements) else read_measurements(file) for file in files]
    return tables, functools.reduce(Platforms.joined, (table.platforms for table in tables))


class _Target(NamedTuple):
    """What is fitted.

    - `hardware`: its name in the result; `system`: the system with the values that the fit begins from.
    - `refusal`: why a row does not count, None where it does.
    - `declared`: the parameters by path; `named`: whether the user named them, each of which then needs a
      row.
    - `begun_from`: the calibration that the system has its values from.
    """

    hardware: str
    system: System
    refusal: Callable[[Row], str | None]
    declared: dict[str, Quantity]
    named: bool
    begun_from: Calibration | None = None


class _Options(NamedTuple):
    """How a target is fitted: arguments of `calibrate` of the same names."""

    prior_spread: float | None
    folds: int
    leave_out: str | None
    column: str | None


def _fit_and_check(
    tables: Sequence[Measurements], platforms: Platforms, target: _Target, options: _Options
) -> Calibrated:
    """The fit of a target's parameters to the rows that it does not refuse. **Raises:** `ConfigError`."""
    leave_out = options.leave_out
    observations, sources = observations_of(tables, target.refusal, platforms, leave_out, options.column)
    check_enough(tables, sources, target.declared if target.named else ())
    if leave_out is not None and len({row.family for row in observations}) < 2:
        found = f'one text in the column "{leave_out}" of all rows'
        raise ConfigError("command line", "--leave-out", found, "several", "name another column")
    spreads = prior_spreads(target.system, target.declared, options.prior_spread, target.begun_from)
    problem, prior = fit_problem(observations, target.system, target.declared, spreads, platforms)
    check_enough(tables, sources, problem.paths)
    try:
        return _fitted(problem, prior, target, options.folds, sources, tables)
    except NotConverged as why:
        remedy = "name fewer --parameters, narrow their prior or add rows"
        raise ConfigError(file_names(tables), "fit", str(why), "a fit that converges", remedy) from None


def _fitted(
    problem: Problem,
    prior: Prior,
    target: _Target,
    folds: int,
    sources: list[Source],
    tables: Sequence[Measurements],
) -> Calibrated:
    """The result of the fit of a problem. Raises `NotConverged`."""
    best: Fit = fit(problem, prior)
    uncertainty = covariance(problem, prior, best)
    fold_of = cross_validation.folds(problem.observations, folds)
    held_out = cross_validation.held_out(problem, prior, best, fold_of)
    before, (after, slopes) = problem.at(prior.mean)[0], problem.at(best.logs)

    # The variance of log(predicted) that the uncertainty of the parameters leaves: J Σ Jᵀ, row by row.
    doubt = np.einsum("ri,ij,rj->r", slopes, uncertainty, slopes)
    classes = cross_validation.spread_classes(problem.observations)
    covered = cross_validation.covered(classes, held_out, doubt, fold_of)
    spread = cross_validation.spreads(problem.observations, held_out, doubt)
    return Calibrated(
        hardware=target.hardware,
        system=problem.system,
        begun_from=target.begun_from,
        parameters=fitted_parameters(problem, prior, target.declared, best, uncertainty),
        covariance=uncertainty,
        spread=spread,
        groups=cross_validation.group_errors(problem.observations, before, after, held_out, covered),
        sources=sources,
        without_effect=[path for path in target.declared if path not in problem.paths],
        faults=[line for table in tables for line in messages(table.faults)],
        kinds=problem.kinds,
        times=np.exp(problem.measured),
        before=before,
        after=after,
        held_out=held_out,
        half_width=Z90 * np.sqrt(doubt + np.array([spread[name] for name in classes]) ** 2),
    )
