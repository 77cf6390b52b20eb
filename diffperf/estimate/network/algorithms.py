"""Collective algorithms on one tier: how many hops one after the other, and how much each device sends.

An algorithm on a buffer of V bytes takes `hops` times the latency of a hop plus `work`·V over the rate of a device (the α–β model,
Thakur et al., IJHPCA 2005), by the better of a library's two protocols.
"""

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.network.topology import Fabric
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, inverse, larger
from diffperf.software.collective_library import CollectiveLibrary

_NEVER = 1e6  # s: what a library lacks is never the fastest, nor as fast as nothing to do

_LEAST_REDUCTION = 1e-3  # fraction of the bandwidth below which switches count as not reducing


class Algorithm(eqx.Module):
    """Cost of an algorithm: hops one after the other, bytes sent per byte of the buffer, and 1 where the library lacks it."""

    hops: Scalar
    work: Scalar
    missing: Scalar = 0.0


def neighbours(fabric: Fabric, library: CollectiveLibrary, rounds: float) -> Algorithm:
    """Reduce-scatter, all-gather or (two rounds) both, with all links of a device busy.

    A ring in m − 1 steps through switches (Patarasuk and Yuan, JPDC 2009), in both directions on a ring of links; dimension by
    dimension on meshes, tori and hypercubes, parts of the buffer starting in different dimensions (Chan et al., CCPE 2007);
    straight to its owner when fully connected. Exact where the sides of grids are whole.
    """
    return Algorithm(
        rounds * fabric.steps, fabric.slowdown * (rounds * fabric.part + library.own_share * fabric.own)
    )


def alternative(fabric: Fabric, library: CollectiveLibrary, weights: Weights, rounds: float) -> Algorithm:
    """The same in fewer steps, by weights over what a library may have.

    Trees (all-reduce only): two binary trees, each reducing and broadcasting one half (Sanders et al., Parallel Computing 2009);
    exact on a switch with small pieces, an upper bound elsewhere. Halving and doubling: log₂ m steps through switches, exact for
    powers of two (Rabenseifner, ICCS 2004); elsewhere as neighbours. Direct: every share straight to its owner, exact.
    """
    of = weights.by_name()
    none, trees, halving, direct = (of[name] for name in ("none", "trees", "halving_doubling", "direct"))
    own, reduces = (
        library.own_share * fabric.own,
        rounds - 1,
    )  # trees reduce and broadcast: they do not scatter
    missing = none + trees * (1 - reduces)
    hops = rounds * (halving * fabric.doubling_steps + direct * fabric.reach)
    work = halving * fabric.doubling * (rounds * fabric.part + own) + direct * (
        rounds * fabric.exchange + own
    )
    hops = hops + trees * reduces * 2 * fabric.doublings * fabric.reach
    return Algorithm(hops, work + trees * reduces * 2 * fabric.tree * fabric.present, missing)


def one_shot(fabric: Fabric, weights: Weights) -> Algorithm:
    """All-reduce in one step: every rank sends all it has to every other. Exact."""
    return Algorithm(fabric.reach, fabric.exchange * fabric.ways, 1 - weights.direct)


def in_network(fabric: Fabric) -> Algorithm:
    """All-reduce by switches (Graham et al., COMHPC 2016): a device sends its buffer and multicasts its part of the result."""
    work = (fabric.present + fabric.own) * inverse(larger(fabric.reduction, _LEAST_REDUCTION))
    return Algorithm(2 * fabric.present, work, lacks_reduction(fabric))


def lacks_reduction(fabric: Fabric) -> Scalar:
    """1 where switches do not reduce."""
    return larger(1 - fabric.reduction * (1 / _LEAST_REDUCTION), 0.0)


def wire_time(wire: Scalar, ramp: Scalar) -> Scalar:
    """Time of a bulk transfer that takes `wire` seconds at full rate, in as many pieces as finish it soonest.

    Pieces of a pipeline that each cost a fixed time make it (√wire + √ramp)² when their number is the best one; the cross term
    2·√(wire·ramp) is met by 2·wire·√(ramp / (wire + ramp)), which has a slope at 0.
    """
    return ramp + wire + 2 * wire * jnp.sqrt(ramp * inverse(wire + ramp))


