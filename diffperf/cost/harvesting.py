"""Dies that ship although some of their units are defective: harvesting, and the grades they are sold in.

Defects fall into compute units, into memory channels, or elsewhere. A die ships where nothing else is hit and
no more units and channels are hit than it has to spare: an H100 with 132 of 144 compute units. Numbers of
units and spares may be real, so that searches can relax them; the expectation is smooth in all of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.cost.yields import (
    defect_free,
    effective_clustering,
    fatal_defects,
    floored,
    stitched_share,
)
from diffperf.hardware.package import Die, total_area
from diffperf.quantity import AnyArray
from diffperf.relax import absent, inverse, larger, positive

# Fewer defective units than this are none (an estimate): cube roots have no slope at zero.
_FEWEST_DEFECTIVE = 1e-6


class ShippingShares(eqx.Module):
    """Shares of the dies of a wafer that can be sold, by grade."""

    full: Float[AnyArray, "*dies"]  # with no more defective units and channels than are to spare
    lower: Float[AnyArray, "*dies"]  # in the full grade, or with any number of defective units


def shipping_shares(die: Die) -> ShippingShares:
    """Shares of dies that ship with as many defective units and channels as each grade allows.

    Three conditions are multiplied: no defect outside units and channels; given that, no more defective units
    than are to spare; given both, no more defective channels than are to spare. Each condition lowers the
    mean number of defects that the next one expects. For the negative binomial model this is exact for units,
    and an approximation for channels.
    """
    area, process = total_area(die), die.process
    defects, stitched = fatal_defects(area, process), stitched_share(area, process)
    if absent(die.spare_units) and absent(die.spare_channels) and absent(die.lower_value):
        working = floored(defect_free(defects, process) * stitched)
        return ShippingShares(working, working)
    without_channels = defects * (1 - die.channels_share)
    elsewhere = without_channels - defects * die.units_share
    rest, units_intact, all_intact = (
        defect_free(expected, process) for expected in (elsewhere, without_channels, defects)
    )
    clustering = effective_clustering(process)
    # Kinds of parts one after the other, not on an axis: a batch of designs then fills the inner loop.
    in_units = (without_channels - elsewhere) / (1 + elsewhere / clustering)
    in_channels = (defects - without_channels) / (1 + without_channels / clustering)
    repaired_units = repaired_share(in_units, clustering, die.units, die.spare_units)
    repaired_channels = repaired_share(in_channels, clustering, die.channels, die.spare_channels)
    no_unit, no_channel = units_intact / rest, all_intact / units_intact
    lower = rest * stitched * (no_channel + (1 - no_channel) * repaired_channels)
    return ShippingShares(floored(lower * (no_unit + (1 - no_unit) * repaired_units)), floored(lower))


def repaired_share(
    defects: Float[AnyArray, "*dies"],
    clustering: Float[AnyArray, "*#dies"],
    units: Float[AnyArray, "*dies"],
    spares: Float[AnyArray, "*dies"],
) -> Float[AnyArray, "*dies"]:
    """Share with at most `spares` defective units of the dies that have any: 0 for no spares.

    The number of defective units K is negative binomial, with the mean μ that `defects` on average leave in
    `units` where several may hit one unit, U·(1 − (1 + λ/(U·c))^(−c)). The result is 1 − P(K > S)/P(K > 0),
    where P(K > S) = I_q(S + 1, c) with q = μ/(c + μ) is a regularised incomplete beta function, defined for
    real S.

    Sources: Stapper (IBM J. Research and Development 27, 1983) for the counts; Abramowitz and Stegun 26.5.24
    for their sum.
    """
    per_unit = defects / (units * clustering)
    mean = larger(-units * jnp.expm1(-clustering * jnp.log1p(per_unit)), _FEWEST_DEFECTIVE)
    q = mean / (clustering + mean)
    more_than_spares = incomplete_beta(q, spares + 1, clustering)
    any_defective = incomplete_beta(q, jnp.ones_like(q), clustering)
    return larger(1 - more_than_spares / positive(any_defective), 0.0)


def incomplete_beta(
    x: Float[AnyArray, "*#dies"], a: Float[AnyArray, "*dies"], b: Float[AnyArray, "*#dies"]
) -> Float[Array, "*dies"]:
    """The regularised incomplete beta function I_x(a, b). Shares of dies that ship are within 5e-3,
    and within 1.5e-2 where defects are clustered most (c = 0.5).

    A normal distribution at y = 3·(w₁·(1 − 1/(9b)) − w₂·(1 − 1/(9a)))/√(w₁²/b + w₂²/a) with w₁ = (b·x)^⅓ and
    w₂ = (a·(1 − x))^⅓: Abramowitz and Stegun 26.5.22. The exact function has no derivative in a and b in JAX,
    and is summed in loops that a batch of designs pays for.
    """
    log_x, log_rest = jnp.log(x), jnp.log1p(-x)
    w1 = jnp.exp((jnp.log(b) + log_x) / 3)
    w2 = jnp.exp((jnp.log(a) + log_rest) / 3)
    distance = 3 * (w1 * (1 - 1 / (9 * b)) - w2 * (1 - 1 / (9 * a)))
    # A reciprocal root would keep XLA from vectorizing the loop over configurations.
    return jax.scipy.special.ndtr(distance * jnp.sqrt(inverse(w1 * w1 / b + w2 * w2 / a)))
