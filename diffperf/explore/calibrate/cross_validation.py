"""Cross-validation of a calibration by families of configurations: tables hold near repetitions, which would tell a row's time."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from diffperf.explore.calibrate.fitting import Fit, Observation, Prior, Problem, solve
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.measured.validate import Errors

ENOUGH = 50  # rows of a class that tell its 90 % quantile


@dataclasses.dataclass(frozen=True)
class GroupErrors:
    """Errors of a group of rows: as configured, as fitted, each row predicted by a fit without its family; and the part of these
    that lies in 90 % intervals whose width the other folds gave (None where no other fold has any)."""

    before: Errors
    after: Errors
    cross_validated: Errors
    coverage: float | None


def folds(observations: Sequence[Observation], count: int) -> np.ndarray:
    """The fold of every row: whole families, the largest first, each to the fold that has the fewest rows of its kind."""
    size = collections.Counter((one.kind, one.family) for one in observations)
    filled: dict[str, list[int]] = collections.defaultdict(lambda: [0] * count)
    fold_of = {}
    for (kind, family), rows in sorted(size.items(), key=lambda item: (-item[1], item[0])):
        fold_of[family] = int(np.argmin(filled[kind]))
        filled[kind][fold_of[family]] += rows
    return np.array([fold_of[one.family] for one in observations])


def held_out(problem: Problem, prior: Prior, found: Fit, fold_of: np.ndarray) -> np.ndarray:
    """log(predicted / measured) of every row by a fit to the other folds."""
    result = np.empty(len(fold_of))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        logs = (
            solve(problem, prior, found.scale, found.logs, np.flatnonzero(~out)).logs
            if not out.all()
            else prior.mean
        )
        result[out] = problem.at(logs)[0][out]
    return result


def spread(residuals: np.ndarray, doubt: np.ndarray) -> float:
    """The s for which 90 % of the residuals lie within z₉₀·√(doubt + s²), doubt being the variance that the parameters leave.

    By the rank that holds for the next row too (split conformal prediction: Lei et al., JASA 2018, §2.2).
    """
    needed = np.maximum((residuals / Z90) ** 2 - doubt, 0.0)
    rank = min(1.0, 0.9 * (1 + 1 / len(needed)))
    return float(np.sqrt(np.quantile(needed, rank, method="higher")))


def spread_classes(observations: Sequence[Observation]) -> np.ndarray:
    """What each row's spread is told apart by: its kind, and its number format where the kind has enough rows of several.

    An estimate knows the format of its operands; which interconnects its collectives use, it mixes.
    """
    names = [one.kind if one.kind == "collectives" else f"{one.kind} {one.part}" for one in observations]
    rows, formats = collections.Counter(names), collections.defaultdict(set)
    for one, name in zip(observations, names, strict=True):
        formats[one.kind].add(name)
    apart = {name for names in formats.values() if len(names) > 1 for name in names if rows[name] >= ENOUGH}
    return np.array(
        [name if name in apart else one.kind for one, name in zip(observations, names, strict=True)]
    )


def spreads(
    observations: Sequence[Observation], residuals: np.ndarray, doubt: np.ndarray
) -> dict[str, float]:
    """The spread of every kind, and of every class of rows within it."""
    kinds, classes = np.array([one.kind for one in observations]), spread_classes(observations)
    groups = {str(name): kinds == name for name in sorted(set(kinds))} | {
        str(name): classes == name for name in sorted(set(classes) - set(kinds))
    }
    return {name: spread(residuals[rows], doubt[rows]) for name, rows in groups.items()}


def covered(classes: np.ndarray, residuals: np.ndarray, doubt: np.ndarray, fold_of: np.ndarray) -> np.ndarray:
    """Whether each row lies in the 90 % interval whose spread the other folds gave: 1, 0, or NaN where no other fold has any."""
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
    before: np.ndarray,
    after: np.ndarray,
    cross_validated: np.ndarray,
    inside: np.ndarray,
) -> dict[str, GroupErrors]:
    """Errors in the sense of the measured columns, by kind of table and, where it has several, by its parts."""
    sign = np.array([one.sign for one in observations])
    kinds, names = (
        np.array([one.kind for one in observations]),
        np.array([f"{one.kind} {one.part}" for one in observations]),
    )

    def errors(rows: np.ndarray) -> GroupErrors:
        three = (
            Errors.of(np.exp((sign * residuals)[rows]), np.ones(int(rows.sum())))
            for residuals in (before, after, cross_validated)
        )
        told = inside[rows][~np.isnan(inside[rows])]
        return GroupErrors(*three, float(told.mean()) if told.size else None)

    result = {}
    for kind in sorted(map(str, set(kinds))):
        result[kind] = errors(kinds == kind)
        inner: Iterable[str] = sorted(map(str, set(names[kinds == kind])))
        result |= (
            {name: errors(names == name) for name in inner} if len(set(names[kinds == kind])) > 1 else {}
        )
    return result
