"""Interpolation of an increasing function through a few nodes without overshoot."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import larger, positive


class Interpolant(eqx.Module):
    """A monotone piecewise cubic (Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984) through values ≥ 0
    at increasing nodes; beyond the nodes it goes on in a straight line.

    A straight line through the nodes is reproduced exactly.
    """

    nodes: Float[Array, " nodes"]
    values: Float[Array, " nodes"]
    slopes: Float[Array, " nodes"]

    @classmethod
    def through(cls, nodes: Float[Array, " nodes"], values: Float[Array, " nodes"]) -> "Interpolant":
        """The interpolant through `values` at `nodes`.

        The slope at an inner node is the weighted harmonic mean of the slopes of the chords at its sides, or
        0 where the values turn.
        """
        widths = jnp.diff(nodes)
        chords = jnp.diff(values) / widths
        left, right = chords[:-1], chords[1:]
        weight_left, weight_right = widths[:-1] + 2 * widths[1:], 2 * widths[:-1] + widths[1:]
        rising = (left > 0) & (right > 0)
        safe_left, safe_right = jnp.where(rising, left, 1.0), jnp.where(rising, right, 1.0)
        mean = (weight_left + weight_right) / (weight_left / safe_left + weight_right / safe_right)
        inner = jnp.where(rising, mean, 0.0)
        return cls(nodes, values, jnp.concatenate([chords[:1], inner, chords[-1:]]))

    def __call__(self, x: Scalar) -> Scalar:
        """The value at `x`, never below 0."""
        # The segment is picked by a comparison with every node: on vectors of designs, a gather would cost
        # more than these few products.
        ends = self.nodes[1:-1]
        after = jnp.concatenate([jnp.ones(1, dtype=bool), x >= ends])
        before = jnp.concatenate([x < ends, jnp.ones(1, dtype=bool)])
        inside = after & before

        def pick(column: Float[Array, " segments"]) -> Scalar:
            return jnp.sum(jnp.where(inside, column, 0.0))

        start, stop = pick(self.nodes[:-1]), pick(self.nodes[1:])
        low, high = pick(self.values[:-1]), pick(self.values[1:])
        slope_low, slope_high = pick(self.slopes[:-1]), pick(self.slopes[1:])
        width = positive(stop - start)
        share = jnp.clip((x - start) / width, 0.0, 1.0)
        rest = 1 - share
        cubic = (
            rest * rest * ((1 + 2 * share) * low + share * width * slope_low)
            + share * share * ((3 - 2 * share) * high - rest * width * slope_high)
        )
        outside = slope_low * jnp.minimum(x - start, 0.0) + slope_high * jnp.maximum(x - stop, 0.0)
        return larger(cubic + outside, 0.0)
