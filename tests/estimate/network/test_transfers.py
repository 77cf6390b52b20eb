"""Collectives over two tiers against a step-by-step simulation that moves real numbers, and placement against
counting devices.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diffperf as dp
from diffperf.estimate.network import transfers
from diffperf.estimate.network.placement import Group, place
from diffperf.estimate.network.topology import fabric_for_group
from diffperf.estimate.network.transfers import COLLECTIVES
from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.quantity import numeric, real, replace
from diffperf.relax import Exact, Smooth
from diffperf.software.collective_library import CollectiveLibrary

ELEMENT = 8  # bytes of the numbers that the simulation moves
INNER = NetworkTier("inner", size=4, bandwidth=100.0, latency=0.5, efficiency=0.8, energy=1e-12, price=1)
OUTER = NetworkTier("outer", size=1e6, bandwidth=10.0, latency=2.0, efficiency=0.5, energy=1e-12, price=1)


class Simulation:
    """Ranks with a buffer each, on a grid of domains × members; every step costs what its largest message
    does.
    """

    def __init__(self, domains, members, elements):
        self.grid = np.arange(domains * members).reshape(domains, members)
        self.buffers = np.random.default_rng(0).normal(size=(domains * members, elements))
        self.total = self.buffers.sum(axis=0)
        self.time, self.sent = 0.0, np.zeros((2, domains * members))
        # Which part of the buffer a rank works on: all of it, until a reduce-scatter leaves a share.
        self.owned = [np.arange(elements) for _ in range(domains * members)]

    def _rings(self, tier):
        return (self.grid if tier == 0 else self.grid.T).tolist()

    def _step(self, tier, messages):
        """All messages (from, to, indices, add?) at once."""
        payloads = [(to, at, add, self.buffers[source][at].copy()) for source, to, at, add in messages]
        for to, at, add, payload in payloads:
            self.buffers[to][at] = self.buffers[to][at] + payload if add else payload
        for source, _, at, _ in messages:
            self.sent[tier, source] += len(at) * ELEMENT
        network = (INNER, OUTER)[tier]
        rate = float(network.bandwidth * network.efficiency)
        self.time += max(len(at) for _, _, at, _ in messages) * ELEMENT / rate + float(network.latency)

    def reduce_scatter(self, tier):
        rings = self._rings(tier)
        n = len(rings[0])
        chunks = {tuple(ring): np.split(self.owned[ring[0]], n) for ring in rings}
        for step in range(n - 1):
            messages = []
            for ring in rings:
                parts = chunks[tuple(ring)]
                messages += [
                    (rank, ring[(i + 1) % n], parts[(i - step) % n], True) for i, rank in enumerate(ring)
                ]
            self._step(tier, messages)
        for ring in rings:
            for i, rank in enumerate(ring):
                self.owned[rank] = chunks[tuple(ring)][(i + 1) % n]

    def all_gather(self, tier):
        rings = self._rings(tier)
        n = len(rings[0])
        held = {rank: self.owned[rank] for ring in rings for rank in ring}
        for step in range(n - 1):
            messages = []
            for ring in rings:
                messages += [
                    (rank, ring[(i + 1) % n], held[ring[(i - step) % n]], False)
                    for i, rank in enumerate(ring)
                ]
            self._step(tier, messages)
        for ring in rings:
            for rank in ring:
                self.owned[rank] = np.concatenate([held[other] for other in ring])


IDEAL = CollectiveLibrary("ideal")


def _group(*members, library=IDEAL):
    insides = (1.0, float(INNER.size))
    tiers = zip((INNER, OUTER), members, insides, strict=True)
    fabrics = [fabric_for_group(tier, real(spread), real(inside), Exact()) for tier, spread, inside in tiers]
    fabric = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fabrics)
    alternative = jax.tree.map(
        lambda *weights: jnp.stack(weights), library.inner_alternative, library.alternative
    )
    starts = real(min(np.prod(members) - 1, 1))
    return Group(
        starts=starts,
        fabric=fabric,
        alternative=alternative,
        startup=real(0.0),
        library=library,
        relax=Exact(),
    )


def _through_all(domains, members, volume, rounds):
    """Time of rings through all ranks of two tiers, as many as a domain has members, counted edge by edge."""
    ranks = domains * members
    boundary = [rank // members != (rank + 1) % ranks // members for rank in range(ranks - 1)]
    latency = rounds * sum(float((OUTER if crosses else INNER).latency) for crosses in boundary)
    each = (
        rounds * (ranks - 1) / ranks * volume / members
    )  # bytes that every ring sends over each of its links
    inner = members * each / float(INNER.bandwidth * INNER.efficiency) if members > 1 else 0.0
    outer = each / float(OUTER.bandwidth * OUTER.efficiency) if domains > 1 else 0.0
    return latency + max(inner, outer)


@pytest.mark.parametrize(("domains", "members"), [(1, 2), (1, 4), (1, 5), (3, 1), (2, 2), (3, 4), (4, 3)])
def test_all_reduce_is_the_simulated_ring(domains, members):
    elements = 120
    simulation = Simulation(domains, members, elements)
    simulation.reduce_scatter(0)
    simulation.reduce_scatter(1)
    simulation.all_gather(1)
    simulation.all_gather(0)
    np.testing.assert_allclose(simulation.buffers, np.tile(simulation.total, (domains * members, 1)))
    transfer = transfers.all_reduce(_group(members, domains), real(elements * ELEMENT))
    through_all = _through_all(domains, members, elements * ELEMENT, 2)
    assert float(transfer.time) == pytest.approx(min(simulation.time, through_all), rel=1e-6)
    for tier in (0, 1):
        np.testing.assert_allclose(simulation.sent[tier], float(transfer.sent[tier]))


@pytest.mark.parametrize(("domains", "members"), [(1, 4), (3, 1), (2, 2), (3, 4)])
def test_reduce_scatter_and_all_gather_are_halves(domains, members):
    elements = 120
    simulation = Simulation(domains, members, elements)
    simulation.reduce_scatter(0)
    simulation.reduce_scatter(1)
    for rank, owned in enumerate(simulation.owned):
        np.testing.assert_allclose(simulation.buffers[rank][owned], simulation.total[owned])
    half = transfers.all_gather(_group(members, domains), real(elements * ELEMENT))
    through_all = _through_all(domains, members, elements * ELEMENT, 1)
    assert float(half.time) == pytest.approx(min(simulation.time, through_all), rel=1e-6)
    there = simulation.time
    simulation.all_gather(1)
    simulation.all_gather(0)
    assert simulation.time == pytest.approx(2 * there, rel=1e-12)
    assert float(transfers.reduce_scatter(_group(members, domains), real(elements * ELEMENT)).time) == float(
        half.time
    )


def test_the_simulation_can_disagree():
    """A ring in only one direction of the formula: all-gather's cost for an all-reduce."""
    simulation = Simulation(1, 4, 120)
    simulation.reduce_scatter(0)
    assert float(transfers.all_reduce(_group(4, 1), real(120 * ELEMENT)).time) > 1.9 * simulation.time


