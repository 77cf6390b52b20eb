"""Placement of a parallel group on the network tiers.

A group of `degree` ranks whose neighbours are `stride` devices apart fills the innermost tier first. On
each tier it has some number of members in each domain.
"""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.network.algorithms import Wire
from diffperf.estimate.network.topology import Fabric, fabric_for_group
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, cumulative, inverse
from diffperf.software.collective_library import CollectiveLibrary


class Group(eqx.Module):
    """A parallel group placed on the network. Arrays with a leading axis of tiers start with the innermost
    tier.
    """

    starts: Scalar  # 1 where there is anything to communicate, 0 for a group of one
    fabric: Fabric  # with a leading axis of tiers
    alternative: Weights  # reductions of fewer steps that the library has on each tier
    startup: Scalar  # s, before the first message
    library: CollectiveLibrary
    relax: Relaxation
    fills: Array | bool = False  # whether the group fills domains of the innermost tier
    at_kinks: bool = eqx.field(static=True, default=True)  # whether derivatives are those of one side

    @property
    def across(self) -> Float[Array, " tiers"]:
        """Members within one domain of each tier."""
        return cumulative(self.fabric.ways, operator.mul)

    @property
    def within(self) -> Float[Array, " tiers"]:
        """Members within one domain of the next tier inside each tier; one inside the innermost."""
        return self.across * inverse(self.fabric.ways)

    @property
    def present(self) -> Float[Array, " tiers"]:
        """1 on tiers where a member has others to talk to, 0 where it is alone."""
        return self.fabric.present * self.fabric.joined

    @property
    def part(self) -> Float[Array, " tiers"]:
        """Share of a buffer that belongs to the other members, on each tier."""
        return self.fabric.part * self.fabric.joined

    def wire(self, volumes: Float[Array, " tiers"]) -> Wire:
        """Buffers of `volumes` bytes on the links of the tiers, one for each tier."""
        # The library is spread over the tiers here, and not wherever it is used: derivatives then add up over
        # them once.
        tiers = (len(self.fabric.ways),)
        library = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*tiers, *leaf.shape)), self.library)
        return Wire(
            fabric=self.fabric,
            library=library,
            alternative=self.alternative,
            seconds=volumes * inverse(self.fabric.rate),
        )


class Links(eqx.Module):
    """The network of a system, on which groups are placed, and the collective library of its stack."""

    network: tuple[NetworkTier, ...]
    devices: Scalar  # of the job: the part of a torus that it has to itself
    library: CollectiveLibrary
    overhead: Scalar  # s of a collective before its first message: launch, ramp

    @classmethod
    def of(cls, system: System) -> "Links":
        """The network of a system, and the collective library and overhead of its stack."""
        return cls(
            network=system.network,
            devices=system.n_devices,
            library=system.stack.collectives,
            overhead=system.stack.collective_overhead,
        )


def place(
    system: System | Links,
    degree: Scalar,
    stride: Scalar,
    relax: Relaxation,
    network_efficiency: Scalar | float = 1.0,
    *,
    at_kinks: bool = True,
) -> Group:
    """Placement of a group of `degree` ranks, `stride` devices apart, on the tiers; degrees need not be
    whole.

    A domain of a tier holds size / stride of the group's members, at least one and at most all; the
    outermost tier holds whatever is left. `network_efficiency` is the share of its efficiency that every
    tier but the innermost reaches.
    """
    links = Links.of(system) if isinstance(system, System) else system
    counts = [jnp.ones_like(degree)]
    for tier in links.network[:-1]:
        counts.append(relax.minimum(relax.maximum(counts[-1], tier.size / stride), degree))
    counts = jnp.stack(jnp.broadcast_arrays(*counts, degree))
    members = counts[1:] / counts[:-1]  # a division, so that x members in x domains are exactly one each

    tiers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *links.network)
    devices_inside = jnp.concatenate([jnp.ones_like(tiers.size[:1]), tiers.size[:-1]])
    beyond = jnp.broadcast_to(network_efficiency, (len(links.network) - 1,))
    share = jnp.concatenate([jnp.ones(1, tiers.size.dtype), beyond])
    tiers = eqx.tree_at(lambda t: t.efficiency, tiers, tiers.efficiency * share)
    full = [tier.size <= degree * stride for tier in links.network[:-1]]
    fabric = fabric_for_group(
        tiers,
        members,
        devices_inside,
        relax,
        jnp.stack([*full, jnp.zeros_like(degree) > 0]),
        devices=links.devices,
        at_kinks=at_kinks,
    )

    starts, library = relax.has_others(degree), links.library
    outer = [library.alternative] * (len(links.network) - 1)
    return Group(
        starts=starts,
        fabric=fabric,
        alternative=jax.tree.map(lambda *leaves: jnp.stack(leaves), library.inner_alternative, *outer),
        startup=starts * links.overhead
        + library.startup * jnp.sum(fabric.present * fabric.joined * tiers.startup),
        library=library,
        relax=relax,
        fills=full[0] if full else False,
        at_kinks=at_kinks,
    )
