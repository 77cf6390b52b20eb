"""Evaluation of max, min, ceil, step and choice: exact, or smooth with a sharpness.

The estimator is written once against `Relaxation`; passing `Exact()` gives the number to report,
`Smooth(sharpness)` the differentiable surrogate whose sharpness is a traced number, so annealing never
recompiles. Quantities to compare are nonnegative, which lets the smooth maximum be free of any scale.
"""

import abc
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.errors import ConfigError
from diffperf.quantity import AnyArray, Weights, is_traced, real
from diffperf.staircase import mean_staircase, smoothstep, staircase
from diffperf.tracing import kept_slope

# Below every time, byte count and price of the documented ranges, above the smallest normal number of float32
# (1.2e-38).
TINY = 1e-30
_LOG_2 = 0.6931471805599453
# The smallest ε: the sharpest corner whose derivatives float32 can tell from those of a kink.
_LEAST_CORNER = 1e-6


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


def cumulative(
    values: Float[AnyArray, "n ..."], combine: Callable[[Array, Array], Array]
) -> Float[Array, "n ..."]:
    """A cumulative sum or product along the leading axis: of the first, the first two, the first three …

    It is written out, for few values: the derivative that JAX has of `jnp.cumprod` pads and slices the
    values in stages, in loops that compilers do not vectorize.
    """
    return jnp.stack([*itertools.accumulate(jnp.unstack(jnp.asarray(values)), combine)])


def is_multiple(x: Array | float, of: Array | float) -> Array:
    """1 where the whole number nearest to `x` is a multiple of `of`, else 0; every number is one of `of` < 1.

    A kernel that needs whole groups is chosen by such a rule. Neighbours of a number tell nothing about the
    number itself, so the slope is 0 and no relaxation smooths the rule.
    """
    whole = jnp.round(jax.lax.stop_gradient(jnp.asarray(x)))
    group = larger(jax.lax.stop_gradient(jnp.asarray(of, whole.dtype)), 1.0)
    remainder = whole - group * jnp.round(whole / group)
    return jnp.where(jnp.abs(remainder) < 0.5, 1.0, 0.0).astype(whole.dtype)


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


