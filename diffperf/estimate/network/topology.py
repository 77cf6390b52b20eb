"""The topology of a tier as seen by a group of its members: a few numbers that all algorithms are written in.

A group of m ranks uses a block of the topology: a ring of m, a block of m in a mesh or torus, a cube of m.
A ring closes for any m: it stands for an axis of a torus that optical switches cut to any length, as those of
TPU v4 do (arXiv 2304.01433 §2). Fixed wires leave a part of a ring half of that bandwidth, which is not
modelled.
Its ranks have as many of their links within the group as the block has. Grids have equal sides, which need
not be whole. Every number may have an axis of tiers.

Link counts, steps and loads: Dally and Towles, *Principles and Practices of Interconnection Networks*,
chapters 3 and 5.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from diffperf.hardware.network import NetworkTier
from diffperf.relax import Relaxation, inverse, larger, smaller

_PER_DOUBLING = 1 / math.log(2)
# Fewest members that algorithms are evaluated for. With one member all of them take no time, and whichever of
# them were taken for the fastest would set the derivatives; a smooth minimum would leave it some time.
FEWEST = 1.001


class Fabric(eqx.Module):
    """The topology of a tier as seen by a group with `ways` members in each of its domains.

    Work is the bytes that a member sends at `rate` for each byte of the buffer. All numbers but the first two
    are those of a group of at least `FEWEST` members; a group of fewer takes the `joined` share of its times
    and bytes.
    """

    ways: Array  # members of the group in each domain of the tier, at least 1
    joined: Array  # share of a group of at least `FEWEST` members that there is: 0 for one, else 1
    present: Array  # 1 where a member has others to talk to, less where only some have
    part: Array  # share of a buffer that belongs to the other members
    own: Array  # share of a buffer that belongs to the member itself, 0 where it has no others
    hop: Array  # s, latency of a hop
    rate: Array  # byte/s that a member sends, over all its links within the group
    link: Array  # byte/s of one link of a member
    ramp: Array  # s, fill of the pipeline of large messages
    reduction: Array  # rate of switches that reduce, as a fraction of `rate`
    steps: Array  # hops of a reduce-scatter that keeps all links busy
    slowdown: Array  # of that reduce-scatter by links that cannot be kept busy
    exchange: Array  # work when every member sends an equal share of the buffer to every other
    reach: Array  # hops to the farthest member
    doublings: Array  # log₂ of the members
    doubling_steps: Array  # hops of recursive halving or doubling
    doubling: Array  # slowdown of recursive halving or doubling
    tree: Array  # slowdown of a pair of binary trees


def joined(members: Array) -> Array:
    """The share that a group takes of the times and bytes of one with `FEWEST` members or more; 0 for one."""
    return smaller((larger(members, 1.0) - 1) * (1 / (FEWEST - 1)), 1.0)


def fabric_for_group(
    tier: NetworkTier,
    spread: Array,
    inside: Array,
    relax: Relaxation,
    full: Array | bool = False,
    *,
    devices: Array | None = None,
    at_kinks: bool = True,
) -> Fabric:
    """The fabric of a tier for a group with `spread` members in each of its domains, all of them busy.

    A domain of the next tier inside has `inside` devices. Of a torus or mesh the job has `devices` devices to
    itself, all that the tier has if None: these are wired as a torus of their own, as optical switches do
    (TPU v4, arXiv 2304.01433 §2). Switches carry what devices inject, over the oversubscription. Where
    the group fills domains (`full`), derivatives at two members are those of fewer members in a domain; else
    those of more. Without `at_kinks` the numbers are the same for whole members, at less expense, but their
    derivatives are not those of one side.
    """
    weight = tier.topology.by_name()
    lines, cliques, cubes = weight["ring"], weight["fully_connected"], weight["hypercube"]
    meshes = weight["mesh_2d"] + weight["mesh_3d"]
    switched = weight["switch"] + weight["fat_tree"] + weight["dragonfly"] + weight["rail"]

    ways = larger(spread, 1.0)
    m = larger(spread, FEWEST) if at_kinks else ways
    fewer = jnp.where(full, 1 - 4 * jnp.finfo(m.dtype).eps, 1.0) if at_kinks else 1.0
    present = relax.minimum(1.0, fewer * m - 1)
    logarithm = jnp.log(m)
    doublings = logarithm * _PER_DOUBLING
    job = tier.size if devices is None else smaller(tier.size, devices)
    blocks = [_Block.of(m, doublings, job * inverse(inside), weight, dimensions) for dimensions in (2, 3)]
    grids = sum(block.of_topology for block in blocks)
    grid_steps = lines * (m - 1) + sum(block.steps for block in blocks) + cubes * doublings

    def links(members: Array, dimensions: Array) -> Array:
        """Links of a member to others of a fully connected group, or along the dimensions of a hypercube;
        else one.
        """
        return 1 + cliques * (members - 2) + cubes * (dimensions - 1)

    # A group of less than two has the links of two.
    group_links = links(larger(m, 2.0), larger(doublings, 1.0))
    connected = larger(tier.size * inverse(inside), 2.0)
    domain_links = links(connected, jnp.log(connected) * _PER_DOUBLING)
    grid_links = sum(2 * block.dimensions * block.of_topology for block in blocks)  # of a device
    links_used = sum(block.links for block in blocks)  # within the group
    uplink = tier.uplink * inverse(inside)
    injected = relax.minimum(tier.bandwidth * tier.efficiency, uplink) * inverse(tier.oversubscription)
    rate = injected * group_links * inverse(domain_links)
    own = inverse(m)
    return Fabric(
        ways=ways,
        joined=joined(spread) if at_kinks else jnp.ones_like(ways),
        present=present,
        part=1 - own,
        own=own * present,
        hop=tier.latency,
        rate=rate * (1 - grids + sum(block.links / (2 * block.dimensions) for block in blocks)),
        link=injected * inverse(smaller(domain_links + lines + grid_links - grids, connected - 1)),
        ramp=tier.ramp,
        reduction=tier.in_network_reduction,
        steps=grid_steps + switched * (m - 1) + cliques * present,
        slowdown=1 + meshes,
        exchange=(switched + cliques) * (1 - own) + _middle_load(weight, m, blocks, doublings) * present,
        reach=_farthest(weight, m=m, blocks=blocks, doublings=doublings, present=present),
        doublings=doublings,
        doubling_steps=grid_steps + (switched + cliques) * doublings,
        doubling=meshes + group_links + cubes * (1 - doublings),
        tree=switched + cliques * group_links + (lines + cubes + links_used) * doublings,
    )


class _Block(eqx.Module):
    """A group as a compact block of a mesh or torus. All numbers but the first are times the weight of the
    topologies of so many dimensions.

    A group extends along one dimension after the other by two members, and then along all alike: pairs use
    one dimension, groups of four two.

    - `links`: links of a member within the group. In each dimension that the group extends along there are
      two where the block wraps around, and one where it ends before the torus does. Members in the middle of
      a mesh have two as well, which the slowdown of meshes halves.
    - `steps`: hops along all dimensions, one after the other.
    - `load`: load on the middle of the block's rings, as a share of the buffer for each byte that a member
      sends over its links within the group.
    - `reach`: hops to the farthest member.
    """

    dimensions: int = eqx.field(static=True)
    of_topology: Array
    links: Array
    steps: Array
    load: Array
    reach: Array

    @classmethod
    def of(
        cls, m: Array, doublings: Array, devices: Array, weight: dict[str, Array], dimensions: int
    ) -> "_Block":
        """The block of `m` members, `doublings` their logarithm, in a grid of `devices` devices."""
        torus, mesh = weight[f"torus_{dimensions}d"], weight[f"mesh_{dimensions}d"]
        past = m >= 2.0**dimensions  # the group extends along all dimensions
        extended = jnp.where(past, dimensions, larger(doublings, 1.0))
        side = jnp.where(past, _root(m, dimensions), smaller(m, 2.0))
        # Sides of two grow into sides of the torus, which wrap around. A torus with sides of two wraps in any
        # case: the two links of a device in a dimension lead to the same neighbour.
        room = _root(devices, dimensions)
        grown = jnp.where(past, side - 2, 0.0) * inverse(larger(room - 2, 1.0))
        wrapped = smaller(larger(3 - room, 0.0) + grown, 1.0)
        return cls(
            dimensions=dimensions,
            of_topology=torus + mesh,
            links=extended * (torus * (1 + wrapped) + 2 * mesh),
            steps=(torus + mesh) * extended * (side - 1),
            load=extended * side * (0.25 * torus + 0.5 * mesh),
            reach=extended * (0.5 * torus * side + mesh * (side - 1)),
        )


def _root(members: Array, dimensions: int) -> Array:
    """The side of a square or a cube of `members`."""
    return jnp.sqrt(members) if dimensions == 2 else jnp.exp(jnp.log(members) / 3)


def _middle_load(weight: dict[str, Array], m: Array, blocks: list[_Block], doublings: Array) -> Array:
    """Work of traffic between all pairs, set by the load on the middle of rings and grids.

    The middle of a ring of m carries m/4 of a buffer for each byte of injection bandwidth (even m; odd m
    have less), a torus as much in each dimension, a mesh twice as much, a hypercube log₂ m / 2.
    """
    grids = sum(block.load for block in blocks)
    return 0.25 * weight["ring"] * m + grids + 0.5 * weight["hypercube"] * doublings


def _farthest(
    weight: dict[str, Array], m: Array, blocks: list[_Block], doublings: Array, present: Array
) -> Array:
    """Hops to the farthest member.

    One through a switch or a direct link, two up and down a fat tree, three between the groups of a
    dragonfly, half way around rings and the dimensions of tori, all along the dimensions of meshes, one
    for each dimension of a hypercube.
    """
    direct = weight["fully_connected"] + weight["switch"] + weight["rail"]
    switched = direct + 2 * weight["fat_tree"] + 3 * weight["dragonfly"] + 0.5 * weight["ring"] * m
    blocked = sum(block.reach for block in blocks)
    return (switched + blocked) * present + weight["hypercube"] * doublings
