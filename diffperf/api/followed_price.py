"""A line about a purchase price that a user gives beside another package: the price follows the package."""

from collections.abc import Collection

from diffperf import units
from diffperf.compiler import stored
from diffperf.cost.ownership import accelerator_price
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Exact

PRICE = "system.accelerator.purchase_price"
_ROUNDING = 1e-3  # share of a price that is not worth a line


def describe_followed_price(given: Collection[str], system: System) -> list[str]:
    """A line where an accelerator costs another price than the one that is given for it, because its package
    is changed too; none where no price is given. `given` are the paths of inputs.
    """
    quoted = float(system.accelerator.priced_manufacturing)
    if PRICE not in given or not quoted:
        return []
    made, price = map(float, _cost_and_price(system))
    given_price = float(system.accelerator.purchase_price)
    if abs(price - given_price) <= _ROUNDING * given_price:
        return []
    usd = [units.show(value, "USD") for value in (given_price, quoted, made, price)]
    return [
        f"The price of {usd[0]} is for a package that takes {usd[1]} to make: this one takes {usd[2]} and "
        f"costs {usd[3]}; {usd[0]} is the price of this one with "
        f'accelerator.priced_manufacturing="{made:.2f} USD"'
    ]


@stored(by_numpy=True)
def _cost_and_price(system: System) -> tuple[Scalar, Scalar]:
    """USD to make one accelerator of a system, and to buy it."""
    made = package_cost(system.accelerator, Exact()).total
    return made, accelerator_price(system, made)
