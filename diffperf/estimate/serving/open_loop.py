"""The steady state of an engine to which requests come at a given rate, in a Poisson process."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.bracketed_root import increasing_root
from diffperf.estimate.serving.closed_loop import capacity
from diffperf.estimate.serving.engine_state import (
    Engine,
    Gathering,
    PromptWork,
    SteadyState,
    step_time_moments,
)
from diffperf.estimate.serving.prompt_prefill import Lengths, Prefill
from diffperf.estimate.serving.queueing import (
    LEAST_IDLE,
    STEEPEST,
    Moments,
    chance_of_any,
    delay_factor,
    wait_for_server,
)
from diffperf.estimate.serving.slot_queue import batch_variance, noise_ratio, wait_for_slot
from diffperf.quantity import Scalar
from diffperf.relax import choose, larger, positive, smaller

# The least share of a full step that prompts may still lengthen a step by (an estimate): times divided by it
# stay finite where prompts fill the engine.
_LEAST_SPARE = 1e-3

# Seconds that nothing reaches.
_UNLIMITED = 1e20
# By what share swings of the batch lengthen the wait for prompts at most: beyond it an expansion for small
# swings says nothing.
_MOST_SLOWING = 1.0


class _Stream(eqx.Module):
    """An engine and the requests per second that it can answer of those that come."""

    engine: Engine
    rate: Scalar


class _Prompts(eqx.Module):
    """Effects of prompts on the stream of requests at a running batch.

    - `stall`: seconds by which each lengthens the steps of others, over the lengths of prompts.
    - `queue`: the wait of a prompt for those before it, were no prompts gathered.
    - `left_at_end`: prompts whose work is left when a request ends.
    - `most_at_start`: most seconds by which prompts that a request finds at its first token can stall it.
    """

    prefill: Prefill
    stall: Lengths
    queue: Moments
    gathering: Gathering
    left_at_end: Scalar
    most_at_start: Scalar


class _Point(eqx.Module):
    """The stream of requests at a given number of running sequences.

    - `seen`: running sequences that a decoding sequence sees on average.
    - `decode_time`: seconds of a decode step without prompts.
    - `decode`: seconds in which a request decodes, prompts of others included.
    - `step_time`: seconds of a step, prompts included.
    - `work`: the work on prompts.
    """

    seen: Scalar
    decode_time: Scalar
    decode: Scalar
    step_time: Scalar
    work: PromptWork


def open_loop(engine: Engine, rate: Scalar) -> SteadyState:
    """The steady state with `rate` requests per second, or with as many as the engine can answer.

    Capacity is the rate of an engine whose slots are always taken. B = rate · (decode time of a request at
    B) is Little's law. A request that arrives sees the mean batch, and joins it (Poisson arrivals see time
    averages).
    """
    most = capacity(engine)
    stream = _Stream(engine, engine.relax.minimum(rate, most))
    running, point = increasing_root(_excess_running, stream, engine.batch_limit)
    # Requests in prefill have a slot, too.
    room = larger(engine.slots - stream.rate * point.work.in_prefill, running)
    slot = wait_for_slot(engine, running=running, stall=point.work.stall, room=room, rate=rate, capacity=most)
    # The wait for the step under way is that of prompts.
    scheduled = larger(engine.stack.scheduled_steps - 1, 0.0)
    before = engine.admission(point.step_time, scheduled) + slot
    return SteadyState(
        running=running,
        seen=point.seen,
        throughput=stream.rate,
        first_token=before + point.work.first_token,
        waiting=before.mean + point.work.waiting.mean,
        step_time=step_time_moments(
            engine,
            point.seen,
            point.decode_time,
            point.step_time,
            stalls=point.work.stalls(engine, stream.rate, point.step_time),
            batch_variance=batch_variance(engine, running, point.work.stall),
        ),
        decode=point.decode,
        chunks=point.work.chunks,
        saturation=rate / most,
    )


def _excess_running(running: Scalar, stream: _Stream) -> tuple[Scalar, _Point]:
    """The logarithm of the running batch over that of Little's law, from the decode time at that batch; and
    the stream there.
    """
    point = _at(stream, running)
    return jnp.log(running / (stream.rate * point.decode)), point


def _at(stream: _Stream, running: Scalar) -> _Point:
    """The stream at a running batch of `running` sequences."""
    return choose(
        stream.engine.mixed,
        {"on": lambda: _mixed(stream, running), "off": lambda: _separate(stream, running)},
    )


def _mixed(stream: _Stream, running: Scalar) -> _Point:
    """The stream at a running batch of an engine whose steps have prompts beside decoding sequences.

    A prompt waits for the end of the step in progress, and for the prompts before it, as in a queue whose
    server goes on vacation for a decode step whenever it is empty (Fuhrmann and Cooper, Operations Research
    33, 1985). Where prompts are shorter than a step's budget the server is gated: all that arrived in one
    step share the next.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    decode_time = engine.decode_time(engine.seen_by_arrival(running))
    prefill = engine.prefill_beside(running)
    beside = engine.decode_time(running)
    alone = rate * traffic.mean(prefill.stall(jnp.zeros_like(rate), beside))
    gathering = engine.gathering(rate * decode_time, chance_of_any(running), alone)
    others = _prompts_sharing_last_step(stream, prefill, decode_time, alone)
    stall = prefill.stall(others + gathering.others, beside)
    stalled = rate * traffic.mean(stall)
    queue = wait_for_server(rate, engine.moments(prefill.busy_time))
    queue = _by_swings(stream, running, prefill, stalled, queue)
    part = traffic.mean(1 - prefill.share_of_step)
    gated = part * stalled * decode_time * delay_factor(stalled)
    # Prompts are at work in fewer of the steps than of the time, because their steps are longer.
    service = traffic.mean(prefill.alone_time)
    idle = larger(1 - rate * service, LEAST_IDLE)
    steps_at_work = traffic.mean(prefill.chunks) / (rate * traffic.mean(prefill.chunks) + idle / decode_time)
    # No step is longer than a full one. Long prompts are in the first step of a request unless the request's
    # own prompt had nobody behind it.
    nobody = traffic.mean(prefill.share_of_step * jnp.exp(-others))
    fullest = beside + (1 - nobody) * (prefill.full_step - beside)
    spare = larger(fullest - beside * delay_factor(stalled), _LEAST_SPARE * prefill.full_step)
    prompts = _Prompts(
        prefill=prefill,
        stall=stall,
        queue=Moments(queue.mean + gated, queue.variance),
        gathering=gathering,
        left_at_end=queue.mean * steps_at_work / traffic.mean(prefill.busy_time) ** 2,
        most_at_start=traffic.decode_steps * spare,
    )
    return _point(stream, running, prompts)


