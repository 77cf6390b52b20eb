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
from diffperf.estimate.serving.queueing import Moments, delay_factor, wait_for_server
from diffperf.estimate.serving.slot_queue import batch_variance, wait_for_slot
from diffperf.quantity import Scalar
from diffperf.relax import choose, larger


class _Stream(eqx.Module):
    """An engine and the requests per second that it can answer of those that come."""

    engine: Engine
    rate: Scalar


class _Point(eqx.Module):
    """The stream at a running batch: decode step, decode time of a request, prompts."""

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
    room = larger(engine.slots - stream.rate * point.work.service.mean, running)
    slot = wait_for_slot(engine, running, point.work.stall, room, rate, most)
    # The wait for the step under way is that of prompts.
    scheduled = larger(engine.stack.scheduled_steps - 1, 0.0)
    waiting = engine.admission(point.step_time, scheduled) + slot + point.work.waiting
    return SteadyState(
        running=running,
        seen=point.seen,
        throughput=stream.rate,
        first_token=waiting + point.work.service,
        waiting=waiting.mean,
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
    """The stream at a running batch, and the logarithm of the batch over that of Little's law, from the
    decode time at the former.
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
    """Prompts ride along with decode steps.

    A prompt waits for the end of the step in progress, and for the prompts before it, as in a queue whose
    server goes on vacation for a decode step whenever it is empty (Fuhrmann and Cooper, Operations Research
    33, 1985). Where prompts are shorter than a step's budget the server is gated: all that arrived in one
    step share the next.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    seen = engine.relax.minimum(1 + running, engine.slots)
    decode_time = engine.decode_time(seen)
    prefill = engine.prefill_beside(running)
    beside = engine.decode_time(running)
    alone = rate * traffic.mean(prefill.stall(jnp.zeros_like(rate), beside))
    gathering = engine.gathering(rate * decode_time, _decoding(running), alone)
    stall = prefill.stall(rate * decode_time * delay_factor(alone) + gathering.others, beside)
    utilization = rate * traffic.mean(stall)
    queue = wait_for_server(rate, engine.moments(prefill.busy_time))
    part = traffic.mean(1 - prefill.share_of_step)
    gated = part * utilization * decode_time * delay_factor(utilization)
    # Prompts are at work in fewer of the steps than of the time, because their steps are longer.
    service = traffic.mean(prefill.alone_time)
    idle = larger(1 - rate * service, 0.02)
    steps_at_work = traffic.mean(prefill.chunks) / (rate * traffic.mean(prefill.chunks) + idle / decode_time)
    left_at_end = queue.mean * steps_at_work / traffic.mean(prefill.busy_time) ** 2
    waiting = Moments(queue.mean + gated, queue.variance)
    return _point(stream, prefill, stall, seen, waiting, gathering, left_at_end)


def _separate(stream: _Stream, running: Scalar) -> _Point:
    """Prompts have steps of their own, for which decoding waits: a queue with priority for prompts.

    When a request ends, no prompt is waiting.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    seen = engine.relax.minimum(1 + running, engine.slots)
    decode_time = engine.decode_time(seen)
    prefill = engine.prefill_alone()
    nothing = jnp.zeros_like(rate)
    alone = rate * traffic.mean(prefill.stall(nothing, nothing))
    gathering = engine.gathering(rate * decode_time, _decoding(running), alone)
    stall = prefill.stall(rate * decode_time * delay_factor(alone) + gathering.others, nothing)
    queue = wait_for_server(rate, engine.moments(prefill.busy_time))
    return _point(stream, prefill, stall, seen, queue, gathering, nothing)


def _decoding(running: Scalar) -> Scalar:
    """The chance that some sequence decodes: their number is about Poisson distributed."""
    return 1 - jnp.exp(-running)


def _point(
    stream: _Stream,
    prefill: Prefill,
    stall: Lengths,
    seen: Scalar,
    before: Moments,
    gathering: Gathering,
    left_at_end: Scalar,
) -> _Point:
    """The stream at a running batch, from the wait of prompts for those before them.

    While it decodes, a request is stalled by all prompts that arrive meanwhile, and by those that arrived
    between it and its first token, but not by those that its end leaves unfinished.

    - `before`: the wait of a prompt for those before it, were no prompts gathered.
    - `left_at_end`: prompts whose work is left when a request ends.
    """
    engine, rate, traffic = stream.engine, stream.rate, stream.engine.traffic
    decode_time = engine.decode_time(seen)
    step = Moments(decode_time / 2, decode_time**2 / 12)
    # Short prompts that came before it are prefilled in its own step, so that their share of the wait is no
    # wait for the start of that step, until which others may join.
    queue = gathering.waiting(before, traffic.mean(stall), decode_time)
    in_step = 1 + (1 - prefill.share_of_step) * rate * traffic.mean(stall)
    behind = rate * ((step.mean + before.mean * gathering.alone) / in_step + prefill.time_before_last_step)
    behind += gathering.others
    work = PromptWork.of(traffic, prefill, stall, step + queue, prefill.shared_time(behind))
    # Those that arrive while a prompt waits for others are prefilled with it.
    first_token = work.waiting.mean + work.service.mean - gathering.steps.mean * decode_time
    factor = delay_factor(rate * work.stall)
    at_start = work.stall * larger(rate * first_token - left_at_end, 0.0) * factor
    undisturbed = decode_time * factor
    return _Point(
        seen=seen,
        decode_time=decode_time,
        decode=traffic.decode_steps * undisturbed + at_start,
        step_time=undisturbed + at_start * traffic.steps_inverse,
        work=work,
    )
