"""Every algorithm on every topology against the link-level simulation: equal where it is exact, not below
where it is a bound.
"""

import math

import jax
import numpy as np
import pytest
from link_simulator import (
    FullyConnected,
    Grid,
    Simulation,
    Switch,
    binomial,
    both_ways,
    dimension_wise,
    doubling,
    everyone_to_everyone,
    from_owners,
    halving,
    ring,
    to_owners,
)

from diffperf.estimate.network import algorithms, transfers
from diffperf.estimate.network.placement import Group
from diffperf.estimate.network.topology import fabric_for_group
from diffperf.hardware.network import NetworkTier
from diffperf.quantity import real
from diffperf.relax import Exact
from diffperf.software.collective_library import CollectiveLibrary

IDEAL = CollectiveLibrary("ideal")
ALTERNATIVES = {
    name: CollectiveLibrary(name, alternative=name).alternative
    for name in ("trees", "halving_doubling", "direct")
}


def graph_of(topology: str, size: int, bandwidth: float, room: int | None = None):
    """A graph of `size` devices; with `room`, the part of a larger one that they have."""
    dimensions = {"ring": 1, "mesh_2d": 2, "torus_2d": 2, "mesh_3d": 3, "torus_3d": 3}
    if topology in dimensions:
        d = dimensions[topology]
        return Grid(round(size ** (1 / d)), d, wraps=not topology.startswith("mesh"), bandwidth=bandwidth)
    if topology == "hypercube":
        d = round(math.log2(size))
        return Grid(2, d, wraps=False, bandwidth=bandwidth, links=round(math.log2(room or size)))
    if topology == "fully_connected":
        return FullyConnected(size, bandwidth=bandwidth, links=(room or size) - 1)
    return Switch(size, bandwidth=bandwidth)


def wire(topology, size, bandwidth, latency, volume, *, room=None, alternative="trees", **tier):
    declared = NetworkTier(
        "tier",
        size=room or size,
        bandwidth=bandwidth,
        latency=latency,
        efficiency=1,
        energy=1e-12,
        price=1,
        topology=topology,
        **tier,
    )
    offered = fabric_for_group(declared, real(size), real(1.0), Exact())
    return algorithms.Wire(
        fabric=offered,
        library=IDEAL,
        alternative=ALTERNATIVES[alternative],
        seconds=volume / offered.rate,
    )


def group_on(wire) -> Group:
    """The group of all members of a wire's tier."""
    fabric, alternative = jax.tree.map(lambda leaf: leaf[None], (wire.fabric, wire.alternative))
    return Group(
        starts=real(1.0),
        fabric=fabric,
        alternative=alternative,
        startup=real(0.0),
        library=wire.library,
        relax=Exact(),
    )


def seconds(wire, algorithm) -> float:
    return float(algorithm.hops * wire.fabric.hop + algorithm.work * wire.seconds)


SIZES = {
    "fully_connected": (2, 3, 4, 5, 8),
    "ring": (2, 3, 4, 5, 6, 8),
    "mesh_2d": (4, 9, 16, 25),
    "mesh_3d": (8, 27),
    "torus_2d": (4, 9, 16, 36),
    "torus_3d": (8, 27, 64),
    "hypercube": (2, 4, 8, 16),
    "switch": (2, 3, 4, 7, 8, 16),
    "rail": (2, 5, 8),
}
GRIDS = ("ring", "mesh_2d", "mesh_3d", "torus_2d", "torus_3d", "hypercube")
PLACES = [(topology, size) for topology, sizes in SIZES.items() for size in sizes]
POWERS = [
    (t, n) for t, n in PLACES if t in ("fully_connected", "switch", "rail") and math.log2(n).is_integer()
]


def whole_side(topology: str, size: int) -> int:
    return round(
        size ** (1 / {"ring": 1, "mesh_2d": 2, "torus_2d": 2, "mesh_3d": 3, "torus_3d": 3}.get(topology, 1))
    )


def drawn(topology: str, size: int, seed: int) -> tuple[float, float, int]:
    """A random bandwidth, latency and number of elements that all schedules can split."""
    rng = np.random.default_rng([seed, size, sorted(SIZES).index(topology)])
    unit = size * 2 * {"mesh_2d": 2, "torus_2d": 2, "mesh_3d": 3, "torus_3d": 3}.get(topology, 1)
    unit *= round(math.log2(size)) if topology == "hypercube" else 1
    return 10 ** rng.uniform(1, 4), 10 ** rng.uniform(-3, 1), unit * int(rng.integers(1, 5))


def keeping_all_links_busy(graph, topology: str, elements: int, *, add: bool) -> list:
    if topology in GRIDS:
        return dimension_wise(graph, elements, add=add)
    shares = np.split(np.arange(elements), graph.size)
    if topology == "fully_connected":
        return to_owners(graph.size, elements) if add else from_owners(graph.size, elements)
    return ring(list(range(graph.size)), shares, add=add)


