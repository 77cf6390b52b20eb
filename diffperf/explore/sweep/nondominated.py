"""The Pareto front of many points: those that no other point equals or beats in every objective.

All objectives are smaller the better. Of points that are equal in every objective the first counts, so that
the front of a union is the front of the union of the parts' fronts, however the points are divided.
"""

import functools

import numpy as np
from jaxtyping import Bool, Float, Int

_BLOCK = 256  # points that are compared with the front at once
_MOST_COMPARED = 512  # points of a front, and of others, that representatives are chosen by
_BALANCED = 16  # points that all others are compared with at first


def front_of(objectives: Float[np.ndarray, "points objectives"]) -> Int[np.ndarray, " front"]:
    """The positions of the points of the front, ascending.

    In lexicographic order a point can only be dominated by one before it: with two objectives by the
    smallest second objective so far, with more by any point of the front so far.
    """
    left = np.flatnonzero(~_beaten_by_balanced(objectives))
    order = left[np.lexsort(objectives[left].T[::-1])]  # stable: of equal points, the first stays first
    ranked = objectives[order]
    kept = _planar(ranked) if objectives.shape[1] == 2 else _spatial(ranked)
    return np.sort(order[kept])


def _beaten_by_balanced(objectives: Float[np.ndarray, "points objectives"]) -> Bool[np.ndarray, " points"]:
    """Whether each point is worse than one of the few that are good in all objectives: most points are,
    and quickly found to be.
    """
    beaten = np.zeros(len(objectives), dtype=bool)
    if len(objectives) <= _BLOCK:
        return beaten
    columns = np.ascontiguousarray(objectives.T)  # compared column by column: ten times as fast as by point
    low, high = columns.min(axis=1, keepdims=True), columns.max(axis=1, keepdims=True)
    balance = ((columns - low) / np.where(high > low, high - low, 1)).sum(axis=0)
    for chosen in np.argpartition(balance, _BALANCED)[:_BALANCED]:
        as_good, better = np.ones(len(objectives), dtype=bool), np.zeros(len(objectives), dtype=bool)
        for column in columns:
            as_good &= column[chosen] <= column
            better |= column[chosen] < column
        beaten |= as_good & better
    return beaten


def _planar(ranked: Float[np.ndarray, "points 2"]) -> Int[np.ndarray, " front"]:
    """Positions of the front of points in lexicographic order, for two objectives."""
    smallest_before = np.minimum.accumulate(np.concatenate([[np.inf], ranked[:-1, 1]]))
    return np.flatnonzero(ranked[:, 1] < smallest_before[: len(ranked)])


def _spatial(ranked: Float[np.ndarray, "points objectives"]) -> Int[np.ndarray, " front"]:
    """Positions of the front of points in lexicographic order, for any number of objectives."""
    kept = np.zeros(0, dtype=np.int64)
    for start in range(0, len(ranked), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(ranked)))
        block = block[~_dominated(ranked[block], ranked[kept])]
        inside = dominates(ranked[block][:, None], ranked[block][None])
        kept = np.concatenate([kept, block[~np.triu(inside, 1).any(axis=0)]])
    return kept


def _dominated(
    points: Float[np.ndarray, "points objectives"], front: Float[np.ndarray, "front objectives"]
) -> Bool[np.ndarray, " points"]:
    """Whether some point of the front equals or beats each point in every objective."""
    dominated = np.zeros(len(points), dtype=bool)
    for start in range(0, len(front), _BLOCK):
        dominated |= dominates(front[start : start + _BLOCK, None], points[None]).any(axis=0)
    return dominated


def dominates(first: np.ndarray, second: np.ndarray) -> Bool[np.ndarray, "*points"]:
    """Whether the first point equals or beats the second in every objective, broadcast over leading axes."""
    # Objective by objective, which takes a tenth of the time of a reduction over the short last axis.
    columns = zip(np.moveaxis(first, -1, 0), np.moveaxis(second, -1, 0), strict=True)
    return np.asarray(functools.reduce(np.logical_and, (ours <= theirs for ours, theirs in columns)))


def representatives(
    front: Float[np.ndarray, "front objectives"], count: int, others: Float[np.ndarray, "others objectives"]
) -> Float[np.ndarray, "count objectives"]:
    """A fixed number of points of a front that leave out most others, one after the other the point that
    dominates most of those of `others` that are left.

    What they dominate need not be compared with the whole front. Where fewer points are enough, the rest are
    at infinity, and dominate nothing.
    """
    chosen = np.full((count, front.shape[1]), np.inf, front.dtype)
    if not len(front):
        return chosen  # also where there are no objectives to compare by
    front, others = _spread(front, _MOST_COMPARED), _spread(others, _MOST_COMPARED)
    beaten = np.ones((len(front), len(others)), dtype=bool)
    for ours, theirs in zip(front.T, others.T, strict=True):
        beaten &= ours[:, None] <= theirs
    for place in range(min(count, len(front))):
        covered = beaten.sum(axis=1)
        best = int(np.argmax(covered))
        if not covered[best]:
            # Nothing of `others` is left: points from all over the front fill the rest.
            rest = _spread(front, count - place)
            chosen[place : place + len(rest)] = rest
            break
        chosen[place] = front[best]
        beaten &= ~beaten[best]
    return chosen


def _spread(
    points: Float[np.ndarray, "points objectives"], count: int
) -> Float[np.ndarray, "spread objectives"]:
    """At most so many points, evenly spread over the order of the first objective."""
    if len(points) <= count:
        return points
    order = np.argsort(points[:, 0], kind="stable")
    return points[order[np.linspace(0, len(points) - 1, count).astype(np.int64)]]
