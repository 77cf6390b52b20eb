"""Formulas of queueing theory that stay finite, and differentiable, for any load."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import larger, positive, smaller

# The least variance over the square of the mean, whose root has no finite slope at 0: a deviation of a
# thousandth of the mean.
_LEAST_SPREAD = 1e-6

# The least share of the time for which a server is taken to be idle (an estimate), and the utilization that
# leaves it. Beyond that utilization the delay factor 1 / (1 − ρ) goes on along its tangent and groups of
# prompts grow no further, so that all stays finite where a queue is overloaded and has no steady state.
LEAST_IDLE = 0.02
STEEPEST = 1 - LEAST_IDLE
# Longest wait in units of time: far beyond saturation its square stays finite in float32.
_LONGEST = 1e10
# The 90th percentile of a standard normal variable.
_Z90 = 1.2815516


def delay_factor(utilization: Scalar, steepest: float = STEEPEST) -> Scalar:
    """1 / (1 − utilization), and the tangent of it beyond a utilization of `steepest`: finite beyond
    saturation.

    An overloaded queue has no steady state. The tangent makes its delay a large number that grows with the
    load, so that searches are led back.
    """
    slope = 1 / (1 - steepest) ** 2
    below = jnp.where(utilization < steepest, utilization, steepest)
    return 1 / (1 - below) + slope * larger(utilization - steepest, 0.0)


class Moments(eqx.Module):
    """Mean and variance of a time that is the sum of independent parts."""

    mean: Scalar
    variance: Scalar

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.mean + other.mean, self.variance + other.variance)

    @property
    def p90(self) -> Scalar:
        """The 90th percentile of a log-normal time with these moments.

        The log-normal shape is an assumption: latencies are sums of waits and services that are both skewed
        to the right and never negative.
        """
        spread = self.variance / positive(self.mean * self.mean)
        logarithm = jnp.log1p(larger(spread, _LEAST_SPREAD))
        return self.mean * jnp.exp(_Z90 * jnp.sqrt(logarithm) - logarithm / 2)


def wait_for_server(rate: Scalar, load: tuple[Scalar, Scalar, Scalar], steepest: float = STEEPEST) -> Moments:
    """The wait in front of a server with Poisson arrivals, in the unit of time of its arguments.

    The mean is λ E[S²] / (2 (1 − ρ)), the formula of Pollaczek and Khinchine for M/G/1, and the second
    moment is 2 W² + λ E[S³] / (3 (1 − ρ)) (Kleinrock, Queueing Systems I, §5.7).

    - `rate`: arrivals λ per unit of time; `load`: first three moments of the service time S.
    - `steepest`: the utilization from which the wait grows along a tangent.
    """
    first, second, third = load
    factor = delay_factor(rate * first, steepest)
    mean = smaller(rate * second / 2 * factor, _LONGEST)
    return Moments(mean, mean * mean + smaller(rate * third / 3 * factor, _LONGEST * _LONGEST))


def wait_share_of_servers(busy: Scalar, servers: Scalar) -> Scalar:
    """The wait in one line for several servers, over that for one server which is as busy and gets its share
    of the arrivals.

    It is ρ^(√(2 (c + 1)) − 2) / c, after the approximation of M/M/c by Sakasegawa ("An approximation formula
    Lq ≃ αρ^β/(1 − ρ)", Annals of the Institute of Statistical Mathematics 29, 1977), which is exact for one
    server.

    - `busy`: share ρ of the time that a server is busy; `servers`: their number c, whole or not.
    """
    share = positive(smaller(busy, 1.0))
    return share ** (jnp.sqrt(2 * (servers + 1)) - 2) / servers
