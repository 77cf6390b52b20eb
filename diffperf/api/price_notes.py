"""Lines about prices that a user gives: one that follows the package, and a markup without effect."""

from collections.abc import Collection

from diffperf import units
from diffperf.compiler import stored
from diffperf.cost.ownership import accelerator_price
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Exact

PRICE = "system.accelerator.purchase_price"
MARKUP = "system.prices.accelerator_markup"
_ROUNDING = 1e-3  # share of a price that is not worth a line


def describe_prices(given: Collection[str], system: System) -> list[str]:
    """Lines about the accelerator's price where some inputs are given, whose paths are `given`; none where it
    is what they say.
    """
    return [*_followed_price(given, system), *_idle_markup(given, system)]


def _idle_markup(given: Collection[str], system: System) -> list[str]:
    """A line where a markup is given that an accelerator with a published price does not have."""
    published = float(system.accelerator.purchase_price)
    if MARKUP not in given or not published:
        return []
    return [
        f"The accelerator's markup changes nothing: {system.accelerator.name} has a published price of "
        f'{units.show(published, "USD")}; with accelerator.purchase_price="0 USD" it has the markup'
    ]


def _followed_price(given: Collection[str], system: System) -> list[str]:
    """A line where an accelerator costs another price than the one that is given for it, because its package
    is changed too; none where no price is given.
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
