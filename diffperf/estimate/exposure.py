"""What communication adds to the work that it runs beside.

One rule holds for every purpose of communication and for every phase. Work hides communication for as long as
the links that the communication needs are free of other communication. What stays hidden takes compute
units away from the work for as long (the `collective_units` of the software stack), and the rest is exposed.
A stack that reserves units for the dispatch to experts (`exchange_units`) pays for them in its kernels.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.network.transfers import Transfer
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import choose, inverse, larger, smaller
from diffperf.workload.configuration import Configuration

# Below the time of a byte on any link. Shares of nothing are 0 over this, and the product of two such shares
# is finite in float32 however a compiler orders its factors, which 1e30 · 1e30 is not.
_NO_TIME = 1e-15

Seconds = Float[Array, "*kinds"]  # of an average layer, of a layer of each kind, or of a step


class LayerCompute(eqx.Module):
    """Seconds of computation in an average layer, or in a layer of each kind, under which its communication
    may run.
    """

    matmul: Seconds
    attention: Seconds
    whole: Seconds  # all operators of the layer, recomputed ones included


class Traffic(eqx.Module):
    """Communication of one purpose: its seconds, hidden or not, and their shares on each network tier."""

    time: Seconds
    tiers: Float[Array, " tiers"]

    @classmethod
    def of(cls, transfer: Transfer, system: System, count: Array | float = 1.0) -> "Traffic":
        """So many runs of a transfer, whose time is on the tiers in proportion to the time of its bytes."""
        rates = jnp.stack([tier.bandwidth * tier.efficiency for tier in system.network])
        byte_times = transfer.sent * inverse(rates)
        whole = larger(jnp.sum(byte_times), _NO_TIME)
        return cls(time=transfer.time * count, tiers=byte_times * inverse(whole))

    def __mul__(self, count: Array | float) -> "Traffic":
        return Traffic(time=self.time * count, tiers=self.tiers)

    def blocks(self, other: "Traffic") -> Seconds:
        """Seconds for which this traffic is on the links that another needs, were both on their tiers at
        random.
        """
        return self.time * jnp.sum(self.tiers * other.tiers)


def exposed(
    traffic: Traffic,
    window: Array,
    overlap: Weights,
    c: Configuration,
    others: Sequence[Traffic] = (),
    reserved_units: Scalar | float = 0.0,
) -> Array:
    """Seconds that communication adds to `window` seconds of work beside it.

    Where the strategy overlaps both, the work hides the traffic while the links are free of the `others`,
    which come first. The hidden part slows the work down by the share of the compute units that it occupies,
    without those that stay reserved for it.
    """

    def overlapped() -> Array:
        free = window
        if others:
            free = c.relax.excess(window, sum(other.blocks(traffic) for other in others))
        remaining = c.relax.excess(traffic.time, free)
        units = larger(c.system.stack.collective_units - reserved_units, 0.0)
        slowdown = smaller(units * inverse(c.system.accelerator.compute_units), 1.0)
        return remaining + slowdown * (traffic.time - remaining)

    return choose(overlap, {"off": lambda: traffic.time, "on": overlapped})


def exposed_of_layer(
    traffic: Mapping[str, Traffic], compute: LayerCompute, c: Configuration, *, generating: bool = False
) -> dict[str, Array]:
    """Seconds that an average layer's collectives, or those of a layer of each kind, add by purpose.

    Where the strategy overlaps them, tensor-parallel communication hides under matrix products, the ring
    of keys and values under attention, the dispatch to experts under another micro-batch's layer, whose own
    communication comes first.
    """
    strategy = c.strategy
    # Only a ring runs beside attention: heads are exchanged before and after, and generated outputs are
    # reduced after.
    ring = strategy.overlap_context.on * strategy.context_parallel.ring * (0.0 if generating else 1.0)
    around = Weights(jnp.stack([1 - ring, ring]), ("off", "on"))
    of_tensor, of_context = traffic["tensor parallelism"], traffic["context parallelism"]
    tensor = exposed(of_tensor, compute.matmul, strategy.overlap_tensor, c)
    context = exposed(of_context, compute.attention, around, c)
    experts = exposed(
        traffic["expert parallelism"],
        compute.whole + tensor + context,
        strategy.overlap_experts,
        c,
        others=(of_tensor, of_context),
        reserved_units=c.system.stack.exchange_units,
    )
    return {"tensor parallelism": tensor, "context parallelism": context, "expert parallelism": experts}
