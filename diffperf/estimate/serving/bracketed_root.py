"""The root of an increasing function, with the derivatives of the implicit function theorem."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from diffperf.quantity import Scalar, is_traced
from diffperf.traced_once import traced_once

_LEAST_SLOPE = 1e-6  # of an increasing function, by which Newton's step is divided

# The bracket starts at this share of its upper end.
_LEAST_SHARE = 1e-6
# Where the function jumps over 0, the search ends with a bracket of this width, as a share of the root.
_NARROW = 5e-4
# Halving the logarithm of the first bracket to the narrow one takes 15 steps, Newton's method mostly 5.
_MOST_STEPS = 40

Point = TypeVar("Point")


class _Search(NamedTuple):
    """The state of the search for a root.

    - `here`: the x that was evaluated last; `following`: the x to evaluate next.
    - `stride`: the way between them, as a difference of logarithms.
    - `low`, `high`: the bracket that the root is in.
    - `slope`, `point_slope`: derivatives of the function's two results with respect to ln x, at `here`.
    - `settled`: whether `here` is so close to the root that a step of Newton's method ends at it.
    """

    steps: Array
    here: Scalar
    following: Scalar
    stride: Scalar
    low: Scalar
    high: Scalar
    slope: Scalar
    point_slope: Any
    settled: Bool[Array, ""]


def increasing_root(
    function: Callable[[Scalar, Any], tuple[Scalar, Point]], parameters: Any, upper: Scalar
) -> tuple[Scalar, Point]:
    """The x in (0, `upper`] at which the value of `function(x, parameters)` is 0, or `upper` if the value is
    negative up to there, with the point that the function returns beside its value.

    The value increases with x, best in proportion to a power of x less a constant or as the logarithm of
    that: Newton's method runs on ln x. Where it leaves the bracket, or its steps do not shrink by half, the
    bracket's logarithm is halved.

    Derivatives with respect to `parameters` and `upper`, on which alone the function may depend, are those of
    the implicit function theorem: dx = −dF / (∂F/∂x). They cost one evaluation: one last step of Newton's
    method from next to the root is all that is differentiated, and the point moves along its slope with it.
    """
    function = traced_once(function)  # the search evaluates it several times
    fixed_parameters, fixed_upper = _without_derivatives((parameters, upper))
    search = _search(lambda x: function(x, fixed_parameters), fixed_upper)
    here, slope, point_slope = jax.lax.stop_gradient((search.here, search.slope, search.point_slope))
    value, point = function(here, parameters)
    newton = -value / slope
    # Where the function jumps, as exact ceilings do, Newton's step may leave the bracket. Its derivative
    # stays.
    bounds = jnp.log(search.low / here), jnp.log(search.high / here)
    within = jax.lax.stop_gradient(jnp.clip(newton, *bounds) - newton)
    beyond = search.low >= fixed_upper
    step = jnp.where(beyond, upper / fixed_upper - 1, newton + within)
    moved = jax.tree.map(lambda leaf, change: leaf + change * step, point, point_slope)
    return here + here * step, moved


def _search(function: Callable[[Scalar], tuple[Scalar, Any]], upper: Scalar) -> _Search:
    """The search for the root in (0, `upper`], settled next to the root, or at `upper` if that is less."""

    def evaluate(x: Scalar) -> tuple[Scalar, Scalar, Any]:
        (value, _), (slope, point_slope) = jax.jvp(function, (x,), (x,))
        return value, _away_from_zero(slope), point_slope

    # A step of Newton's method squares the error.
    close = jnp.finfo(upper.dtype).eps ** 0.5

    def step(search: _Search) -> _Search:
        """One step: of Newton's method inside the bracket, else of bisection of the logarithm."""
        here = search.following
        value, slope, point_slope = evaluate(here)
        low = jnp.where(value < 0, here, search.low)
        high = jnp.where(value < 0, search.high, here)
        newton = -value / slope
        inside = (newton >= jnp.log(low / here)) & (newton <= jnp.log(high / here))
        trusted = inside & (jnp.abs(newton) <= search.stride / 2)
        following = jnp.where(trusted, here * jnp.exp(newton), jnp.sqrt(low * high))
        return _Search(
            steps=search.steps + 1,
            here=here,
            following=following,
            stride=jnp.abs(jnp.log(following / here)),
            low=low,
            high=high,
            slope=slope,
            point_slope=point_slope,
            settled=jnp.where(inside, jnp.abs(newton) < close, high < (1 + _NARROW) * low),
        )

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(evaluate, upper))
    _, slope, point_slope = nothing
    start = _Search(
        steps=jnp.zeros((), int),
        here=upper,
        following=upper,
        stride=jnp.full_like(upper, jnp.inf),
        low=_LEAST_SHARE * upper,
        high=upper,
        slope=slope,
        point_slope=point_slope,
        settled=jnp.zeros((), bool),
    )
    return jax.lax.while_loop(lambda search: ~search.settled & (search.steps < _MOST_STEPS), step, start)


def _without_derivatives(tree: Any) -> Any:
    """A tree of numbers as constants of differentiation; concrete ones stay concrete for `relax.choose`."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if is_traced(leaf) else leaf, tree)


def _away_from_zero(slope: Scalar) -> Scalar:
    """The slope of an increasing function, which exact staircases may make level."""
    return jnp.where(slope > _LEAST_SLOPE, slope, _LEAST_SLOPE)
