"""Collective algorithms on one network tier: how many hops one after the other, and how much each device
sends.

An algorithm on a buffer of V bytes takes `hops` times the latency of a hop plus `work`·V over the rate of
a device (the α–β model, Thakur et al., IJHPCA 2005), by the better of a library's two protocols: one of
low latency for small messages, one of full bandwidth for large ones. Every number may have an axis of
tiers.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from diffperf.estimate.network.topology import Fabric
from diffperf.quantity import Weights
from diffperf.relax import inverse, larger
from diffperf.software.collective_library import CollectiveLibrary

# An algorithm that a library lacks takes so many times longer than a hop and the whole buffer, and is never
# the fastest. A multiple of the wire's own times, because a fixed time would depend on the unit of time.
_NEVER = 1e9
_LEAST_REDUCTION = 1e-3  # fraction of the bandwidth below which switches count as not reducing


class Algorithm(eqx.Module):
    """Cost of an algorithm: hops one after the other, bytes sent for each byte of the buffer, and 1 where the
    library lacks it.
    """

    hops: Array
    work: Array
    missing: Array | float = 0.0


class Wire(eqx.Module):
    """A buffer on the links of a tier, sent by a library: what turns an algorithm's hops and work into
    seconds.
    """

    fabric: Fabric
    library: CollectiveLibrary
    alternative: Weights  # the library's reductions of fewer steps on the tier
    seconds: Array  # to send the buffer once at full rate

    def quick(self, algorithm: Algorithm) -> Array:
        """Seconds by the low-latency protocol."""
        wire = algorithm.work * (self.seconds * inverse(self.library.low_latency_bandwidth))
        return algorithm.hops * self.fabric.hop + wire + self._lacking(algorithm)

    def bulk(self, algorithm: Algorithm) -> Array:
        """Seconds by the bulk protocol."""
        latency = algorithm.hops * (self.fabric.hop * self.library.bulk_latency)
        wire = wire_time(algorithm.work * self.seconds, self.fabric.ramp)
        return latency + wire + self._lacking(algorithm)

    def between_pairs(self, algorithm: Algorithm) -> list[Array]:
        """Seconds by either protocol, as messages between pairs of devices."""
        latency = algorithm.hops * self.fabric.hop + self._lacking(algorithm)
        wire = algorithm.work * self.seconds
        bulk = latency + self.library.message_startup + wire_time(wire, self.fabric.ramp)
        return [latency + wire * inverse(self.library.message_bandwidth), bulk]

    def _lacking(self, algorithm: Algorithm) -> Array:
        """Seconds that keep an algorithm that the library lacks from being the fastest; 0 for the others."""
        return algorithm.missing * (_NEVER * (self.fabric.hop + self.seconds))


def wire_time(wire: Array, ramp: Array) -> Array:
    """Seconds of a bulk transfer that takes `wire` seconds at full rate, in as many pieces as finish it
    soonest.

    Pieces of a pipeline that each cost a fixed time make it (√wire + √ramp)² when their number is the best
    one; the cross term 2·√(wire·ramp) is met by 2·wire·√(ramp / (wire + ramp)), which has a slope at 0.
    """
    return ramp + wire + 2 * wire * jnp.sqrt(ramp * inverse(wire + ramp))


def neighbours(wire: Wire, rounds: float) -> Algorithm:
    """Reduce-scatter, all-gather or (two rounds) both, with all links of a device busy.

    A ring in m − 1 steps through switches (Patarasuk and Yuan, JPDC 2009), in both directions on a ring of
    links; dimension by dimension on meshes, tori and hypercubes, parts of the buffer starting in different
    dimensions (Chan et al., CCPE 2007); straight to its owner when fully connected. Exact where the sides
    of grids are whole.
    """
    fabric = wire.fabric
    sent = rounds * fabric.part + wire.library.own_share * fabric.own
    return Algorithm(hops=rounds * fabric.steps, work=fabric.slowdown * sent)


def alternative(wire: Wire, rounds: float) -> Algorithm:
    """An algorithm that takes the place of `neighbours` with fewer steps, by weights over what a library may
    have.

    Trees (all-reduce only): two binary trees, each reducing and broadcasting one half (Sanders et al.,
    Parallel Computing 2009); exact on a switch with small pieces, an upper bound elsewhere. Halving and
    doubling: log₂ m steps through switches, exact for powers of two (Rabenseifner, ICCS 2004); elsewhere
    as neighbours. Direct: every share straight to its owner, exact.
    """
    fabric, weight = wire.fabric, wire.alternative.by_name()
    own = wire.library.own_share * fabric.own
    reduces = rounds - 1  # trees reduce and broadcast: they do not scatter
    trees, halving, direct = (weight[name] for name in ("trees", "halving_doubling", "direct"))
    hops = rounds * (halving * fabric.doubling_steps + direct * fabric.reach)
    work = halving * fabric.doubling * (rounds * fabric.part + own) + direct * (
        rounds * fabric.exchange + own
    )
    return Algorithm(
        hops=hops + trees * reduces * 2 * fabric.doublings * fabric.reach,
        work=work + trees * reduces * 2 * fabric.tree * fabric.present,
        missing=weight["none"] + trees * (1 - reduces),
    )


def one_shot(wire: Wire) -> Algorithm:
    """All-reduce in one step: every rank sends all that it has to every other rank. Exact."""
    fabric = wire.fabric
    return Algorithm(
        hops=fabric.reach, work=fabric.exchange * fabric.ways, missing=1 - wire.alternative.direct
    )


def in_network(wire: Wire) -> Algorithm:
    """All-reduce by switches (Graham et al., COMHPC 2016): a device sends its buffer and multicasts its part
    of the result.
    """
    fabric = wire.fabric
    work = (fabric.present + fabric.own) * _reduction_slowdown(fabric)
    return Algorithm(hops=2 * fabric.present, work=work, missing=lacks_reduction(fabric))


def multicast(wire: Wire) -> Algorithm:
    """Broadcast by switches that multicast."""
    fabric = wire.fabric
    work = fabric.present * _reduction_slowdown(fabric)
    return Algorithm(hops=2 * fabric.present, work=work, missing=lacks_reduction(fabric))


def lacks_reduction(fabric: Fabric) -> Array:
    """1 where switches do not reduce and multicast."""
    return larger(1 - fabric.reduction * (1 / _LEAST_REDUCTION), 0.0)


def _reduction_slowdown(fabric: Fabric) -> Array:
    """The rate of the links over that of switches that reduce."""
    return inverse(larger(fabric.reduction, _LEAST_REDUCTION))


def ring_broadcast(wire: Wire) -> Algorithm:
    """Broadcast as a pipeline of small pieces around a ring: a lower bound that small pieces approach."""
    fabric = wire.fabric
    return Algorithm(hops=fabric.steps, work=fabric.slowdown * fabric.present)


def binomial_broadcast(wire: Wire) -> Algorithm:
    """Broadcast by a binomial tree of whole buffers: exact on a switch for powers of two."""
    fabric = wire.fabric
    return Algorithm(hops=fabric.doublings * fabric.reach, work=fabric.doublings * fabric.tree)


def exchange(wire: Wire) -> Algorithm:
    """All-to-all of a send buffer: shares straight to their owners. Exact for even sides of grids, an upper
    bound for odd ones.
    """
    fabric = wire.fabric
    return Algorithm(hops=fabric.reach, work=fabric.exchange + wire.library.own_share * fabric.own)
