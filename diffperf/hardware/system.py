"""Accelerators, the network tiers that connect them, the software stack that drives them, and what they cost to run."""

import equinox as eqx

from diffperf.hardware.accelerator import Accelerator
from diffperf.quantity import Label, Scalar, label, quantity


class NetworkTier(eqx.Module):
    """One level of the interconnect. A domain of a tier holds `size` devices, those of all inner tiers included."""

    name: Label = label("what paths call the tier: nvlink, infiniband …")
    size: Scalar = quantity("", "devices in one domain of this tier", bounds=(1, 1e7), integer=True)
    bandwidth: Scalar = quantity("byte/s", "per device and direction", bounds=(1e7, 1e15))
    latency: Scalar = quantity("s", "one hop of a collective", bounds=(1e-8, 1e-2))
    efficiency: Scalar = quantity("", "reachable fraction of the bandwidth in collectives", bounds=(0.05, 1.0))
    energy: Scalar = quantity("J/byte", "energy to move one byte over the tier", bounds=(1e-13, 1e-8))
    price: Scalar = quantity("USD", "adapter, switch and cables, per device", bounds=(0.1, 1e6), kind="price")


class Stack(eqx.Module):
    """What the software brings."""

    name: Label = label("identifier, such as megatron-lm")
    kernel_overhead: Scalar = quantity(
        "s", "time a kernel adds that no other kernel hides: launch, ramp, drain", bounds=(1e-8, 1e-3)
    )
    collective_overhead: Scalar = quantity("s", "time a collective adds whatever its size", bounds=(1e-8, 1e-2))
    memory_reserve: Scalar = quantity("byte", "device memory taken by runtime and libraries", bounds=(1e3, 1e11))


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
    utilization: Scalar = quantity("", "fraction of the lifetime in which the system earns", bounds=(0.05, 1), kind="price")


class System(eqx.Module):
    """Devices and everything around them. `network` runs from the innermost tier out."""

    name: Label = label("identifier, such as dgx-a100")
    accelerator: Accelerator
    network: tuple[NetworkTier, ...]
    stack: Stack
    prices: Prices
    n_devices: Scalar = quantity("", "devices in the system", bounds=(1, 1e7), integer=True)
