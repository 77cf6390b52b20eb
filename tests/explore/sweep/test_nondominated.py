"""The front against comparing every point with every other."""

import numpy as np
import pytest

from diffperf.explore.sweep.nondominated import front_of, representatives


def brute_force(points: np.ndarray) -> list[int]:
    """Every point that no other dominates and no earlier one equals."""
    kept = []
    for i, point in enumerate(points):
        as_good = (points <= point).all(axis=1)
        better = as_good & (points < point).any(axis=1)
        if not better.any() and not as_good[:i].any():
            kept.append(i)
    return kept


@pytest.mark.parametrize("objectives", [2, 3, 4])
@pytest.mark.parametrize("values", [3, 30, 10**6])
def test_equals_brute_force(objectives, values):
    """Few values make many equal points and many that are equal in some objectives."""
    random = np.random.default_rng(values + objectives)
    for count in (0, 1, 2, 700):
        points = random.integers(0, values, (count, objectives)).astype(float)
        assert front_of(points).tolist() == brute_force(points)


def test_a_large_front_is_kept_whole():
    x = np.linspace(0, 1, 3000)
    points = np.stack([x, 1 - x, x * 0], axis=1)
    assert front_of(points).tolist() == list(range(3000))


def test_representatives_dominate_only_what_the_front_does():
    x = np.linspace(0, 1, 100)
    front = np.stack([x, 1 - x], axis=1)
    others = front + np.random.default_rng(0).uniform(0, 0.2, front.shape)
    chosen = representatives(front, 8, others)
    assert chosen.shape == (8, 2)
    assert {tuple(point) for point in chosen} <= {tuple(point) for point in front}
    left_out = (chosen[:, None] <= others).all(axis=2).any(axis=0)
    assert left_out.mean() > 0.4
    assert (
        left_out.mean()
        >= (representatives(front, 8, others[:0])[:, None] <= others).all(axis=2).any(axis=0).mean()
    )
    few = representatives(front[:3], 8, others)
    assert {tuple(point) for point in few} <= {*map(tuple, front[:3]), (np.inf, np.inf)}
    assert np.isinf(representatives(front[:0], 8, others)).all()
    no_objectives = np.empty((1000, 0))
    assert representatives(no_objectives[:0], 8, no_objectives).shape == (8, 0)
    assert not np.isinf(representatives(front, 8, others[:0])).any()