class Wire(eqx.Module):
    """A buffer of a tier's group on its links, by a library: what turns hops and work into seconds."""

    fabric: Fabric
    library: CollectiveLibrary
    alternative: Weights  # those of the library for the tier
    seconds: Scalar  # to send the buffer once at full rate

    def quick(self, algorithm: Algorithm) -> Scalar:
        """By the low-latency protocol."""
        wire = algorithm.work * (self.seconds * inverse(self.library.low_latency_bandwidth))
        return algorithm.hops * self.fabric.hop + wire + _NEVER * algorithm.missing

    def bulk(self, algorithm: Algorithm) -> Scalar:
        """By the bulk protocol."""
        latency = algorithm.hops * (self.fabric.hop * self.library.bulk_latency)
        return (
            latency + wire_time(algorithm.work * self.seconds, self.fabric.ramp) + _NEVER * algorithm.missing
        )

    def between_pairs(self, algorithm: Algorithm) -> list[Scalar]:
        """By either protocol, as messages between pairs."""
        latency = algorithm.hops * self.fabric.hop + _NEVER * algorithm.missing
        wire = algorithm.work * self.seconds
        bulk = latency + self.library.message_startup + wire_time(wire, self.fabric.ramp)
        return [latency + wire * inverse(self.library.message_bandwidth), bulk]


def reduce_scatter(wire: Wire, relax: Relaxation) -> Scalar:
    """Reduce-scatter of a buffer, or all-gather into one, which is its mirror image."""
    ways = (
        neighbours(wire.fabric, wire.library, 1.0),
        alternative(wire.fabric, wire.library, wire.alternative, 1.0),
    )
    return relax.minimum(*map(wire.quick, ways), *map(wire.bulk, ways))


def all_reduce(wire: Wire, relax: Relaxation) -> Scalar:
    """All-reduce of a buffer."""
    ways = (
        neighbours(wire.fabric, wire.library, 2.0),
        alternative(wire.fabric, wire.library, wire.alternative, 2.0),
    )
    small, large = one_shot(wire.fabric, wire.alternative), in_network(wire.fabric)
    return relax.minimum(
        *map(wire.quick, ways), *map(wire.bulk, ways), wire.between_pairs(small)[0], wire.bulk(large)
    )


def broadcast(wire: Wire, relax: Relaxation) -> Scalar:
    """Broadcast: a pipeline of small pieces around a ring, a binomial tree of whole buffers, or a multicast by switches.

    The pipeline is a lower bound that small pieces approach; the tree is exact on a switch for powers of two.
    """
    fabric = wire.fabric
    ring = Algorithm(fabric.steps, fabric.slowdown * fabric.present)
    tree = Algorithm(fabric.doublings * fabric.reach, fabric.doublings * fabric.tree)
    work = fabric.present * inverse(larger(fabric.reduction, _LEAST_REDUCTION))
    multicast = Algorithm(2 * fabric.present, work, lacks_reduction(fabric))
    return relax.minimum(*map(wire.quick, (ring, tree)), *map(wire.bulk, (ring, tree, multicast)))


def all_to_all(wire: Wire, relax: Relaxation) -> Scalar:
    """All-to-all of a send buffer: shares straight to their owners. Exact for even sides of grids, an upper bound for odd ones."""
    fabric = wire.fabric
    return relax.minimum(
        *wire.between_pairs(Algorithm(fabric.reach, fabric.exchange + wire.library.own_share * fabric.own))
    )


def send(wire: Wire, relax: Relaxation) -> Scalar:
    """A buffer from one member to a neighbour, in one piece: there is no pipeline to fill."""
    library, present = wire.library, wire.fabric.present
    latency, seconds = present * wire.fabric.hop, present * wire.seconds
    return relax.minimum(
        latency + seconds * inverse(library.message_bandwidth), latency + library.message_startup + seconds
    )