def check_all_reduced(simulation) -> None:
    np.testing.assert_allclose(
        simulation.buffers, np.tile(simulation.before.sum(axis=0), (simulation.graph.size, 1))
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("topology", "size"), PLACES)
def test_neighbours(topology, size, seed):
    """Reduce-scatter, all-gather and all-reduce that keep all links busy: exact on every topology."""
    bandwidth, latency, elements = drawn(topology, size, seed)
    simulation = Simulation(graph_of(topology, size, bandwidth), elements, latency)
    there = simulation.run(keeping_all_links_busy(simulation.graph, topology, elements, add=True))
    back = simulation.run(keeping_all_links_busy(simulation.graph, topology, elements, add=False))
    check_all_reduced(simulation)
    on = wire(topology, size, bandwidth, latency, simulation.volume)
    assert seconds(on, algorithms.neighbours(on, 1.0)) == pytest.approx(there, rel=1e-9)
    assert seconds(on, algorithms.neighbours(on, 2.0)) == pytest.approx(back, rel=1e-9)
    assert back == pytest.approx(2 * there, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("topology", "size"), POWERS)
def test_halving_and_doubling(topology, size, seed):
    """Exact for powers of two through switches and on direct links, of which it uses one at a time."""
    bandwidth, latency, elements = drawn(topology, size, seed)
    simulation = Simulation(graph_of(topology, size, bandwidth), elements, latency)
    there = simulation.run(halving(size, elements))
    back = simulation.run(doubling(size, elements))
    check_all_reduced(simulation)
    on = wire(topology, size, bandwidth, latency, simulation.volume, alternative="halving_doubling")
    assert seconds(on, algorithms.alternative(on, 1.0)) == pytest.approx(there, rel=1e-9)
    assert seconds(on, algorithms.alternative(on, 2.0)) == pytest.approx(back, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("topology", "size"), PLACES)
def test_direct(topology, size, seed):
    """To owners and back, in one step, and all-to-all, which loads links alike: exact for even sides, a bound
    for odd ones.
    """
    bandwidth, latency, elements = drawn(topology, size, seed)
    simulation = Simulation(graph_of(topology, size, bandwidth), elements, latency)
    there = simulation.run(to_owners(size, elements))
    back = simulation.run(from_owners(size, elements))
    check_all_reduced(simulation)
    at_once = Simulation(graph_of(topology, size, bandwidth), elements, latency)
    one_step = at_once.run(everyone_to_everyone(size, elements))
    check_all_reduced(at_once)

    on = wire(topology, size, bandwidth, latency, simulation.volume, alternative="direct")
    ways = {
        there: algorithms.alternative(on, 1.0),
        back: algorithms.alternative(on, 2.0),
        one_step: algorithms.one_shot(on),
    }
    exact = topology not in GRIDS or whole_side(topology, size) % 2 == 0 or topology == "hypercube"
    for measured, algorithm in ways.items():
        time = seconds(on, algorithm)
        assert (
            time == pytest.approx(measured, rel=1e-9)
            if exact
            else measured <= time <= 1.35 * measured + size * latency
        )
    all_to_all = float(transfers.all_to_all(group_on(on), real(simulation.volume)).time)
    assert all_to_all == pytest.approx(seconds(on, ways[there]), rel=1e-9)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_binomial_broadcast(size):
    """Exact on a switch for powers of two, and no slower than what is chosen."""
    simulation = Simulation(Switch(size, bandwidth=50.0), 240, 3.0)
    time = simulation.run(binomial(size, 240))
    np.testing.assert_allclose(simulation.buffers, np.tile(simulation.before[0], (size, 1)))
    on = wire("switch", size, 50.0, 3.0, simulation.volume)
    assert seconds(on, algorithms.binomial_broadcast(on)) == pytest.approx(time, rel=1e-9)
    assert float(transfers.broadcast(group_on(on), real(simulation.volume)).time) <= time * (1 + 1e-9)


