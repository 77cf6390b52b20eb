"""The wait of requests for a slot of an engine that works on no more than so many at once."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.serving.engine_state import Engine
from diffperf.estimate.serving.queueing import Moments, delay_factor
from diffperf.quantity import Scalar
from diffperf.relax import larger, positive

# Floor of the free share of an engine's room, and of the slope of the logarithm of its rate by the logarithm
# of the running sequences: a divisor, which is 0 where steps take longer in proportion to the sequences.
_LEAST_SHARE = 1e-3

# Gauss-Legendre quadrature with four nodes on [0, 1].
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2


def log_rate(engine: Engine, running: Scalar, stall: Scalar) -> Scalar:
    """The logarithm of the rate at which an engine answers requests while `running` sequences decode.

    - `stall`: seconds by which a request's prompt lengthens the steps of others.
    """
    decode = engine.traffic.decode_steps * engine.decode_time(running) + running * stall
    return jnp.log(positive(running / decode))


def noise_ratio(step: Scalar) -> Scalar:
    """The variance of the running batch over that of a birth-death process with the same rates, where
    prompts stall decoding for a share s of the time; `step` is 1 / (1 − s).

    While a prompt stalls the others, fewer of them end than would without it. A request adds to the batch
    itself and, on average, c = s / (1 − s) of a sequence that is still there because of it. Births in steps
    of 1 + c, which is `step`, and deaths in steps of 1 make a noise of (1 + c)² + 1, where the birth-death
    process, with births (1 + c) times as frequent in steps of 1, makes 2 (1 + c).
    """
    return (1 + step * step) / (2 * step)


def batch_variance(engine: Engine, running: Scalar, stall: Scalar) -> Scalar:
    """The variance of the number of running sequences around its mean.

    It is a birth-death process with births at a constant rate and deaths at the rate X(k) of k sequences,
    whose bell curve has the variance 1 / (d ln X / dk) at its top: k where steps take the same time for any
    batch (M/G/∞), and more where they take longer for more. Prompts that stall all others widen it.
    """
    slope = jax.grad(log_rate, argnums=1)(engine, running, stall)
    return _noise(engine, running, stall) / larger(slope, _LEAST_SHARE / running)


def _noise(engine: Engine, running: Scalar, stall: Scalar) -> Scalar:
    """`noise_ratio` of a batch that as many requests join as leave."""
    decoding = engine.traffic.decode_steps * engine.decode_time(running)
    return noise_ratio(1 + running * stall / decoding)


def wait_for_slot(
    engine: Engine, running: Scalar, stall: Scalar, room: Scalar, rate: Scalar, capacity: Scalar
) -> Moments:
    """The wait of requests that come at `rate` to an engine with `room` for decoding sequences.

    From the mean of the birth-death process of `batch_variance` to the full engine, probabilities fall off
    as exp(−∫ ln(X(k) / rate) dk), and more slowly where prompts add to the noise. With steps that take the
    same time for any batch this is the queue M/M/c, within a few percent of Erlang's C formula. Requests that
    find the engine full wait for 1 / (capacity − rate) on average, times (1 + spread²) / 2 for answers that
    spread less or more than exponentially (the approximation of Lee and Longton, 1959, for M/G/c).

    - `stall`: seconds by which a request's prompt lengthens the steps of others.
    - `capacity`: rate of the full engine.
    """
    gap = larger(room - running, _LEAST_SHARE * room)
    nodes = running + gap * jnp.asarray(_NODES, gap.dtype)
    rates: Float[Array, " nodes"] = jax.vmap(log_rate, in_axes=(None, 0, None))(engine, nodes, stall)
    above = jnp.sum(jnp.asarray(_WEIGHTS, gap.dtype) * (rates - log_rate(engine, running, stall)))
    deviation = jnp.sqrt(batch_variance(engine, running, stall))
    bell = jnp.sqrt(2 * jnp.pi) * deviation * jax.scipy.stats.norm.cdf(gap / deviation)
    factor = delay_factor(rate / capacity)
    fall = larger(above, 0.0) / _noise(engine, running, stall)
    odds = jnp.exp(-gap * fall) * factor / bell
    full = odds / (1 + odds)
    # Answers of one token have no steps; the steps of longer ones are at least one, drafts left out.
    spread = engine.traffic.step_deviation / larger(engine.traffic.decode_steps, 1.0)
    wait = (1 + spread * spread) / 2 * factor / capacity
    # With probability `full` an exponential wait.
    return Moments(full * wait, full * (2 - full) * wait * wait)
