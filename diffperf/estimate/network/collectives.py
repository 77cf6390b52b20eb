"""How long communication takes: where a parallel group lies on the network tiers, and the best way to serve it there.

A group of `degree` ranks whose neighbours are `stride` devices apart fills the innermost tier first. On each tier it has some
number of members per domain. Collectives work tier by tier, each with its best algorithm, on what the inner tiers left; or on all
tiers at once, in rings through all members.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.network import algorithms
from diffperf.estimate.network.algorithms import Wire, wire_time
from diffperf.estimate.network.topology import Fabric, offer
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, split, unstack
from diffperf.relax import Relaxation, inverse, larger, smaller
from diffperf.software.collective_library import CollectiveLibrary


class Transfer(eqx.Module):
    """A communication: how long it takes, and the bytes each device sends over each tier."""

    time: Scalar
    sent: Float[Array, " tiers"]

    @classmethod
    def nothing(cls, system: System) -> "Transfer":
        """No communication."""
        return cls(
            jnp.zeros_like(system.n_devices),
            jnp.zeros_like(jnp.stack([tier.size for tier in system.network])),
        )

    def __add__(self, other: "Transfer") -> "Transfer":
        return Transfer(self.time + other.time, self.sent + other.sent)

    def __mul__(self, count: Array) -> "Transfer":
        return Transfer(self.time * count, self.sent * count)


class Group(eqx.Module):
    """A parallel group placed on the network. What lies on a tier has a leading axis of tiers, the innermost first."""

    members: Float[Array, " tiers"]  # how many ways it spreads; their product is its degree
    starts: Scalar  # 1 where there is anything to communicate, 0 for a group of one
    fabric: Fabric
    alternative: Weights  # the library's, with a leading axis of tiers
    startup: Scalar  # s, before the first message
    library: CollectiveLibrary
    relax: Relaxation

    @property
    def _across(self) -> Float[Array, " tiers"]:
        """Members within one domain of each tier."""
        return jnp.cumprod(self.fabric.ways)

    @property
    def _within(self) -> Float[Array, " tiers"]:
        """Members within one domain of the tier inside each; one inside the innermost."""
        return self._across * inverse(self.fabric.ways)

    def _finish(self, time: Scalar, sent: Float[Array, " tiers"]) -> Transfer:
        """Adds what every collective pays; all wait for the rank that comes last."""
        return Transfer(self.relax.maximum(time + self.startup, self.starts * self.library.floor), sent)

    def _on_tiers(
        self, algorithm: Callable[[Wire, Relaxation], Scalar], volumes: Float[Array, " tiers"]
    ) -> Float[Array, " tiers"]:
        """Time of an algorithm on each tier for the buffers it gets there."""

        def on(fabric, library, alternative, volume):
            return algorithm(Wire(fabric, library, alternative, volume * inverse(fabric.rate)), self.relax)

        # Spread over the tiers here, and not wherever it is used: derivatives then add up over them once.
        library = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(volumes), *leaf.shape)), self.library)
        return jax.vmap(on)(self.fabric, library, self.alternative, volumes)

    def _by_tiers(
        self, algorithm: Callable[[Wire, Relaxation], Scalar], volume: Scalar, rounds: float
    ) -> Transfer:
        """Tier by tier from the inside out and back in, or in rings through all tiers: the faster."""
        left = volume * inverse(self._within)
        time, sent = jnp.sum(self._on_tiers(algorithm, left)), rounds * self.fabric.part * left
        if len(self.fabric.ways) > 1:
            time = self.relax.minimum(time, *self._rings(volume, rounds))
        return self._finish(time, sent)

    def _rings(self, volume: Scalar, rounds: float) -> list[Scalar]:
        """Rings through all members at once, as many as a domain has members, so that each leaves it by another device.

        All tiers are busy at the same time; the slowest sets the pace. Of the hops of a ring, those across a domain's boundary are
        on the tier outside (as in NCCL's model of its rings, src/graph/tuning.cc). By either protocol.
        """
        fabric, library, within, across = self.fabric, self.library, self._within, self._across
        degree = across[-1]
        own = inverse(degree)
        volume = volume * (rounds * (1 - own) + library.own_share * own)
        latency = jnp.sum(rounds * degree * (inverse(within) - inverse(across)) * fabric.hop)
        wire = self.relax.reduce_maximum(
            fabric.present * fabric.slowdown * volume * inverse(within * fabric.rate)
        )
        ramp = jnp.sum(fabric.present * fabric.ramp) + 1e-6 * fabric.ramp[0]  # not 0 for a group of one
        return [
            latency + wire * inverse(library.low_latency_bandwidth),
            latency * library.bulk_latency + wire_time(wire, ramp),
        ]

    def all_reduce(self, volume: Scalar) -> Transfer:
        """All-reduce of a `volume`-byte buffer.

        Each tier works on the share that the tier inside left it (hierarchical: arXiv 1909.09756).
        """
        return self._by_tiers(algorithms.all_reduce, volume, rounds=2.0)

    def all_gather(self, volume: Scalar) -> Transfer:
        """All-gather into a `volume`-byte buffer."""
        return self._by_tiers(algorithms.reduce_scatter, volume, rounds=1.0)

    def reduce_scatter(self, volume: Scalar) -> Transfer:
        """Reduce-scatter of a `volume`-byte buffer."""
        return self._by_tiers(algorithms.reduce_scatter, volume, rounds=1.0)

    def broadcast(self, volume: Scalar) -> Transfer:
        """Broadcast of a `volume`-byte buffer, over the outermost tier first."""
        volumes = volume * jnp.ones_like(self.members)
        return self._finish(
            jnp.sum(self._on_tiers(algorithms.broadcast, volumes)), self.fabric.part * volumes
        )

    def all_to_all(
        self, volume: Scalar, copies: Scalar | float = 1.0, once: Scalar | float = 0.0
    ) -> Transfer:
        """All-to-all of a `volume`-byte send buffer: to the members that a tier connects, over that tier; all tiers at once.

        Where pieces of the buffer are copies that go to several members at random, `copies` of each, the share `once` of them goes
        to a domain once, to the member that stands there where the sender stands in its own, which hands it on inside: of D
        domains, D·(1 − (1 − 1/D)^copies) get a piece (DeepSeek-V3, arXiv 2412.19437 §3.2.2).
        """
        direct = self._across * inverse(self._across[-1])
        domains = self._across[-1] * inverse(self._within)  # of the tier inside, that the group lies in
        reached = (
            domains * -jnp.expm1(copies * jnp.log1p(-inverse(larger(domains, 1.0 + 1e-3)))) * inverse(copies)
        )
        shares = volume * (direct + once * (smaller(reached, 1.0) - direct))
        time = self.relax.reduce_maximum(self._on_tiers(algorithms.all_to_all, shares))
        return self._finish(time, self.fabric.part * shares)

    def send(self, volume: Scalar) -> Transfer:
        """`volume` bytes from a rank to its neighbour, averaged over the hops along the group: most stay on the inner tiers."""
        degree = self._across[-1]
        # Of degree − 1 hops, (domains − 1) cross each tier's boundary; the rest stay inside.
        crossing = inverse(self._within) - inverse(self._across)
        share = degree * crossing * inverse(degree - 1 + (1 - self.starts))
        times = self._on_tiers(algorithms.send, volume * jnp.ones_like(self.members))
        return Transfer(jnp.sum(share * times) + self.startup, share * volume)


def place(
    system: System,
    degree: Scalar,
    stride: Scalar,
    relax: Relaxation,
    network_efficiency: Scalar | float = 1.0,
) -> Group:
    """Where a group of `degree` ranks, `stride` devices apart, lies on the tiers; real degrees included.

    A domain of a tier holds size / stride of its members, at least one and at most all; the outermost tier holds whatever is left.
    """
    counts = [1.0]
    for tier in system.network[:-1]:
        counts.append(relax.minimum(relax.maximum(tier.size / stride, counts[-1]), degree))
    counts = jnp.stack(jnp.broadcast_arrays(*counts, degree))
    members = counts[1:] * inverse(counts[:-1])

    tiers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *system.network)
    inside = jnp.concatenate([jnp.ones_like(tiers.size[:1]), tiers.size[:-1]])
    beyond = jnp.concatenate(
        [jnp.ones(1, tiers.size.dtype), jnp.broadcast_to(network_efficiency, (len(system.network) - 1,))]
    )
    tiers = eqx.tree_at(lambda t: t.efficiency, tiers, tiers.efficiency * beyond)
    fabric = jax.vmap(lambda tier, spread, within: offer(tier, spread, within, relax))(tiers, members, inside)
    starts, stack = relax.minimum(degree - 1, 1.0), system.stack
    library = stack.collectives
    startup = starts * stack.collective_overhead + library.startup * jnp.sum(fabric.present * tiers.startup)
    beyond_inner = [library.alternative] * (len(system.network) - 1)
    alternative = jax.tree.map(lambda *leaves: jnp.stack(leaves), library.inner_alternative, *beyond_inner)
    return Group(members, starts, fabric, alternative, startup, library, relax)


class Request(NamedTuple):
    """A collective that a group of `degree` ranks, `stride` devices apart, runs on `volume` bytes."""

    collective: Callable[[Group, Scalar], Transfer]  # a method of `Group`
    degree: Scalar
    stride: Scalar
    volume: Scalar
    copies: Scalar | float = 1.0  # of an all-to-all's pieces
    once: Scalar | float = 0.0  # share of them that a domain gets once


def transfers(
    system: System, relax: Relaxation, requests: dict[str, Request], network_efficiency: Scalar | float = 1.0
) -> dict[str, Transfer]:
    """How long each collective takes: all groups are placed, and each kind of collective evaluated, in one traced expression.

    `network_efficiency` is the share of its efficiency that every tier but the innermost reaches.
    """
    by_kind = sorted(requests, key=lambda name: requests[name].collective.__name__)
    columns = zip(*(requests[name][1:] for name in by_kind), strict=True)
    degree, stride, volume, copies, once = (
        jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, column))) for column in columns
    )
    groups = jax.vmap(lambda degree, stride: place(system, degree, stride, relax, network_efficiency))(
        degree, stride
    )
    alike = [
        list(names)
        for _, names in itertools.groupby(by_kind, key=lambda name: requests[name].collective.__name__)
    ]
    results = []
    for names, (own, *arguments) in zip(
        alike, split((groups, volume, copies, once), map(len, alike)), strict=True
    ):
        collective = requests[names[0]].collective
        own_arguments = arguments if collective is Group.all_to_all else arguments[:1]
        results += unstack(jax.vmap(collective)(own, *own_arguments))
    return dict(zip(by_kind, results, strict=True))
