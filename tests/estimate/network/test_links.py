"""Messages between two devices, by the links that a topology gives a device."""

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


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("topology", "size"), LINKS)
def test_a_message_takes_one_link_of_a_device(system, topology, size, ranks):
    """Whatever other ranks there are, a neighbour is at the end of one link."""
    tier = {
        "size": float(size),
        "bandwidth": 480e9,
        "efficiency": 1.0,
        "latency": 1e-9,
        "oversubscription": 1.0,
    }
    changed = {f"network.nvlink.{name}": real(value) for name, value in tier.items()}
    net = replace(system, changed | {"network.nvlink.topology": topology})
    volume, ranks = 48e9, min(ranks, size)
    transfer = transfers.send(place(net, real(float(ranks)), real(1.0), Exact()), real(volume))
    assert float(transfer.time) == pytest.approx(volume * LINKS[topology, size] / 480e9, rel=1e-3)
