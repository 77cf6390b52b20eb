"""The interconnect: tiers with topologies, and the library whose kernels drive collectives over them."""

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
    bandwidth: Scalar = quantity("byte/s", "all links of a device together, one direction", bounds=(1e7, 1e15))
    latency: Scalar = quantity("s", "one hop of a collective's smallest messages", bounds=(1e-8, 1e-2), calibratable=True)
    efficiency: Scalar = quantity("", "reachable fraction of the bandwidth in collectives", bounds=(0.05, 1.0), calibratable=True)
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
    oversubscription: Scalar = quantity("", "bandwidth of the devices over that of the tier's core", bounds=(1, 100), default=1.0)
    uplink: Scalar = quantity(
        "byte/s", "all that a domain of the tier inside can send, its devices together", bounds=(1e7, 1e18), default=1e18
    )
    in_network_reduction: Scalar = quantity(
        "", "fraction of the efficiency that switches reach which reduce and multicast; 0: they cannot", bounds=(0, 1), default=0.0
    )


_ALTERNATIVES = ("none", "trees", "halving_doubling", "direct")


class CollectiveLibrary(eqx.Module):
    """How a library's kernels use links: protocols, algorithms. The defaults are ideal kernels, of ring algorithms alone.

    Small messages go by a protocol of low latency that carries a flag with every few bytes and so reaches a fraction of the
    bandwidth (NCCL's LL and LL128), large ones by one that fills buffers and then signals (Simple):
    arXiv 2507.04786 §III. All-to-all and send, messages between pairs, use fewer channels for small messages than rings do.
    """

    name: Label = label("identifier, such as nccl")
    startup: Scalar = quantity("", "time to the first message, over the tier's startup", bounds=(0.01, 10), default=1.0)
    low_latency_bandwidth: Scalar = quantity(
        "", "fraction of the bandwidth that the low-latency protocol reaches", bounds=(1e-3, 1), default=1.0
    )
    bulk_latency: Scalar = quantity("", "hop latency of the bulk protocol over the low-latency one's", bounds=(1, 100), default=1.0)
    own_share: Scalar = quantity(
        "", "time a device spends on its own share of the buffer, over the time to send that much", bounds=(0, 4), default=0.0
    )
    message_bandwidth: Scalar = quantity(
        "", "fraction of the bandwidth that the low-latency protocol reaches between pairs", bounds=(1e-3, 1), default=1.0
    )
    message_startup: Scalar = quantity("s", "what the bulk protocol adds between pairs", bounds=(1e-9, 1e-3), default=1e-9)
    floor: Scalar = quantity(
        "s", "time below which no collective returns: ranks wait for each other", bounds=(1e-9, 1e-2), default=1e-9
    )
    alternative: Weights = choice(
        *_ALTERNATIVES,
        doc="reductions of fewer steps that it has beside rings: double binary trees, recursive halving and doubling, "
        "or every rank writing to every other",
        default="none",
    )
    inner_alternative: Weights = choice(*_ALTERNATIVES, doc="the same, on the innermost tier", default="none")
