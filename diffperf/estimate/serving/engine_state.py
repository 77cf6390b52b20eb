"""An engine that batches continuously, and what its steady state is described by."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.engine_steps import EngineSteps
from diffperf.estimate.serving.prompt_prefill import Lengths, Prefill
from diffperf.estimate.serving.queueing import STEEPEST, Moments
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, larger, positive, smaller
from diffperf.software.stack import Stack

# The least variance of the batch over its mean, which e^(−1/r) needs; that of a Poisson number is 1.
_LEAST_VARIANCE = 0.1


class Engine(eqx.Module):
    """An engine and its traffic: all that its equations depend on.

    - `slots`: most requests that the engine works on at once, because of its batch cap or its KV cache.
    - `chunk`: most tokens of a step; `queries`: tokens of a decoding sequence among them.
    - `mixed`: weights over prompts in steps of their own ("off") and in steps that also decode ("on").
    - `batch_wait`: most steps for which prompts wait for others while sequences decode.
    - `begin_together`: weights over clients of a closed loop who begin one after the other ("off") and at the
      same time ("on").
    - `stack`: the software, for what it adds outside the steps.
    - `stages`: pipeline stages, each of which works on an equal part of a step's tokens at a time.
    """

    steps: EngineSteps
    traffic: Traffic
    slots: Scalar
    chunk: Scalar
    queries: Scalar
    mixed: Weights
    batch_wait: Scalar
    begin_together: Weights
    stack: Stack
    relax: Relaxation
    stages: Scalar | float = 1.0

    def admission(self, step_time: Scalar, scheduled: Scalar | float = 0.0) -> Moments:
        """The time from a request's arrival until the engine takes it up, where steps take `step_time`.

        An engine that looks for requests once in k steps finds one after (k − 1) / 2 steps on average,
        beyond the step in which the request arrives: one of 0 to k − 1 steps, each as likely. Then the
        request waits for `scheduled` steps, which the engine has begun or scheduled by then.
        """
        interval = self.stack.poll_interval
        mean = self.stack.request_overhead + ((interval - 1) / 2 + scheduled) * step_time
        return Moments(mean, (interval**2 - 1) / 12 * step_time**2)

    def gathering(self, arrivals: Scalar, decoding: Scalar, at_work: Scalar | float = 0.0) -> "Gathering":
        """Waits and group sizes of prompts, if the engine lets them wait for others.

        While an engine waits T = `batch_wait` steps, or until prompts fill a step, J = λT more prompts come.
        A share ρ of the time it prefills a group of G prompts; A = ρG come meanwhile and begin the next one.
        If none does, the next prompt to come begins it, with a chance of about 1 / (1 + A):
        G = A + J + 1 / (1 + A). Those that begin a group wait T, those that join it T / 2 on average.

        - `arrivals`: prompts that come in a step without prompts, λ.
        - `decoding`: the chance that other sequences decode. Where none does, prompts run at once.
        - `at_work`: the share ρ, 0 where prompts come at the ends of steps alone.
        """
        # Without a wait prompts queue one by one, which is not described here.
        busy = smaller(at_work, STEEPEST) * self.batch_wait / (1 + self.batch_wait)
        fitting = larger(self.chunk / self.traffic.prompt, 1.0)
        filling = larger((1 - busy) * fitting - 1, 0.0) / positive(arrivals)
        steps = self.relax.minimum(self.batch_wait, filling)
        joining = arrivals * steps
        half = (1 - busy - busy * joining) / 2
        group = (1 + joining) / (half + jnp.sqrt(half**2 + busy * (1 - busy) * (1 + joining)))
        before = busy * group
        first = before + 1 / (1 + before)
        mean = decoding * steps * (first + joining / 2) / group
        square = decoding * steps**2 * (first + joining / 3) / group
        # A prompt is likelier to be in a large group: Var(G) / G beyond the mean, of Poisson numbers.
        others = decoding * (group - 1 + (joining + before) / group)
        alone = 1 - decoding * joining / (1 + joining)
        return Gathering(Moments(mean, square - mean**2), others, alone, before / 2)

    def seen_by_arrival(self, running: Scalar) -> Scalar:
        """Sequences that a request sees which comes at a random time to `running` others on average, itself
        included: Poisson arrivals see time averages.
        """
        return self.relax.minimum(1 + running, self.slots)

    def decode_time(self, running: Scalar) -> Scalar:
        """Seconds of a step in which `running` sequences decode and no prompt is prefilled."""
        return self.steps.time(running, jnp.zeros_like(running))

    def moments(self, values: Lengths) -> tuple[Scalar, Scalar, Scalar]:
        """The first three moments of a quantity of requests over the lengths of prompts."""
        mean = self.traffic.mean
        return mean(values), mean(values**2), mean(values**3)

    def prefill_beside(self, running: Scalar) -> Prefill:
        """Prefill in steps that `running` decoding sequences share.

        At least a token of each step is left to prompts, so that prefill never stops.
        """
        left = larger(self.chunk - running * self.queries, 1.0)
        return Prefill.of(self.steps, self.traffic, running, left, self.relax, self.stages)

    def prefill_alone(self) -> Prefill:
        """Prefill in steps of its own."""
        nothing = jnp.zeros_like(self.chunk)
        return Prefill.of(self.steps, self.traffic, nothing, self.chunk, self.relax, self.stages)

    @property
    def lockstep(self) -> Scalar:
        """Degree to which requests that were prefilled together stay together: e^−σ², with the standard
        deviation σ of their decode steps.

        An estimate from simulations. A deviation of two steps ends it.
        """
        return jnp.exp(-(self.traffic.step_deviation**2))

    @property
    def batch_limit(self) -> Scalar:
        """Running sequences at which either the slots or the tokens of mixed steps are used up.

        In a steady state a decoding sequence comes with prompt / (decode steps) prompt tokens a step, which
        keep its successors coming.
        """
        tokens = self.queries + self.traffic.prompt / self.traffic.decode_steps
        in_mixed_steps = self.relax.minimum(self.chunk / tokens, self.slots)
        return self.mixed.on * in_mixed_steps + self.mixed.off * self.slots


class SteadyState(eqx.Module):
    """The mean values of an engine in its steady state.

    - `running`: sequences that decode, mean over time; `seen`: the same as a decoding sequence sees it,
      which counts itself.
    - `throughput`: requests answered per second.
    - `first_token`: time until the engine has the first token, waits included; `waiting`: the part of its
      mean before the first step that works on the request.
    - `step_time`: time from a step in which a request decodes to the next; `decode`: mean decode time of a
      request.
    - `chunks`: mean steps that prefill a prompt.
    - `saturation`: load over capacity. Above 1, requests come faster than they can be answered, or clients
      wait for slots.
    """

    running: Scalar
    seen: Scalar
    throughput: Scalar
    first_token: Moments
    waiting: Scalar
    step_time: Moments
    decode: Scalar
    chunks: Scalar
    saturation: Scalar


class Gathering(eqx.Module):
    """Waits and group sizes of prompts whose engine lets them wait for others.

    - `steps`: steps that a prompt waits; `others`: prompts with which it is prefilled then.
    - `alone`: the chance that a prompt has not waited with others. Prompts that have wait for the group
      before theirs, and not in a queue of single prompts.
    - `left_before`: prompts that are left of the group before, on average.
    """

    steps: Moments
    others: Scalar
    alone: Scalar
    left_before: Scalar

    def waiting(self, queue: Moments, stall: Scalar, step_time: Scalar) -> Moments:
        """The wait of a prompt, where steps without prompts take `step_time`.

        - `queue`: its wait for other prompts where none waits for others.
        - `stall`: seconds by which a prompt lengthens steps.
        """
        behind = (1 - self.alone) * self.left_before * stall
        mean = self.steps.mean * step_time + self.alone * queue.mean + behind
        return Moments(mean, self.steps.variance * step_time**2 + self.alone * queue.variance + behind**2)


class PromptWork(eqx.Module):
    """Effects of prompts on an engine at some running batch.

    - `stall`: seconds by which a request's prompt lengthens the steps of others, mean and mean square.
    - `waiting`: wait of a prompt for its first step; `service`: its own steps; `passage`: seconds from then
      until its last chunk has left a pipeline, whose first stages work on others meanwhile.
    - `chunks`: mean steps of a prompt.
    """

    stall: Scalar
    stall_square: Scalar
    waiting: Moments
    service: Moments
    passage: Scalar
    chunks: Scalar

    @property
    def prefilled(self) -> Moments:
        """Time until the engine has begun all of a request's own steps and those before it."""
        return self.waiting + self.service

    @property
    def in_prefill(self) -> Scalar:
        """Mean seconds from the first step of a request that has a slot to its first token."""
        return self.service.mean + self.passage

    @property
    def first_token(self) -> Moments:
        """Time to first token of a request that has a slot."""
        return self.prefilled + Moments(self.passage, jnp.zeros_like(self.passage))

    def stalls(self, engine: Engine, rate: Scalar, step_time: Scalar) -> Scalar:
        """The variance over requests, in s², of the time between their steps because of others' prompts.

        Prompts that start while a request decodes, at `rate` per second, are a Poisson number, whose stalls
        are spread over the request's steps, `step_time` seconds from one to the next.
        """
        return rate * step_time * self.stall_square * engine.traffic.steps_inverse

    @classmethod
    def of(
        cls, traffic: Traffic, prefill: Prefill, stall: Lengths, waiting: Moments, service: Lengths
    ) -> "PromptWork":
        """Mean values over the lengths of prompts."""
        expected = traffic.mean(service)
        return cls(
            stall=traffic.mean(stall),
            stall_square=traffic.mean(stall**2),
            waiting=waiting,
            service=Moments(expected, traffic.mean((service - expected) ** 2)),
            passage=traffic.mean(prefill.passage(service)),
            chunks=traffic.mean(prefill.chunks),
        )


def step_time_moments(
    engine: Engine,
    seen: Scalar,
    decode_time: Scalar,
    mean: Scalar,
    *,
    stalls: Scalar | float,
    batch_variance: Scalar,
) -> Moments:
    """Mean and variance over requests of the time between the steps in which a request decodes.

    The batch varies slowly: its autocorrelation decays over the decode time of a request, times the ratio r
    of its variance to its mean, so that a mean over the decode time keeps 2 r (1 − r (1 − e^(−1/r))) of the
    variance.

    - `seen`: sequences that a request sees; `decode_time`: seconds of their decode step.
    - `mean`: mean seconds between the steps; `stalls`: the variance by prompts between them, in s².
    """
    slope = larger(decode_time - engine.decode_time(seen / 2), 0.0) / (seen / 2)
    ratio = larger(batch_variance / seen, _LEAST_VARIANCE)
    kept = 2 * ratio * (1 - ratio * (1 - jnp.exp(-1 / ratio)))
    batch = kept * batch_variance * (slope * mean / decode_time) ** 2
    return Moments(mean, stalls + batch)
