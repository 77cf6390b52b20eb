"""The library whose kernels run collectives over the links of a system."""

import equinox as eqx

from diffperf.quantity import Label, Scalar, Weights, choice, label, quantity

_ALTERNATIVES = ("none", "trees", "halving_doubling", "direct")


class CollectiveLibrary(eqx.Module):
    """How a library's kernels use links: protocols, algorithms. The defaults are ideal kernels, of ring algorithms alone.

    Small messages go by a protocol of low latency that carries a flag with every few bytes and so reaches a fraction of the
    bandwidth (NCCL's LL and LL128), large ones by one that fills buffers and then signals (Simple):
    arXiv 2507.04786 §III. All-to-all and send, messages between pairs, use fewer channels for small messages than rings do.
    """

    name: Label = label("identifier, such as nccl")
    startup: Scalar = quantity(
        "", "time to the first message, over the tier's startup", bounds=(0.01, 10), default=1.0
    )
    low_latency_bandwidth: Scalar = quantity(
        "", "fraction of the bandwidth that the low-latency protocol reaches", bounds=(1e-3, 1), default=1.0
    )
    bulk_latency: Scalar = quantity(
        "", "hop latency of the bulk protocol over the low-latency one's", bounds=(1, 100), default=1.0
    )
    own_share: Scalar = quantity(
        "",
        "time a device spends on its own share of the buffer, over the time to send that much",
        bounds=(0, 4),
        default=0.0,
    )
    message_bandwidth: Scalar = quantity(
        "",
        "fraction of the bandwidth that the low-latency protocol reaches between pairs",
        bounds=(1e-3, 1),
        default=1.0,
    )
    message_startup: Scalar = quantity(
        "s", "what the bulk protocol adds between pairs", bounds=(1e-9, 1e-3), default=1e-9
    )
    floor: Scalar = quantity(
        "s",
        "time below which no collective returns: ranks wait for each other",
        bounds=(1e-9, 1e-2),
        default=1e-9,
    )
    alternative: Weights = choice(
        *_ALTERNATIVES,
        doc="reductions of fewer steps that it has beside rings: double binary trees, recursive halving and doubling, "
        "or every rank writing to every other",
        default="none",
    )
    inner_alternative: Weights = choice(*_ALTERNATIVES, doc="the same, on the innermost tier", default="none")
