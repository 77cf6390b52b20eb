"""The steady state of an engine whose clients each send the next request when the last is answered."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.bracketed_root import increasing_root
from diffperf.estimate.serving.engine_state import Engine, PromptWork, SteadyState, step_time_moments
from diffperf.estimate.serving.queueing import Moments, wait_for_server
from diffperf.quantity import Scalar
from diffperf.relax import choose, larger, smaller

_ROUNDING = 1e-3  # prompts by which a number of whole prompts may be too small

# Share of the prompts in a cycle that cannot take less time than the cycle. With all of them any batch of a
# busy engine would do, as its throughput is that of its prompts.
_PROMPTS_AT_MOST = 0.999

# The least chance of a request not to decode, so that powers of it have slopes.
_LEAST_CHANCE = 1e-6


class _Loop(eqx.Module):
    """A closed loop: its engine and its clients, and how much they move in step.

    - `inside`: clients that the slots of the engine hold.
    - `lockstep`: 1 where all answers are equally long, so that requests end and come back in the steps in
      which they began, one cycle later; 0 where lengths differ.
    """

    engine: Engine
    clients: Scalar
    inside: Scalar
    lockstep: Scalar

    @property
    def grouped(self) -> Scalar:
        """1 where requests in lockstep came in groups at first, and are prefilled in groups ever since."""
        return self.lockstep * self.engine.begin_together.on


class _Point(eqx.Module):
    """The loop at a running batch: rate, decode step, and prompts.

    - `others`: share of the requests in the engine whose prompts stall a request; `seen`: running sequences
      as a request sees them.
    - `step_time`: seconds of the steps that begin when a request ends, with the prompts in them.
    - `occupied`: 1 where other requests are in the engine when a request ends, 0 where it is idle then.
    - `busy`: seconds of the engine that a prompt takes at least, where prompts fill all steps.
    """

    throughput: Scalar
    others: Scalar
    seen: Scalar
    decode_time: Scalar
    step_time: Scalar
    occupied: Scalar
    busy: Scalar
    work: PromptWork

    def admission(self, engine: Engine) -> Moments:
        """Time before the engine takes up a request, which comes at the end of a step."""
        return engine.admission(self.step_time, engine.stack.scheduled_steps * self.occupied)


def closed_loop(engine: Engine, clients: Scalar) -> SteadyState:
    """The steady state with `clients` clients.

    Those that the engine knows of are either decoding or before their first token, B + X · TTFT (Little's
    law around the cycle). What they see follows the arrival theorem: the engine without themselves. Clients
    beyond the slots wait for one; that wait is in the time to first token.
    """
    inside = engine.relax.minimum(clients, engine.slots)
    loop = _Loop(engine, clients, inside, engine.lockstep)
    limit = engine.relax.minimum(inside, engine.batch_limit)
    running, point = increasing_root(_excess_clients, loop, limit)
    traffic = engine.traffic
    decode = running / point.throughput
    step_time = decode / traffic.decode_steps
    before_decode = (clients - running) / point.throughput
    own = point.admission(engine) + point.work.first_token
    # Each wait for a slot is a sum of times between answers, of which Poisson answers have this variance.
    queued = larger(before_decode - own.mean, 0.0)
    return SteadyState(
        running=running,
        seen=point.seen,
        throughput=point.throughput,
        first_token=Moments(before_decode, own.variance + queued / point.throughput),
        waiting=before_decode - point.work.in_prefill,
        step_time=step_time_moments(
            engine,
            point.seen,
            point.decode_time,
            step_time,
            stalls=point.work.stalls(engine, point.others * point.throughput, step_time),
            batch_variance=running * larger(1 - running / inside, 0.0),
        ),
        decode=decode,
        chunks=point.work.chunks,
        saturation=clients / engine.slots,
    )


def capacity(engine: Engine) -> Scalar:
    """Requests per second that an engine answers whose slots are always taken, without lockstep.

    Its batch is what requests in prefill leave of the slots. Two evaluations, at all slots and at what is
    left then, are within a percent of the root.
    """
    loop = _Loop(engine, engine.slots, engine.slots, jnp.zeros_like(engine.slots))
    most = engine.batch_limit
    first = _at(loop, most)
    in_prefill = first.throughput * first.work.in_prefill
    left = engine.slots * most / (most + in_prefill)
    last = _at(loop, engine.relax.minimum(left, most))
    return engine.relax.minimum(last.throughput, 1 / last.busy)


def _excess_clients(running: Scalar, loop: _Loop) -> tuple[Scalar, _Point]:
    """The logarithm of the requests in the engine over its slots, or with those that it does not know of yet
    over the clients, whichever is more; and the loop at the running batch.

    The engine works off the prompt of every client in a cycle. What of that work cannot stall the decoding
    of a request, because its answer is short, delays its first token.
    """
    point = _at(loop, running)
    admission = point.admission(loop.engine).mean
    least = _PROMPTS_AT_MOST * loop.inside * point.busy - running / point.throughput
    first_token = larger(point.work.first_token.mean, least - admission)
    in_engine = running + point.throughput * first_token
    unknown = point.throughput * admission
    share = larger(in_engine / loop.engine.slots, (in_engine + unknown) / loop.clients)
    return jnp.log(share), point


def _at(loop: _Loop, running: Scalar) -> _Point:
    """The loop with a running batch of `running` sequences."""
    return choose(
        loop.engine.mixed,
        {"on": lambda: _mixed(loop, running), "off": lambda: _separate(loop, running)},
    )


def _point(loop: _Loop, running: Scalar, group: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Others, seen and decode time where requests move in groups of `group`.

    Members of a group decode together, and their prompts do not stall each other.
    """
    others = larger(loop.inside - group, 0.0) / loop.inside
    seen = group + others * running
    return others, seen, loop.engine.decode_time(seen)


