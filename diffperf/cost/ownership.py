"""Owning and running a system: purchase, interest, repairs, facility, electricity, emissions."""

import jax
import jax.numpy as jnp

from diffperf.cost.embodied_carbon import package_carbon
from diffperf.cost.network_cost import TierCost, network_cost
from diffperf.cost.package_cost import PackageCost, package_cost
from diffperf.hardware.host import NodePower
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation, inverse, larger
from diffperf.report.tables import Readable
from diffperf.units import HOUR

# The parts of `Cost.rate` that are in proportion to the purchase price, and all of its parts.
OF_CAPITAL = ("depreciation", "interest", "repair")
RATES = (*OF_CAPITAL, "facility", "electricity")

_LEAST_INTEREST = 1e-6  # of what was paid, over a lifetime: below, payments are those without interest


class Purchase(Readable):
    """Purchase price of a system, in parts that add up."""

    accelerators: Scalar = output("USD", "accelerators, at their published price or markup")
    hosts: Scalar = output("USD", "hosts, chassis and memory")
    network: Scalar = output("USD", "network adapters, switches and cables")
    racks: Scalar = output("USD", "racks, power strips and manifolds")

    @property
    def total(self) -> Scalar:
        """USD for the whole system."""
        return self.accelerators + self.hosts + self.network + self.racks


class Cost(Readable):
    """The cost and the emissions of a system, and of a run on the system.

    Rates are per time in which the system works: what is paid all the time is divided by the utilization.
    """

    accelerator: PackageCost
    purchase: Purchase
    node: NodePower
    manufacturing: Scalar = output("USD", "manufacturing cost of one accelerator")
    capital: Scalar = output("USD", "purchase price of the system")
    depreciation: Scalar = output("USD/s", "depreciation of the system")
    interest: Scalar = output("USD/s", "interest on the purchase price of the system")
    repair: Scalar = output("USD/s", "repairs of the system")
    facility: Scalar = output("USD/s", "facility of the system: depreciation, interest, staff and upkeep")
    electricity: Scalar = output("USD/s", "electricity of the system")
    rate: Scalar = output("USD/s", "owning and running the system: all of the rates above")
    run: Scalar = output("USD", "cost of the run: owning and running the system for its time")
    facility_power: Scalar = output(
        "W",
        "power of the facility in the run: nodes, network, and cooling and conversion outside them",
    )
    switch_area: Scalar = output("mm^2", "silicon of the network's switches per device")
    package_carbon: Scalar = output("kg", "CO2e of making one accelerator's package")
    emissions: Scalar = output("kg", "CO2e of the run: its electricity, and its share of making the system")
    embodied_emissions: Scalar = output("kg", "CO2e of the run's share of making the system")


