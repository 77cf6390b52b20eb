"""A system: accelerators, their network, the software that drives them, and what running them costs."""

from typing import Any

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.host import Host
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.reliability import Reliability
from diffperf.quantity import Declared, Label, Scalar, label, quantity
from diffperf.relax import inverse
from diffperf.software.stack import Stack
from diffperf.units import YEAR


class Prices(Declared):
    """Prices of owning and running a system, beside those of its accelerators' packages and its network."""

    name: Label = label("identifier of the price list, such as datacenter")
    accelerator_markup: Scalar = quantity(
        "", "price paid for an accelerator over its manufacturing cost", bounds=(1, 50), kind="price"
    )
    host: Scalar = quantity(
        "USD", "price of the host, its chassis and its memory, per device", bounds=(0.1, 1e6), kind="price"
    )
    electricity: Scalar = quantity("USD/J", "price of electricity", bounds=(1e-10, 1e-5), kind="price")
    pue: Scalar = quantity(
        "", "power of the facility over that of its nodes and network", bounds=(1, 5), kind="price"
    )
    lifetime: Scalar = quantity(
        "s",
        "time over which the system's price is depreciated, in a straight line",
        bounds=(1e7, 1e9),
        kind="price",
    )
    utilization: Scalar = quantity(
        "", "fraction of the system's lifetime in which it does paid work", bounds=(0.05, 1), kind="price"
    )
    carbon_intensity: Scalar = quantity(
        "kg/J",
        "CO2e of electricity",
        bounds=(1e-12, 1e-6),
        kind="price",
        default=0.37 / 3.6e6,  # 0.37 kg/kWh: mean of the United States in 2022 (EPA, eGRID)
    )
    embodied_carbon: Scalar = quantity(
        "kg",
        "CO2e of making the board and cooler of a device and its share of the host, beside the package",
        bounds=(0.1, 1e5),
        kind="price",
        # An estimate: what is neither memory nor circuits, a third, of the 1,312 kg of a board of eight H100
        # (NVIDIA, HGX H100 PCF Summary), and a host that takes as much as the whole board.
        default=218.0,
    )
    rack: Scalar = quantity(
        "USD/W",
        "price of racks, power strips and manifolds, per power that they can feed",
        bounds=(0, 10),
        default=0.0,
        kind="price",
    )
    interest: Scalar = quantity(
        "1/s",
        "rate of interest on what a system and its facility cost",
        bounds=(0, 0.5 / YEAR),
        default=0.0,
        kind="price",
    )
    repair: Scalar = quantity(
        "1/s",
        "price of the repairs of a system per time, over the purchase price",
        bounds=(0, 0.5 / YEAR),
        default=0.0,
        kind="price",
    )
    facility: Scalar = quantity(
        "USD/W",
        "price of building a facility with its power and cooling, per power of what stands in it",
        bounds=(0, 200),
        default=0.0,
        kind="price",
    )
    facility_lifetime: Scalar = quantity(
        "s",
        "time over which the facility's price is depreciated, in a straight line",
        bounds=(1e7, 1e10),
        default=20 * YEAR,  # an estimate
        kind="price",
    )
    staff: Scalar = quantity(
        "USD/W/s",
        "price of staff and upkeep of a facility per time, and per power of what stands in it",
        bounds=(0, 10 / YEAR),
        default=0.0,
        kind="price",
    )


class System(Declared):
    """Devices and everything around them. `network` runs from the innermost tier to the outermost."""

    name: Label = label("identifier of the system, such as dgx-a100")
    accelerator: Accelerator
    network: tuple[NetworkTier, ...]
    stack: Stack  # the software of training runs
    inference_stack: Stack  # the software of prefill, decode and generation
    prices: Prices
    host: Host
    reliability: Reliability
    n_devices: Scalar = quantity("", "number of devices in the system", bounds=(1, 1e7), integer=True)
    host_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth between a device and its host's memory, in one direction",
        bounds=(1e8, 1e13),
        default=25e9,  # an estimate: 80 % of the 32 GB/s of PCIe 4.0 x16
    )
    host_memory_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of the host's memory, per device",
        bounds=(1e8, 1e13),
        # Two sockets of eight channels of DDR4-3200 (AMD's product page of EPYC 7742) over eight devices.
        default=51.2e9,
    )
    calibration: Label = label("calibration whose values replace the system's own", default="none")

    def stack_of(self, phase: str) -> Stack:
        """The software that drives a phase."""
        return self.stack if phase == "training" else self.inference_stack

    @property
    def host_byte_time(self) -> Scalar:
        """Seconds to carry a byte between a device and its host's memory."""
        return inverse(self.host_bandwidth)

    @property
    def host_update_time(self) -> Scalar:
        """Seconds in which the host's memory serves a byte of a device, with its part of the bandwidth."""
        return inverse(self.host_memory_bandwidth)

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The fields that a system's file gives: one stack alone serves both phases, and its reliability is
        that of systems which were studied unless it says more, its host that of DGX H100.

        The key `measured` is no field: it says what tables of measurements call the system, for
        `diffperf.explore.measured.names`.
        """
        fields = {"reliability": {}, "host": "dgx-h100-node"} | {
            key: value for key, value in table.items() if key != "measured"
        }
        return {"inference_stack": fields["stack"], **fields} if "stack" in fields else fields
