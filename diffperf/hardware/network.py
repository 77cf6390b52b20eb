"""The interconnect: network tiers and their topologies."""

from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity

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


class NetworkTier(Declared):
    """One level of the interconnect. A domain of a tier holds `size` devices, those of all inner tiers
    included.

    Prices, powers and areas are quoted at `rated_bandwidth`, which is the bandwidth in the tier's file unless
    the file says otherwise. At any other bandwidth they are in proportion to it.
    """

    name: Label = label("name of the network tier, such as nvlink or infiniband")
    size: Scalar = quantity(
        "",
        "devices in one domain of the network tier, all inner domains included",
        bounds=(1, 1e7),
        integer=True,
    )
    bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of all links of a device to the network tier, in one direction",
        bounds=(1e7, 1e15),
    )
    latency: Scalar = quantity(
        "s",
        "time of one hop of a collective's smallest messages over the network tier",
        bounds=(1e-8, 1e-2),
        calibratable=True,
    )
    efficiency: Scalar = quantity(
        "",
        "fraction of the bandwidth of the network tier that collectives reach",
        bounds=(0.05, 1.0),
        calibratable=True,
    )
    energy: Scalar = quantity("J/byte", "energy to move one byte over the network tier", bounds=(1e-13, 1e-8))
    price: Scalar = quantity(
        "USD",
        "price of what the network tier's other prices leave out, per device, at the rated bandwidth",
        bounds=(0, 1e6),
        default=0.0,
        kind="price",
    )
    topology: Weights = choice(
        *TOPOLOGIES,
        doc="topology of the links between the members of a domain of the network tier",
        default="switch",
    )
    # The defaults of the fields below are those of an ideal tier: 1 ns and 1 EB/s stand for no time and no
    # limit.
    startup: Scalar = quantity(
        "s",
        "time from the start of a collective on the device to the first message on the network tier",
        bounds=(1e-9, 1e-2),
        default=1e-9,
        calibratable=True,
    )
    ramp: Scalar = quantity(
        "s",
        "time to fill the pipeline of a large message's pieces: efficiency rises with message size",
        bounds=(1e-9, 1e-2),
        default=1e-9,
        calibratable=True,
    )
    oversubscription: Scalar = quantity(
        "",
        "bandwidth of the devices over the bandwidth of the core of the network tier",
        bounds=(1, 100),
        default=1.0,
    )
    uplink: Scalar = quantity(
        "byte/s",
        "bandwidth out of a domain of the next inner network tier, all its devices together",
        bounds=(1e7, 1e18),
        default=1e18,
    )
    in_network_reduction: Scalar = quantity(
        "",
        "share of the tier's efficiency that switches reach in reductions and multicasts; 0 for none",
        bounds=(0, 1),
        default=0.0,
    )
    rated_bandwidth: Scalar = quantity(
        "byte/s",
        "bandwidth of a device to the network tier at which the tier's prices, powers and areas are quoted",
        bounds=(3e8, 1e15),
        default=None,  # the bandwidth that the tier is made with
        kind="price",
    )
    adapter_price: Scalar = quantity(
        "USD",
        "price of the adapters of a device to the network tier, at the rated bandwidth",
        bounds=(0, 2e4),
        default=0.0,
        kind="price",
    )
    port_price: Scalar = quantity(
        "USD",
        "price of a switch of the network tier per port, at the rated bandwidth",
        bounds=(0, 2e4),
        default=0.0,
        kind="price",
    )
    link_price: Scalar = quantity(
        "USD",
        "price of the connectors or transceivers of a link of the network tier, at the rated bandwidth",
        bounds=(0, 2e4),
        default=0.0,
        kind="price",
    )
    cable_price: Scalar = quantity(
        "USD/mm",
        "price of the cable of a link of the network tier per length, at the rated bandwidth",
        bounds=(0, 0.05),
        default=0.0,
        kind="price",
    )
    reach: Scalar = quantity(
        "mm", "mean length of a link of the network tier", bounds=(0, 1e5), default=0.0, kind="price"
    )
    radix: Scalar = quantity(
        "",
        "ports of one switch of the network tier, which say how many levels of switches its devices need",
        bounds=(16, 1e5),
        default=64.0,  # NVIDIA Quantum-2: 64 ports of 400 Gbit/s (docs.nvidia.com, QM97XX user manual)
        integer=True,
        kind="price",
    )
    port_power: Scalar = quantity(
        "W",
        "power of a switch of the network tier per port, at the rated bandwidth, beside the energy of bytes",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )
    port_area: Scalar = quantity(
        "mm^2",
        "silicon of a switch of the network tier per port, at the rated bandwidth",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )
    link_power: Scalar = quantity(
        "W",
        "power of the transceivers of a link of the network tier, at the rated bandwidth, beside the energy "
        "of bytes",
        bounds=(0, 1e3),
        default=0.0,
        kind="price",
    )

    def __post_init__(self) -> None:
        if self.rated_bandwidth is None:
            self.rated_bandwidth = self.bandwidth