def _stalls(loop: _Loop, work: PromptWork, before: Scalar) -> Scalar:
    """Seconds for which prompts stall a decoding request.

    While a client goes round once, all others do. The engine works off the prompts of all of them, and those
    that it does not work off `before` the first token of the request stall its decoding.

    - `before`: seconds of work on prompts from the arrival of a request to its first token.
    """
    return larger(loop.inside * work.stall - before, 0.0)


def _throughput(
    loop: _Loop,
    running: Scalar,
    decode_time: Scalar,
    stalls: Scalar,
    busy: Scalar,
    most: Scalar,
) -> Scalar:
    """Requests per second: `running` over the time that each decodes, stalled by the prompts of others.

    The engine works off no more prompts than one in `busy` seconds. Where prompts alone would keep it busy
    all the time, decoding sequences wait for them, with prompts in every step in the end.

    - `stalls`: seconds for which prompts stall a decoding request.
    - `most`: seconds of a decode step with as many prompts in front of its end as there can be.
    """
    steps = loop.engine.traffic.decode_steps
    stalled = larger(steps * decode_time + stalls, running * busy)
    return running / smaller(stalled, steps * larger(most, decode_time))


def _random_arrivals(loop: _Loop, running: Scalar) -> Scalar:
    """Other requests that come at the end of a step, where those before them ended, as a Poisson number."""
    others = larger(loop.inside - 1, 0.0) / loop.inside * running
    return (1 - loop.lockstep) * others / loop.engine.traffic.decode_steps


def _decoding(loop: _Loop, running: Scalar, others: Scalar) -> Scalar:
    """The chance that some of the requests that a request sees decode, each for a share of the time that is
    the same for all.
    """
    not_one = larger(1 - running / loop.inside, _LEAST_CHANCE)
    return 1 - not_one ** (others * loop.inside)


def _step_time(
    loop: _Loop, group: Scalar, arrivals: Scalar, decode_time: Scalar, stall: Scalar, most: Scalar
) -> Scalar:
    """Seconds of a step that begins when a request ends and that the request just misses.

    In lockstep requests end one step after the other, as they began, and each such step has the prompts of
    those that ended before: `group` of them, if they are not the first ones to end. Else it has the prompts
    of `arrivals`. A step takes `most` seconds at most.
    """
    scheduled = loop.engine.stack.scheduled_steps
    not_first = larger(1 - (scheduled + 1) / 2 * group / loop.inside, 0.0)
    prompts = loop.lockstep * group * not_first + arrivals
    return smaller(decode_time + prompts * stall, larger(most, decode_time))


def _occupied(loop: _Loop, group: Scalar) -> Scalar:
    """1 where there are requests beside the `group` that ends together, 0 where there are none."""
    return smaller(larger(loop.inside - group, 0.0), 1.0)


