"""Purchase prices that a user's own accelerators give: each is for the package that its file describes.

    extends = "h100-sxm5-80gb"
    memory.hbm.capacity = "160 GiB"
    purchase_price = "40000 USD"

This accelerator costs 40,000 USD. That is not the price of the package of an H100, which would make its own
package dearer in proportion.
"""

import dataclasses
from typing import Any

from diffperf.compiler import stored
from diffperf.cost.package_cost import package_cost
from diffperf.hardware.accelerator import Accelerator
from diffperf.load.extending import EXTENDS
from diffperf.quantity import Scalar
from diffperf.relax import Exact


def gives_price_alone(table: dict[str, Any]) -> bool:
    """Whether the table of an accelerator that extends another one gives a purchase price, and does not say
    for which manufacturing cost.
    """
    return EXTENDS in table and "purchase_price" in table and "priced_manufacturing" not in table


def priced_as_it_is(accelerator: Accelerator) -> Accelerator:
    """The accelerator, whose purchase price is for its own package, and follows what a design changes."""
    return dataclasses.replace(accelerator, priced_manufacturing=_manufacturing(accelerator))


@stored(by_numpy=True)
def _manufacturing(accelerator: Accelerator) -> Scalar:
    """USD to make one package of an accelerator."""
    return package_cost(accelerator, Exact()).total