def with_slopes_of(sloped: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of trees of arrays with the derivatives of another, `sloped`, which has the same values.

    Neither may close over traced arrays.
    """

    @jax.custom_jvp
    def valued(*args: Any) -> Any:
        return function(*args)

    valued.defjvp(lambda primals, tangents: jax.jvp(sloped, primals, tangents))
    return valued


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
    def floor(self, x: Array) -> Array:
        """The number of whole units in `x` ≥ 0."""

    def waves(self, x: Array) -> Array:
        """The whole waves in which parallel units do `x` ≥ 0 waves of work."""
        return self.ceil(x)

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
        return self.maximum(demand, supply) - supply

    def has_others(self, degree: Array) -> Array:
        """1 for a group of two or more, 0 for a single member; a `degree` in between counts in part."""
        return self.minimum(1.0, degree - 1)


# Rounding error of a quotient of products of whole numbers, relative to it, in units of the float type's
# epsilon.
_ROUNDING = 16


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
        """The number of whole units that hold `x` ≥ 0. A whole number that is rounding errors too large, as
        quotients of whole numbers may be, takes no unit more.
        """
        return jnp.ceil(x * (1 - _ROUNDING * jnp.finfo(x.dtype).eps))

    def floor(self, x: Array) -> Array:
        """The number of whole units in `x` ≥ 0, also where rounding errors leave a whole number too small."""
        return jnp.floor(x * (1 + _ROUNDING * jnp.finfo(x.dtype).eps))

    def step(self, slack: Array) -> Array:
        return jnp.where(slack >= 0, 1.0, 0.0)


def _optional(value: Any) -> Array | None:
    return None if value is None else real(value)


class Smooth(Relaxation):
    """Differentiable everywhere, exact as `sharpness` p grows.

    - maximum of two: a hyperbola above both, (a + b + √((a − b)² + 4·ε²·a·b))/2 with ε = 2^(1/p) − 1. It has
      no scale, it is exact where one number is 0, and it is 2^(1/p) times the exact one at a tie.
    - minimum of two: a hyperbola below both, (a + b − √((a − b)² + 4·ε²·a·b))/2 with ε = 1 − 2^(−1/p). It is
      exact where one number is 0, and 2^(−1/p) times the exact one at a tie.
    - maximum and minimum of n: of pairs, of pairs of pairs, and so on; off by ⌈log₂ n⌉ ties at most.
    - ceil: a once-differentiable staircase through the integers whose slope is never below 1/(1 + sharpness).
    - waves: the same staircase, or with a `band` its mean over x·(1 ± band), whose slope is nearly the secant
      over the band: what more units are worth although one more may change nothing. The mean is exact as the
      band shrinks to 0, and half a wave above the exact number at whole numbers of waves.
    - step: a smoothstep in the relative slack, 1/2 at zero and as steep there as a sigmoid; exact where the
      slack is beyond ±3/sharpness.

    The hyperbolas cost a division and a square root, where a p-norm costs three logarithms and three
    exponentials.

    **Raises:** `ConfigError` for a sharpness below 1, and for a band that is no share below 1. Values that
    JAX traces have no numbers to check.
    """

    sharpness: Float[Array, ""] = eqx.field(converter=real)
    band: Float[Array, ""] | None = eqx.field(converter=_optional, default=None)

    def __check_init__(self):
        for name, value, least, most, expected in (
            ("sharpness", self.sharpness, 1.0, np.inf, "a number of at least 1"),
            ("band", self.band, 0.0, 1.0, "a share from 0 to below 1"),
        ):
            if value is None or is_traced(value):
                continue
            numbers = np.asarray(value)  # NumPy reads them even while JAX traces a program around them
            if not np.all((numbers >= least) & (numbers < most)):
                remedy = "write dp.Smooth(50), or dp.Smooth(50, band=0.1)"
                raise ConfigError("dp.Smooth", name, f"{numbers}", expected, remedy)

    def reduce_maximum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        return _of_pairs(functools.partial(_smooth_larger, self._above), stacked)

    def reduce_minimum(self, stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
        return _of_pairs(functools.partial(_smooth_smaller, self._below), stacked)

    # Pairwise, without the stacking that a reduction over an axis needs.
    def maximum(self, *values: Array | float) -> Array:
        return _of_list(functools.partial(_smooth_larger, self._above), _in_one_precision(values))

    def minimum(self, *values: Array | float) -> Array:
        return _of_list(functools.partial(_smooth_smaller, self._below), _in_one_precision(values))

    def excess(self, demand: Array | float, supply: Array | float) -> Array:
        return _smooth_excess(self._above, *_in_one_precision((demand, supply)))

    def ceil(self, x: Array) -> Array:
        return staircase(x, self.sharpness)

    def floor(self, x: Array) -> Array:
        return -staircase(-x, self.sharpness)

    def waves(self, x: Array) -> Array:
        return self.ceil(x) if self.band is None else mean_staircase(x, self.sharpness, self.band)

    def step(self, slack: Array) -> Array:
        return smoothstep(0.5 + self.sharpness * slack * (1 / 6))

    @property
    def _above(self) -> Array:
        """ε of a maximum: by how much a tie is above the exact one, relative to it."""
        return larger(jnp.expm1(_LOG_2 / self.sharpness), _LEAST_CORNER)

    @property
    def _below(self) -> Array:
        """ε of a minimum: by how much a tie is below the exact one, relative to it."""
        return larger(-jnp.expm1(-_LOG_2 / self.sharpness), _LEAST_CORNER)


def _in_one_precision(values: Iterable[Array | float]) -> list[Array]:
    """Values as arrays of floats in the precision of those that are arrays: Python's numbers have none."""
    dtype = jnp.result_type(*(value for value in values if isinstance(value, AnyArray)), 0.0)
    return [jnp.asarray(np.asarray(v, dtype) if isinstance(v, int | float) else v, dtype) for v in values]


def _of_list(pair: Callable[[Array, Array], Array], values: list[Array]) -> Array:
    """The reduction of values by pairs, of pairs by pairs, and so on."""
    while len(values) > 1:
        paired = [pair(*two) for two in zip(values[::2], values[1::2], strict=False)]
        values = paired + values[2 * len(paired) :]
    return values[0]


def _of_pairs(pair: Callable[[Array, Array], Array], stacked: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The reduction of values by pairs over the leading axis, all pairs at once."""
    while (count := stacked.shape[0]) > 1:
        half = count // 2
        paired = pair(stacked[:half], stacked[half : 2 * half])
        stacked = jnp.concatenate([paired, stacked[2 * half :]]) if count % 2 else paired
    return stacked[0]


class _Hyperbola(eqx.Module):
    """Common terms of a smooth maximum and a smooth minimum of two numbers ≥ 0, without their scale.

    Numbers are relative to the larger one, so that no square overflows. The derivatives are written out:
    those of the formulas would divide by the scale twice and lose, in float32, what little the smaller
    number adds.
    """

    high: Array  # the larger number
    ratio: Array  # r, the smaller number over the larger one
    root: Array  # s = √((1 − r)² + 4·ε²·r)
    squared: Array  # ε²

    @classmethod
    def of(cls, corner: Array, x: Array, y: Array) -> "_Hyperbola":
        high, squared = jnp.maximum(x, y), jnp.square(corner)
        ratio = jnp.maximum(jnp.minimum(x, y) / jnp.maximum(high, TINY), 0.0)
        return cls(high, ratio, jnp.sqrt(jnp.square(1 - ratio) + 4 * squared * ratio), squared)

    @property
    def sum(self) -> Array:
        """1 + r + s."""
        return 1 + self.ratio + self.root

    @property
    def steep(self) -> Array:
        """s·(1 − r + s), by which the steepness is divided."""
        return self.root * (1 - self.ratio + self.root)

    @property
    def steepness(self) -> Array:
        """(1 + ds/dr)/(1 + r + s) = 2·ε²/(s·(1 − r + s)), without the difference of two nearly equal numbers
        where r is little.
        """
        return 2 * self.squared / self.steep

    def by_corner(self, corner: Array) -> Array:
        """ds/dε."""
        return 4 * corner * self.ratio / self.root

    @property
    def maximum_slopes(self) -> tuple[Array, Array]:
        """The smooth maximum's derivatives with respect to the larger and the smaller number."""
        half = self.sum / 2
        by_low = half * self.steepness
        return half - self.ratio * by_low, by_low


def _along(first_is_larger: Array, slopes: tuple[Array, Array], dx: Array, dy: Array) -> Array:
    """The change of a function of two numbers, from its slopes along the larger and the smaller one."""
    by_high, by_low = slopes
    by_first = kept_slope(jnp.where(first_is_larger, by_high, by_low))
    return by_first * dx + kept_slope(jnp.where(first_is_larger, by_low, by_high)) * dy


@jax.custom_jvp
def _smooth_larger(corner: Array, x: Array, y: Array) -> Array:
    """The smooth maximum of two numbers ≥ 0: h·(1 + r + s)/2."""
    shape = _Hyperbola.of(corner, x, y)
    return shape.high * (shape.sum / 2)


@_smooth_larger.defjvp
def _smooth_larger_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (corner, x, y), (d_corner, dx, dy) = primals, tangents
    shape = _Hyperbola.of(corner, x, y)
    tangent = _along(x >= y, shape.maximum_slopes, dx, dy)
    value = shape.high * (shape.sum / 2)
    return value, tangent + shape.high * shape.by_corner(corner) / 2 * d_corner


@jax.custom_jvp
def _smooth_smaller(corner: Array, x: Array, y: Array) -> Array:
    """The smooth minimum of two numbers ≥ 0: h·r·q with q = 2·(1 − ε²)/(1 + r + s)."""
    shape = _Hyperbola.of(corner, x, y)
    return jnp.minimum(x, y) * (2 * (1 - shape.squared) / shape.sum)


@_smooth_smaller.defjvp
def _smooth_smaller_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (corner, x, y), (d_corner, dx, dy) = primals, tangents
    shape = _Hyperbola.of(corner, x, y)
    both = 1 / (shape.sum * shape.steep)  # one division for two quotients
    over_sum = shape.steep * both
    share = 2 * (1 - shape.squared) * over_sum
    falling = share * (2 * shape.squared * shape.sum * both)  # −dq/dr
    by_low, by_high = share - shape.ratio * falling, jnp.square(shape.ratio) * falling
    by_corner = -(4 * corner + share * shape.by_corner(corner)) * over_sum
    tangent = _along(x >= y, (by_high, by_low), dx, dy)
    low = jnp.minimum(x, y)
    return low * share, tangent + low * by_corner * d_corner


@jax.custom_jvp
def _smooth_excess(corner: Array, demand: Array, supply: Array) -> Array:
    """The smooth maximum of demand and supply minus the supply, with all digits where demand is little."""
    shape = _Hyperbola.of(corner, demand, supply)
    return shape.high * _excess_of(shape, demand >= supply)


def _excess_of(shape: _Hyperbola, short: Array) -> Array:
    """The excess over the larger number, where the demand is the larger one (`short`) and where it is not."""
    left = shape.root - (1 - shape.ratio)
    covered = shape.ratio * (shape.root * shape.steepness)  # the slopes divide by the same
    return jnp.where(short, 1 - shape.ratio + left / 2, covered)


@_smooth_excess.defjvp
def _smooth_excess_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (corner, demand, supply), (d_corner, d_demand, d_supply) = primals, tangents
    shape = _Hyperbola.of(corner, demand, supply)
    short = demand >= supply
    value = _excess_of(shape, short)
    by_high, by_low = shape.maximum_slopes
    by_demand = kept_slope(jnp.where(short, by_high, by_low))
    # Where supply is the larger one, by Euler's theorem for homogeneous functions.
    by_supply = kept_slope(jnp.where(short, by_low - 1, value - shape.ratio * by_low))
    tangent = by_demand * d_demand + by_supply * d_supply
    return shape.high * value, tangent + shape.high * shape.by_corner(corner) / 2 * d_corner


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
