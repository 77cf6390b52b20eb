"""How max, min, ceil, step and choice are evaluated: exactly, or smoothly with a sharpness.

The estimator is written once against `Relaxation`; passing `Exact()` gives the number to report,
`Smooth(sharpness)` the differentiable surrogate whose sharpness is a traced number, so annealing never
recompiles. Quantities to compare are nonnegative, which lets the smooth maximum be a p-norm: free of any
scale, an upper bound, and within n^(1/p) of the exact one for n values.
"""

import abc
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.quantity import AnyArray, Weights, is_traced, real

# Below every time, byte count and price of the documented ranges, above the smallest normal number of float32
# (1.2e-38).
TINY = 1e-30
# A term this far below the largest changes a p-norm by at most this share of it (at p = 1).
_LEAST_RATIO = 1e-12


def positive(x: AnyArray | float) -> Array:
    """`x`, at least `TINY`: safe to divide by and to take the logarithm of; the slope is 0 at that floor.

    The other half of a double-where: `where(x > 0, log(x), 0)` has the gradient 0 · ∞ = NaN at 0, because the
    branch that is not taken is differentiated too. `log(positive(x))` never sees the dangerous value.
    """
    return jnp.where(x > TINY, x, TINY)


def larger(x: AnyArray | float, y: AnyArray | float) -> Array:
    """The exact maximum of two; at a tie it has the slope of `x`.

    `jnp.maximum` halves the slope between the two at a tie, by divisions that every program pays for.
    """
    return jnp.where(x >= y, x, y)


def smaller(x: AnyArray | float, y: AnyArray | float) -> Array:
    """The exact minimum of two; at a tie it has the slope of `x`."""
    return jnp.where(x <= y, x, y)


def largest(values: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The exact maximum over the leading axis; at a tie it has the slope of the first.

    The gradient of `jnp.max` goes to the values that equal the result. Compilers may round a value that is
    computed twice in two ways, and then no value equals the result and the gradient is lost.
    """
    return functools.reduce(larger, jnp.unstack(values))


def least(values: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The exact minimum over the leading axis; at a tie it has the slope of the first."""
    return functools.reduce(smaller, jnp.unstack(values))


@jax.custom_jvp
def inverse(x: Array | float) -> Array:
    """1/x, with a derivative made of products.

    The derivative of a division divides twice more, and compilers neither fuse nor share divisions: a rate
    that many amounts of work are divided by is inverted once. Do not use it inside a ceil, where 216 ·
    (1/108) is a little more than 2.
    """
    return jnp.reciprocal(x)


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array | float], tangents: tuple[Array | float]) -> tuple[Array, Array]:
    """d(1/x) = −dx/x², as products with 1/x."""
    (x,), (dx,) = primals, tangents
    y = inverse(x)
    return y, -y * (y * dx)


class Relaxation(eqx.Module):
    """The operations that decide between cases: maximum, minimum, ceil, step."""

    @abc.abstractmethod
    def reduce_maximum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        """The maximum over the leading axis, for values ≥ 0."""

    @abc.abstractmethod
    def reduce_minimum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        """The minimum over the leading axis, for values ≥ 0."""

    @abc.abstractmethod
    def ceil(self, x: Array) -> Array:
        """The number of whole units that hold `x` ≥ 0."""

    @abc.abstractmethod
    def step(self, slack: Array) -> Array:
        """1 where the relative slack is ≥ 0, else 0."""

    def maximum(self, *values: Array | float) -> Array:
        """The maximum of values ≥ 0, broadcast together."""
        return self.reduce_maximum(jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, values))))

    def minimum(self, *values: Array | float) -> Array:
        """The minimum of values ≥ 0, broadcast together."""
        return self.reduce_minimum(jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, values))))

    def excess(self, demand: Array | float, supply: Array | float) -> Array:
        """max(demand − supply, 0), the part of `demand` that `supply` does not cover; both are ≥ 0."""
        # As a maximum of two nonnegative numbers, because a p-norm is not defined for the difference, which
        # may be negative.
        return self.maximum(demand, supply) - supply


class Exact(Relaxation):
    """The true max, min, ceil and step."""

    def reduce_maximum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        return largest(stacked)

    def reduce_minimum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        return least(stacked)

    # Pairwise, without the stacking that a reduction over an axis needs.
    def maximum(self, *values: Array | float) -> Array:
        return cast(Array, functools.reduce(larger, values))

    def minimum(self, *values: Array | float) -> Array:
        return cast(Array, functools.reduce(smaller, values))

    def ceil(self, x: Array) -> Array:
        return jnp.ceil(x)

    def step(self, slack: Array) -> Array:
        return jnp.where(slack >= 0, 1.0, 0.0)