def purchase(system: System, manufacturing: Scalar, network: TierCost) -> Purchase:
    """The purchase price of a system whose accelerators each take `manufacturing` USD to make; `network` is
    what each of them has of the network.
    """
    devices, prices = system.n_devices, system.prices
    return Purchase(
        accelerators=devices * accelerator_price(system, manufacturing),
        hosts=devices * prices.host,
        network=devices * network.price,
        racks=provisioned_power(system, network) * prices.rack,
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


def provisioned_power(system: System, network: TierCost) -> Scalar:
    """Watts that racks and facility must feed: nodes whose devices are at their power limits and whose
    processors are at full load, and the network's switches and transceivers, which draw their power at any
    load.
    """
    limit = system.accelerator.power_limit
    node = system.host.grid_power(limit, jnp.ones_like(limit))
    return system.n_devices * (node + network.power)


def facility_power(system: System, power: Scalar, network: TierCost) -> Scalar:
    """Watts of a facility whose devices draw `power` in all: with their nodes and the network, and the share
    that cooling and conversion outside the nodes add (PUE).
    """
    node = system.host.grid_power(power / system.n_devices, system.host.processor_load)
    return system.n_devices * (node + network.power) * system.prices.pue


def facility_energy(system: System, time: Scalar | float, energy: Scalar, network: TierCost) -> Scalar:
    """Joules of a facility in a run of `time` seconds in which the devices spend `energy` joules."""
    return facility_power(system, energy / time, network) * time


def run_cost(system: System, time: Scalar | float, energy: Scalar, relax: Relaxation) -> Cost:
    """Cost of a run of `time` seconds in which the devices spend `energy` joules.

    Depreciation is a straight line over the part of the lifetime in which the system works. Interest is what
    equal payments over the lifetime take beyond that line. Facility and racks are sized for all devices at
    their power limits.

    **Source** of the parts: Barroso, Clidaras and Hölzle, The Datacenter as a Computer, 2nd ed. (2013),
    chapter 6.
    """
    prices, network = system.prices, network_cost(system, relax)
    accelerator = package_cost(system.accelerator, relax)
    bought = purchase(system, accelerator.total, network)
    working = prices.lifetime * prices.utilization
    depreciation = bought.total / working
    interest = bought.total * interest_rate(prices.interest, prices.lifetime) / prices.utilization
    repair = bought.total * prices.repair / prices.utilization
    facility = provisioned_power(system, network) * _facility_rate(system) / prices.utilization
    # Powers, because the joules of long runs of large systems overflow float32 where their emissions do not.
    power = facility_power(system, energy / time, network)
    electricity = power * prices.electricity
    rate = depreciation + interest + repair + facility + electricity
    carbon = package_carbon(system.accelerator, relax)
    embodied = system.n_devices * (carbon + prices.embodied_carbon) * (time / working)
    return Cost(
        accelerator=accelerator,
        purchase=bought,
        node=system.host.node_power(energy / time / system.n_devices, system.host.processor_load),
        manufacturing=accelerator.total,
        capital=bought.total,
        depreciation=depreciation,
        interest=interest,
        repair=repair,
        facility=facility,
        electricity=electricity,
        rate=rate,
        run=rate * time,
        facility_power=power,
        switch_area=network.area,
        package_carbon=carbon,
        emissions=power * prices.carbon_intensity * time + embodied,
        embodied_emissions=embodied,
    )


def interest_rate(interest: Scalar, lifetime: Scalar) -> Scalar:
    """Interest per second, over the price, of a loan that equal payments over the lifetime pay back.

    Payments of i/(1 − e^(−i·T)) less the 1/T that pays back; for little interest half of i.
    """
    owed = interest * lifetime  # interest over the lifetime, if nothing were paid back
    paid = larger(owed, _LEAST_INTEREST)
    growing = paid / -jnp.expm1(-paid) - 1
    return jnp.where(owed > _LEAST_INTEREST, growing, owed / 2) / lifetime


def _facility_rate(system: System) -> Scalar:
    """USD/s for each watt that a facility can feed: its depreciation and interest, its staff and upkeep."""
    prices = system.prices
    built = 1 / prices.facility_lifetime + interest_rate(prices.interest, prices.facility_lifetime)
    return prices.facility * built + prices.staff


class DeviceHour(Readable):
    """Parts of the cost of one hour of one device to the owner of the system, in USD."""

    accelerator: Scalar = output("USD", "depreciation of the accelerator")
    host: Scalar = output("USD", "depreciation of the host")
    network: Scalar = output("USD", "depreciation of adapters, switches and cables")
    racks: Scalar = output("USD", "depreciation of racks, power strips and manifolds")
    interest: Scalar = output("USD", "interest on the purchase price")
    repair: Scalar = output("USD", "repairs of the device, its host and network")
    facility: Scalar = output("USD", "facility: depreciation, interest, staff and upkeep")
    electricity: Scalar = output("USD", "electricity of the facility")

    @property
    def total(self) -> Scalar:
        """USD for an hour of one device."""
        bought = self.accelerator + self.host + self.network + self.racks
        return bought + self.interest + self.repair + self.facility + self.electricity


def device_hour(system: System, cost: Cost) -> DeviceHour:
    """The cost of an hour of one device, from the cost of owning and running its whole system."""
    owned = system.prices.lifetime * system.prices.utilization * system.n_devices
    bought = jax.tree.map(lambda price: price / owned * HOUR, cost.purchase)
    rates = {name: getattr(cost, name) for name in ("interest", "repair", "facility", "electricity")}
    return DeviceHour(
        accelerator=bought.accelerators,
        host=bought.hosts,
        network=bought.network,
        racks=bought.racks,
        **{name: rate / system.n_devices * HOUR for name, rate in rates.items()},
    )
