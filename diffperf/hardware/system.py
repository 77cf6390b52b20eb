"""Accelerators, the network tiers that connect them, the software stack that drives them, and what they cost to run."""

from typing import Any

import equinox as eqx

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.network import NetworkTier
from diffperf.quantity import Label, Scalar, label, quantity
from diffperf.software.stack import Stack


class Prices(eqx.Module):
    """What owning and running the system costs beyond its packages and network."""

    name: Label = label("identifier")
    accelerator_markup: Scalar = quantity(
        "", "price paid for an accelerator over its manufacturing cost", bounds=(1, 50), kind="price"
    )
    host: Scalar = quantity("USD", "host, chassis and memory, per device", bounds=(0.1, 1e6), kind="price")
    electricity: Scalar = quantity("USD/J", "electricity", bounds=(1e-10, 1e-5), kind="price")
    pue: Scalar = quantity("", "facility power over device power", bounds=(1, 5), kind="price")
    host_power: Scalar = quantity("W", "host, network and fans, per device", bounds=(0.1, 1e5), kind="price")
    lifetime: Scalar = quantity("s", "straight-line depreciation time", bounds=(1e6, 1e9), kind="price")
    utilization: Scalar = quantity(
        "", "fraction of the lifetime in which the system earns", bounds=(0.05, 1), kind="price"
    )


class System(eqx.Module):
    """Devices and everything around them. `network` runs from the innermost tier out."""

    name: Label = label("identifier, such as dgx-a100")
    accelerator: Accelerator
    network: tuple[NetworkTier, ...]
    stack: Stack  # the software of training runs
    inference_stack: Stack  # the software of prefill, decode and generation
    prices: Prices
    n_devices: Scalar = quantity("", "devices in the system", bounds=(1, 1e7), integer=True)
    host_bandwidth: Scalar = quantity(
        "byte/s",
        "between a device and its host's memory, one direction",
        bounds=(1e8, 1e13),
        default=25e9,  # an estimate: 80 % of the 32 GB/s of PCIe 4.0 x16
    )
    calibration: Label = label("calibration whose values replace the system's own", default="none")

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The table of a system's file; where it names one stack only, that stack drives inference as well as training."""
        return {"inference_stack": table["stack"], **table} if "stack" in table else table
