"""The library whose kernels run collectives over the links of a system."""

from diffperf.quantity import Declared, Label, Scalar, Weights, choice, label, quantity

_ALTERNATIVES = ("none", "trees", "halving_doubling", "direct")


class CollectiveLibrary(Declared):
    """Protocols and algorithms by which a library's kernels use links. The defaults are ideal kernels of ring
    algorithms.

    Small messages go by a low-latency protocol, which carries a flag with every few bytes and so reaches a
    fraction of the bandwidth (NCCL's LL and LL128); large messages go by a bulk protocol, which fills buffers
    and then signals (Simple): arXiv 2507.04786 §III. All-to-all and send, whose messages go between pairs of
    ranks, use fewer channels for small messages than rings do.
    """

    name: Label = label("identifier of the collective library, such as nccl")
    startup: Scalar = quantity(
        "",
        "startup time of a collective over the startup time of the network tier",
        bounds=(0.01, 10),
        default=1.0,
    )
    low_latency_bandwidth: Scalar = quantity(
        "",
        "fraction of the bandwidth of links that the low-latency protocol reaches",
        bounds=(1e-3, 1),
        default=1.0,
    )
    bulk_latency: Scalar = quantity(
        "",
        "hop latency of the bulk protocol over the hop latency of the low-latency protocol",
        bounds=(1, 100),
        default=1.0,
    )
    own_share: Scalar = quantity(
        "",
        "time of a device on the local part of a collective's buffer, over the time to send as many bytes",
        bounds=(0, 4),
        default=0.0,
    )
    message_bandwidth: Scalar = quantity(
        "",
        "fraction of the bandwidth of links that the low-latency protocol reaches between pairs of ranks",
        bounds=(1e-3, 1),
        default=1.0,
    )
    message_startup: Scalar = quantity(
        "s",
        "time that the bulk protocol adds to a message between a pair of ranks",
        bounds=(1e-9, 1e-3),
        default=1e-9,
    )
    floor: Scalar = quantity(
        "s",
        "least time of a collective, in which ranks wait for each other",
        bounds=(1e-9, 1e-2),
        default=1e-9,
    )
    alternative: Weights = choice(
        *_ALTERNATIVES,
        doc="algorithm of reductions in fewer steps than rings: double binary trees, recursive halving and "
        "doubling, or direct writes of every rank to every other",
        default="none",
    )
    inner_alternative: Weights = choice(
        *_ALTERNATIVES,
        doc="algorithm of reductions in fewer steps than rings on the innermost network tier: double binary "
        "trees, recursive halving and doubling, or direct writes of every rank to every other",
        default="none",
    )
