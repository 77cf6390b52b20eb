"""The root of an increasing function, with the derivatives of the implicit function theorem."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from diffperf.quantity import Scalar, is_traced
from diffperf.relax import TINY, larger

# The bracket starts at this share of its upper end ...
_LEAST_SHARE = 1e-6
# ... so that 14 bisections of its logarithm end within 5e-4 of the root, and a step of Newton's method from
# there is good to single precision.
_BISECTIONS = 14


def increasing_root(function: Callable[[Scalar, Any], Scalar], parameters: Any, upper: Scalar) -> Scalar:
    """The x in (0, `upper`] at which `function(x, parameters)` is 0, or `upper` if it is negative up to
    there.

    The function increases with x. Derivatives with respect to `parameters`, on which alone the function
    may depend, are those of the implicit function theorem: dx = −dF / (∂F/∂x). They cost one evaluation,
    because a last step of Newton's method is all that is differentiated.
    """
    fixed_parameters, fixed_upper = _without_derivatives((parameters, upper))

    def halve(_: Any, bracket: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        low, high, at_low, at_high = bracket
        middle = jnp.sqrt(low * high)
        value = function(middle, fixed_parameters)
        below = value < 0
        return (
            jnp.where(below, middle, low),
            jnp.where(below, high, middle),
            jnp.where(below, value, at_low),
            jnp.where(below, at_high, value),
        )

    one = jnp.ones_like(fixed_upper)
    start = (_LEAST_SHARE * fixed_upper, fixed_upper, -one, one)
    low, high, at_low, at_high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    # The chord through the ends of the last bracket meets 0 so close to the root that the slope there is
    # the root's own, on which derivatives depend.
    here = low + (high - low) * (-at_low / larger(at_high - at_low, TINY))
    _, slope = jax.jvp(lambda x: function(x, fixed_parameters), (here,), (jnp.ones_like(here),))
    newton = -function(here, parameters) / jax.lax.stop_gradient(_away_from_zero(slope))
    # Where the function jumps, as exact ceilings do, Newton's step may leave the bracket. Its derivative
    # stays.
    within = jax.lax.stop_gradient(jnp.clip(newton, low - here, high - here) - newton)
    beyond = function(fixed_upper, fixed_parameters) < 0
    return jnp.where(beyond, upper, here + newton + within)


def _without_derivatives(tree: Any) -> Any:
    """The same numbers as constants of differentiation; concrete ones stay concrete for `relax.choose`."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if is_traced(leaf) else leaf, tree)


def _away_from_zero(slope: Scalar) -> Scalar:
    """The slope of an increasing function, which exact staircases may make level."""
    least = 1e-6
    return jnp.where(slope > least, slope, least)
