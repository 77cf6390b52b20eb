"""What owning and running a system adds up to."""

import jax
import pytest

from diffperf.cost.ownership import network_price, purchase, run_cost
from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.load import load_system, override
from diffperf.quantity import real, replace
from diffperf.relax import Exact


def test_owning_and_running_by_hand(system):
    prices = system.prices
    time, joules = 3600.0, 64 * 300.0 * 3600
    cost = run_cost(system, real(time), real(joules), Exact())
    device = float(cost.manufacturing * prices.accelerator_markup + prices.host) + sum(
        float(tier.price) for tier in system.network
    )
    assert float(cost.capital) == pytest.approx(64 * device, rel=1e-12)
    assert float(cost.depreciation) == pytest.approx(
        64 * device / float(prices.lifetime * prices.utilization), rel=1e-12
    )
    watts = 64 * (300 + float(prices.host_power)) * float(prices.pue)
    assert float(cost.electricity) == pytest.approx(watts * float(prices.electricity), rel=1e-12)
    assert float(cost.run) == pytest.approx(time * float(cost.depreciation + cost.electricity), rel=1e-12)


def test_capital_scales_with_devices(system):
    twice = replace(system, {"n_devices": 2 * system.n_devices})
    assert float(purchase(twice, real(1000)).total) == 2 * float(purchase(system, real(1000)).total)


def tier(**fields) -> NetworkTier:
    """A tier of 50 GB/s, whose parts have round prices."""
    numbers = {"size": 1e6, "bandwidth": 50e9, "latency": 1e-6, "efficiency": 1.0, "energy": 1e-12}
    prices = {"price": 10, "adapter_price": 1000, "port_price": 300, "link_price": 200, "cable_price": 0.01}
    return NetworkTier(name="fabric", **numbers | prices | {"reach": 20e3} | fields)


def test_the_price_of_a_fat_tree_by_hand():
    """Three levels: 5 ports of $300 and 3 links of $200 with 20 m of cable at $10 a metre."""
    fabric = tier(topology="fat_tree", levels=3)
    assert float(fabric.ports) == 5
    assert float(fabric.links) == 3
    assert float(fabric.cost) == pytest.approx(10 + 1000 + 5 * 300 + 3 * (200 + 200), rel=1e-12)
    halved = tier(topology="fat_tree", levels=3, oversubscription=2)
    assert float(halved.cost) == pytest.approx(10 + 1000 + 3 * 300 + 2 * (200 + 200), rel=1e-12)


def test_a_fat_tree_has_the_ports_and_cables_that_counting_finds():
    """A full fat tree of k-port switches in L levels has (2 L − 1) (k/2)^(L−1) switches for 2 (k/2)^L
    devices (Leiserson; Al-Fares et al., SIGCOMM 2008)."""
    for radix, levels in ((4, 1), (4, 2), (8, 3), (64, 4)):
        devices = 2 * (radix / 2) ** levels
        switches = (2 * levels - 1) * (radix / 2) ** (levels - 1)
        fabric = tier(topology="fat_tree", levels=levels)
        assert float(fabric.ports) == pytest.approx(switches * radix / devices, rel=1e-12)
        # Every link ends in two ports, or in a port and a device.
        assert float(fabric.links) == pytest.approx((switches * radix + devices) / 2 / devices, rel=1e-12)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_devices_that_are_joined_directly_share_links_and_have_no_ports(topology):
    fabric = tier(topology=topology)
    direct = topology not in ("switch", "fat_tree", "dragonfly", "rail")
    assert float(fabric.ports) == (0 if direct else 1)
    assert float(fabric.links) == (0.5 if direct else 1)


def test_the_power_of_ports_and_optics_is_in_the_electricity(system):
    """Twice the rated bandwidth: two times 10 W for the port and 2 · 2 · 15 W for the links, a device."""
    numbers = {"port_power": 10.0, "link_power": 15.0, "levels": 1.0}
    values = {f"network.infiniband.{name}": value for name, value in numbers.items()}
    rated = system.network[1].rated_bandwidth
    powered = replace(system, values | {"network.infiniband.bandwidth": 2 * rated})
    before, after = (run_cost(each, real(1.0), real(1e4), Exact()) for each in (system, powered))
    watts = 64 * 2 * (10 + 15) * float(system.prices.pue)
    assert float(after.electricity - before.electricity) == pytest.approx(
        watts * float(system.prices.electricity), rel=1e-9
    )


@pytest.mark.parametrize("name", ["nvlink", "infiniband"])
def test_a_wider_link_costs_more(system, name):
    """The gradient of the cost of a run by a tier's bandwidth is positive and that of finite differences."""
    path = f"network.{name}.bandwidth"
    parts = {"adapter_price": 900.0, "port_price": 70.0, "link_price": 30.0, "link_power": 5.0}
    priced = replace(system, {f"network.{name}.{part}": value for part, value in parts.items()})

    def cost(bandwidth):
        return run_cost(replace(priced, {path: bandwidth}), real(3600.0), real(1e7), Exact()).run

    at = float(next(tier.bandwidth for tier in system.network if str(tier.name) == name))
    step = 1e-3 * at
    slope = float(jax.grad(cost)(real(at)))
    assert slope > 0
    assert slope == pytest.approx(float(cost(at + step) - cost(at - step)) / (2 * step), rel=1e-6)


def test_a_price_is_quoted_at_the_bandwidth_of_the_file():
    """An override of the bandwidth alone changes the price, as does a rated bandwidth of the file's own."""
    system = load_system("dgx-h100")
    network = 1000 + 5600  # USD per device: configs/systems/dgx-h100.toml
    assert float(network_price(system)) == pytest.approx(network, rel=1e-9)
    wider = override(system, {"network.infiniband.bandwidth": "100 GB/s"})
    assert float(network_price(wider)) == pytest.approx(network + 5600, rel=1e-9)
    requoted = override(wider, {"network.infiniband.rated_bandwidth": "100 GB/s"})
    assert float(network_price(requoted)) == pytest.approx(network, rel=1e-9)
