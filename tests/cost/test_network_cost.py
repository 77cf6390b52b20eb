"""What a network costs per device: by hand, by counting switches, and beside a published price list."""

import dataclasses
import itertools

import jax
import pytest

from diffperf.cost.network_cost import (
    network_cost,
    ports_and_links,
    tier_costs,
    tree_levels,
)
from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.load import available, load, load_system, override
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth

TREES = ("fat_tree", "rail")


def tier(**fields) -> NetworkTier:
    """A tier of 50 GB/s, whose parts have round prices."""
    numbers = {"size": 1e6, "bandwidth": 50e9, "latency": 1e-6, "efficiency": 1.0, "energy": 1e-12}
    prices = {"price": 10, "adapter_price": 1000, "port_price": 300, "link_price": 200, "cable_price": 0.01}
    return NetworkTier(name="fabric", **numbers | prices | {"reach": 20e3} | fields)


def joined(fabric: NetworkTier, endpoints: float = 1024.0) -> tuple[float, float]:
    """Ports and links per device of a tier that joins some devices."""
    ports, links = ports_and_links(fabric, real(endpoints), Exact())
    return float(ports), float(links)


def price_of(fabric: NetworkTier, devices: float = 1024.0) -> float:
    """USD per device of a system with this tier alone."""
    system = dataclasses.replace(load_system("dgx-h100"), n_devices=real(devices), network=(fabric,))
    return float(network_cost(system, Exact()).price)


def test_the_price_of_a_fat_tree_by_hand():
    """1,024 devices on switches of 16 ports take three levels: 5 ports of $300, and 3 links of $200 with 20 m
    of cable at $10 a metre."""
    fabric = tier(topology="fat_tree", radix=16)
    assert joined(fabric) == (5, 3)
    assert price_of(fabric) == pytest.approx(10 + 1000 + 5 * 300 + 3 * (200 + 200), rel=1e-6)
    halved = tier(topology="fat_tree", radix=16, oversubscription=2)
    assert price_of(halved) == pytest.approx(10 + 1000 + 3 * 300 + 2 * (200 + 200), rel=1e-6)


@pytest.mark.parametrize(("radix", "levels"), [(4, 1), (4, 2), (8, 3), (64, 4), (64, 2), (72, 3)])
def test_a_fat_tree_has_the_ports_and_cables_that_counting_finds(radix, levels):
    """A full fat tree of k-port switches in L levels has (2 L − 1) (k/2)^(L−1) switches for 2 (k/2)^L
    devices (Leiserson; Al-Fares et al., SIGCOMM 2008). One device more takes another level."""
    devices = 2 * (radix / 2) ** levels
    switches = (2 * levels - 1) * (radix / 2) ** (levels - 1)
    fabric = tier(topology="fat_tree", radix=radix)
    ports, links = joined(fabric, devices)
    assert ports == pytest.approx(switches * radix / devices, rel=1e-6)
    # Every link ends in two ports, or in a port and a device.
    assert links == pytest.approx((switches * radix + devices) / 2 / devices, rel=1e-6)
    beyond = tree_levels(fabric, real(devices * (1 + 1e-3)), Exact())
    assert float(beyond) == levels + 1


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_balanced_dragonfly_has_the_ports_and_links_that_counting_finds(p):
    """Groups of a = 2 p routers with p devices and h = p global links each, all groups joined to all (Kim et
    al., ISCA 2008): listed link by link."""
    a, h = 2 * p, p
    groups = a * h + 1
    routers = [(group, router) for group in range(groups) for router in range(a)]
    local = sum(1 for first, second in itertools.combinations(routers, 2) if first[0] == second[0])
    between_groups = groups * (groups - 1) // 2
    devices = p * len(routers)
    ports, links = joined(tier(topology="dragonfly"))
    counted_ports = (devices + 2 * local + 2 * between_groups) / devices
    counted_links = (devices + local + between_groups) / devices
    # Routers join the a − 1 others of their group: p links, but for half a link a router.
    assert ports == pytest.approx(counted_ports, abs=1.01 / p)
    assert links == pytest.approx(counted_links, abs=0.51 / p)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_devices_that_are_joined_directly_share_links_and_have_no_ports(topology):
    expected = {"switch": (1, 1), "fat_tree": (1, 1), "rail": (1, 1), "dragonfly": (4, 2.5)}
    assert joined(tier(topology=topology), 64) == expected.get(topology, (0, 0.5))


