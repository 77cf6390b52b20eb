"""Smooth staircases in place of ceil, and their means over a relative band."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.tracing import kept_slope

# Narrower bands and fewer units have no mean that rounding in float32 leaves: there the staircase itself
# counts.
_NARROWEST = 1e-4
_FEWEST_UNITS = 1e-3


@jax.custom_jvp
def smoothstep(x: Array) -> Array:
    """r²(3 − 2r) with r = x between 0 and 1: from 0 to 1, level at both ends."""
    ramp = jnp.clip(x, 0.0, 1.0)
    return ramp * ramp * (3.0 - 2.0 * ramp)


@smoothstep.defjvp
def _smoothstep_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """The slope is 6·r·(1 − r), in which r does not move where it is 0 or 1."""
    (x,), (dx,) = primals, tangents
    ramp = jnp.clip(x, 0.0, 1.0)
    return smoothstep(x), kept_slope(6.0 * ramp * (1.0 - ramp)) * dx


def staircase(x: Array, sharpness: Float[Array, ""]) -> Array:
    """The smooth number of whole units that hold `x` ≥ 0.

    A stair from n to n + 1 for x in (n, n + 1]: a smoothstep r²(3 − 2r) over the first 1/sharpness of it,
    plus a small slope σ = 1/(1 + sharpness) all the way, without which an optimizer would see flat ground.
    Both end at whole numbers, where the stairs meet; the smoothstep starts and ends level, so that the slope
    is continuous there too.
    """
    floor = jax.lax.stop_gradient(jnp.floor(x))
    fraction = x - floor
    slope = _least_slope(sharpness)
    return floor + (1.0 - slope) * smoothstep(fraction * sharpness) + slope * fraction


def mean_staircase(x: Array, sharpness: Float[Array, ""], band: Float[Array, ""]) -> Array:
    """The mean of the staircase between x·(1 − band) and x·(1 + band).

    The staircase is x + c + a remainder whose integral G over a stair is 0, so the mean is
    x + c + (G(x·(1 + b)) − G(x·(1 − b)))/(2·b·x), in which no large numbers cancel. Its derivative by x is
    the secant over the band, (S(x·(1 + b)) − S(x·(1 − b)))/(2·b·x), plus by how much the mean of both ends of
    the band is above the mean over it, over x.
    """
    wide = (band > _NARROWEST) & (x > _FEWEST_UNITS)
    b, safe = jnp.where(wide, band, 1.0), jnp.where(wide, x, 1.0)
    remainders = _remainder(safe * (1 + b), sharpness) - _remainder(safe * (1 - b), sharpness)
    mean = safe + _mean_excess(sharpness) + remainders / (2 * b * safe)
    return jnp.where(wide, mean, staircase(x, sharpness))


def _least_slope(sharpness: Float[Array, ""]) -> Array:
    return 1.0 / (1.0 + sharpness)


def _mean_excess(sharpness: Float[Array, ""]) -> Array:
    """Excess of the staircase over its argument, on average over a stair; sharpness is at least 1."""
    return (1.0 - _least_slope(sharpness)) * (0.5 - 0.5 / sharpness)


def _remainder(x: Array, sharpness: Float[Array, ""]) -> Array:
    """∫ (S(t) − t − c) dt from the last whole number to `x`; 0 at whole numbers.

    The integral of the smoothstep, of q = r·sharpness up to 1, is (q³ − q⁴/2)/sharpness, and r − 1/sharpness
    more beyond.
    """
    r = x - jax.lax.stop_gradient(jnp.floor(x))
    q = jnp.where(r * sharpness < 1.0, r * sharpness, 1.0)
    steps = (q**3 - q**4 / 2) / sharpness + (r - q / sharpness)
    return (1.0 - _least_slope(sharpness)) * (steps - r * r / 2) - _mean_excess(sharpness) * r
