"""What owning and running a system adds up to."""

import math

import jax
import pytest

from diffperf.cost.network_cost import network_cost
from diffperf.cost.ownership import (
    RATES,
    accelerator_price,
    device_hour,
    interest_rate,
    purchase,
    rental,
    run_cost,
)
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.accelerator import Accelerator
from diffperf.load import available, load, load_system
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
    # Half a port of NDR InfiniBand with its adapter and link, in one level of switches for rails of eight.
    network, network_watts = 1000 + (1364 + 562.5 + 1280) / 2, (12 + 17) / 2
    limit = owned.accelerator.power_limit
    watts = float(owned.host.node_power(limit, real(1.0)).total) + network_watts
    device = float(cost.manufacturing * prices.accelerator_markup + prices.host) + network
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
    assert float(cost.node.accelerators) == pytest.approx(300)
    drawn = 64 * (float(cost.node.total) + network_watts) * float(prices.pue)
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
    assert float(purchase(twice, real(1000), network_cost(twice, Exact())).total) == 2 * float(
        purchase(system, real(1000), network_cost(system, Exact())).total
    )


def test_the_power_of_ports_and_optics_is_in_the_electricity(system):
    """Twice the rated bandwidth: two times 10 W for the port and two times 15 W for the link, a device, where
    there were none."""

    def powered(port, link, factor):
        values = {"port_power": port, "link_power": link}
        values["bandwidth"] = factor * system.network[1].rated_bandwidth
        named = {f"network.infiniband.{name}": value for name, value in values.items()}
        return run_cost(replace(system, named), real(1.0), real(1e4), Exact())

    before, after = powered(0.0, 0.0, 1.0), powered(10.0, 15.0, 2.0)
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
