"""How tokens spread over experts and over the devices that hold them."""

import jax
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import larger, positive, smaller
from diffperf.workload.model import Layers, Mixture
from diffperf.workload.strategy import Strategy

# Least variance of the experts' popularity, so that nothing is divided by 0: the result for it is that for 0
# in seven digits.
_LEAST_VARIANCE = 1e-6


def routed_tokens(layers: Layers, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Tokens that a device sends to experts and gets back, a token once for each expert that it visits.

    The ranks of a tensor-parallel group send an equal part of the group's `tokens` each.
    """
    return tokens / strategy.tp * layers.experts_per_token


def expert_load(strategy: Strategy, served: Mixture | None = None) -> Scalar:
    """Tokens that the busiest device's experts compute on, over the mean of all devices.

    That is the capacity factor where experts have a set capacity, which dropped and padded tokens fill up,
    and the imbalance of the router where they have none and different devices have different experts.

    The experts of a mixture that is `served` differ in popularity besides: the E/ep experts of a device get
    a sum of tokens whose standard deviation over its mean is that of one expert over √(E/ep), and the
    busiest of ep devices the largest of so many sums.
    """
    imbalance = 1 + smaller(strategy.ep - 1, 1.0) * (strategy.expert_imbalance - 1)
    if served is not None:
        spread = strategy.expert_popularity_spread * jnp.sqrt(strategy.ep / served.experts)
        imbalance = imbalance * (1 + _largest_deviation(strategy.ep) * spread)
    return jnp.where(strategy.capacity_factor > 0, strategy.capacity_factor, imbalance)


def _largest_deviation(draws: Scalar) -> Scalar:
    """The largest of some normal numbers, in standard deviations above the mean (Blom, *Statistical Estimates
    and Transformed Beta-Variables*, 1958: the quantile (n − 3/8) / (n + 1/4)); 0 of one.
    """
    number = larger(draws, 1.0)
    return jax.scipy.special.ndtri((number - 0.375) / (number + 0.25))


def visited_share(mixture: Mixture, strategy: Strategy, tokens: Scalar, *, serving: bool = False) -> Scalar:
    """The share of the experts that at least one token visits, where a tensor-parallel group has `tokens`.

    Each of T tokens visits k of E experts. T counts the tokens of all devices that share a set of experts. In
    training, which balances experts, they are drawn at random: an expert stays without any token with the
    probability (1 − k/E)^T. In `serving`, experts differ in popularity, and the tokens of a batch meet at the
    popular ones. Popularities with a gamma distribution of mean 1 and variance v leave an expert without any
    token with the probability (1 − k/E)·(1 − v·(T − 1)·ln(1 − k/E))^(−1/v), whose limit for v = 0 is that of
    training.
    """
    of_set = tokens_of_set(strategy, tokens)
    missed = positive(1 - mixture.experts_per_token / mixture.experts)
    rate = -jnp.log(missed)
    if not serving:
        return -jnp.expm1(-of_set * rate)
    variance = larger(strategy.expert_popularity_spread**2, _LEAST_VARIANCE)
    by_first = smaller(of_set, 1.0) * (1 - missed)
    by_others = -jnp.expm1(-jnp.log1p(variance * rate * larger(of_set - 1, 0.0)) / variance)
    # Not 1 minus the share of those without any: that would be 0 in float32 for a millionth of a token.
    return by_first + (1 - by_first) * by_others


def busiest_experts(
    mixture: Mixture,
    strategy: Strategy,
    tokens: Scalar,
    visited: Scalar,
    idle_experts: Scalar | float = 0.0,
) -> Scalar:
    """Experts that the busiest device reads over those that the mean device reads.

    Of the E/ep experts of a device each is `visited` with the probability v, so that E/ep·v are visited in
    the mean, with a standard deviation of √(E/ep·v·(1 − v)). The largest of ep such numbers lies as many
    standard deviations above the mean as the largest of ep normal numbers, and is at least one expert: all
    devices wait for the one that has most to read. `idle_experts` is the share of the experts without tokens
    that are read as well.
    """
    of_device = mixture.experts / larger(strategy.ep, 1.0)
    deviations = _largest_deviation(strategy.ep)
    # The root has no derivative where every expert is visited: what is read is all of them then.
    spread = jnp.sqrt(positive(visited * (1 - visited) / of_device))
    one = smaller(tokens_of_set(strategy, tokens) * mixture.experts_per_token, 1.0) / of_device
    busiest = larger(smaller(larger(visited + deviations * spread, one), 1.0), visited)
    return (busiest + idle_experts * (1 - busiest)) / (visited + idle_experts * (1 - visited))


def tokens_of_set(strategy: Strategy, tokens: Scalar) -> Scalar:
    """Tokens of all devices that share a set of experts, where a tensor-parallel group has `tokens`."""
    return tokens * strategy.experts_tp * strategy.ep / strategy.tp