@pytest.mark.parametrize(("domains", "members"), [(1, 4), (2, 4), (3, 2), (5, 1)])
def test_send_is_the_mean_over_the_hops_of_a_chain(domains, members):
    volume = 400.0
    ranks = range(domains * members)
    times = []
    for rank in ranks[:-1]:
        tier = INNER if rank // members == (rank + 1) // members else OUTER
        times.append(volume / float(tier.bandwidth * tier.efficiency) + float(tier.latency))
    assert float(transfers.send(_group(members, domains), real(volume)).time) == pytest.approx(
        np.mean(times), rel=1e-6
    )


@pytest.mark.parametrize(("domains", "members"), [(1, 4), (2, 4), (3, 2), (5, 1)])
def test_a_ring_that_shifts_waits_for_its_slowest_hop(domains, members):
    """All ranks send at once, the last one to the first: a ring over domains takes the time between them."""
    volume = 400.0
    ranks = range(domains * members)
    times = []
    for rank in ranks:
        tier = INNER if rank // members == (rank + 1) % len(ranks) // members else OUTER
        times.append(volume / float(tier.bandwidth * tier.efficiency) + float(tier.latency))
    group = _group(members, domains)
    shift = transfers.ring_shift(group, real(volume))
    assert float(shift.time) == pytest.approx(max(times), rel=1e-6)
    between = sum(rank // members != (rank + 1) % len(ranks) // members for rank in ranks) / len(ranks)
    np.testing.assert_allclose(shift.sent, volume * np.array([1 - between, between]), rtol=1e-6)


def test_a_group_of_one_is_free(system):
    alone = place(system, real(1), real(1), Exact())
    for transfer_of in COLLECTIVES.values():
        transfer = transfer_of(alone, real(1e9))
        assert float(transfer.time) == 0
        assert not transfer.sent.any()


def test_every_collective_pays_its_overhead_once(system):
    group = place(system, real(16), real(1), Exact())
    slower = place(replace(system, {"stack.collective_overhead": 1.0}), real(16), real(1), Exact())
    for transfer_of in COLLECTIVES.values():
        times = [float(transfer_of(placed, real(1e6)).time) for placed in (group, slower)]
        assert times[1] - times[0] == pytest.approx(1.0 - float(system.stack.collective_overhead))


_placed = jax.jit(lambda system, degree, stride, relax: place(system, degree, stride, relax).fabric.ways)


def _counted(sizes, degree, stride):
    """Ways a group of ranks 0, stride, 2·stride … spreads on each tier, by counting the domains it
    touches.
    """
    devices = [rank * stride for rank in range(degree)]
    domains = [len({device // size for device in devices}) for size in sizes]  # on tiers from the inside out
    spread = [degree, *domains]
    return [inner / outer for inner, outer in zip(spread[:-1], [*domains[:-1], 1], strict=True)]


@pytest.mark.parametrize(
    ("degree", "stride", "members"),
    [
        (8, 1, [8, 1]),  # tensor parallelism in a node
        (8, 8, [1, 8]),  # data parallelism outside it
        (4, 2, [4, 1]),
        (16, 1, [8, 2]),
        (4, 16, [1, 4]),  # pipeline stages across nodes
        (8, 4, [2, 4]),
        (1, 1, [1, 1]),
        (1, 64, [1, 1]),
    ],
)
def test_placement_of_known_cases(system, degree, stride, members):
    assert _placed(system, real(degree), real(stride), Exact()).tolist() == members
    assert _counted([8, 10**6], degree, stride) == members


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("degree", [1, 2, 4, 8, 16, 64])
def test_placement_on_three_tiers_by_counting(system, degree, stride):
    middle = NetworkTier("rack", size=32, bandwidth=1e11, latency=1e-6, efficiency=0.8, energy=1e-12, price=1)
    inner, outer = system.network
    rack = dataclasses.replace(system, network=(inner, middle, outer))
    members = _placed(rack, real(degree), real(stride), Exact())
    assert members.tolist() == _counted([8, 32, 10**6], degree, stride)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 500))
def test_members_multiply_to_the_degree(system, degree, stride, sharpness):
    members = _placed(system, real(degree), real(stride), Exact())
    assert float(np.prod(members)) == pytest.approx(degree, rel=1e-9)
    # A smooth minimum may leave a tier less than one member, which counts as one.
    smooth = _placed(system, real(degree), real(stride), Smooth(sharpness))
    assert float(np.prod(smooth)) >= degree * (1 - 1e-9)
    assert all(float(m) >= 1 for m in (*members, *smooth))


# --- all-to-all, and properties of every collective


@pytest.mark.parametrize(("domains", "members"), [(1, 4), (3, 1), (2, 4), (3, 4)])
def test_all_to_all_by_counting_messages(domains, members):
    """Every rank sends a share to every other, over the tier that connects them; both tiers at once."""
    volume, ranks = 960.0, domains * members
    share = volume / ranks
    peers = ((INNER, members - 1), (OUTER, ranks - members))
    times = [
        float(tier.latency) + count * share / float(tier.bandwidth * tier.efficiency)
        for tier, count in peers
        if count
    ]
    transfer = transfers.all_to_all(_group(members, domains), real(volume))
    assert float(transfer.time) == pytest.approx(max(times), rel=1e-6)
    np.testing.assert_allclose(transfer.sent, [count * share for _, count in peers])


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_pieces_sent_once_to_a_domain_by_enumeration(copies):
    """Every way that the copies of a piece go to members: between domains it travels once to each that gets
    any, but its own.
    """
    domains, members, volume = 3, 2, 960.0
    ways = list(itertools.product(range(domains * members), repeat=copies))
    # The first member of each domain gets what comes from the first of another, and hands on what is not for
    # itself.
    moved = np.mean(
        [
            (sum(member % members > 0 for member in set(way)), len({m // members for m in way} - {0}))
            for way in ways
        ],
        0,
    )
    transfer = transfers.all_to_all(_group(members, domains), real(volume), real(copies), real(1.0))
    np.testing.assert_allclose(transfer.sent, volume / copies * moved, rtol=1e-9)


@pytest.mark.parametrize(("copies", "visited"), [(2, 1), (4, 2), (8, 2), (8, 3)])
def test_pieces_reach_no_more_domains_than_their_groups(copies, visited):
    """Experts of four nodes in groups of a node each: a token whose experts lie in some groups at most."""
    domains, members, volume = 4, 2, 960.0
    node = real(domains)
    limited = transfers.all_to_all(
        _group(members, domains), real(volume), real(copies), real(1.0), node, real(visited)
    )
    free = transfers.all_to_all(_group(members, domains), real(volume), real(copies), real(1.0))
    distinct = domains * (1 - (1 - 1 / domains) ** copies)  # that random experts reach
    expected = volume / copies * min(distinct, visited) * (1 - 1 / domains)  # but the sender's own
    assert float(limited.sent[1]) == pytest.approx(expected, rel=1e-9)
    assert float(limited.sent[1]) <= float(free.sent[1])


def test_groups_that_span_domains():
    """Eight groups of experts on 16 nodes: four of them lie on eight nodes; on four nodes any token may reach
    all.
    """
    for domains, most in ((16, 8), (8, 4), (4, 4)):
        group = _group(2, domains)
        arguments = real(960.0), real(64.0), real(1.0), real(8.0), real(4.0)
        reached = float(transfers.all_to_all(group, *arguments).sent[1]) / (960.0 / 64) / (1 - 1 / domains)
        assert reached == pytest.approx(min(most, domains * (1 - (1 - 1 / domains) ** 64)), rel=1e-9)


@jax.jit
def _times(system, degree, stride, volume, relax):
    """Seconds of every collective but all-gathers, which are reduce-scatters read backwards."""
    group = place(system, degree, stride, relax)
    kinds = [transfer_of for name, transfer_of in COLLECTIVES.items() if name != "all_gather"]
    return jnp.stack([transfer_of(group, volume).time for transfer_of in kinds])


_FASTER = ("bandwidth", "efficiency", "uplink", "in_network_reduction")


def _with_topology(system, weights):
    network = tuple(dataclasses.replace(tier, topology=weights) for tier in system.network)
    return dataclasses.replace(system, network=network)


@given(
    st.sampled_from(_FASTER),
    st.sampled_from(range(len(TOPOLOGIES))),
    st.floats(1, 4096),
    st.floats(1, 64),
    st.floats(3, 10),
    st.floats(0.1, 0.9),
)
def test_a_better_network_is_never_slower(system, what, topology, degree, stride, exponent, factor):
    system = _with_topology(system, np.eye(len(TOPOLOGIES))[topology])
    worse = replace(
        system, {f"network.{tier.name}.{what}": getattr(tier, what) * factor for tier in system.network}
    )
    volume = real(10**exponent)
    better, slower = (
        np.asarray(_times(s, real(degree), real(stride), volume, Exact())) for s in (system, worse)
    )
    assert (better <= slower * (1 + 1e-9)).all()
    assert (
        np.asarray(_times(system, real(degree), real(stride), volume * 1.5, Exact())) >= better * (1 - 1e-9)
    ).all()


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
def test_gradients_are_finite_differences(system, relax):
    """Of an all-reduce and an all-to-all, in every number of tiers and library, group and buffer; topologies
    mixed a little.
    """
    inputs = {
        path: value
        for path, (_, value) in numeric(system).items()
        if path.startswith(("network.", "stack.coll"))
    }
    inputs |= {"network.infiniband.oversubscription": 1.7, "network.nvlink.in_network_reduction": 0.5}
    # A torus of eight is the smallest of three dimensions, which is a kink.
    inputs |= {"stack.collectives.own_share": 0.5, "network.nvlink.size": 9.1}
    at = np.log(np.maximum([*map(float, inputs.values()), 21.3, 2.9, 3.1e6], 1e-30))

    def times(logarithms, topology):
        *values, degree, stride, volume = jnp.exp(logarithms)
        group = place(
            replace(_with_topology(system, topology), dict(zip(inputs, values, strict=True))),
            degree,
            stride,
            relax,
        )
        return jnp.log(
            jnp.stack([transfers.all_reduce(group, volume).time, transfers.all_to_all(group, volume).time])
        )

    slopes = jax.jit(jax.jacfwd(times))
    steps = 1e-6 * np.eye(len(at))
    differences = jax.jit(
        lambda topology: jax.vmap(
            lambda step: (times(at + step, topology) - times(at - step, topology)) / 2e-6
        )(steps)
    )
    for kind in range(len(TOPOLOGIES)):
        topology = 0.9 * np.eye(len(TOPOLOGIES))[kind] + 0.1 / len(TOPOLOGIES)
        np.testing.assert_allclose(slopes(at, topology), differences(topology).T, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_values_and_gradients_are_finite_in_float32(float32):
    """Groups of one, groups that just fill a domain, empty and enormous buffers, on every topology."""
    system = dp.load_system("dgx-h100", 64)
    slopes = jax.jit(jax.value_and_grad(lambda *inputs: jnp.sum(_times(*inputs)), argnums=(0, 1, 2, 3)))
    for relax in (Exact(), Smooth(30.0)):
        for kind in range(len(TOPOLOGIES)):
            placed = _with_topology(system, np.eye(len(TOPOLOGIES), dtype=np.float32)[kind])
            for degree, stride, volume in (
                (1, 1, 1e6),
                (8, 1, 1e9),
                (8, 8, 1.0),
                (1e5, 1, 1e12),
                (64, 3, 0.0),
            ):
                for leaf in jax.tree.leaves(slopes(placed, real(degree), real(stride), real(volume), relax)):
                    assert leaf.dtype == np.float32
                    assert np.isfinite(leaf).all()
