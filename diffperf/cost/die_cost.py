"""Cost of a known-good die: wafers, defective dies, the test on the wafer, and what that test misses."""

import equinox as eqx
from jaxtyping import Float

from diffperf.cost.harvesting import shipping_shares
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import floored
from diffperf.hardware.package import Die, total_area
from diffperf.hardware.packaging import Packaging
from diffperf.quantity import AnyArray


class DieCosts(eqx.Module):
    """Prices and shares of the kinds of dies of a package, each per die that goes into the package."""

    count: Float[AnyArray, "*kinds"]  # dies of the kind per package
    area: Float[AnyArray, "*kinds"]  # mm² of a die with its die-to-die interfaces
    stacked: Float[AnyArray, "*kinds"]  # share of the dies of the kind that other dies carry
    raw: Float[AnyArray, "*kinds"]  # USD of a die, working or not
    test: Float[AnyArray, "*kinds"]  # USD of the test of a die on the wafer
    defective: Float[AnyArray, "*kinds"]  # USD of the dies, and of their tests, that are lost per die
    working: Float[AnyArray, "*kinds"]  # share of the dies that pass the test on the wafer and do work


def die_costs(die: Die, packaging: Packaging) -> DieCosts:
    """Costs of the kinds of dies of a package, for a `Die` whose numbers have a leading axis of kinds.

    The test on the wafer rejects the share `coverage` of the dies that do not work. The others go into
    packages, where the test of the package finds them. A die that is sold in the lower grade bears
    `lower_value` of the cost of a full one.
    """
    shares, area = shipping_shares(die), total_area(die)
    raw = raw_die_price(area, die.process, die.aspect, die.exposure.wafer)
    test = area * packaging.die_test * packaging.tester_price
    passed = shares.full + (1 - shares.full) * (1 - packaging.coverage)
    sold = floored(passed + die.lower_value * (shares.lower - shares.full) * packaging.coverage)
    return DieCosts(
        count=die.count,
        area=area,
        stacked=1 - die.bond.none,
        raw=raw,
        test=test,
        defective=(raw + test) * (1 / sold - 1),
        working=shares.full / passed,
    )


def known_good_price(die: Die, packaging: Packaging) -> Float[AnyArray, "*kinds"]:
    """USD of one die of a kind that has passed its test on the wafer."""
    costs = die_costs(die, packaging)
    return costs.raw + costs.test + costs.defective
