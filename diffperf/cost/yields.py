"""The share of dies without a fatal defect, by the four usual models.

All models count defects that fall on dies at random; they differ in how the density of defects varies from
place to place (Stapper, IBM J. Research and Development 27, 1983). For λ defects per die on average:

- Poisson, the same density everywhere: exp(−λ);
- Murphy, a triangular distribution (Proc. IEEE 52, 1964): ((1 − exp(−λ))/λ)²;
- Seeds, an exponential distribution (IEEE Int. Electron Devices Meeting 1967): 1/(1 + λ);
- negative binomial, a gamma distribution of shape c (Stapper 1983): (1 + λ/c)^(−c). The Bose-Einstein model
  of n critical layers of D defects per area each is the case c = n of n·D defects per area.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.process import Process
from diffperf.quantity import AnyArray
from diffperf.relax import larger, positive

# A die that never works costs a finite fortune, so that a search can leave it (an estimate). With less, the
# longest runs of the largest systems in the documented ranges cost more than float32 holds.
_LEAST_YIELD = 1e-4

# The gamma distribution with the variance of each model's density of defects over its mean, 1/c: a point has
# none, a triangle over twice the mean 1/6, an exponential distribution 1. An estimate stands for infinity:
# the counts of defects then differ from Poisson's by 1 % of their variance at three defects per die.
_CLUSTERING = {"poisson": 300.0, "murphy": 6.0, "seeds": 1.0}

Defects = Float[AnyArray, "*dies"]


def floored(yield_: Float[AnyArray, "*dies"]) -> Float[Array, "*dies"]:
    """The yield, but no less than `_LEAST_YIELD`, so that it can be divided by."""
    return larger(yield_, _LEAST_YIELD)


def fatal_defects(area: Float[AnyArray, "*dies"], process: Process) -> Defects:
    """Mean number of fatal defects on `area` mm² of a process."""
    return process.defect_density * process.critical_share * area


def defect_free(defects: Defects, process: Process) -> Float[AnyArray, "*dies"]:
    """Share of dies without a fatal defect where there are `defects` on average, by the process's model."""
    weights, possible = process.yield_model.by_name(), process.yield_model.possible
    shares = [weights[name] * _MODELS[name](defects, process) for name in weights if possible[name]]
    return floored(sum(shares, start=jnp.zeros_like(defects)))


def effective_clustering(process: Process) -> Float[AnyArray, "*dies"]:
    """The clustering c of a negative binomial count of defects with the variance of the process's model."""
    weights = process.yield_model
    unclustered = sum(weights[name] / clustering for name, clustering in _CLUSTERING.items())
    return 1 / (unclustered + weights.negative_binomial / process.clustering)


def stitched_share(area: Float[AnyArray, "*dies"], process: Process) -> Float[AnyArray, "*dies"]:
    """Share of dies of `area` mm² whose exposure fields are joined without a fault: 1 within one reticle.

    Every field beyond the first has to be joined; a part of a field counts as a part of a joint (an estimate
    that keeps the slope).
    """
    joints = larger(area / process.reticle - 1, 0.0)
    return jnp.exp(joints * jnp.log(process.stitching_yield))


def die_yield(area: Float[AnyArray, "*dies"], process: Process) -> Float[AnyArray, "*dies"]:
    """Share of dies of `area` mm² without a fatal defect and with all exposure fields joined."""
    return floored(defect_free(fatal_defects(area, process), process) * stitched_share(area, process))


def _negative_binomial(defects: Defects, process: Process) -> Float[AnyArray, "*dies"]:
    """(1 + λ/c)^(−c), as an exponential of a logarithm that is exact for few defects."""
    return jnp.exp(-process.clustering * jnp.log1p(defects / process.clustering))


def _murphy(defects: Defects, process: Process) -> Float[AnyArray, "*dies"]:
    """((1 − exp(−λ))/λ)², with the difference computed exactly for few defects."""
    share = -jnp.expm1(-defects) / positive(defects)
    return share * share


_MODELS: dict[str, Callable[[Defects, Process], Float[AnyArray, "*dies"]]] = {
    "negative_binomial": _negative_binomial,
    "poisson": lambda defects, process: jnp.exp(-defects),
    "murphy": _murphy,
    "seeds": lambda defects, process: 1 / (1 + defects),
}
