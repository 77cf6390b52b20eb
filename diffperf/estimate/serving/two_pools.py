"""The steady state of two pools of engines: the first prefill prompts, the second decode."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.bracketed_root import increasing_root
from diffperf.estimate.serving.cache_transfer import CacheTransfer
from diffperf.estimate.serving.engine_state import Engine, SteadyState, step_time_moments
from diffperf.estimate.serving.prefill_pool import PrefillPool
from diffperf.estimate.serving.queueing import STEEPEST, Moments, chance_of_any
from diffperf.estimate.serving.slot_queue import batch_variance, wait_for_slot
from diffperf.quantity import Scalar
from diffperf.relax import larger

# In a closed loop as many prompts wait as there are clients, so that a saturated pool's wait has to grow
# much further than in an open loop before it goes on along its tangent.
_STEEPEST_IN_LOOP = 1 - 1e-4


class TwoPools(eqx.Module):
    """A pool that prefills, a pool of `engines` equal engines like `decode`, and the network between them."""

    prefill: PrefillPool
    decode: Engine
    engines: Scalar
    transfer: CacheTransfer

    @property
    def steps(self) -> Scalar:
        """Mean decode steps of a request, with the step that gives its first token.

        The decoding engine computes the last token of the prompt again, which gives the first token of the
        answer (vLLM's connectors for transfers of the cache leave it to the decoding engine).
        """
        return self.decode.traffic.decode_steps + 1

    @property
    def most_running(self) -> Scalar:
        """Sequences that a decoding engine runs whose slots are always taken.

        A request has its slot before its cache is transferred. What requests in transfer leave of the slots
        is within a percent of the root, although the rate is that of a batch of all slots.
        """
        slots = self.decode.slots
        step = self.decode.decode_time(slots)
        in_transfer = slots / (self.steps * step) * (self.transfer.time + step / 2)
        return slots * slots / (slots + in_transfer)

    @property
    def decode_capacity(self) -> Scalar:
        """Requests per second of a decoding engine whose slots are always taken."""
        return self.most_running / (self.steps * self.decode.decode_time(self.most_running))

    @property
    def capacity(self) -> Scalar:
        """Requests per second, for each decoding engine, of the pool or the network that saturates first."""
        others = self.prefill.capacity, self.transfer.capacity
        return self.decode.relax.minimum(self.decode_capacity, *(each / self.engines for each in others))

    def first_token_at_start(self, clients: Scalar) -> Scalar:
        """Mean seconds until the first tokens of `clients` requests for each decoding engine that come at
        once while nothing is under way.
        """
        step = self.decode.decode_time(jnp.ones_like(clients))
        prefilled = self.prefill.at_start(larger(clients * self.engines, 1.0))
        return self.decode.stack.request_overhead + prefilled + self.transfer.time + step


class PoolsState(eqx.Module):
    """The steady state of two pools.

    - `requests`: mean values of a decoding engine. `running` counts sequences in all of their decode steps.
    - `transfer`: seconds of the transfer of a request's cache, with the wait for others'.
    - `in_prefill`, `in_transfer`: mean number of requests whose prompts are in a pass of an engine of the
      prefill pool, and whose caches are under way to a decoding engine.
    - `prefill_use`, `decode_use`, `transfer_use`: throughput over the capacity of either pool, and of the
      network between them.
    """

    requests: SteadyState
    transfer: Scalar
    in_prefill: Scalar
    in_transfer: Scalar
    prefill_use: Scalar
    decode_use: Scalar
    transfer_use: Scalar


class _Way(NamedTuple):
    """Times of all that a request goes through up to its first token, one after the other.

    - `admission`: the wait that the software adds.
    - `line`: the wait for an engine of the pool that prefills; `passes`: the request's own prefill.
    - `lane`: the wait for the transfer of KV caches; `transfer`: the transfer itself.
    - `next_step`: the wait for the end of the decode step under way; `first_step`: seconds of the step that
      decodes the token.
    """

    admission: Moments
    line: Moments
    passes: Moments
    lane: Moments
    transfer: Moments
    next_step: Moments
    first_step: Scalar

    @property
    def before_decode(self) -> Moments:
        """The time up to the first decode step."""
        prefilled = self.admission + self.line + self.passes
        return prefilled + self.lane + self.transfer + self.next_step

    @property
    def worked_on(self) -> Scalar:
        """Seconds in which the request is worked on up to its first token."""
        return self.passes.mean + self.transfer.mean + self.first_step


def _way(pools: TwoPools, rate: Scalar, step: Scalar, *, decoding: Scalar, steepest: float) -> _Way:
    """Times of all that a request goes through up to its first token.

    - `rate`: requests per second of all engines that a request sees come at random times.
    - `step`: seconds of a decode step; `decoding`: other sequences of the engine that it comes to.
    """
    line = pools.prefill.line(rate, steepest)
    lane, transfer = pools.transfer.duration(rate, steepest)
    in_step = chance_of_any(decoding)  # the chance that the engine is in a step, from which half is left
    return _Way(
        admission=pools.decode.admission(step),
        line=line.waiting,
        passes=pools.prefill.service(line.joining),
        lane=lane,
        transfer=transfer,
        next_step=Moments(in_step * step / 2, in_step * (4 - 3 * in_step) * step * step / 12),
        first_step=step,
    )


# --- requests that come at a rate


def open_pools(pools: TwoPools, rate: Scalar) -> PoolsState:
    """The steady state with `rate` requests per second for each decoding engine, or with as many as the
    pool that saturates first can answer.

    Prompts come as a Poisson process, and so do requests to the decoding engines (the output of a line with
    many servers is nearly one). The running batch is that of Little's law, as `open_loop` finds it.
    """
    engine, most = pools.decode, pools.capacity
    throughput = engine.relax.minimum(rate, most)
    running, (seen, step) = increasing_root(_excess_running, (pools, throughput), engine.slots)
    nobody = jnp.zeros_like(rate)
    way = _way(pools, rate * pools.engines, step, decoding=running, steepest=STEEPEST)
    room = larger(engine.slots - throughput * (way.transfer.mean + way.next_step.mean), running)
    slot = wait_for_slot(
        engine, running=running, stall=nobody, room=room, rate=rate, capacity=pools.decode_capacity
    )
    requests = SteadyState(
        running=running,
        seen=seen,
        throughput=throughput,
        first_token=slot + way.before_decode + Moments(step, nobody),
        waiting=slot.mean + way.before_decode.mean + step - way.worked_on,
        step_time=step_time_moments(
            engine, seen, step, step, stalls=0.0, batch_variance=batch_variance(engine, running, nobody)
        ),
        decode=engine.traffic.decode_steps * step,
        chunks=pools.prefill.traffic.mean(pools.prefill.prefill.chunks),
        saturation=rate / most,
    )
    return _state(pools, requests, way)


def _excess_running(
    running: Scalar, parameters: tuple[TwoPools, Scalar]
) -> tuple[Scalar, tuple[Scalar, Scalar]]:
    """The logarithm of a running batch over that of Little's law, from the decode time at the former, with
    the sequences that a request sees and the seconds of their decode step.
    """
    pools, throughput = parameters
    seen = pools.decode.seen_by_arrival(running)
    step = pools.decode.decode_time(seen)
    return jnp.log(running / (throughput * pools.steps * step)), (seen, step)


# --- clients who wait for answers


class _Loop(eqx.Module):
    """Two pools, and the clients for each decoding engine."""

    pools: TwoPools
    clients: Scalar


class _Point(NamedTuple):
    """The loop at a running batch of a decoding engine."""

    seen: Scalar
    step: Scalar
    throughput: Scalar
    way: _Way


def closed_pools(pools: TwoPools, clients: Scalar) -> PoolsState:
    """The steady state with `clients` clients for each decoding engine.

    They wait for a prefill, are in it, in transfer, or decode: B + X · (time to the first decode step) =
    clients. Waits follow the arrival theorem, by Schweitzer's approximation: a request sees the pools as
    all others load them, (N − 1) / N of the mean ("Approximate analysis of multiclass closed networks of
    queues", 1979). Where the slots of the decoding engines are all taken, the rest of the clients wait for
    them.
    """
    engine, loop = pools.decode, _Loop(pools, clients)
    limit = engine.relax.minimum(clients, pools.most_running)
    running, point = increasing_root(_excess_clients, loop, limit)
    throughput, way = point.throughput, point.way
    before_decode = (clients - running) / throughput
    # Each wait for a slot is a sum of times between answers, of which Poisson answers have this variance.
    queued = larger(before_decode - way.before_decode.mean, 0.0)
    # The wait of a prompt is a sum of times between answers, too, of no more than all clients.
    most_variance = clients / (pools.engines * throughput**2)
    variance = engine.relax.minimum(way.before_decode.variance, most_variance)
    first_token = before_decode + point.step
    waiting = larger(first_token - way.worked_on, 0.0)
    decode = engine.traffic.decode_steps * point.step
    # The rate of the clients if none of them waited, over the capacity.
    saturation = clients / (way.worked_on + decode) / pools.capacity
    requests = SteadyState(
        running=running,
        seen=point.seen,
        throughput=throughput,
        first_token=Moments(first_token, variance + queued / throughput),
        waiting=waiting,
        step_time=step_time_moments(
            engine,
            point.seen,
            point.step,
            point.step,
            stalls=0.0,
            batch_variance=running * larger(1 - running / clients, 0.0),
        ),
        decode=decode,
        chunks=pools.prefill.traffic.mean(pools.prefill.prefill.chunks),
        saturation=saturation,
    )
    return _state(pools, requests, way)


def _excess_clients(running: Scalar, loop: _Loop) -> tuple[Scalar, _Point]:
    """The logarithm of the clients that a running batch takes, over those that there are, and the loop
    there.
    """
    point = _at(loop, running)
    return jnp.log((running + point.throughput * point.way.before_decode.mean) / loop.clients), point


def _at(loop: _Loop, running: Scalar) -> _Point:
    """The loop with a running batch of `running` sequences on each decoding engine.

    Where all answers are equally long, requests come back in the order and at the intervals of their passes,
    and prompts do not wait.
    """
    pools, engine, clients = loop.pools, loop.pools.decode, loop.clients
    others = larger(clients - 1, 0.0) / clients * running
    seen = 1 + others
    step = engine.decode_time(seen)
    throughput = running / (pools.steps * step)
    all_clients = clients * pools.engines
    at_random = (1 - engine.lockstep) * larger(all_clients - 1, 0.0) / all_clients
    rate = at_random * throughput * pools.engines
    way = _way(pools, rate, step, decoding=others, steepest=_STEEPEST_IN_LOOP)
    return _Point(seen, step, throughput, way)


def _state(pools: TwoPools, requests: SteadyState, way: _Way) -> PoolsState:
    rate = requests.throughput * pools.engines
    return PoolsState(
        requests=requests,
        transfer=way.lane.mean + way.transfer.mean,
        in_prefill=rate * way.passes.mean / pools.prefill.engines,
        in_transfer=requests.throughput * (way.transfer.mean + way.next_step.mean),
        prefill_use=rate / pools.prefill.capacity,
        decode_use=requests.throughput / pools.decode_capacity,
        transfer_use=rate / pools.transfer.capacity,
    )
