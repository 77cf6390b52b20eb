"""How long collectives take on the network tiers, if nothing hides them.

Collectives work tier by tier, each with its best algorithm, on what the inner tiers left; or on all tiers
at once, in rings through all members.
"""

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.network import algorithms
from diffperf.estimate.network.placement import Group, Links, place
from diffperf.estimate.network.topology import FEWEST, joined
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Exact, Relaxation, cumulative, inverse, larger, smaller, with_slopes_of
from diffperf.trees import split_tree, unstack_tree
from diffperf.workload.collective import Collective, destinations_reached

# Share of the innermost tier's ramp that is added to the ramp of rings, so that it is never 0: `wire_time`
# divides by it.
_LEAST_RAMP = 1e-6

# Fields of a collective that only an all-to-all asks for.
_OF_COPIES = ("copies", "once", "groups", "groups_visited")


class Transfer(eqx.Module):
    """A communication on the network tiers.

    - `time`: seconds that it takes, if nothing hides it.
    - `sent`: bytes that each device sends over each tier.
    - `busy`: seconds for which those bytes fill a device's links of each tier: less than `time`, by
      latencies, by protocols that send flags with the bytes, and by slower tiers.
    - `memory`: bytes that each device reads from and writes to its device memory.
    """

    time: Scalar
    sent: Float[Array, " tiers"]
    busy: Float[Array, " tiers"]
    memory: Scalar

    @classmethod
    def nothing(cls, system: System) -> "Transfer":
        """No communication."""
        on_tiers = jnp.zeros_like(jnp.stack([tier.size for tier in system.network]))
        nothing = jnp.zeros_like(system.n_devices)
        return cls(time=nothing, sent=on_tiers, busy=on_tiers, memory=nothing)

    def __add__(self, other: "Transfer") -> "Transfer":
        return jax.tree.map(jnp.add, self, other)

    def __mul__(self, count: Array | float) -> "Transfer":
        return jax.tree.map(lambda number: number * count, self)


class TimedCollective(eqx.Module):
    """A collective, and the transfer that one run of it is."""

    collective: Collective
    transfer: Transfer


def transfers(
    collectives: Sequence[Collective],
    system: System,
    relax: Relaxation,
    network_efficiency: Scalar | float = 1.0,
) -> list[TimedCollective]:
    """The collectives with one run of each timed, in the order given.

    All groups are placed, and each kind of collective is evaluated, in one traced expression; collectives of
    the same numbers (the same arrays) once.
    `network_efficiency` is the share of its efficiency that every tier but the innermost reaches.
    """
    names = ("degree", "stride", "volume", *_OF_COPIES)
    numbers = [(one.kind, *(id(getattr(one, name)) for name in names)) for one in collectives]
    different = dict(zip(numbers, collectives, strict=True))
    order = sorted(different, key=lambda key: key[0])
    ordered = [different[key] for key in order]
    columns = [
        jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(getattr(one, name)) for one in ordered)))
        for name in names
    ]
    kinds = Counter(collective.kind for collective in ordered)

    def by_kind(
        links: Links, columns: list[Array], network_efficiency: Array, *, at_kinks: bool
    ) -> list[Transfer]:
        """The transfers of each kind of collective; `at_kinks` with derivatives of one side at kinks."""
        degree, stride, *messages = columns
        few = larger(degree, FEWEST) if at_kinks else degree
        groups = jax.vmap(
            lambda few, stride: place(links, few, stride, relax, network_efficiency, at_kinks=at_kinks)
        )(few, stride)
        split = split_tree((groups, messages, degree), [*kinds.values()])
        together = []
        for kind, (group, arguments, members) in zip(kinds, split, strict=True):
            arguments = arguments if kind == "all_to_all" else arguments[:1]
            timed = jax.vmap(COLLECTIVES[kind])(group, *arguments)
            # As a group of more than one forms, its collective sets in.
            together.append(jax.vmap(operator.mul)(timed, joined(members)) if at_kinks else timed)
        return together

    function = with_kinks = functools.partial(by_kind, at_kinks=True)
    if isinstance(relax, Exact):
        # What makes derivatives at kinks those of one side is left to the derivatives: it changes no number,
        # and would take a tenth of the time of an estimate.
        function = with_slopes_of(with_kinks, functools.partial(by_kind, at_kinks=False))
    efficiency = jnp.asarray(network_efficiency, columns[0].dtype)
    timed = [one for kind in function(Links.of(system), columns, efficiency) for one in unstack_tree(kind)]
    by_numbers = dict(zip(order, timed, strict=True))
    return [
        TimedCollective(collective=collective, transfer=by_numbers[key])
        for key, collective in zip(numbers, collectives, strict=True)
    ]