def _separate(stream: _Stream, running: Scalar) -> _Point:
    """The stream at a running batch of an engine whose prompts have steps of their own, for which decoding
    waits: a queue with priority for prompts.

    When a request ends, no prompt is waiting.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    decode_time = engine.decode_time(engine.seen_by_arrival(running))
    prefill = engine.prefill_alone()
    nothing = jnp.zeros_like(rate)
    alone = rate * traffic.mean(prefill.stall(nothing, nothing))
    gathering = engine.gathering(rate * decode_time, chance_of_any(running), alone)
    others = _prompts_sharing_last_step(stream, prefill, decode_time, alone) + gathering.others
    prompts = _Prompts(
        prefill=prefill,
        stall=prefill.stall(others, nothing),
        queue=wait_for_server(rate, engine.moments(prefill.busy_time)),
        gathering=gathering,
        left_at_end=nothing,
        most_at_start=jnp.full_like(rate, _UNLIMITED),
    )
    return _point(stream, running, prompts)


def _prompts_sharing_last_step(
    stream: _Stream, prefill: Prefill, decode_time: Scalar, alone: Scalar
) -> Lengths:
    """Expected number of other prompts that share the last step of a prompt, by the length of the prompt.

    Short prompts meet those that come in a step, which is 1 / (1 − `alone`) times as long as without prompts.
    Prompts of a step and more are prefilled one after the other. Those that follow one another without a
    pause begin with the ones that came in a decode step, λd / (1 − e^(−λd)) if any did, and are 1 / (1 − ρ)
    times as many (Fuhrmann and Cooper, 1985). One of them, the last, has nobody behind it.

    - `decode_time`: seconds of a step without prompts; `alone`: the share of the time for which prompts
      lengthen steps, if each has steps for itself.
    """
    rate, traffic = stream.rate, stream.engine.traffic
    arrivals = positive(rate * decode_time)
    utilization = rate * traffic.mean(prefill.busy_time)
    one_by_one = jnp.log(delay_factor(utilization) * arrivals / -jnp.expm1(-arrivals))
    together = arrivals * delay_factor(alone)
    return together + prefill.share_of_step * (one_by_one - together)


def _by_swings(
    stream: _Stream, running: Scalar, prefill: Prefill, stalled: Scalar, queue: Moments
) -> Moments:
    """The wait for other prompts, where the running batch swings around its mean.

    A larger batch leaves prompts a smaller part of longer steps. With a service time S and a utilization ρ
    that change by a relative amount x, S² / (1 − ρ) has the mean 1 + E[x²] / (1 − ρ)², to second order. And
    the batch is larger than its mean while prompts wait: each prompt adds S to the work that waits, which
    decays over a time τ, and then 1 / (1 − `stalled`) sequences to the batch, which decay over the time T of
    an answer. The product of both responses is their covariance with the batch (Campbell's theorem).

    - `stalled`: the share of the time for which prompts lengthen steps.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    beside, factor = engine.decode_time(running), _steady_factor(stalled)
    slope = larger(engine.decode_time(running + 1) - beside, 0.0)
    relative = slope / prefill.full_step + engine.queries / prefill.budget
    variance = batch_variance(engine, running, stalled / rate)
    first, second, _ = engine.moments(prefill.busy_time)
    busy = _steady_factor(rate * first)
    waiting = 2 * queue.variance / positive(rate * second)
    answering = traffic.decode_steps * beside * factor
    together = 1 / (1 / waiting + 1 / answering) - 1 / (2 / waiting + 1 / answering)
    above_mean = rate * first * factor * together / positive(queue.mean)
    swings = smaller(variance * (relative * busy) ** 2, _MOST_SLOWING)
    slower = (1 + swings) * (1 + smaller(above_mean * relative * busy, _MOST_SLOWING))
    return Moments(queue.mean * slower, queue.variance * slower**2)


def _swing(stream: _Stream, running: Scalar, prompts: _Prompts) -> Scalar:
    """Number of sequences that a decoding sequence sees beyond the mean of the running batch: the variance
    of the batch over its mean, if steps took equally long for any batch.

    It is 1 for a Poisson number. Prompts that stall the others add to it, as far as they come and go faster
    than sequences do: a noise that lasts for a time τ moves what takes a time T by 1 / (1 + τ/T) of its
    square.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    stalled = rate * traffic.mean(prompts.stall)
    factor = _steady_factor(stalled)
    prefilling = prompts.queue.mean + traffic.mean(prompts.prefill.alone_time)
    decoding = traffic.decode_steps * engine.decode_time(running) * factor
    return 1 + (noise_ratio(factor) * factor - 1) * decoding / (decoding + prefilling)


def _steady_factor(utilization: Scalar) -> Scalar:
    """`delay_factor` up to the utilization beyond which there is no steady state to swing around."""
    return delay_factor(smaller(utilization, STEEPEST))


def _point(stream: _Stream, running: Scalar, prompts: _Prompts) -> _Point:
    """The stream at a running batch.

    While it decodes, a request is stalled by all prompts that arrive meanwhile, and by those that arrived
    between it and its first token, but not by those that its end leaves unfinished.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    prefill, stall, gathering = prompts.prefill, prompts.stall, prompts.gathering
    seen = engine.relax.minimum(running + _swing(stream, running, prompts), engine.slots)
    decode_time = engine.decode_time(seen)
    step = Moments(decode_time / 2, decode_time**2 / 12)
    # Short prompts that came before it are prefilled in its own step, so that their share of the wait is no
    # wait for the start of that step, until which others may join.
    queue = gathering.waiting(prompts.queue, traffic.mean(stall), decode_time)
    in_step = 1 + (1 - prefill.share_of_step) * rate * traffic.mean(stall)
    before = step.mean + prompts.queue.mean * gathering.alone
    behind = rate * (before / in_step + prefill.time_before_last_step) + gathering.others
    work = PromptWork.of(traffic, prefill, stall, step + queue, prefill.shared_time(behind))
    # Those that arrive while a prompt waits for others are prefilled with it, and others wait when a request
    # ends.
    gathered = gathering.steps.mean * decode_time
    first_token = work.waiting.mean + work.service.mean - gathered
    factor = delay_factor(rate * work.stall)
    left_at_end = prompts.left_at_end + rate * gathered * factor
    queued_stalls = work.stall * larger(rate * first_token - left_at_end, 0.0) * factor
    # Prompts that a request finds at its first token become fewer from step to step, exponentially: shorter
    # answers than it takes to work them off are stalled by a part of them.
    at_start = -prompts.most_at_start * jnp.expm1(-queued_stalls / prompts.most_at_start)
    undisturbed = decode_time * factor
    return _Point(
        seen=seen,
        decode_time=decode_time,
        decode=traffic.decode_steps * undisturbed + at_start,
        step_time=undisturbed + at_start * traffic.steps_inverse,
        work=work,
    )
