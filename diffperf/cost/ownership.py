"""Owning and running a system: capital, depreciation, power."""

import equinox as eqx

from diffperf.cost.package import PackageCost, package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation


class Cost(eqx.Module):
    """What the system costs, and what a piece of work on it costs."""

    accelerator: PackageCost
    manufacturing: Scalar = output("USD", "manufacturing cost of one accelerator")
    capital: Scalar = output("USD", "purchase price of the system")
    depreciation: Scalar = output("USD/s", "depreciation of the system")
    electricity: Scalar = output("USD/s", "electricity of the system")
    run: Scalar = output("USD", "cost of this run")


def capital(system: System, manufacturing: Scalar) -> Scalar:
    """Purchase price in USD: accelerators at their markup, hosts, and every network tier."""
    prices = system.prices
    per_device = manufacturing * prices.accelerator_markup + prices.host + sum(tier.price for tier in system.network)
    return system.n_devices * per_device


def run_cost(system: System, time: Scalar, energy: Scalar, relax: Relaxation) -> Cost:
    """Cost of a run of `time` seconds in which the devices spend `energy` joules: depreciation while it runs, and its electricity."""
    prices = system.prices
    accelerator = package_cost(system.accelerator, relax)
    price = capital(system, accelerator.total)
    depreciation = price / (prices.lifetime * prices.utilization)
    power = energy / time + system.n_devices * prices.host_power
    electricity = power * prices.pue * prices.electricity
    return Cost(accelerator, accelerator.total, price, depreciation, electricity, (depreciation + electricity) * time)
