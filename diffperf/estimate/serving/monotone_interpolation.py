"""Interpolation of an increasing function through a few nodes without overshoot."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import larger


class Interpolant(eqx.Module):
    """A function made of straight pieces: start + slope · (x − first) + Σ bend · max(x − knot, 0), at least
    0.

    This form needs neither a search for the piece of `x` nor a gather, both of which are dear in programs
    that are mapped over many designs. A straight line through the nodes is reproduced exactly.
    """

    first: Scalar
    start: Scalar
    slope: Scalar
    knots: Float[Array, " knots"]
    bends: Float[Array, " knots"]

    @classmethod
    def through(cls, nodes: Float[Array, " nodes"], values: Float[Array, " nodes"]) -> "Interpolant":
        """The interpolant through `values` at increasing `nodes`, and once between any two of them.

        The values between are those, at the geometric means of the nodes, of the monotone piecewise cubic
        of Fritsch and Butland (SIAM J. Sci. Stat. Comput. 5, 1984), which halves the pieces where the
        function bends.
        """
        widths = jnp.diff(nodes)
        chords = jnp.diff(values) / widths
        slopes = _monotone_slopes(widths, chords)
        between = jnp.sqrt(nodes[:-1] * nodes[1:])
        share = (between - nodes[:-1]) / widths
        rest = 1 - share
        low = (1 + 2 * share) * values[:-1] + share * widths * slopes[:-1]
        high = (3 - 2 * share) * values[1:] - rest * widths * slopes[1:]
        all_nodes = _alternate(nodes, between)
        all_values = _alternate(values, rest**2 * low + share**2 * high)
        pieces = jnp.diff(all_values) / jnp.diff(all_nodes)
        return cls(
            first=all_nodes[0],
            start=all_values[0],
            slope=pieces[0],
            knots=all_nodes[1:-1],
            bends=jnp.diff(pieces),
        )

    def __call__(self, x: Scalar) -> Scalar:
        """The value at `x`."""
        bent = jnp.sum(self.bends * larger(x - self.knots, 0.0))
        return larger(self.start + self.slope * (x - self.first) + bent, 0.0)


def _monotone_slopes(
    widths: Float[Array, " pieces"], chords: Float[Array, " pieces"]
) -> Float[Array, " nodes"]:
    """Slopes at the nodes: weighted harmonic means of the slopes of the chords on both sides, 0 where the
    values turn, and those of the outermost chords at the ends.
    """
    left, right = chords[:-1], chords[1:]
    weight_left, weight_right = widths[:-1] + 2 * widths[1:], 2 * widths[:-1] + widths[1:]
    rising = (left > 0) & (right > 0)
    safe_left, safe_right = jnp.where(rising, left, 1.0), jnp.where(rising, right, 1.0)
    mean = (weight_left + weight_right) / (weight_left / safe_left + weight_right / safe_right)
    return jnp.concatenate([chords[:1], jnp.where(rising, mean, 0.0), chords[-1:]])


def _alternate(outer: Float[Array, " nodes"], inner: Float[Array, " pieces"]) -> Float[Array, " both"]:
    """Values at nodes and between them, in their order."""
    pairs = jnp.stack([outer[:-1], inner], axis=1)
    return jnp.concatenate([pairs.reshape(-1), outer[-1:]])