@pytest.mark.parametrize(
    ("devices", "switches", "cables"),
    [(1024, 1_728_000, 2_621_440), (4096, 6_912_000, 10_485_760), (32768, 92_160_000, 124_518_400)],
)
def test_clusters_of_h100_cost_what_a_price_list_says(devices, switches, cables):
    """Switches and cables of H100 nodes with eight rails, August 2024 (docs.google.com 1Ft3RbeZ): two levels
    of switches to 2,048 nodes, then three. Its cables of three levels cost 1 % less than three links."""
    system = load_system("dgx-h100", n_devices=devices)
    cost = tier_costs(system, Exact())[1]
    assert float(cost.switches) * devices == pytest.approx(switches, rel=1e-6)
    assert float(cost.cables) * devices == pytest.approx(cables, rel=0.011)


@pytest.mark.parametrize("name", available("systems"))
def test_wider_longer_and_larger_networks_never_cost_less(name):
    """What every shipped system pays for its network rises with bandwidth, reach and the number of devices;
    a network with switches of its own draws power."""
    system = load_system(name)
    outermost = str(system.network[-1].name)
    before = float(network_cost(system, Exact()).price)
    wider = replace(system, {f"network.{outermost}.bandwidth": 2 * system.network[-1].bandwidth})
    has_network = name != "one-device"
    assert (before > 0) == has_network
    assert (float(network_cost(wider, Exact()).price) > before) == has_network
    longer = replace(system, {f"network.{outermost}.reach": system.network[-1].reach + 10e3})
    assert float(network_cost(longer, Exact()).price) >= before
    larger = replace(system, {"n_devices": 4096.0 * system.n_devices})
    assert float(network_cost(larger, Exact()).price) >= before
    if float(system.network[-1].port_price) > 0:
        assert float(network_cost(longer, Exact()).price) > before
        assert float(network_cost(system, Exact()).power) > 0
    if float(system.network[-1].port_price) > 0 and system.network[-1].topology.likeliest() in TREES:
        assert float(network_cost(larger, Exact()).price) > before
        assert float(network_cost(larger, Exact()).power) > float(network_cost(system, Exact()).power)


def test_a_price_is_quoted_at_the_bandwidth_of_the_file():
    """An override of the bandwidth alone changes the price, as does a rated bandwidth of the file's own."""
    system = load_system("dgx-h100", n_devices=1024)
    outer = 1364 + 3 * 562.5 + 2 * 1280  # USD per device: configs/networks/ndr-infiniband.toml
    assert float(network_cost(system, Exact()).price) == pytest.approx(1000 + outer, rel=1e-6)
    wider = override(system, {"network.infiniband.bandwidth": "100 GB/s"})
    assert float(network_cost(wider, Exact()).price) == pytest.approx(1000 + 2 * outer, rel=1e-6)
    requoted = override(wider, {"network.infiniband.rated_bandwidth": "100 GB/s"})
    assert float(network_cost(requoted, Exact()).price) == pytest.approx(1000 + outer, rel=1e-6)


def test_levels_of_switches_have_a_slope_where_they_are_smooth():
    """Between a full tree of two levels and one of three the smooth number of levels rises with the devices,
    within half a level of the exact one."""
    fabric = tier(topology="fat_tree", radix=64)

    def levels(devices):
        return tree_levels(fabric, devices, Smooth(20.0))

    for devices in (3_000.0, 10_000.0, 40_000.0):
        slope, step = float(jax.grad(levels)(real(devices))), 1e-4 * devices
        difference = (levels(real(devices + step)) - levels(real(devices - step))) / (2 * step)
        assert slope > 0
        assert slope == pytest.approx(float(difference), rel=1e-4)
        assert abs(float(levels(real(devices))) - 3) < 0.5


@pytest.mark.parametrize("name", available("networks"))
def test_shipped_networks_are_whole_tiers(name):
    assert float(load(NetworkTier, name).rated_bandwidth) > 0


def test_the_silicon_of_switches_follows_ports_and_bandwidth():
    """Four NVSwitch chips of 294 mm² for the eight devices of a node, and three ports of NDR switches each in
    a cluster of two levels; twice the bandwidth takes twice the silicon."""
    system = load_system("dgx-h100", n_devices=1024)
    assert float(network_cost(system, Exact()).area) == pytest.approx(4 * 294 / 8 + 3 * 11, rel=1e-6)
    wider = override(system, {"network.nvlink.bandwidth": "900 GB/s"})
    assert float(network_cost(wider, Exact()).area) == pytest.approx(4 * 294 / 4 + 3 * 11, rel=1e-6)
    direct = dataclasses.replace(system, network=(tier(topology="torus_3d", port_area=11),))
    assert float(network_cost(direct, Exact()).area) == 0