def all_reduce(group: Group, volume: Scalar) -> Transfer:
    """All-reduce of a `volume`-byte buffer: each tier works on the share that the next tier inside left it
    (arXiv 1909.09756).

    The fastest counts on each tier: rings, the library's reductions of fewer steps such as trees, sending
    everything to everyone at once, or switches that reduce.

    Device memory (NCCL, src/device/all_reduce.h, of V bytes in n shares): n − 1 shares are received and sent
    to be added up, as in `reduce_scatter`, and n − 1 are handed on. The added share is sent from registers:
    5·n − 4 shares are read and written. A tree moves as many bytes for each that it sends. Where switches
    reduce, a device reads the buffer once, and writes the result once: on such tiers that is counted for any
    algorithm, as the others are faster there for small buffers alone, or in rings that leave the tier.
    """
    wire = group.wire(volume * inverse(group.within))
    ways = algorithms.neighbours(wire, 2.0), algorithms.alternative(wire, 2.0)
    times = group.relax.minimum(
        *map(wire.quick, ways),
        *map(wire.bulk, ways),
        wire.between_pairs(algorithms.one_shot(wire))[0],
        wire.bulk(algorithms.in_network(wire)),
    )
    switches = 1 - algorithms.lacks_reduction(group.fabric)
    return _by_tiers_or_rings(
        group, times * group.fabric.joined, volume, rounds=2.0, copies=(5.0, 1.0), switches=switches
    )


def reduce_scatter(group: Group, volume: Scalar) -> Transfer:
    """Reduce-scatter of a `volume`-byte buffer, tier by tier from the inside out.

    Device memory (NCCL, src/device/reduce_scatter.h, of V bytes in n shares): each of the n − 1 shares that
    arrive is written, and read again with the device's own share of it; the first share that a device sends
    is read, and the result is written: 3·n − 1 shares in all.
    """
    return _scattered_or_gathered(group, volume, copies=(3.0, 2.0))


def all_gather(group: Group, volume: Scalar) -> Transfer:
    """All-gather into a `volume`-byte buffer: the mirror image of a reduce-scatter, but for device memory, in
    which n − 1 shares are written as they arrive, and as many are read as they are sent.
    """
    return _scattered_or_gathered(group, volume, copies=(2.0, 0.0))


def _scattered_or_gathered(group: Group, volume: Scalar, copies: tuple[float, float]) -> Transfer:
    """Reduce-scatter or all-gather, which take as long and send as much; `copies` as in
    `_by_tiers_or_rings`.
    """
    wire = group.wire(volume * inverse(group.within))
    ways = algorithms.neighbours(wire, 1.0), algorithms.alternative(wire, 1.0)
    times = group.relax.minimum(*map(wire.quick, ways), *map(wire.bulk, ways))
    return _by_tiers_or_rings(group, times * group.fabric.joined, volume, rounds=1.0, copies=copies)


def broadcast(group: Group, volume: Scalar) -> Transfer:
    """Broadcast of a `volume`-byte buffer, over the outermost tier first."""
    volumes = volume * jnp.ones_like(group.fabric.ways)
    wire = group.wire(volumes)
    ring, tree = algorithms.ring_broadcast(wire), algorithms.binomial_broadcast(wire)
    ways = ring, tree, algorithms.multicast(wire)
    times = group.relax.minimum(wire.quick(ring), wire.quick(tree), *map(wire.bulk, ways))
    return _with_startup(group, jnp.sum(times * group.fabric.joined), group.part * volumes)


def all_to_all(
    group: Group,
    volume: Scalar,
    copies: Scalar | float = 1.0,
    once: Scalar | float = 0.0,
    groups: Scalar | float = 1.0,
    groups_visited: Scalar | float = 1.0,
) -> Transfer:
    """All-to-all of a `volume`-byte send buffer: to the members that a tier connects, over that tier; all
    tiers at once.

    Where pieces of the buffer are copies that go to several members at random, `copies` of each, the share
    `once` of them goes to a domain once, to the member that stands there where the sender stands in its
    own, which hands it on inside (DeepSeek-V3, arXiv 2412.19437 §3.2.2). Copies that only go to
    `groups_visited` of `groups` equal groups of members reach no more domains than those groups lie in.
    """
    degree = group.across[-1]
    direct = group.across * inverse(degree)
    domains = degree * inverse(group.within)  # of the next tier inside, that the group lies in
    distinct = destinations_reached(domains, copies, groups, groups_visited)
    reached = distinct * inverse(jnp.asarray(copies, domains.dtype))
    shares = volume * (direct + once * (smaller(reached, 1.0) - direct))
    wire = group.wire(shares)
    times = group.relax.minimum(*wire.between_pairs(algorithms.exchange(wire)))
    return _with_startup(group, group.relax.reduce_maximum(times * group.fabric.joined), group.part * shares)


def send(group: Group, volume: Scalar) -> Transfer:
    """`volume` bytes from a rank to its neighbour, averaged over the hops along the group: most stay on the
    inner tiers. On direct networks a message takes one of a device's links.

    A message is in one piece: there is no pipeline to fill.
    """
    times, hops = _hops(group, volume)
    share = hops * inverse(group.across[-1] - 1 + (1 - group.starts))
    return _transfer(group, jnp.sum(share * times) + group.startup, share * volume)


