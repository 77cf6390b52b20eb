"""Staircases in place of ceil, and their means over a band: against numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffperf.relax import Exact, Smooth
from diffperf.staircase import mean_staircase, staircase

SHARPNESS = st.floats(1.0, 1e3)
UNITS = st.floats(0.01, 1e4)
BANDS = st.floats(0.01, 0.5)

_waves = jax.jit(lambda p, b, x: Smooth(p, b).waves(x))
_slope = jax.jit(jax.grad(lambda x, p, b: Smooth(p, b).waves(x)))


def integrated(x: float, sharpness: float, band: float) -> float:
    """The mean of a staircase between x·(1 ± band), by Simpson's rule between its corners."""
    low, high = x * (1 - band), x * (1 + band)
    whole = np.arange(np.floor(low), np.ceil(high) + 1)
    corners = np.concatenate([whole, whole + 1 / sharpness])
    edges = np.unique(np.concatenate([[low, high], corners[(corners > low) & (corners < high)]]))
    # Just inside of each piece: at a corner itself rounding may see the stair before.
    left, right = edges[:-1] + 1e-9 * np.diff(edges), edges[1:] - 1e-9 * np.diff(edges)
    at = [
        np.asarray(staircase(jnp.asarray(t), jnp.asarray(sharpness)))
        for t in (left, (left + right) / 2, right)
    ]
    return float(np.sum(np.diff(edges) * (at[0] + 4 * at[1] + at[2]) / 6) / (high - low))


@given(st.floats(0.01, 30.0), SHARPNESS, BANDS)
def test_mean_is_that_of_an_integration(x, p, b):
    assert float(_waves(p, b, x)) == pytest.approx(integrated(x, p, b), rel=1e-6, abs=1e-6)


@given(UNITS, SHARPNESS, BANDS)
def test_slope_is_nearly_the_secant_over_the_band(x, p, b):
    """Exactly: the secant, plus how far the ends' mean is above the mean, over x."""
    low, high = (float(Smooth(p).ceil(jnp.asarray(x * factor))) for factor in (1 - b, 1 + b))
    secant = (high - low) / (2 * b * x)
    curved = ((high + low) / 2 - float(_waves(p, b, x))) / x
    assert float(_slope(x, p, b)) == pytest.approx(secant + curved, rel=1e-6, abs=1e-6 / x)
    assert abs(curved) <= 1.0 / x + 1e-9


@given(st.integers(1, 200), st.floats(0.01, 0.99), st.floats(1e-4, 0.5))
def test_exact_where_the_band_holds_no_whole_number(whole, fraction, share):
    """The mean of a plateau is the plateau: as the band shrinks, all but whole numbers get there."""
    x = whole + fraction
    band = share * min(fraction, 1 - fraction) / x
    assert float(_waves(1e8, max(band, 2e-4 / x), x)) == pytest.approx(np.ceil(x), abs=1e-3)


def test_without_a_band_waves_are_the_staircase():
    x = jnp.linspace(0.0, 5.0, 101)
    for smooth in (Smooth(20.0), Smooth(20.0, band=0.0)):
        np.testing.assert_allclose(smooth.waves(x), Smooth(20.0).ceil(x), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(Exact().waves(x), jnp.ceil(x))


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("p", [1.0, 30.0, 1e6])
@pytest.mark.parametrize("band", [0.0, 1e-6, 0.1, 0.9])
def test_finite_in_float32(p, band):
    x = jnp.asarray([0.0, 1e-30, 1e-3, 0.5, 1.0, 7.0, 1e4, 1e12], jnp.float32)
    arguments = x, jnp.asarray(p, jnp.float32), jnp.asarray(band, jnp.float32)
    value, slopes = jax.value_and_grad(lambda *a: jnp.sum(mean_staircase(*a)), argnums=(0, 1, 2))(*arguments)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in (value, *slopes))
    assert float(Smooth(p, band).waves(x)[0]) == 0.0


def test_band_and_sharpness_are_traced_once():
    traced = []

    @jax.jit
    def waves(smooth, x):
        traced.append(smooth)
        return smooth.waves(x)

    for p, b in ((10.0, 0.2), (1000.0, 0.05), (1e6, 0.0)):
        waves(Smooth(p, b), jnp.asarray(2.5))
    assert len(traced) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_floor_loses_no_unit_to_rounding_errors(dtype):
    """Quotients of whole numbers by a product with the inverse: some are a little too small for the plain
    function.
    """
    with jax.enable_x64(dtype == np.float64):
        units = np.arange(1, 201)
        whole, part = np.meshgrid(units, units)
        inverse = (1 / units.astype(dtype))[:, None]
        quotients = (whole * part).astype(dtype) * inverse
        assert np.any(np.floor(quotients) != whole)
        np.testing.assert_array_equal(Exact().floor(jnp.asarray(quotients)), whole)
        short = (whole * part - 0.1).astype(dtype) * inverse
        np.testing.assert_array_equal(Exact().floor(jnp.asarray(short)), whole - 1)


@given(st.integers(0, 1000), st.floats(0.001, 0.999))
def test_smooth_floor_becomes_the_true_one(whole, fraction):
    assert float(Smooth(20.0).floor(jnp.asarray(float(whole)))) == pytest.approx(whole, abs=1e-9)
    assert float(Smooth(1e8).floor(jnp.asarray(whole + fraction))) == pytest.approx(whole, abs=1e-3)
