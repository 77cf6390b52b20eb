"""Requests as one engine sees them: mean values over the distributions of lengths."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.workload.requests import Requests

# Fewest decode steps of a request, as a divisor: a one-token answer has none.
_LEAST_STEPS = 1e-3
_NARROWEST = 1e-6  # square of the spread below which ln(1 + s²)/s² is its series 1 − s²/2

# Gauss-Hermite quadrature over the logarithm of a length: five nodes give the first three moments of
# log-normal lengths within 2 % up to a spread of 1.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_PROBABILITIES = _WEIGHTS / _WEIGHTS.sum()


_PARTS = 8  # lengths that stand for those near one node (a choice)


def _within(nodes: np.ndarray) -> np.ndarray:
    """Numbers that are spread evenly between the middles to the neighbours of each node."""
    middles = (nodes[1:] + nodes[:-1]) / 2
    edges = np.concatenate([[2 * nodes[0] - middles[0]], middles, [2 * nodes[-1] - middles[-1]]])
    steps = (np.arange(_PARTS) + 0.5) / _PARTS
    return edges[:-1, None] + steps * np.diff(edges)[:, None]


_WITHIN = _within(_NODES)


class Traffic(eqx.Module):
    """The requests of one engine.

    - `rate`: requests per second; `clients`: clients in closed loop. Which of them counts is the load's.
    - `prompts`: representative numbers of prompt tokens to prefill, cached ones left out, with their
      `probabilities`. `around`: lengths over each of them that it stands for, whose mean is 1: what is
      rounded to whole steps is a mean over them.
    - `decode_steps`: mean steps in which a request decodes: (output − 1) / tokens of a step.
    - `steps_inverse`: mean of 1 / decode steps, for what is spread over the steps of each request.
    - `step_deviation`: standard deviation of the decode steps of a request.
    - `context`: mean tokens in the KV cache of a running sequence.
    """

    rate: Scalar
    clients: Scalar
    prompts: Float[Array, " lengths"]
    probabilities: Float[Array, " lengths"]
    around: Float[Array, "lengths parts"]
    decode_steps: Scalar
    steps_inverse: Scalar
    step_deviation: Scalar
    context: Scalar

    @classmethod
    def of(cls, requests: Requests, engines: Scalar) -> "Traffic":
        """The share of one of `engines` equal engines in the requests.

        A running sequence is found at any of its steps, and more likely the longer it is: its mean context
        is that of the prompt, and (E[o²] − E[o]) / (2 (E[o] − 1)) tokens of output.
        """
        output = requests.output_length
        deviation = requests.output_spread * output
        outputs = _representative(output, requests.output_spread)
        steps = larger(output - 1, _LEAST_STEPS)
        generated = larger(deviation**2 + output * (output - 1), 0.0) / (2 * steps)
        inverse = jnp.sum(_probabilities(output) / larger(outputs - 1, 1.0))
        prompts = _representative(requests.input_length, requests.input_spread)
        return cls(
            rate=requests.rate / engines,
            clients=requests.concurrency / engines,
            # At least one token of a prompt is computed, because its logits are needed.
            prompts=larger(prompts * (1 - requests.cached_share), 1.0),
            probabilities=_probabilities(output),
            around=_around(requests.input_spread),
            decode_steps=steps / requests.tokens_per_step,
            steps_inverse=inverse * requests.tokens_per_step,
            step_deviation=deviation / requests.tokens_per_step,
            context=requests.input_length + generated,
        )

    def mean(self, values: Float[Array, " lengths"]) -> Scalar:
        """The mean of a quantity of requests over the lengths of prompts."""
        return jnp.sum(self.probabilities * values)

    @property
    def prompt(self) -> Scalar:
        """Mean tokens of a prompt to prefill."""
        return self.mean(self.prompts)


def _probabilities(like: Scalar) -> Float[Array, " lengths"]:
    return jnp.asarray(_PROBABILITIES, like.dtype)


def _representative(mean: Scalar, spread: Scalar) -> Float[Array, " lengths"]:
    """Lengths at the quadrature's nodes of a log-normal distribution with this mean and spread."""
    shape = jnp.exp(_log_deviation(spread) * jnp.asarray(_NODES, mean.dtype))
    return mean * shape / jnp.sum(_probabilities(mean) * shape)


def _around(spread: Scalar) -> Float[Array, "lengths parts"]:
    """Lengths around those at the nodes, over their mean."""
    shape = jnp.exp(_log_deviation(spread) * jnp.asarray(_WITHIN, spread.dtype))
    return shape / jnp.mean(shape, axis=1, keepdims=True)


def _log_deviation(spread: Scalar) -> Scalar:
    """The deviation of the logarithm of a log-normal length, √ln(1 + spread²), written so that its slope at 0
    is finite.
    """
    square = spread * spread
    spread_out = square > _NARROWEST
    safe = jnp.where(spread_out, square, 1.0)
    ratio = jnp.where(spread_out, jnp.log1p(safe) / safe, 1 - square / 2)
    return spread * jnp.sqrt(ratio)