def _mixed(loop: _Loop, running: Scalar) -> _Point:
    """The loop at a running batch of an engine whose steps have prompts beside decoding sequences.

    The queue of prompts is an M/G/1 queue in units of steps. Prompts that share a step wait for each other's
    work. In lockstep, groups that fill a step, or single prompts, follow each other without a wait.
    """
    engine, traffic = loop.engine, loop.engine.traffic
    in_front = larger(engine.chunk - running * engine.queries, 1.0) / traffic.prompt
    # The whole prompts that fit into a step.
    fitting = larger(engine.relax.ceil(in_front + _ROUNDING) - 1, 1.0)
    group = 1 + loop.grouped * larger(smaller(fitting, loop.inside) - 1, 0.0)
    others, seen, decode_time = _point(loop, running, group)
    beside = others * running
    prefill = engine.prefill_beside(beside)
    arrivals = _random_arrivals(loop, running)
    long = jnp.where(prefill.prompts > prefill.budget, 1.0, 0.0)
    together = (1 - long) * (group - 1) + long * loop.lockstep * larger(loop.inside - 1, 0.0)
    gathering = engine.gathering(arrivals, _decoding(loop, running, others))
    stall = prefill.stall(arrivals + gathering.others, engine.decode_time(beside), together)
    queue = wait_for_server(arrivals, engine.moments(prefill.full_steps))
    sharing = arrivals / 2 * traffic.mean((1 - prefill.share_of_step) * stall)
    waiting = Moments(
        queue.mean * prefill.full_step + sharing, queue.variance * prefill.full_step**2 + sharing**2
    )
    waiting = gathering.waiting(waiting, traffic.mean(stall), engine.decode_time(beside))
    behind = arrivals * (queue.mean + prefill.chunks - 0.5) + gathering.others
    work = PromptWork.of(traffic, prefill, stall, waiting, prefill.shared_time(behind, together))
    busy = traffic.mean(prefill.busy_time)
    steps = gathering.steps.mean + gathering.alone * queue.mean + work.chunks  # before the first token
    prompts_before = work.prefilled.mean - steps * engine.decode_time(beside)
    throughput = _throughput(
        loop,
        running=running,
        decode_time=decode_time,
        stalls=_stalls(loop, work, prompts_before),
        busy=busy,
        most=prefill.full_step,
    )
    step_time = _step_time(
        loop,
        group=group,
        arrivals=arrivals,
        decode_time=decode_time,
        stall=work.stall,
        most=prefill.full_step,
    )
    return _Point(
        throughput=throughput,
        others=others,
        seen=seen,
        decode_time=decode_time,
        step_time=step_time,
        occupied=_occupied(loop, group),
        busy=busy,
        work=work,
    )


def _separate(loop: _Loop, running: Scalar) -> _Point:
    """Prompts have steps of their own, for which decoding waits.

    No request ends meanwhile, so that only prompts that came at the end of the same decode step wait for
    each other. In lockstep these are all who began together.
    """
    traffic = loop.engine.traffic
    group = 1 + loop.grouped * larger(loop.inside - 1, 0.0)
    others, seen, decode_time = _point(loop, running, group)
    prefill = loop.engine.prefill_alone()
    arrivals = _random_arrivals(loop, running)
    gathering = loop.engine.gathering(arrivals, _decoding(loop, running, others))
    stall = prefill.stall(arrivals + gathering.others, jnp.zeros_like(running), group - 1)
    part = prefill.share_of_step
    sharing = arrivals / 2 * traffic.mean(part * prefill.alone_time + (1 - part) * prefill.busy_time)
    steps = prefill.full_steps
    in_front = larger(loop.inside * steps - larger(steps, 1.0), 0.0) / 2
    lined_up = loop.grouped * prefill.full_step * traffic.mean(in_front)
    # Places in a line of equal prompts are uniform: their variance is a third of the squared mean.
    waiting = Moments(sharing + lined_up, sharing**2 + lined_up**2 / 3)
    waiting = gathering.waiting(waiting, traffic.mean(stall), decode_time)
    service = prefill.shared_time(arrivals / 2 + gathering.others, group - 1)
    work = PromptWork.of(traffic, prefill, stall, waiting, service)
    busy = traffic.mean(prefill.busy_time)
    throughput = _throughput(
        loop,
        running=running,
        decode_time=decode_time,
        stalls=_stalls(loop, work, work.prefilled.mean - gathering.steps.mean * decode_time),
        busy=busy,
        most=decode_time + loop.inside * busy,
    )
    step_time = _step_time(
        loop,
        group=group,
        arrivals=arrivals,
        decode_time=decode_time,
        stall=work.stall,
        most=decode_time + prefill.full_step,
    )
    return _Point(
        throughput=throughput,
        others=others,
        seen=seen,
        decode_time=decode_time,
        step_time=step_time,
        occupied=_occupied(loop, group),
        busy=busy,
        work=work,
    )
