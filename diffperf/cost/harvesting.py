"""Dies that ship although some of their units are defective: harvesting, and the grades they are sold in.

Defects fall into compute units, into memory channels, or elsewhere. A die ships where nothing else is hit and
no more units and channels are hit than it has to spare: an H100 with 132 of 144 compute units. Numbers of
units and spares may be real, so that searches can relax them; the expectation is smooth in all of them.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.cost.yields import (
    at_least,
    defect_free,
    effective_clustering,
    fatal_defects,
    stitched_share,
)
from diffperf.hardware.package import Die, total_area
from diffperf.quantity import AnyArray
from diffperf.relax import absent, larger, positive, smaller

# Gauss-Legendre nodes and weights on (−1, 1). Eight are exact to 2e-4 for one defect in units of a die, to
# 4e-3 for three, and to 1e-2 for thirty.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# Log of the largest term that a probability may have in float32, where rounding would exceed it.
_LARGEST = 20.0
# Stirling's series is applied this far above the argument, where three terms are exact to 1e-8.
_SHIFT = 4
_HALF_LOG_TWO_PI = 0.9189385332046727


class ShippingShares(eqx.Module):
    """Shares of the dies of a wafer that can be sold, by grade."""

    full: Float[AnyArray, "*dies"]  # with no more defective units and channels than are to spare
    lower: Float[AnyArray, "*dies"]  # in the full or in the lower grade, whose dies may lack more units


def shipping_shares(die: Die) -> ShippingShares:
    """Shares of dies that ship with as many defective units and channels as each grade allows.

    Defects outside units and channels are fatal. Given none of those, units and channels follow one after the
    other, each with the density of defects that is left to expect; for the negative binomial model this is
    exact for units, and an approximation for channels that follow spared units.
    """
    area, process = total_area(die), die.process
    defects, stitched = fatal_defects(area, process), stitched_share(area, process)
    harvests_nothing = absent(die.spare_units) and absent(die.spare_channels) and absent(die.lower_spares)
    if harvests_nothing:
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
    intact_before, intact = defect_free(jnp.stack([before, after]), process)
    intact = intact / intact_before
    units, channels, lower_units = intact + (1 - intact) * repaired
    rest = intact_before[0] * channels * stitched
    return ShippingShares(at_least(rest * units), at_least(rest * lower_units))


def repaired_share(
    defects: Float[AnyArray, "*dies"],
    clustering: Float[AnyArray, "*#dies"],
    units: Float[AnyArray, "*dies"],
    spares: Float[AnyArray, "*dies"],
) -> Float[AnyArray, "*dies"]:
    """Of the dies with a defective unit, the share with at most `spares` defective ones: 0 for no spares.

    The number of defective units K is negative binomial, with the mean μ that `defects` on average leave in
    `units` where several may hit one unit, U·(1 − (1 + λ/(U·c))^(−c)). The result is 1 − P(K > S)/P(K > 0).
    With q = μ/(c + μ), P(K > S) = I_q(S + 1, c) and P(K ≤ S) = I_(1−q)(c, S + 1) are regularised incomplete
    beta functions, defined for real S; the one that is likely the smaller is computed.

    Sources: Stapper (IBM J. Research and Development 27, 1983) for the counts; Abramowitz and Stegun 26.5.24
    for the sums.
    """
    per_unit = defects / (units * clustering)
    mean = positive(-units * jnp.expm1(-clustering * jnp.log1p(per_unit)))
    many = mean > spares + 1  # more defective units than spares are likely
    allowed = spares + 1
    summed = _incomplete_beta(
        jnp.where(many, clustering, mean) / (clustering + mean),
        jnp.where(many, clustering, allowed),
        jnp.where(many, allowed, clustering),
    )
    tail = jnp.where(many, 1 - summed, summed)
    any_defective = -jnp.expm1(-clustering * jnp.log1p(mean / clustering))
    # Rounding may leave the interval by a little.
    return smaller(larger(1 - tail / positive(any_defective), 0.0), 1.0)


def _incomplete_beta(
    x: Float[AnyArray, "*dies"], a: Float[AnyArray, "*dies"], b: Float[AnyArray, "*dies"]
) -> Float[AnyArray, "*dies"]:
    """The regularised incomplete beta function I_x(a, b), for x below about a/(a + b).

    I_x(a, b) = x^a·Γ(a + b)/(Γ(a + 1)·Γ(b)) · ∫ (1 − x·v^(1/a))^(b − 1) dv over (0, 1), by the
    definition (Abramowitz and Stegun 26.5.1) with t = x·v^(1/a). The integrand hardly changes for such x, so
    that a few Gauss-Legendre nodes sum it. The library's function has no derivative in a and b.
    """
    log_gammas = _log_gamma(jnp.stack([a + b, a + 1, b]))
    log_factor = a * jnp.log(x) + log_gammas[0] - log_gammas[1] - log_gammas[2]
    nodes = np.log((1 + _NODES) / 2).reshape(-1, *[1] * x.ndim)
    weights = (_WEIGHTS / 2).reshape(nodes.shape)
    log_terms = log_factor + (b - 1) * jnp.log1p(-x * jnp.exp(jnp.asarray(nodes, x.dtype) / a))
    return jnp.sum(jnp.asarray(weights, x.dtype) * jnp.exp(smaller(log_terms, _LARGEST)), axis=0)


def _log_gamma(x: Float[AnyArray, "*dies"]) -> Float[AnyArray, "*dies"]:
    """log Γ(x) for x > 0, by Stirling's series (Abramowitz and Stegun 6.1.41).

    For positive arguments alone, a few products and two logarithms compile faster than the general function.
    """
    shifted = x + _SHIFT
    product = x * (x + 1) * (x + 2) * (x + 3)
    over = 1 / shifted
    series = over * (1 / 12 - over * over * (1 / 360 - over * over / 1260))
    return (shifted - 0.5) * jnp.log(shifted) - shifted + _HALF_LOG_TWO_PI + series - jnp.log(product)
