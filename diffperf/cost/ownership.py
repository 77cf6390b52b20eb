"""Owning and running a system: purchase price, depreciation, electricity."""

from diffperf.cost.package_cost import PackageCost, package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Declared, Scalar, output
from diffperf.relax import Relaxation


class Purchase(Declared):
    """Purchase price of a system, in parts that add up."""

    accelerators: Scalar = output("USD", "accelerators, at their markup")
    hosts: Scalar = output("USD", "hosts, chassis and memory")
    network: Scalar = output("USD", "network adapters, switches and cables")

    @property
    def total(self) -> Scalar:
        """USD for the whole system."""
        return self.accelerators + self.hosts + self.network


class Cost(Declared):
    """The cost of a system, and of a run on the system."""

    accelerator: PackageCost
    purchase: Purchase
    manufacturing: Scalar = output("USD", "manufacturing cost of one accelerator")
    capital: Scalar = output("USD", "purchase price of the system")
    depreciation: Scalar = output("USD/s", "depreciation of the system")
    electricity: Scalar = output("USD/s", "electricity of the system")
    run: Scalar = output("USD", "cost of the run: depreciation and electricity")


def purchase(system: System, manufacturing: Scalar) -> Purchase:
    """The purchase price of a system whose accelerators each take `manufacturing` USD to make."""
    devices, prices = system.n_devices, system.prices
    return Purchase(
        accelerators=devices * manufacturing * prices.accelerator_markup,
        hosts=devices * prices.host,
        network=devices * sum(tier.price for tier in system.network),
    )


def run_cost(system: System, time: Scalar | float, energy: Scalar, relax: Relaxation) -> Cost:
    """Cost of a run of `time` seconds in which the devices spend `energy` joules.

    Depreciation is a straight line over the part of the lifetime in which the system works. Electricity is
    that of devices and hosts, times the facility's power over theirs (PUE).
    """
    prices = system.prices
    accelerator = package_cost(system.accelerator, relax)
    bought = purchase(system, accelerator.total)
    depreciation = bought.total / (prices.lifetime * prices.utilization)
    power = energy / time + system.n_devices * prices.host_power
    electricity = power * prices.pue * prices.electricity
    return Cost(
        accelerator=accelerator,
        purchase=bought,
        manufacturing=accelerator.total,
        capital=bought.total,
        depreciation=depreciation,
        electricity=electricity,
        run=(depreciation + electricity) * time,
    )
