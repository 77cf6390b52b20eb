"""Owning and running a system: capital, depreciation, power."""

import equinox as eqx

from diffperf.cost.package_cost import PackageCost, package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation


class Purchase(eqx.Module):
    """Purchase price of a system."""

    accelerators: Scalar = output("USD", "accelerators, at their markup")
    hosts: Scalar = output("USD", "hosts, chassis and memory")
    network: Scalar = output("USD", "adapters, switches and cables")

    @property
    def total(self) -> Scalar:
        return self.accelerators + self.hosts + self.network


class Cost(eqx.Module):
    """What the system costs, and what a piece of work on it costs."""

    accelerator: PackageCost
    purchase: Purchase
    manufacturing: Scalar = output("USD", "manufacturing cost of one accelerator")
    capital: Scalar = output("USD", "purchase price of the system")
    depreciation: Scalar = output("USD/s", "depreciation of the system")
    electricity: Scalar = output("USD/s", "electricity of the system")
    run: Scalar = output("USD", "cost of this run")


def purchase(system: System, manufacturing: Scalar) -> Purchase:
    """USD for the whole system: accelerators at their markup, hosts, and every network tier."""
    devices, prices = system.n_devices, system.prices
    return Purchase(
        accelerators=devices * manufacturing * prices.accelerator_markup,
        hosts=devices * prices.host,
        network=devices * sum(tier.price for tier in system.network),
    )


def run_cost(system: System, time: Scalar, energy: Scalar, relax: Relaxation) -> Cost:
    """Cost of a run of `time` seconds in which the devices spend `energy` joules: depreciation and electricity."""
    prices = system.prices
    accelerator = package_cost(system.accelerator, relax)
    bought = purchase(system, accelerator.total)
    price = bought.total
    depreciation = price / (prices.lifetime * prices.utilization)
    power = energy / time + system.n_devices * prices.host_power
    electricity = power * prices.pue * prices.electricity
    return Cost(
        accelerator,
        bought,
        accelerator.total,
        price,
        depreciation,
        electricity,
        (depreciation + electricity) * time,
    )
