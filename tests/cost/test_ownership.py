"""What owning and running a system adds up to."""

import math

import jax
import pytest

from diffperf.cost.ownership import (
    RATES,
    accelerator_price,
    device_hour,
    interest_rate,
    network_price,
    purchase,
    rental,
    run_cost,
)
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.load import available, load, load_system, override
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.units import YEAR


@jax.jit
def manufacturing(accelerator: Accelerator):
    return package_cost(accelerator, Exact()).total


PRICES = {
    "interest": 0.08 / YEAR,
    "repair": 0.05 / YEAR,
    "rack": 0.1,
    "facility": 11.7,
    "facility_lifetime": 20 * YEAR,
    "staff": 0.48 / YEAR,
    "lifetime": 5 * YEAR,
    "utilization": 0.8,
}


DAYS = 365  # a year


def payment(price: float, interest: float, years: float) -> float:
    """What a year of equal payments takes that pay back `price` with interest, day by day."""
    growth = math.exp(interest / DAYS)
    return DAYS * price * (growth - 1) / (1 - growth ** -round(DAYS * years))


def test_owning_and_running_by_hand(system):
    owned = replace(system, {f"prices.{name}": value for name, value in PRICES.items()})
    prices = owned.prices
    time, joules = 3600.0, 64 * 300.0 * 3600
    cost = run_cost(owned, real(time), real(joules), Exact())
    watts = float(owned.accelerator.power_limit + prices.host_power) + sum(
        float(tier.power) for tier in owned.network
    )
    device = float(cost.manufacturing * prices.accelerator_markup + prices.host) + sum(
        float(tier.price) for tier in owned.network
    )
    bought = device + 0.1 * watts
    working = 0.8 * YEAR  # seconds a year
    facility = payment(11.7 * watts, 0.08, 20) + 0.48 * watts
    expected = {
        "depreciation": bought / 5,
        "interest": payment(bought, 0.08, 5) - bought / 5,
        "repair": 0.05 * bought,
        "facility": facility,
    }
    assert float(cost.capital) == pytest.approx(64 * bought, rel=1e-12)
    for name, in_a_year in expected.items():
        assert float(getattr(cost, name)) == pytest.approx(64 * in_a_year / working, rel=1e-3), name
    drawn = 64 * (300 + float(prices.host_power)) * float(prices.pue)
    assert float(cost.electricity) == pytest.approx(drawn * float(prices.electricity), rel=1e-12)
    assert float(cost.run) == pytest.approx(
        time * sum(float(getattr(cost, name)) for name in RATES), rel=1e-12
    )


def test_interest_is_what_a_loan_of_equal_payments_takes():
    """Day by day: what is owed grows by the interest and falls by the payment, to nothing in the end."""
    for interest, years in ((0.08, 5.0), (0.15, 4.0), (0.01, 20.0)):
        annual = payment(1.0, interest, years)
        owed = 1.0
        for _ in range(round(DAYS * years)):
            owed = owed * math.exp(interest / DAYS) - annual / DAYS
        assert owed == pytest.approx(0, abs=1e-9)
        rate = float(interest_rate(real(interest / YEAR), real(years * YEAR)))
        assert rate * YEAR == pytest.approx(annual - 1 / years, rel=1e-3)


def test_without_interest_there_is_none_and_its_slope_is_half_of_what_was_paid():
    rate, slope = jax.value_and_grad(interest_rate)(real(0.0), real(5 * YEAR))
    assert float(rate) == 0
    assert float(slope) == pytest.approx(1 / 2, rel=1e-12)
    above = float(interest_rate(real(1e-4 / YEAR), real(5 * YEAR))) / (1e-4 / YEAR)
    assert above == pytest.approx(float(slope), rel=1e-3)


def test_an_owner_of_an_hour_pays_what_published_models_of_ownership_say():
    """H100, B200 and MI300X at full utilization, between the owners of a published model and a margin of 15 %
    on both sides.

    $ per hour of a hyperscaler and of a smaller cloud, March 2026: InferenceX, an open dashboard
    (packages/app/src/lib/constants.ts).
    """
    published = {"dgx-h100": (1.30, 1.69), "hgx-b200": (1.95, 2.34), "mi300x-8": (1.12, 1.40)}
    for name, (least, most) in published.items():
        system = replace(load_system(name), {"prices.utilization": 1.0})
        energy = system.n_devices * system.accelerator.power_limit * 3600
        hour = device_hour(system, run_cost(system, real(3600.0), energy, Exact()))
        assert 0.85 * least < float(hour.total) < 1.15 * most, name


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


def test_a_published_price_follows_the_manufacturing_cost():
    """The price of the package as shipped, in proportion for another; its slope is the vendor's markup."""
    system = load_system("dgx-h100")
    quoted = float(system.accelerator.priced_manufacturing)
    assert float(accelerator_price(system, real(quoted))) == pytest.approx(28000, rel=1e-12)
    assert float(accelerator_price(system, real(2 * quoted))) == pytest.approx(56000, rel=1e-12)
    slope = jax.grad(lambda manufacturing: accelerator_price(system, manufacturing))(real(quoted))
    assert float(slope) == pytest.approx(28000 / quoted, rel=1e-12)
    fixed = replace(system, {"accelerator.priced_manufacturing": 0.0})
    assert float(accelerator_price(fixed, real(2 * quoted))) == 28000
    marked_up = replace(system, {"accelerator.purchase_price": 0.0})
    assert float(accelerator_price(marked_up, real(1000.0))) == pytest.approx(5500, rel=1e-12)


@pytest.mark.parametrize("name", available("accelerators"))
def test_published_prices_are_for_the_packages_that_ship(name):
    """A change of a package or of its cost has to come with the cost that the price is quoted for."""
    accelerator = load(Accelerator, name)
    priced = float(accelerator.purchase_price) > 0
    assert priced == (float(accelerator.priced_manufacturing) > 0)
    if priced:
        made = manufacturing(accelerator)
        assert float(accelerator.priced_manufacturing) == pytest.approx(float(made), rel=1e-4)


def test_an_hour_of_a_device_adds_up(system):
    cost = run_cost(system, real(3600.0), real(64 * 300.0 * 3600), Exact())
    hour = device_hour(system, cost)
    assert float(hour.total) == pytest.approx(float(cost.run) / 64, rel=1e-12)
    assert float(hour.host / hour.network) == pytest.approx(
        float(cost.purchase.hosts / cost.purchase.network), rel=1e-12
    )


def test_rent_is_that_of_every_device():
    system = load_system("dgx-h100", n_devices=64)
    assert float(rental(system)) * 3600 == pytest.approx(64 * 1.78, rel=1e-12)
