"""Price of renting a system in a cloud, beside the cost of owning it."""

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.cost.ownership import rental
from diffperf.errors import ConfigError
from diffperf.estimate.serving.serving_report import ServingReport
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.units import HOUR


def rented(system: System, file: str = COMMAND_LINE) -> float:
    """USD/s for renting the system.

    **Raises:** `ConfigError` that names `file`, where no rent of its accelerator is published.
    """
    price = float(rental(system))
    if not price > 0:
        found, expected = f"no rent of {system.accelerator.name}", "an accelerator with a rent"
        raise ConfigError(file, "--rent", found, expected, 'add --set accelerator.rent="2 USD/hour"')
    return price


def rent_of_run(system: System, time: Scalar | float, owned: Scalar | float) -> dict[str, float]:
    """The rent of a run of `time` seconds, in USD, beside its cost on the owner's system, `owned` USD."""
    return {"rent": rented(system) * float(time), "ownership": float(owned)}


def describe_rent(system: System, what: str, costs: dict[str, float]) -> str:
    """A line about `what` is rented, with the cost of owning it beside."""
    each = rented(system) / float(system.n_devices) * HOUR
    rent, owned = (units.show(costs[name], "USD") for name in ("rent", "ownership"))
    ratio = costs["rent"] / costs["ownership"]
    return (
        f"{what} rented at ${each:.2f} per device-hour: {rent}; owned: {owned} (rent is {ratio:.3g} × that)"
    )


def rent_of_tokens(system: System, report: ServingReport) -> dict[str, float]:
    """USD for a million output tokens of a serving layout, on rented devices and on owned ones."""
    device_second = rented(system) / float(system.n_devices)
    rent = 1e6 * device_second / float(report.tokens_per_second_per_device)
    return {"rent": rent, "ownership": float(report.cost_per_million_tokens)}
