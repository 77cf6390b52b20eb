"""Links of a device: the one that a message takes, and those that a group has within itself."""

import jax
import pytest

from diffperf.estimate.network import transfers
from diffperf.estimate.network.placement import place
from diffperf.quantity import real, replace
from diffperf.relax import Exact

# Topologies of sixteen devices, or of two, and how many links each of these has to others.
LINKS = {
    ("switch", 16): 1,
    ("fully_connected", 16): 15,
    ("fully_connected", 2): 1,
    ("ring", 16): 2,
    ("ring", 2): 1,
    ("torus_2d", 16): 4,
    ("mesh_3d", 64): 6,
    ("hypercube", 16): 4,
}


# Groups in tori and meshes that a job has to itself: topology, devices of the job, members of the group, and
# the links that each of a group's members has to others of the group, counted by hand. A pair has one;
# members in the middle of a mesh have two in a dimension, of which a reduction keeps half busy.
GROUPS = {
    ("torus_2d", 16, 2): 1,
    ("torus_2d", 16, 4): 2,  # a ring along one side, or a square of two
    ("torus_2d", 16, 16): 4,
    ("torus_2d", 4, 2): 2,  # sides of two: both links of a dimension lead to the same neighbour
    ("torus_2d", 4, 4): 4,
    ("torus_2d", 256, 4): 2,
    ("torus_3d", 64, 2): 1,
    ("torus_3d", 64, 4): 2,
    ("torus_3d", 64, 8): 3,
    ("torus_3d", 64, 64): 6,
    ("torus_3d", 4096, 8): 3,
    ("mesh_2d", 16, 2): 1,
    ("mesh_2d", 16, 4): 2,
    ("mesh_2d", 16, 16): 2,
    ("mesh_3d", 64, 4): 2,
    ("mesh_3d", 64, 64): 3,
}


def _wired(system, topology, size, devices=None):
    """A system whose inner tier joins `size` devices by links of 480 GB/s in all, on a job of `devices`."""
    tier = {
        "size": float(size),
        "bandwidth": 480e9,
        "efficiency": 1.0,
        "latency": 1e-9,
        "oversubscription": 1.0,
        "ramp": 1e-9,
        "in_network_reduction": 0.0,
    }
    changed = {f"network.nvlink.{name}": real(value) for name, value in tier.items()}
    job = {"n_devices": real(float(devices or size))}
    return replace(system, changed | job | {"network.nvlink.topology": topology})


@pytest.mark.parametrize(("topology", "devices", "ranks"), GROUPS)
@pytest.mark.parametrize("size", [None, 4096])
def test_a_group_has_the_links_within_itself(system, topology, devices, ranks, size):
    """A reduce-scatter sends (m - 1)/m of its buffer over them, however large the tier is of which the job
    has a torus to itself.
    """
    net = _wired(system, topology, size or devices, devices)
    net = replace(net, {"stack.collectives.own_share": real(0.0)})
    volume, dimensions = 48e12, 3 if topology.endswith("3d") else 2
    group = place(net, real(float(ranks)), real(1.0), Exact())
    rate = GROUPS[topology, devices, ranks] * 480e9 / (2 * dimensions)
    time = float(transfers.reduce_scatter(group, real(volume)).time)
    assert time == pytest.approx(volume * (1 - 1 / ranks) / rate, rel=1e-3)


@pytest.mark.parametrize(("ranks", "links"), [(2, 0.5), (4, 0.5), (8, 0.5)])
def test_pairs_of_a_small_block_exchange_over_the_links_between_its_halves(system, ranks, links):
    """Blocks of two in each dimension have as many links from half to half as a half has members: each member
    sends half of its buffer to the other half, over one link.
    """
    net = _wired(system, "torus_3d", 4096, 4096)
    net = replace(net, {"stack.collectives.own_share": real(0.0)})
    volume = 48e12
    time = float(transfers.all_to_all(place(net, real(float(ranks)), real(1.0), Exact()), real(volume)).time)
    assert time == pytest.approx(volume * links / (480e9 / 6), rel=1e-3)


@pytest.mark.parametrize("topology", ["torus_2d", "torus_3d", "mesh_2d", "mesh_3d"])
@pytest.mark.parametrize("ranks", [2.0, 3.0, 4.0, 6.0, 8.0, 27.0])
def test_slopes_by_the_size_of_a_group_are_those_of_one_side(system, topology, ranks):
    net = _wired(system, topology, 4096, 4096)

    def time(members):
        group = place(net, members, real(1.0), Exact())
        return transfers.reduce_scatter(group, real(48e12)).time + transfers.all_to_all(group, real(1e9)).time

    step = 1e-6 * ranks
    at, more, fewer = (float(time(real(ranks + change))) for change in (0.0, step, -step))
    slope = float(jax.grad(time)(real(ranks)))
    sides = (more - at) / step, (at - fewer) / step
    assert any(slope == pytest.approx(side, rel=1e-3, abs=1e-9) for side in sides)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("topology", "size"), LINKS)
def test_a_message_takes_one_link_of_a_device(system, topology, size, ranks):
    """Whatever other ranks there are, a neighbour is at the end of one link."""
    net = _wired(system, topology, size)
    volume, ranks = 48e9, min(ranks, size)
    transfer = transfers.send(place(net, real(float(ranks)), real(1.0), Exact()), real(volume))
    assert float(transfer.time) == pytest.approx(volume * LINKS[topology, size] / 480e9, rel=1e-3)
