"""What a tier's topology offers a group of its members, as a few numbers that all algorithms are written in.

A group of m ranks uses a block of the topology of its own kind: a ring of m, a torus of m, a cube of m. Ranks of a fully connected
tier or a hypercube have as many of their links within the group as the block has. Grids have equal sides, which need not be whole.
"""

import math

import equinox as eqx
import jax.numpy as jnp

from diffperf.hardware.network import NetworkTier
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, inverse, larger

_PER_DOUBLING = 1 / math.log(2)


class Fabric(eqx.Module):
    """What a tier offers a group with `ways` members in each of its domains. Work: bytes sent at `rate`, per byte of the buffer."""

    ways: Scalar  # members, at least 1
    present: Scalar  # 1 where a member has others to talk to, else 0
    part: Scalar  # of a buffer that is others' share
    own: Scalar  # of a buffer that is a member's own share, 0 where it has no others
    hop: Scalar  # s
    rate: Scalar  # byte/s that a member sends, over all its links within the group
    ramp: Scalar  # s
    reduction: Scalar  # rate of switches that reduce, as a fraction of `rate`
    steps: Scalar  # of a reduce-scatter that keeps all links busy: a ring, dimension by dimension, or straight to every owner
    slowdown: Scalar  # of that reduce-scatter by links that cannot be kept busy
    exchange: Scalar  # work when everyone sends an equal share of the buffer to everyone
    reach: Scalar  # hops to the farthest member
    doublings: Scalar  # log₂ of the members
    doubling_steps: Scalar  # of recursive halving or doubling
    doubling: Scalar  # its slowdown
    tree: Scalar  # slowdown of a pair of binary trees


def offer(tier: NetworkTier, spread: Scalar, inside: Scalar, relax: Relaxation) -> Fabric:
    """What `tier` offers a group with `spread` members per domain, domains of the tier inside having `inside` devices, all busy.

    Link counts, steps and slowdowns: Dally and Towles, *Principles and Practices of Interconnection Networks*, ch. 3 and 5.
    Traffic between all pairs loads the middle of a ring of m with m/4 of a buffer per byte of injection bandwidth (even m; odd m
    have less), a torus in each dimension alike, a mesh twice as much, a hypercube log₂ m / 2; switches carry what devices inject,
    over `oversubscription`. Of a fully connected tier or a hypercube, a group has the links that lead to members.
    """
    w = tier.topology.by_name()
    lines, cliques, cubes = w["ring"], w["fully_connected"], w["hypercube"]
    switched = w["switch"] + w["fat_tree"] + w["dragonfly"] + w["rail"]
    squares, blocks = w["mesh_2d"] + w["torus_2d"], w["mesh_3d"] + w["torus_3d"]

    def links(m, doublings):
        return 1 + cliques * (m - 2) + cubes * (doublings - 1)

    m = larger(spread, 1.0)
    present = relax.minimum(m - 1, 1.0)
    logarithm = jnp.log(m)
    doublings = logarithm * _PER_DOUBLING
    side, edge = jnp.sqrt(m), jnp.exp(logarithm / 3)  # of a square and of a cube of m
    grid_steps = lines * (m - 1) + 2 * squares * (side - 1) + 3 * blocks * (edge - 1) + cubes * doublings
    within = links(larger(m, 2.0), larger(doublings, 1.0))  # a group of less than two has the links of two
    room = larger(tier.size * inverse(inside), 2.0)
    injected = relax.minimum(tier.bandwidth * tier.efficiency, tier.uplink * inverse(inside)) * inverse(
        tier.oversubscription
    )
    crossing = (
        0.25 * lines * m
        + 0.5 * (squares + w["mesh_2d"]) * side
        + 0.75 * (blocks + w["mesh_3d"]) * edge
        + 0.5 * cubes * doublings
    )
    near = (
        cliques
        + switched
        + w["fat_tree"]
        + 2 * w["dragonfly"]
        + 0.5 * lines * m
        + w["torus_2d"] * side
        + 1.5 * w["torus_3d"] * edge
    )
    own = inverse(m)
    return Fabric(
        ways=m,
        present=present,
        part=1 - own,
        own=own * present,
        hop=tier.latency,
        rate=injected * within * inverse(links(room, jnp.log(room) * _PER_DOUBLING)),
        ramp=tier.ramp,
        reduction=tier.in_network_reduction,
        steps=grid_steps + switched * (m - 1) + cliques * present,
        slowdown=1 + w["mesh_2d"] + w["mesh_3d"],
        exchange=(switched + cliques) * (1 - own) + crossing * present,
        reach=near * present
        + 2 * w["mesh_2d"] * (side - 1)
        + 3 * w["mesh_3d"] * (edge - 1)
        + cubes * doublings,
        doublings=doublings,
        doubling_steps=grid_steps + (switched + cliques) * doublings,
        doubling=w["mesh_2d"] + w["mesh_3d"] + within + cubes * (1 - doublings),
        tree=switched + cliques * within + (lines + cubes + 4 * squares + 6 * blocks) * doublings,
    )
