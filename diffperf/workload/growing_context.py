"""A generation's growing context: at which contexts a few attention kernels stand for those of all tokens."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.quantity import Scalar

# Contexts at which the time of generation attention changes its slope, beside a sliding window: from one to
# two times the least part of a context (`diffperf.estimate.kernels.attention.SPLIT`) its split sets in.
_KINKS = (128.0, 256.0)
_NODES = 4  # Gauss–Legendre nodes between two kinks: exact for polynomials of the seventh degree


def context_nodes(
    prompt: Scalar, outputs: Scalar, window: Scalar
) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Contexts, and the share of the generated tokens that each stands for.

    Token i of the n = outputs − 1 after the first attends to prompt + i tokens. The mean over i = 1 … n of
    a smooth function of the context is, by the midpoint rule read backwards, its mean over the interval
    (prompt + ½, prompt + n + ½), which Gauss–Legendre quadrature takes between the kinks of the function
    (Abramowitz and Stegun, 25.4.29).
    """
    start = prompt + 0.5
    end = start + jnp.where(outputs > 2, outputs - 1, 1.0)
    kinks = jnp.sort(jnp.stack([*(jnp.full_like(start, kink) for kink in _KINKS), window]))
    edges = jnp.concatenate([start[None], jnp.clip(kinks, start, end), end[None]])
    positions, weights = np.polynomial.legendre.leggauss(_NODES)
    centre, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    contexts = centre[:, None] + half[:, None] * jnp.asarray(positions, start.dtype)
    shares = half[:, None] * jnp.asarray(weights, start.dtype) / (end - start)
    return jnp.ravel(contexts), jnp.ravel(shares)
