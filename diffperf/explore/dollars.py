"""Gain of one more dollar: of inputs whose price is known, the time saved by money spent on them; of all
others, the price that they may cost.

The elasticities of an estimate say both by how much a per cent more of an input shortens a run, and by how
much it raises the purchase price of the system. Their ratio is what a dollar buys. Where the price does not
follow an input, as for a datasheet's bandwidth that no technology stands behind, the run still says what the
input is worth: the rise of the purchase price that one per cent more may cost before a run gets dearer.
"""

import dataclasses
from typing import Any

from diffperf.cost.ownership import OF_CAPITAL
from diffperf.explore.elasticities import Elasticities
from diffperf.quantity import locate

_LEAST = 1e-9  # elasticities up to this are rounding
_SHOWN = 12
# More devices are bought with a degree of parallelism that uses them; the global batch stays.
_USED_BY = {
    "dp": "more devices, data-parallel",
    "pp": "more devices, as pipeline stages",
    "tp": "more devices, tensor-parallel",
}


@dataclasses.dataclass(frozen=True)
class Bought:
    """One way to spend money.

    - `name`: the input's path, or what is bought.
    - `price`: USD that 1 % more adds to the purchase price of the system; 0 where the price does not follow.
    - `time`: share by which 1 % more changes the time, in per cent.
    - `saved`: seconds by which a dollar of purchase price shortens the time; 0 where no price is known.
    - `worth`: USD of purchase price that 1 % more may cost before a run costs more than now.
    """

    name: str
    price: float
    time: float
    saved: float
    worth: float


@dataclasses.dataclass(frozen=True)
class Purchases:
    """The time that money spent on a system saves, by the input that the money buys.

    - `priced`: inputs that the purchase price follows, by the seconds that a dollar saves, the most first.
    - `unpriced`: inputs that shorten the time and have no price, by what 1 % more is worth. Those that are as
      large as they can be, as a clock that software does not limit, are left out.
    - `capital`: the purchase price of the system in USD.
    """

    priced: list[Bought]
    unpriced: list[Bought]
    capital: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def purchases(elasticities: Elasticities, report: Any) -> Purchases:
    """The time saved by money, from the elasticities of a configuration and its report."""
    time, capital = elasticities.outputs["time"], elasticities.outputs["cost.capital"]
    slopes = [elasticities.of(output) for output in ("time", "cost.capital", "cost.run")]
    followed = sum(float(locate(report, f"cost.{name}")[0]) for name in OF_CAPITAL)
    capital_share = followed / float(locate(report, "cost.rate")[0])  # of the cost of a run

    def bought(name: str, *paths: str) -> Bought:
        """The gain of money spent on inputs that grow together, by the sums of their elasticities."""
        of_time, of_capital, of_run = (sum(slope[path] for path in paths) for slope in slopes)
        unpaid = of_run - of_capital * capital_share  # of a run, if the input cost nothing
        priced = of_capital > _LEAST
        return Bought(
            name=name,
            price=0.01 * of_capital * capital if priced else 0.0,
            time=of_time,
            saved=-of_time * time / (of_capital * capital) if priced else 0.0,
            worth=-0.01 * unpaid / capital_share * capital,
        )

    inputs = [
        bought(path, path)
        for path, (declared, value) in elasticities.inputs.items()
        if path.startswith("system.")
        and declared.kind == "input"
        and not declared.integer
        and 1.01 * value <= declared.bounds[1]  # no money buys more than all
    ]
    devices = [bought(name, "system.n_devices", f"strategy.{field}") for field, name in _USED_BY.items()]
    faster = [way for way in [*inputs, *devices] if way.time < -_LEAST]
    priced = sorted((way for way in faster if way.price), key=lambda way: -way.saved)
    unpriced = sorted((way for way in faster if not way.price), key=lambda way: -way.worth)
    return Purchases(priced[:_SHOWN], unpriced[:_SHOWN], capital)
