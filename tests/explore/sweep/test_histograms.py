"""Bins that are the same on the device, in NumPy, and by their edges."""

import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.explore.sweep.histograms import BINS, Histogram, bins_of, count_values, edges
from diffperf.explore.sweep.sweep_result import _histogram

NUMBERS = np.concatenate(
    [np.random.default_rng(0).lognormal(0, 20, 5000), edges()[:2040], [0.0, -3.0, 1.0, 1e-45, 3e38]]
)


def test_bins_are_those_of_their_edges():
    single = NUMBERS.astype(np.float32)
    expected = np.clip(np.searchsorted(edges()[:2041], np.maximum(single, 0), side="right") - 1, 0, BINS - 1)
    assert np.array_equal(np.asarray(bins_of(jnp.asarray(single))), expected)
    assert np.array_equal(count_values(NUMBERS), np.bincount(expected, minlength=BINS))


def test_bins_are_narrow():
    normal = edges()[8:2032]
    widths = normal[1:] / normal[:-1]
    assert widths.max() <= 1.125
    assert widths.min() >= 1.06


def test_quantiles_are_among_the_values_where_these_are_known():
    counts = count_values(np.full(3, 0.4955))
    assert Histogram(counts, 0.4955, 0.4955).quantile(0.5) == 0.4955
    rows = np.array([0.4955, 0.4955, 0.4955])
    assert _histogram(counts, rows).quantile(0.05) == 0.4955
    assert _histogram(counts, rows[:2]) == Histogram(counts)  # a sample says nothing about the others


def test_quantiles_are_within_half_a_bin():
    values = np.random.default_rng(1).lognormal(3, 2, 20_000)
    histogram = Histogram(count_values(values))
    assert histogram.total == 20_000
    for share in (0.01, 0.05, 0.5, 0.95, 1.0):
        assert histogram.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.07)
    assert sum(row["points"] for row in histogram.rows()) == 20_000
