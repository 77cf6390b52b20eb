"""The interconnect: network tiers and their topologies."""

import equinox as eqx

from diffperf.quantity import Label, Scalar, Weights, choice, label, quantity

TOPOLOGIES = (
    "fully_connected",
    "ring",
    "mesh_2d",
    "mesh_3d",
    "torus_2d",
    "torus_3d",
    "hypercube",
    "switch",
    "fat_tree",
    "dragonfly",
    "rail",
)


class NetworkTier(eqx.Module):
    """One level of the interconnect. A domain of a tier holds `size` devices, those of all inner tiers included."""

    name: Label = label("what paths call the tier: nvlink, infiniband …")
    size: Scalar = quantity("", "devices in one domain of this tier", bounds=(1, 1e7), integer=True)
    bandwidth: Scalar = quantity(
        "byte/s", "all links of a device together, one direction", bounds=(1e7, 1e15)
    )
    latency: Scalar = quantity(
        "s", "one hop of a collective's smallest messages", bounds=(1e-8, 1e-2), calibratable=True
    )
    efficiency: Scalar = quantity(
        "", "reachable fraction of the bandwidth in collectives", bounds=(0.05, 1.0), calibratable=True
    )
    energy: Scalar = quantity("J/byte", "energy to move one byte over the tier", bounds=(1e-13, 1e-8))
    price: Scalar = quantity("USD", "adapter, switch and cables, per device", bounds=(0.1, 1e6), kind="price")
    topology: Weights = choice(*TOPOLOGIES, doc="how the members of a domain are linked", default="switch")
    startup: Scalar = quantity(
        "s",
        "from the start of a collective on the device to its first message on this tier",
        bounds=(1e-9, 1e-2),
        default=1e-9,
        calibratable=True,
    )
    ramp: Scalar = quantity(
        "s",
        "fill of the pipeline that large messages are cut for: efficiency saturates with their size",
        bounds=(1e-9, 1e-2),
        default=1e-9,
        calibratable=True,
    )
    oversubscription: Scalar = quantity(
        "", "bandwidth of the devices over that of the tier's core", bounds=(1, 100), default=1.0
    )
    uplink: Scalar = quantity(
        "byte/s",
        "all that a domain of the tier inside can send, its devices together",
        bounds=(1e7, 1e18),
        default=1e18,
    )
    in_network_reduction: Scalar = quantity(
        "",
        "fraction of the efficiency that switches reach which reduce and multicast; 0: they cannot",
        bounds=(0, 1),
        default=0.0,
    )