@pytest.mark.parametrize("pieces", [1, 4, 64, 1024])
def test_ring_broadcast_is_what_small_pieces_approach(pieces):
    """A lower bound, within (m − 2) / pieces of the pipeline's transfer time."""
    size, volume, bandwidth, latency = 5, 4096.0, 64.0, 1e-9
    pipeline = (pieces + size - 2) * volume / pieces / bandwidth
    on = wire("switch", size, bandwidth, latency, volume)
    time = float(transfers.broadcast(group_on(on), real(volume)).time)
    assert time <= pipeline * (1 + 1e-6)
    if pieces == 1024:
        assert time == pytest.approx(pipeline, rel=0.01)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_reducing_switches(size):
    """A device sends its buffer up and gets its reduced share; then sends that up, and everyone gets all
    shares.
    """
    bandwidth, latency, volume = 40.0, 0.5, 960.0
    up = {"reduce": volume, "multicast": volume / size}
    down = {"reduce": volume / size, "multicast": volume}
    overlapped = (
        max(sum(up.values()), sum(down.values())) / bandwidth
    )  # pieces of both phases share the links
    on = wire("switch", size, bandwidth, latency, volume, in_network_reduction=1.0)
    assert seconds(on, algorithms.in_network(on)) == pytest.approx(2 * latency + overlapped, rel=1e-9)


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("topology", "far"), [("fat_tree", 2), ("dragonfly", 3)])
@pytest.mark.parametrize("leaf", [1, 2, 4])
def test_oversubscribed_cores_are_bounded(topology, far, leaf, oversubscription):
    """Exact with one member under each leaf switch; else some traffic stays below the core, and the estimate
    is a bound.
    """
    size, elements, bandwidth, latency = 8, 240, 30.0, 0.2
    graph = Switch(size, bandwidth=bandwidth, leaf=leaf, oversubscription=oversubscription, far=far)
    simulation = Simulation(graph, elements, latency)
    direct = simulation.run(to_owners(size, elements))
    around = Simulation(graph, elements, latency)
    rings = around.run(ring(list(range(size)), np.split(np.arange(elements), size), add=True))
    on = wire(
        topology,
        size,
        bandwidth,
        latency,
        simulation.volume,
        alternative="direct",
        oversubscription=oversubscription,
    )
    time = seconds(on, algorithms.alternative(on, 1.0))
    assert time == pytest.approx(direct, rel=1e-9) if leaf == 1 else time >= direct
    transfer = seconds(on, algorithms.neighbours(on, 1.0)) - (size - 1) * latency
    measured = rings - (size - 1) * far * latency
    assert transfer == pytest.approx(measured, rel=1e-9) if leaf == 1 else transfer >= measured * (1 - 1e-9)


@pytest.mark.parametrize(
    ("topology", "size", "room"), [("fully_connected", 4, 8), ("fully_connected", 2, 8), ("hypercube", 4, 16)]
)
def test_parts_of_a_domain_have_the_links_within(topology, size, room):
    graph = graph_of(topology, size, 70.0, room)
    simulation = Simulation(graph, 48 * size, 0.1)
    time = simulation.run(keeping_all_links_busy(graph, topology, 48 * size, add=True))
    on = wire(topology, size, 70.0, 0.1, simulation.volume, room=room)
    assert seconds(on, algorithms.neighbours(on, 1.0)) == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("size", [4, 8, 16, 64])
def test_pairs_of_trees(size):
    """Bytes and hops counted edge by edge: ranks 1 … m − 1 in order, rank 0 above; the second tree mirrors
    the first.
    """
    sent, depth = np.zeros(size), 0
    for mirrored in (False, True):
        for leaf in range(1, size):
            node, hops = leaf, 0
            while node:
                low = node & -node
                node, hops = (node & ~low) | (2 * low if 2 * low < size else 0), hops + 1
            depth = max(depth, hops)
            low = leaf & -leaf
            parent = (leaf & ~low) | (2 * low if 2 * low < size else 0)
            child, above = (size - 1 - leaf, size - 1 - parent) if mirrored else (leaf, parent)
            sent[child] += 0.5  # its partial sum of one half of the buffer
            sent[above] += 0.5  # the result
    on = wire("switch", size, 1.0, 1e-9, 1.0)
    tree = algorithms.alternative(on, 2.0)
    assert float(tree.hops) == pytest.approx(2 * depth)
    assert float(tree.work) >= sent.max()
    assert float(tree.work) == sent.max() or size == 4  # whose inner nodes have one child


def test_the_simulation_can_disagree():
    """Formulas that are wrong in one term: a ring of one direction only, a step too few, a mesh taken for a
    torus.
    """
    simulation = Simulation(graph_of("ring", 6, 10.0), 120, 1.0)
    time = simulation.run(keeping_all_links_busy(simulation.graph, "ring", 120, add=True))
    on = wire("ring", 6, 10.0, 1.0, simulation.volume)
    right = algorithms.neighbours(on, 1.0)
    for wrong in (
        algorithms.Algorithm(hops=right.hops, work=2 * right.work),
        algorithms.Algorithm(hops=right.hops - 1, work=right.work),
    ):
        assert seconds(on, wrong) != pytest.approx(time, rel=0.01)
    mesh = Simulation(graph_of("mesh_2d", 16, 10.0), 320, 1.0)
    slower = mesh.run(dimension_wise(mesh.graph, 320, add=True))
    torus = wire("torus_2d", 16, 10.0, 1.0, mesh.volume)
    assert seconds(torus, algorithms.neighbours(torus, 1.0)) < 0.9 * slower


def test_a_ring_one_way_takes_twice_as_long():
    one_way = Simulation(graph_of("ring", 6, 10.0), 120, 1e-9)
    two_ways = Simulation(graph_of("ring", 6, 10.0), 120, 1e-9)
    shares = np.split(np.arange(120), 6)
    single = one_way.run(ring(list(range(6)), shares, add=True))
    assert single == pytest.approx(2 * two_ways.run(both_ways(list(range(6)), shares, add=True)), rel=1e-6)
