"""Cross-validation of a calibration by families of configurations.

Rows of a family are near repetitions of each other, which would predict each other's times.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from diffperf.explore.calibrate.fitting import Fit, Prior, solve
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.calibrate.observations import Observation
from diffperf.explore.calibrate.residuals import Problem
from diffperf.explore.measured.statistics import Errors

ENOUGH = 50  # rows that are needed to estimate a 90 % quantile

Residuals = Float[np.ndarray, " rows"]  # log(predicted / measured)


@dataclasses.dataclass(frozen=True)
class GroupErrors:
    """Errors of a group of rows.

    - `before`, `after`: with the configured and with the fitted values.
    - `cross_validated`: every row predicted by a fit that had not seen the row's family.
    - `coverage`: the share of these predictions whose 90 % interval, of the width that the other folds
      give, holds the measured value; None where no other fold gives a width.
    """

    before: Errors
    after: Errors
    cross_validated: Errors
    coverage: float | None


def folds(observations: Sequence[Observation], count: int) -> Int[np.ndarray, " rows"]:
    """The fold of every row: families stay whole, and folds get equally many rows of each kind.

    The largest family goes first, each to the fold with the fewest rows of its kind.
    """
    size = collections.Counter((row.kind, row.family) for row in observations)
    rows_in_fold: dict[str, list[int]] = collections.defaultdict(lambda: [0] * count)
    fold_of: dict[str, int] = {}
    for (kind, family), rows in sorted(size.items(), key=lambda item: (-item[1], item[0])):
        fold_of[family] = int(np.argmin(rows_in_fold[kind]))
        rows_in_fold[kind][fold_of[family]] += rows
    return np.array([fold_of[row.family] for row in observations])


def held_out(problem: Problem, prior: Prior, best: Fit, fold_of: Int[np.ndarray, " rows"]) -> Residuals:
    """log(predicted / measured) of every row by a fit to the other folds.

    Where there is only one fold, by the prior.
    """
    result = np.empty(len(fold_of))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        if out.all():
            logs = prior.mean
        else:
            logs = solve(problem, prior, best.scale, best.logs, np.flatnonzero(~out)).logs
        result[out] = problem.at(logs)[0][out]
    return result


def spread(residuals: Residuals, doubt: Residuals) -> float:
    """The s for which 90 % of the residuals lie within z₉₀·√(doubt + s²).

    `doubt` is the variance of log(predicted) that the uncertainty of the parameters leaves.

    By the rank that holds for the next row too (split conformal prediction: Lei et al., JASA 2018, §2.2).
    """
    needed = np.maximum((residuals / Z90) ** 2 - doubt, 0.0)
    rank = min(1.0, 0.9 * (1 + 1 / len(needed)))
    return float(np.sqrt(np.quantile(needed, rank, method="higher")))


def spread_classes(observations: Sequence[Observation]) -> np.ndarray:
    """The class of rows that each row shares a spread with: its kind, or its number format within the kind.

    Number formats are classes where the kind has several, each with enough rows. An estimate knows the
    format of its operands; interconnects are no classes, because an estimate mixes those that its
    collectives use.
    """
    names = [row.kind if row.kind == "collectives" else f"{row.kind} {row.part}" for row in observations]
    rows, formats = collections.Counter(names), collections.defaultdict(set)
    for row, name in zip(observations, names, strict=True):
        formats[row.kind].add(name)
    several = set().union(*(of_kind for of_kind in formats.values() if len(of_kind) > 1))
    classes = {name for name in several if rows[name] >= ENOUGH}
    return np.array(
        [name if name in classes else row.kind for row, name in zip(observations, names, strict=True)]
    )


def spreads(observations: Sequence[Observation], residuals: Residuals, doubt: Residuals) -> dict[str, float]:
    """The spread of every kind, and of every class of rows within it."""
    kinds, classes = np.array([row.kind for row in observations]), spread_classes(observations)
    groups = {str(name): kinds == name for name in sorted(set(kinds))}
    groups |= {str(name): classes == name for name in sorted(set(classes) - set(kinds))}
    return {name: spread(residuals[rows], doubt[rows]) for name, rows in groups.items()}


def covered(
    classes: np.ndarray, residuals: Residuals, doubt: Residuals, fold_of: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, " rows"]:
    """Whether each row lies in the 90 % interval that the other folds give: 1, 0, or NaN for none."""
    result = np.full(len(residuals), np.nan)
    for name in set(classes):
        for fold in np.unique(fold_of):
            out, others = (classes == name) & (fold_of == fold), (classes == name) & (fold_of != fold)
            if out.any() and others.any():
                width = Z90 * np.sqrt(doubt[out] + spread(residuals[others], doubt[others]) ** 2)
                result[out] = np.abs(residuals[out]) <= width
    return result


def group_errors(
    observations: Sequence[Observation],
    before: Residuals,
    after: Residuals,
    cross_validated: Residuals,
    inside: Float[np.ndarray, " rows"],
) -> dict[str, GroupErrors]:
    """Errors by kind of table and, where a kind has several measured columns or parts, by each of them.

    They have the sense of the measured columns: of a rate, not of a time.

    `inside` is what `covered` returns.
    """
    sign = np.array([row.sign for row in observations])
    kinds = np.array([row.kind for row in observations])
    quantities = np.array([row.quantity for row in observations])
    of_parts = np.array([f"{row.kind} {row.part}" for row in observations])

    def errors(residuals: Residuals) -> Errors:
        return Errors.of(np.exp(residuals), np.ones(len(residuals)))

    def group(rows: np.ndarray) -> GroupErrors:
        """Errors of a group of rows: before and after the fit, and in cross-validation."""
        known = inside[rows][~np.isnan(inside[rows])]
        return GroupErrors(
            before=errors((sign * before)[rows]),
            after=errors((sign * after)[rows]),
            cross_validated=errors((sign * cross_validated)[rows]),
            coverage=float(known.mean()) if known.size else None,
        )

    result = {}
    for kind in sorted(map(str, set(kinds))):
        result[kind] = group(kinds == kind)
        for names in (quantities, of_parts):
            several = sorted(map(str, set(names[kinds == kind])))
            if len(several) > 1:
                result |= {name: group(names == name) for name in several}
    return result
