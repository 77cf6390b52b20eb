"""How long communication takes: ring collectives over network tiers, and where a parallel group lies on them.

A group of `degree` ranks whose neighbours are `stride` devices apart fills the innermost tier first. On each tier it has some
number of members per domain; a hierarchical ring works tier by tier on what the inner tiers left.
"""

import equinox as eqx
from jaxtyping import Array

from diffperf.hardware.system import NetworkTier, System
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation


class Transfer(eqx.Module):
    """A communication: how long it takes, and the bytes each device sends over each tier."""

    time: Scalar
    sent: tuple[Scalar, ...]

    def __add__(self, other: "Transfer") -> "Transfer":
        return Transfer(self.time + other.time, tuple(a + b for a, b in zip(self.sent, other.sent, strict=True)))

    def __mul__(self, count: Array) -> "Transfer":
        return Transfer(self.time * count, tuple(sent * count for sent in self.sent))


class Group(eqx.Module):
    """A parallel group placed on the network: how many ways it spreads on each tier. The product over tiers is its degree."""

    members: tuple[Scalar, ...]
    starts: Scalar  # 1 where there is anything to communicate, 0 for a group of one
    network: tuple[NetworkTier, ...]
    overhead: Scalar

    def _ring(self, volume: Scalar, rounds: float) -> Transfer:
        time, sent = self.starts * self.overhead, []
        for n, tier in zip(self.members, self.network, strict=True):
            bytes_ = rounds * (n - 1) / n * volume
            time = time + bytes_ / (tier.bandwidth * tier.efficiency) + rounds * (n - 1) * tier.latency
            sent.append(bytes_)
            volume = volume / n
        return Transfer(time, tuple(sent))

    def all_reduce(self, volume: Scalar) -> Transfer:
        """Ring all-reduce of a `volume`-byte buffer: on a tier of n members 2·(n−1)/n·volume/bandwidth + 2·(n−1)·latency.

        Each tier works on the 1/n that the tier inside left it (Patarasuk and Yuan, JPDC 2009; hierarchical: arXiv 1909.09756).
        """
        return self._ring(volume, rounds=2.0)

    def all_gather(self, volume: Scalar) -> Transfer:
        """Ring all-gather of a `volume`-byte output, or reduce-scatter of a `volume`-byte input: half an all-reduce."""
        return self._ring(volume, rounds=1.0)

    def send(self, volume: Scalar) -> Transfer:
        """`volume` bytes from a rank to its neighbour, averaged over the hops along the group: most stay on the inner tiers."""
        degree = 1.0
        for n in self.members:
            degree = degree * n
        # Of degree − 1 hops, (domains − 1) cross each tier's boundary; the rest stay inside.
        hops, time, sent, domains = degree - 1 + (1 - self.starts), self.starts * self.overhead, [], degree
        for n, tier in zip(self.members, self.network, strict=True):
            share = (domains - domains / n) / hops
            time = time + share * (volume / (tier.bandwidth * tier.efficiency) + tier.latency)
            sent.append(share * volume)
            domains = domains / n
        return Transfer(time, tuple(sent))


def place(system: System, degree: Scalar, stride: Scalar, relax: Relaxation) -> Group:
    """Where a group of `degree` ranks, `stride` devices apart, lies on the tiers; real degrees included.

    A domain of a tier holds size / stride of its members, at least one and at most all; the outermost tier holds whatever is left.
    """
    members, inside = [], 1.0
    for tier in system.network[:-1]:
        here = relax.minimum(relax.maximum(tier.size / stride, inside), degree)
        members.append(here / inside)
        inside = here
    return Group(
        (*members, degree / inside),
        relax.minimum(degree - 1, 1.0),
        system.network,
        system.stack.collective_overhead,
    )
