"""A pool of engines that only prefill: how long prompts wait for an engine, and their passes take."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.prompt_prefill import Prefill
from diffperf.estimate.serving.queueing import (
    Moments,
    delay_factor,
    mean_end_in_line,
    wait_share_of_servers,
)
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar
from diffperf.relax import larger


class PromptLine(eqx.Module):
    """The line of prompts in front of the engines of a pool.

    - `waiting`: seconds for which a prompt waits until a pass has reached it: the rest of the pass in
      progress, and the prompts before it.
    - `joining`: prompts that come behind a prompt before its pass starts, and may join that pass.
    """

    waiting: Moments
    joining: Scalar


class PrefillPool(eqx.Module):
    """`engines` engines that take prompts from one line, first come, first served.

    An engine that is free takes all prompts that wait, as many of them as fit into a pass. A prompt longer
    than a pass takes several.
    """

    prefill: Prefill
    traffic: Traffic
    engines: Scalar

    @property
    def capacity(self) -> Scalar:
        """Requests per second whose prompts keep all engines busy in full passes."""
        return self.engines / self.traffic.mean(self.prefill.busy_time)

    def at_start(self, clients: Scalar) -> Scalar:
        """Mean seconds until the prompts of `clients` requests are prefilled that all come at once."""
        busy, alone = self.traffic.mean(self.prefill.busy_time) / self.engines, self.prefill.alone_time
        passage = self.traffic.mean(self.prefill.passage(alone))
        return mean_end_in_line(clients, busy, self.traffic.mean(alone)) + passage

    def line(self, rate: Scalar, steepest: float) -> PromptLine:
        """The line if `rate` prompts per second come to the pool in a Poisson process.

        One engine is a queue whose server takes everybody who waits at once (Neuts, "A general class of bulk
        queues with Poisson input", Annals of Mathematical Statistics 38, 1967), with passes of a + Σ b
        seconds: b for each prompt in it, and a for the rest, such as reading the weights. After a pass of T
        seconds the next has the Poisson number of prompts that came meanwhile, or, if there are none, the
        next that comes. The first two moments of T follow from themselves that way. A prompt that comes
        during a pass sees T longer by E[T²] / E[T]², half of it gone. Without a, the wait is that of
        Pollaczek and Khinchine for M/G/1.

        - `steepest`: the utilization from which waits grow along a tangent (see `delay_factor`).
        """
        each = rate / self.engines
        busy_time = self.prefill.busy_time
        load = self.traffic.mean(busy_time), self.traffic.mean(busy_time**2)
        utilization = each * load[0]
        factor = delay_factor(utilization, steepest)
        # The rest shrinks as passes fill up, where reading the weights hides behind arithmetic. Passes of all
        # sizes occur: between that of one prompt and that of the mean number is about right.
        most = self._rest(jnp.ones_like(rate))
        least = self._rest(_Passes.of(each, load, most, factor).prompts)
        passes = _Passes.of(each, load, (most + least) / 2, factor)
        fewer = wait_share_of_servers(passes.busy, self.engines)
        rest_of_pass = passes.square / (2 * passes.mean)
        # Those who wait at all wait exponentially long, as in M/M/c.
        chance, wait = passes.busy * fewer * self.engines, rest_of_pass * (1 + utilization) / self.engines
        return PromptLine(
            waiting=Moments(chance * wait, chance * (2 - chance) * wait * wait),
            joining=rate * passes.busy * fewer * rest_of_pass,
        )

    def _rest(self, prompts: Scalar) -> Scalar:
        """Seconds of a pass of `prompts` prompts that no further prompt would add to it."""
        return larger(self.traffic.mean(self.prefill.unshared_time(prompts - 1)), 0.0)

    def service(self, joining: Scalar) -> Moments:
        """Seconds of a prompt's own passes, which a Poisson number of others join, to the end of a
        pipeline.
        """
        times = self.prefill.shared_time(joining)
        times = times + self.prefill.passage(times)
        mean = self.traffic.mean(times)
        return Moments(mean, self.traffic.mean((times - mean) ** 2))


class _Passes(NamedTuple):
    """The passes of an engine that takes everybody who waits: mean seconds, mean square seconds, mean number
    of prompts, and the share of the time in which the engine is in a pass.
    """

    mean: Scalar
    square: Scalar
    prompts: Scalar
    busy: Scalar

    @classmethod
    def of(cls, rate: Scalar, load: tuple[Scalar, Scalar], rest: Scalar, factor: Scalar) -> "_Passes":
        """The passes where `rate` prompts come per second.

        - `load`: mean of the seconds that a prompt adds to a pass, and of their square.
        - `rest`: seconds of a pass beside them; `factor`: 1 / (1 − utilization).
        """
        prompt, square = load
        # The chance that nobody comes during a pass: from passes of one prompt, then from those that follow,
        # and such that passes have at least one prompt on average.
        single = rest + prompt
        nobody = jnp.exp(-rate * single)
        nobody = jnp.exp(-rate * (rest + prompt * nobody) * factor)
        nobody = larger(nobody, (single / factor - rest) / prompt)
        mean = (rest + prompt * nobody) * factor
        prompts = rate * mean + nobody
        in_passes = (rest**2 + (2 * rest * prompt + square) * prompts) * factor
        return cls(mean, in_passes / (1 + rate * prompt), prompts, rate * mean / prompts)
