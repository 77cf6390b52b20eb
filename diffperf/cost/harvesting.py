"""Dies that ship although some of their units are defective: harvesting, and the grades that dies are sold in.

Defects fall into compute units, into memory channels, or elsewhere. A die ships where nothing else is hit and
no more units and channels are hit than it has to spare: an H100 with 132 of 144 compute units. Numbers of
units and spares may be real, so that searches can relax them; the expectation is smooth in all of them.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.yields import (
    at_least,
    defect_free,
    effective_clustering,
    fatal_defects,
    stitched_share,
)
from diffperf.hardware.package import Die
from diffperf.relax import absent, larger, positive, smaller

# Levels of the continued fraction: the result is exact to 2e-4 up to 30 defects and 20 spares, and to 1e-2
# up to a hundred of both.
_LEVELS = 12
# Stirling's series is applied this far above the argument, where three terms are exact to 1e-8.
_SHIFT = 4
_HALF_LOG_TWO_PI = 0.9189385332046727


class ShippingShares(eqx.Module):
    """Shares of the dies of a wafer that can be sold, by grade."""

    full: Float[Array, "*dies"]  # with no more defective units and channels than are to spare
    lower: Float[Array, "*dies"]  # in the full or in the lower grade, whose dies may lack more units


def shipping_shares(die: Die) -> ShippingShares:
    """Shares of dies that ship with as many defective units and channels as each grade allows.

    Defects outside units and channels are fatal. Given none of those, units and channels follow one after the
    other, each with the density of defects that is left to expect; for the negative binomial model this is
    exact for units, and an approximation for channels that follow spared units.
    """
    area, process = die.total_area, die.process
    defects, stitched = fatal_defects(area, process), stitched_share(area, process)
    spared = absent(die.spare_units) and absent(die.spare_channels) and absent(die.lower_spares)
    if spared:
        working = at_least(defect_free(defects, process) * stitched)
        return ShippingShares(working, working)
    without_channels = defects * (1 - die.channels_share)
    elsewhere = without_channels - defects * die.units_share
    # Units with the spares of the full grade, channels, and units with the spares of the lower grade.
    before = jnp.stack([elsewhere, without_channels, elsewhere])
    after = jnp.stack([without_channels, defects, without_channels])
    clustering = effective_clustering(process)
    repaired = repaired_share(
        (after - before) / (1 + before / clustering),
        clustering,
        jnp.stack([die.units, die.channels, die.units]),
        jnp.stack([die.spare_units, die.spare_channels, larger(die.lower_spares, die.spare_units)]),
    )
    intact_before, intact = defect_free(before, process), defect_free(after, process)
    intact = intact / intact_before
    units, channels, lower_units = intact + (1 - intact) * repaired
    rest = intact_before[0] * channels * stitched
    return ShippingShares(at_least(rest * units), at_least(rest * lower_units))


def repaired_share(
    defects: Float[Array, "*dies"],
    clustering: Float[Array, "*dies"],
    units: Float[Array, "*dies"],
    spares: Float[Array, "*dies"],
) -> Float[Array, "*dies"]:
    """Of the dies with a defective unit, the share with at most `spares` defective ones: 0 for no spares.

    The number of defective units K is negative binomial, with the mean μ that `defects` on average leave in
    `units` where several may hit one unit, U·(1 − (1 + λ/(U·c))^(−c)). The result is 1 − P(K > S)/P(K > 0).
    P(K > S) is a regularised incomplete beta function, defined for real S. The smaller of P(K > S) and
    P(K ≤ S) is summed from its largest term on, whose sum over that term is ₂F₁(S + 1 + c, 1; b; z), with
    b = S + 2 and z = q = μ/(c + μ) for the former, b = c + 1 and z = 1 − q for the latter.

    Sources: Stapper (IBM J. Research and Development 27, 1983) for the counts; Abramowitz and Stegun 26.5.24
    and 15.3 for the sums.
    """
    per_unit = defects / (units * clustering)
    mean = positive(-units * jnp.expm1(-clustering * jnp.log1p(per_unit)))
    log_none = -clustering * jnp.log1p(mean / clustering)
    q = mean / (clustering + mean)
    many = mean > spares + 1  # more defective units than spares are likely
    b = jnp.where(many, clustering + 1, spares + 2)
    z = jnp.where(many, clustering / (clustering + mean), q)
    log_first = _log_gamma_ratio(spares, clustering) + (spares + 1) * jnp.log(q) + log_none
    first = jnp.exp(log_first) * jnp.where(many, (spares + 1) / clustering, 1.0)
    summed = first * _sum_over_first(spares + 1 + clustering, b, z)
    tail = jnp.where(many, 1 - summed, summed)
    share = 1 - tail / positive(-jnp.expm1(log_none))
    # Rounding may leave the interval by a little.
    return smaller(larger(share, 0.0), 1.0)


def _sum_over_first(
    a: Float[Array, "*dies"], b: Float[Array, "*dies"], z: Float[Array, "*dies"]
) -> Float[Array, "*dies"]:
    """₂F₁(a, 1; b; z), the sum of a tail of probabilities over its first term, by Gauss's continued fraction.

    Source: Cuyt et al., Handbook of Continued Fractions for Special Functions (2008), 15.3.
    """
    value: Float[Array, "*dies"] = jnp.ones_like(z)
    for level in range(_LEVELS, 0, -1):
        half = level // 2
        if level % 2:
            part = (a + half) * (b + half - 1) / ((b + 2 * half - 1) * (b + 2 * half))
        else:
            part = half * (b - a + half - 1) / ((b + 2 * half - 2) * (b + 2 * half - 1))
        value = 1 - part * z / value
    return 1 / value


def _log_gamma_ratio(
    spares: Float[Array, "*dies"], clustering: Float[Array, "*dies"]
) -> Float[Array, "*dies"]:
    """log(Γ(S + 1 + c)/(Γ(S + 2)·Γ(c))), the binomial coefficient of a negative binomial probability."""
    return _log_gamma(spares + 1 + clustering) - _log_gamma(spares + 2) - _log_gamma(clustering)


def _log_gamma(x: Float[Array, "*dies"]) -> Float[Array, "*dies"]:
    """log Γ(x) for x > 0, by Stirling's series (Abramowitz and Stegun 6.1.41).

    For positive arguments alone, a few products and two logarithms compile faster than the general function.
    """
    shifted = x + _SHIFT
    product = x * (x + 1) * (x + 2) * (x + 3)
    over = 1 / shifted
    series = over * (1 / 12 - over * over * (1 / 360 - over * over / 1260))
    return (shifted - 0.5) * jnp.log(shifted) - shifted + _HALF_LOG_TWO_PI + series - jnp.log(product)
