"""How max, min, ceil, step and choice are evaluated: exactly, or smoothly with a sharpness.

The estimator is written once against `Relaxation`; passing `Exact()` gives the number to report, `Smooth(sharpness)` the
differentiable surrogate whose sharpness is a traced number, so annealing never recompiles. Quantities to compare are
nonnegative, which lets the smooth maximum be a p-norm: free of any scale, an upper bound, and within n^(1/p) of exact.
"""

import abc
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.quantity import Weights, real

_TINY = (
    1e-30  # below every time, byte count and price of the documented ranges, above float32's smallest normal
)


def positive(x: Array) -> Array:
    """`x` where it is safe to divide by or take the logarithm of, with a zero gradient where it is not (double-where)."""
    return jnp.where(x > _TINY, x, _TINY)


def larger(x: Array, y: Array | float) -> Array:
    """The exact maximum; at a tie the slope of `x`. `jnp.maximum` halves it there, by divisions that every program pays for."""
    return jnp.where(x >= y, x, y)


def smaller(x: Array, y: Array | float) -> Array:
    """The exact minimum, as `larger`."""
    return jnp.where(x <= y, x, y)


def largest(values: Array) -> Array:
    """The exact maximum over the leading axis. `jnp.max` has a slope where values equal it, and where compilers round the same
    value in two ways none does."""
    return functools.reduce(larger, jnp.unstack(values))


def least(values: Array) -> Array:
    """The exact minimum over the leading axis, as `largest`."""
    return functools.reduce(smaller, jnp.unstack(values))


@jax.custom_jvp
def inverse(x: Array) -> Array:
    """1/x, with a derivative made of products.

    A division's own derivative divides twice more, and compilers neither fuse nor share divisions: a rate that many times are
    products with is inverted once. Not inside a ceil, where 216 · (1/108) is a little more than 2.
    """
    return jnp.reciprocal(x)


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = inverse(x)
    return y, -y * (y * dx)


class Relaxation(eqx.Module):
    """The operations that decide between cases."""

    @abc.abstractmethod
    def reduce_maximum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        """max over the leading axis, for values ≥ 0."""

    @abc.abstractmethod
    def reduce_minimum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        """min over the leading axis, for values ≥ 0."""

    @abc.abstractmethod
    def ceil(self, x: Array) -> Array:
        """The number of whole units that hold x."""

    @abc.abstractmethod
    def step(self, slack: Array) -> Array:
        """1 where the relative slack is ≥ 0, else 0."""

    def maximum(self, *values: Array) -> Array:
        """max of values ≥ 0, broadcast together."""
        return self.reduce_maximum(jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, values))))

    def minimum(self, *values: Array) -> Array:
        """min of values ≥ 0, broadcast together."""
        return self.reduce_minimum(jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, values))))

    def excess(self, demand: Array, supply: Array) -> Array:
        """What of `demand` is left when `supply` (both ≥ 0) has covered what it can: max(demand − supply, 0)."""
        return self.maximum(demand, supply) - supply


class Exact(Relaxation):
    """The true max, min, ceil and step."""

    def reduce_maximum(self, stacked):
        return largest(stacked)

    def reduce_minimum(self, stacked):
        return least(stacked)

    def maximum(self, *values):
        result = values[0]
        for value in values[1:]:
            result = larger(result, value)
        return result

    def minimum(self, *values):
        result = values[0]
        for value in values[1:]:
            result = smaller(result, value)
        return result

    def ceil(self, x):
        return jnp.ceil(x)

    def step(self, slack):
        return jnp.where(slack >= 0, 1.0, 0.0)


class Smooth(Relaxation):
    """Differentiable everywhere, exact as `sharpness` grows.

    - maximum: p-norm with p = sharpness; exact ≤ smooth ≤ exact · n^(1/p).
    - minimum: p-norm with p = −sharpness; exact · n^(−1/p) ≤ smooth ≤ exact.
    - ceil: a once-differentiable staircase through the integers whose slope is never below 1/(1 + sharpness).
    - step: a sigmoid in the relative slack, 1/2 at zero.
    """

    sharpness: Float[Array, ""] = eqx.field(converter=real)

    def reduce_maximum(self, stacked):
        scale = positive(jax.lax.stop_gradient(jnp.max(stacked, axis=0)))
        # Ratios are at most 1; one below 1e-12 cannot matter, and the floor keeps its logarithm finite.
        return scale * _norm(jnp.maximum(stacked / scale, 1e-12), self.sharpness)

    def reduce_minimum(self, stacked):
        scale = positive(jax.lax.stop_gradient(jnp.min(stacked, axis=0)))
        # Ratios are at least 1, unless the minimum is 0: the bounds keep that case finite without touching the others.
        return scale * _norm(jnp.clip(stacked / scale, 0.999, 1e12), -self.sharpness)

    def ceil(self, x):
        floor = jax.lax.stop_gradient(jnp.floor(x))
        fraction = x - floor
        ramp = jnp.clip(fraction * self.sharpness, 0.0, 1.0)
        slope = 1.0 / (1.0 + self.sharpness)
        return floor + (1.0 - slope) * ramp * ramp * (3.0 - 2.0 * ramp) + slope * fraction

    def step(self, slack):
        return jax.nn.sigmoid(self.sharpness * slack)


def _norm(ratios: Float[Array, "n ..."], p: Float[Array, ""]) -> Float[Array, "..."]:
    """(Σ ratioᵢ^p)^(1/p) over the leading axis, for ratios > 0."""
    # The largest term is 1, unless all values are 0: the floor keeps that case finite.
    return jnp.exp(jnp.log(jnp.maximum(jnp.sum(jnp.exp(p * jnp.log(ratios)), axis=0), 0.5)) / p)


def absent(count: Float[Array, ""]) -> bool:
    """Whether there is none of something: its count is concrete, and 0."""
    return not isinstance(count, jax.core.Tracer) and not np.any(np.asarray(count))


def choose(weights: Weights, alternatives: Mapping[str, Callable[[], Any]]) -> Any:
    """Σ weight · alternative over PyTrees, by the names of the alternatives; each is a function without arguments.

    Where the weights are concrete (closed over rather than traced) only the alternatives with weight are evaluated, so a sweep
    that fixes a choice does not pay for the others. One function given under several names is evaluated once. Alternatives must
    be finite: 0 · ∞ is not 0.

    **Raises:** `KeyError` where the names are not those that the weights are over.
    """
    if set(alternatives) != set(weights.alternatives):
        raise KeyError(f"{sorted(alternatives)} given for a choice among {sorted(weights.alternatives)}")
    weight_of: dict[Callable, Any] = {}
    for name, weight in _terms(weights).items():
        function = alternatives[name]
        weight_of[function] = weight_of[function] + weight if function in weight_of else weight
    if len(weight_of) == 1 and not isinstance(weights.array, jax.core.Tracer):
        function, weight = next(iter(weight_of.items()))
        if weight == 1.0:
            return function()
    terms = [
        jax.tree.map(lambda leaf, weight=weight: weight * leaf, function())
        for function, weight in weight_of.items()
    ]
    return jax.tree.map(lambda *leaves: functools.reduce(operator.add, leaves), *terms)


def _terms(weights: Weights) -> dict[str, Any]:
    """The weights that may not be 0, by name: concrete ones as plain numbers."""
    if isinstance(weights.array, jax.core.Tracer):
        return weights.by_name()
    return {
        name: float(weight)
        for name, weight in zip(weights.alternatives, np.asarray(weights.array), strict=True)
        if weight != 0
    }
