"""Sources of errors of predictions: the share of their spread that each column of a table explains.

A residual is log(predicted / measured), so that twice and half as long weigh alike, and one prediction that
is ten times too long does not hide the others.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from diffperf.explore.measured.columns import Column
from diffperf.explore.measured.schemas import SCHEMAS, measured_columns
from diffperf.explore.measured.statistics import Evaluation

MOST_GROUPS = 10  # deciles of numbers, and the most frequent of texts; the other texts are one group more
EMPTY, OTHER = "(empty)", "other"
# Names of rows, results, and notes on where a row comes from, which may say that it is an outlier.
_NOT_INPUTS = ("id", "oom", "source", "confidence", "assumptions", "flags")


@dataclasses.dataclass(frozen=True)
class Explained:
    """A column of a table, and how far the residuals follow it.

    - `column`, `alike`: the column, and others that divide the rows into the same groups.
    - `share`: the share of the residuals' variance that lies between the groups, 0 to 1.
    - `groups`: the index of each row's group. Numbers of at most ten values are grouped by value, others by
      decile, ascending; texts by value, the most frequent first. Empty cells are a group of their own.
    - `names`: the names of the groups, by index.
    - `values`: the numbers of the rows, NaN for empty cells; None for a column of texts.
    """

    column: str
    alike: tuple[str, ...]
    share: float
    groups: Int[np.ndarray, " rows"]
    names: tuple[str, ...]
    values: Float[np.ndarray, " rows"] | None


@dataclasses.dataclass(frozen=True)
class Residuals:
    """The rows that have a measured and a predicted value in `column`, and what their residuals follow.

    - `ratios`: predicted / measured, the relative error plus 1.
    - `explained`: the columns of the table that vary, those that explain most first.
    """

    column: str
    measured: Float[np.ndarray, " rows"]
    ratios: Float[np.ndarray, " rows"]
    explained: list[Explained]


def residuals(kind: str, evaluations: Sequence[Evaluation], column: str) -> Residuals:
    """The residuals of a measured column against every column of a table of some kind."""
    rows = [row for row in evaluations if column in row.predicted and column in row.measured]
    measured = np.array([row.measured[column] for row in rows], dtype=float)
    ratios = np.array([row.predicted[column] for row in rows], dtype=float) / measured
    left_out = {*_NOT_INPUTS, *measured_columns(kind)}
    names = [name for name in dict.fromkeys(key for row in rows for key in row.cells) if name not in left_out]
    logs = np.log(ratios)
    by_column = [
        grouped(name, [row.cells.get(name, "") for row in rows], SCHEMAS[kind].get(name), logs)
        for name in names
    ]
    ranked = sorted((each for each in by_column if each is not None), key=lambda each: -each.share)
    return Residuals(column, measured, ratios, _once(ranked))


def grouped(
    column: str, texts: Sequence[str], declared: Column | None, logs: Float[np.ndarray, " rows"]
) -> Explained | None:
    """A column's groups and the share that they explain; None for a column that is constant, or whose texts
    are names of single rows.
    """
    numbers = None if declared is not None and declared.declared is None else _numbers(texts)
    if len(set(texts)) < 2:
        return None
    if numbers is not None:
        groups, names = _number_groups(numbers)
    elif 2 * len(set(texts)) > len(texts) > 2:
        return None
    else:
        groups, names = _text_groups(texts)
    if len(names) < 2:
        return None
    return Explained(
        column=column,
        alike=(),
        share=explained_share(logs, groups),
        groups=groups,
        names=names,
        values=numbers,
    )


def explained_share(residuals: Float[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"]) -> float:
    """The share of the variance of residuals that lies between groups of rows: the correlation ratio.

    The squared correlation ratio of Pearson (1905), η² = 1 − S_within / S, grows with the number of groups
    even where they mean nothing; that of Kelley (1935), in which variances take the place of sums, does not:

        ε² = 1 − (S_within / (n − k)) / (S / (n − 1))

    - S: sum of squares of the n residuals around their mean.
    - S_within: the same around the means of their groups, of which there are k.

    Columns go together (a model and its width), so that the shares of several do not add up. Values below
    zero, which chance gives, are shown as 0; so are residuals that do not vary and groups of single rows.

    **Source:** T. L. Kelley, An unbiased correlation ratio measure, PNAS 21 (1935) 554.
    """
    rows, count = len(residuals), len(np.unique(groups))
    total = float(np.sum((residuals - np.mean(residuals)) ** 2)) if rows else 0.0
    if rows <= count or total <= 1e-24 * rows:
        return 0.0
    within = sum(
        float(np.sum((residuals[groups == group] - residuals[groups == group].mean()) ** 2))
        for group in np.unique(groups)
    )
    return max(0.0, 1 - (within / (rows - count)) / (total / (rows - 1)))


def _numbers(texts: Sequence[str]) -> Float[np.ndarray, " rows"] | None:
    """The cells as numbers, NaN where empty; None where one is no finite number, or all are empty."""
    try:
        numbers = np.array([float(text) if text else math.nan for text in texts])
    except ValueError:
        return None
    known = np.array([bool(text) for text in texts])
    return numbers if known.any() and np.isfinite(numbers[known]).all() else None


def _number_groups(
    numbers: Float[np.ndarray, " rows"],
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Groups by value where there are at most ten values, else by decile; empty cells come last."""
    known = numbers[~np.isnan(numbers)]
    starts = np.unique(known)  # the least value of each group
    if len(starts) > MOST_GROUPS:
        shares = np.arange(MOST_GROUPS) / MOST_GROUPS
        starts = np.unique(np.quantile(known, shares, method="closest_observation"))
    places = np.searchsorted(starts, numbers, side="right") - 1
    groups = np.where(np.isnan(numbers), len(starts), places)
    names = tuple(f"{start:g}" for start in starts)
    return groups, (*names, EMPTY) if np.isnan(numbers).any() else names


def _text_groups(texts: Sequence[str]) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Groups by text, the most frequent first; beyond ten texts the less frequent are one group."""
    counts = collections.Counter(texts)
    names = [text for text, _ in counts.most_common(MOST_GROUPS)]
    index = {name: place for place, name in enumerate(names)}
    groups = np.array([index.get(text, len(names)) for text in texts])
    shown = tuple(name or EMPTY for name in names)
    return groups, (*shown, OTHER) if len(counts) > len(names) else shown


def _once(ranked: list[Explained]) -> list[Explained]:
    """The columns, where those that divide the rows alike are one entry of the first of them."""
    entries: dict[tuple[int, ...], Explained] = {}
    for each in ranked:
        first_seen: dict[int, int] = {}
        division = tuple(first_seen.setdefault(int(group), len(first_seen)) for group in each.groups)
        if (entry := entries.get(division)) is None:
            entries[division] = each
        else:
            entries[division] = dataclasses.replace(entry, alike=(*entry.alike, each.column))
    return list(entries.values())
