"""Share of each network tier that one device pays for: price, power and silicon of adapters, switches and
links.
"""

import functools
import operator
from typing import NamedTuple

import jax.numpy as jnp

from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, choose, inverse, larger

# A tree may be filled to the last port: rounding must not add a level of switches then.
_FULL = 1 - 1e-5
# Ports and links per device of a balanced dragonfly beyond the port and the link of the device itself: of the
# 4 p ports of a router with p devices, 2 p join the routers of its group, and p the groups.
# Source: Kim, Dally, Scott and Abts, Technology-Driven, Highly-Scalable Dragonfly Topology (ISCA 2008), § 3.1
_DRAGONFLY_PORTS, _DRAGONFLY_LINKS = 3.0, 1.5


class TierCost(NamedTuple):
    """Share of a network tier, or of all tiers, that one device pays for: USD by part, W, and mm² of switch
    silicon.

    Switches and transceivers draw the power at any load.
    """

    adapters: Scalar
    switches: Scalar
    cables: Scalar
    other: Scalar
    power: Scalar
    area: Scalar

    @property
    def price(self) -> Scalar:
        """USD per device for all parts."""
        return self.adapters + self.switches + self.cables + self.other


def tier_costs(system: System, relax: Relaxation) -> tuple[TierCost, ...]:
    """The cost, power and silicon of every network tier of a system, from the innermost to the outermost."""
    inner = [jnp.ones_like(system.n_devices), *(tier.size for tier in system.network[:-1])]
    joined = [
        endpoints(tier, system.n_devices, size, relax)
        for tier, size in zip(system.network, inner, strict=True)
    ]
    return tuple(_tier_cost(tier, each, relax) for tier, each in zip(system.network, joined, strict=True))


def network_cost(system: System, relax: Relaxation) -> TierCost:
    """Share of all network tiers together, each at its bandwidth, that one device pays for."""
    tiers = tier_costs(system, relax)
    return TierCost(
        **{
            name: functools.reduce(operator.add, (getattr(tier, name) for tier in tiers))
            for name in TierCost._fields
        }
    )


def endpoints(tier: NetworkTier, n_devices: Scalar, inner: Scalar, relax: Relaxation) -> Scalar:
    """The devices that one tree of switches of a tier joins: all of a domain, or in a network of rails one of
    every `inner` devices, which are a domain of the next inner tier."""
    joined = relax.minimum(n_devices, tier.size)

    def everyone() -> Scalar:
        return joined

    def one_rail() -> Scalar:
        return joined * inverse(relax.minimum(inner, joined))

    return choose(tier.topology, dict.fromkeys(TOPOLOGIES, everyone) | {"rail": one_rail})


def tree_levels(tier: NetworkTier, endpoints: Scalar, relax: Relaxation) -> Scalar:
    """The levels L of switches of radix k that join n endpoints: the smallest L with n ≤ 2·(k/2)^L.

    **Source**: Al-Fares, Loukissas and Vahdat, A Scalable, Commodity Data Center Network Architecture
    (SIGCOMM 2008), § 3, for any number of levels.
    """
    filled = jnp.log(larger(endpoints / 2, 1.0)) / jnp.log(tier.radix / 2)
    return larger(relax.ceil(filled * _FULL), 1.0)


def ports_and_links(tier: NetworkTier, endpoints: Scalar, relax: Relaxation) -> tuple[Scalar, Scalar]:
    """Ports of switches and links per device, each of the bandwidth of the device.

    A device has one port in the first level of switches and the link to it. Every further level of a tree
    adds a link and its two ports, thinned by the oversubscription. Devices that are joined directly share
    their links in pairs.
    """
    beyond = inverse(tier.oversubscription)
    one = jnp.ones_like(beyond)

    def one_switch() -> tuple[Scalar, Scalar]:
        return one, one

    def tree() -> tuple[Scalar, Scalar]:
        above = (tree_levels(tier, endpoints, relax) - 1) * beyond
        return 1 + 2 * above, 1 + above

    def dragonfly() -> tuple[Scalar, Scalar]:
        return 1 + _DRAGONFLY_PORTS * beyond, 1 + _DRAGONFLY_LINKS * beyond

    def direct() -> tuple[Scalar, Scalar]:
        return 0 * one, one / 2

    switched = {"switch": one_switch, "fat_tree": tree, "rail": tree, "dragonfly": dragonfly}
    return choose(tier.topology, dict.fromkeys(TOPOLOGIES, direct) | switched)


def _tier_cost(tier: NetworkTier, endpoints: Scalar, relax: Relaxation) -> TierCost:
    """The parts of a tier at its bandwidth; prices, powers and areas are in proportion to the bandwidth."""
    ports, links = ports_and_links(tier, endpoints, relax)
    scale = tier.bandwidth * inverse(tier.rated_bandwidth)
    return TierCost(
        adapters=scale * tier.adapter_price,
        switches=scale * ports * tier.port_price,
        cables=scale * links * (tier.link_price + tier.reach * tier.cable_price),
        other=scale * tier.price,
        power=scale * (ports * tier.port_power + links * tier.link_power),
        area=scale * ports * tier.port_area,
    )
