"""Owning and running a system: purchase price, depreciation, electricity."""

import jax
import jax.numpy as jnp

from diffperf.cost.package_cost import PackageCost, package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Declared, Scalar, output
from diffperf.relax import Relaxation, inverse

HOUR = 3600.0  # s


class Purchase(Declared):
    """Purchase price of a system, in parts that add up."""

    accelerators: Scalar = output("USD", "accelerators, at their published price or markup")
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
        accelerators=devices * accelerator_price(system, manufacturing),
        hosts=devices * prices.host,
        network=devices * network_price(system),
    )


def accelerator_price(system: System, manufacturing: Scalar) -> Scalar:
    """USD for one accelerator that takes `manufacturing` USD to make.

    A published price follows the manufacturing cost in proportion: its vendor's markup is that price over the
    cost of the package it was published for. Other accelerators have the markup of the price list.
    """
    accelerator = system.accelerator
    published, quoted = accelerator.purchase_price, accelerator.priced_manufacturing
    is_quoted = quoted > 0
    relative = jnp.where(is_quoted, manufacturing * inverse(jnp.where(is_quoted, quoted, 1.0)), 1.0)
    return jnp.where(published > 0, published * relative, manufacturing * system.prices.accelerator_markup)


def rental(system: System) -> Scalar:
    """USD/s for renting the devices of a system, 0 where no rent of its accelerator is known."""
    return system.n_devices * system.accelerator.rent


def network_price(system: System) -> Scalar:
    """USD per device for all network tiers, each at its bandwidth."""
    return jnp.sum(jnp.stack([tier.cost for tier in system.network]))


def host_and_network_power(system: System) -> Scalar:
    """Watts per device beside the device: its host with adapters, and switches and transceivers that draw
    power at any load."""
    return system.prices.host_power + jnp.sum(jnp.stack([tier.power for tier in system.network]))


def run_cost(system: System, time: Scalar | float, energy: Scalar, relax: Relaxation) -> Cost:
    """Cost of a run of `time` seconds in which the devices spend `energy` joules.

    Depreciation is a straight line over the part of the lifetime in which the system works. Electricity is
    that of devices, hosts and network, times the facility's power over theirs (PUE).
    """
    prices = system.prices
    accelerator = package_cost(system.accelerator, relax)
    bought = purchase(system, accelerator.total)
    depreciation = bought.total / (prices.lifetime * prices.utilization)
    power = energy / time + system.n_devices * host_and_network_power(system)
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


class DeviceHour(Declared):
    """What an hour of one device of a system costs its owner, in parts that add up."""

    accelerator: Scalar = output("USD", "depreciation of the accelerator")
    host: Scalar = output("USD", "depreciation of the host")
    network: Scalar = output("USD", "depreciation of adapters, switches and cables")
    electricity: Scalar = output("USD", "electricity of the facility")

    @property
    def total(self) -> Scalar:
        """USD for an hour of one device."""
        return self.accelerator + self.host + self.network + self.electricity


def device_hour(system: System, cost: Cost) -> DeviceHour:
    """The cost of an hour of one device, from the cost of owning and running its whole system."""
    owned = system.prices.lifetime * system.prices.utilization * system.n_devices
    bought = jax.tree.map(lambda price: price / owned * HOUR, cost.purchase)
    return DeviceHour(
        accelerator=bought.accelerators,
        host=bought.hosts,
        network=bought.network,
        electricity=cost.electricity / system.n_devices * HOUR,
    )