class Smooth(Relaxation):
    """Differentiable everywhere, exact as `sharpness` grows.

    - maximum: p-norm with p = sharpness; exact ≤ smooth ≤ exact · n^(1/p).
    - minimum: p-norm with p = −sharpness; exact · n^(−1/p) ≤ smooth ≤ exact.
    - ceil: a once-differentiable staircase through the integers whose slope is never below 1/(1 + sharpness).
    - step: a sigmoid in the relative slack, 1/2 at zero.
    """

    sharpness: Float[Array, ""] = eqx.field(converter=real)

    def reduce_maximum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        # A p-norm is homogeneous, so any scale gives the same value; dividing by the maximum keeps powers of
        # p = 500 from overflowing. The gradient with respect to the scale is zero for the same reason, and
        # stopping it saves its cost.
        scale = positive(jax.lax.stop_gradient(jnp.max(stacked, axis=0)))
        # The floor keeps the logarithm of a ratio of 0 finite.
        return scale * _norm(jnp.maximum(stacked / scale, _LEAST_RATIO), self.sharpness)

    def reduce_minimum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        scale = positive(jax.lax.stop_gradient(jnp.min(stacked, axis=0)))
        # Ratios are at least 1, but for a minimum of 0, whose scale is `TINY` and whose ratios may be 0 or
        # infinite: the bounds keep that case finite. The lower one is a little below 1, where a clip would
        # halve the slope of the minimum itself.
        return scale * _norm(jnp.clip(stacked / scale, 0.999, 1 / _LEAST_RATIO), -self.sharpness)

    def ceil(self, x: Array) -> Array:
        # A stair from n to n + 1 for x in (n, n + 1]: a smoothstep r²(3 − 2r) over the first 1/sharpness of
        # it, plus a small slope all the way, without which an optimizer would see flat ground. Both end at
        # whole numbers, where the stairs meet; the smoothstep starts and ends level, so that the slope is
        # continuous there too.
        floor = jax.lax.stop_gradient(jnp.floor(x))
        fraction = x - floor
        ramp = jnp.clip(fraction * self.sharpness, 0.0, 1.0)
        slope = 1.0 / (1.0 + self.sharpness)
        return floor + (1.0 - slope) * ramp * ramp * (3.0 - 2.0 * ramp) + slope * fraction

    def step(self, slack: Array) -> Array:
        return jax.nn.sigmoid(self.sharpness * slack)


def _norm(ratios: Float[Array, "n ..."], p: Float[Array, ""]) -> Float[Array, "..."]:
    """(Σ ratioᵢ^p)^(1/p) over the leading axis, for ratios > 0."""
    # Powers as exponentials of logarithms, which are differentiable in p too. The largest term is 1, unless
    # all values are 0: the floor of 0.5 is never reached otherwise, and keeps the logarithm of that case
    # finite.
    powers = jnp.exp(p * jnp.log(ratios))
    return jnp.exp(jnp.log(jnp.maximum(jnp.sum(powers, axis=0), 0.5)) / p)


def absent(count: AnyArray | float) -> bool:
    """Whether a count is concrete and 0, so that a traced program needs no operations for what it counts."""
    return not is_traced(count) and not np.any(np.asarray(count))


def choose(weights: Weights, alternatives: Mapping[str, Callable[[], Any]]) -> Any:
    """The weighted sum of alternatives over PyTrees: Σ weight · alternative.

    `alternatives` has a function without arguments for every name that the weights, which have no batch axes,
    are over. Where the weights are concrete (closed over rather than traced) only the alternatives with
    weight are evaluated, so a sweep that fixes a choice does not pay for the others. A function given under
    several names is evaluated once. Alternatives must be finite even without weight: 0 · ∞ is not 0.

    **Raises:** `KeyError` where the names are not those that the weights are over.
    """
    if set(alternatives) != set(weights.alternatives):
        expected, names = ", ".join(sorted(weights.alternatives)), ", ".join(sorted(alternatives))
        raise KeyError(f"functions for {names}; expected one for each of {expected}")
    weight_of: dict[Callable[[], Any], Any] = {}
    for name, weight in _weights_to_evaluate(weights).items():
        function = alternatives[name]
        weight_of[function] = weight_of[function] + weight if function in weight_of else weight
    if len(weight_of) == 1 and not is_traced(weights.array):
        function, weight = next(iter(weight_of.items()))
        if weight == 1.0:
            return function()
    terms = [
        jax.tree.map(lambda leaf, weight=weight: weight * leaf, function())
        for function, weight in weight_of.items()
    ]
    return jax.tree.map(lambda *leaves: functools.reduce(operator.add, leaves), *terms)


def _weights_to_evaluate(weights: Weights) -> dict[str, Any]:
    """The weights that may not be 0, by name: traced ones as arrays, concrete ones as plain numbers."""
    if is_traced(weights.array):
        return weights.by_name()
    numbers = zip(weights.alternatives, np.asarray(weights.array), strict=True)
    return {name: float(weight) for name, weight in numbers if weight != 0}