def ring_shift(group: Group, volume: Scalar) -> Transfer:
    """`volume` bytes from every rank to the next at the same time, the last rank's to the first: all wait for
    the hop that takes longest (Ring Attention, arXiv 2310.01889 §3).

    The hop that closes the ring is on the outermost tier that the group spreads over: of 16 ranks on two
    nodes, two send to the other node.
    """
    times, hops = _hops(group, volume)
    alone = 1 - group.present
    outside = cumulative(alone[::-1], operator.mul)[:-1][::-1]  # alone on all tiers outside
    closing = group.present * jnp.concatenate([outside, jnp.ones_like(alone[:1])])
    # As many hops as ranks; a group of less than two has the part of those of two that there is.
    share = (hops + closing) * inverse(group.across[-1] + 1 - jnp.sum(closing))
    return _transfer(group, group.relax.reduce_maximum(times) + group.startup, share * volume)


def _hops(group: Group, volume: Scalar) -> tuple[Float[Array, " tiers"], Float[Array, " tiers"]]:
    """Seconds of `volume` bytes from a rank to its neighbour on each tier, 0 where the group has no
    neighbours, and how many of the hops along the group each tier has.
    """
    fabric, library = group.fabric, group.library
    # Of degree − 1 hops, (domains − 1) cross each tier's boundary; the rest stay inside.
    crossing = inverse(group.within) - inverse(group.across)
    latency, seconds = group.present * fabric.hop, group.present * volume * inverse(fabric.link)
    times = group.relax.minimum(
        latency + seconds * inverse(library.message_bandwidth), latency + library.message_startup + seconds
    )
    return times, group.across[-1] * crossing


COLLECTIVES: dict[str, Callable[..., Transfer]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send_recv": send,
    "ring_shift": ring_shift,
}


def _with_startup(group: Group, time: Scalar, sent: Float[Array, " tiers"]) -> Transfer:
    """Adds the startup that every collective pays; all members wait for the member that comes last."""
    floor = group.starts * group.library.floor
    return _transfer(group, group.relax.maximum(time + group.startup, floor), sent)


def _transfer(group: Group, time: Scalar, sent: Float[Array, " tiers"]) -> Transfer:
    """The transfer of so many bytes on each tier.

    Links are busy for no longer than it takes: switches that reduce and multicast carry fewer bytes than
    are counted here. What a device sends is read from device memory, and as much that it receives is written
    there.
    """
    busy = smaller(sent * inverse(group.fabric.rate), time)
    return Transfer(time=time, sent=sent, busy=busy, memory=2 * jnp.sum(sent))


def _by_tiers_or_rings(
    group: Group,
    times: Float[Array, " tiers"],
    volume: Scalar,
    rounds: float,
    copies: tuple[float, float],
    switches: Array | float = 0.0,
) -> Transfer:
    """One tier after the other, from the inside out and back in, or in rings through all tiers: the
    faster.

    Device memory serves, of the buffer that a tier works on, `copies[0]` times the other members' share and
    `copies[1]` times the device's own, or on the tiers whose `switches` reduce the buffer twice. What a
    library copies besides, to buffers for a network adapter, is not counted, nor are caches that hold such
    buffers.
    """
    time = jnp.sum(times)
    if len(group.fabric.ways) > 1:
        # A group within one tier takes as long either way, up to rounding. Where it fills a domain, rings
        # count: they grow less as it begins to spread over the next tier. Elsewhere the tier's own algorithms
        # do.
        if group.at_kinks:
            time = time * (1 + jnp.where(group.fills, 4, -4) * jnp.finfo(time.dtype).eps)
        time = group.relax.minimum(time, *_rings(group, volume, rounds))
    buffers = volume * inverse(group.within)
    of_others, of_own = copies
    by_devices = of_others * group.part + of_own * group.fabric.own * group.fabric.joined
    served = by_devices + switches * (2 * group.present - by_devices)
    transfer = _with_startup(group, time, rounds * group.part * buffers)
    return dataclasses.replace(transfer, memory=jnp.sum(served * buffers))


def _rings(group: Group, volume: Scalar, rounds: float) -> list[Scalar]:
    """Seconds of rings through all members at once, as many as a domain has members, so that each leaves it
    by another device.

    All tiers are busy at the same time; the slowest sets the pace. Of the hops of a ring, those across a
    domain's boundary are on the tier outside (as in NCCL's model of its rings, src/graph/tuning.cc). By
    either protocol.
    """
    fabric, library, within, across = group.fabric, group.library, group.within, group.across
    degree = across[-1]
    own = inverse(degree)
    volume = volume * (rounds * (1 - own) + library.own_share * own)
    latency = jnp.sum(rounds * degree * (inverse(within) - inverse(across)) * fabric.hop)
    pace = group.present * fabric.slowdown * volume * inverse(within * fabric.rate)
    wire = group.relax.reduce_maximum(pace)
    # Not 0 for a group of one; on a single tier exactly as large as that tier's.
    more = smaller(jnp.abs(jnp.sum(fabric.joined) - 1), 1.0) if group.at_kinks else 1.0
    ramp = jnp.sum(group.present * fabric.ramp) + more * _LEAST_RAMP * fabric.ramp[0]
    quick = latency + wire * inverse(library.low_latency_bandwidth)
    return [quick, latency * library.bulk_latency + algorithms.wire_time(wire, ramp)]
