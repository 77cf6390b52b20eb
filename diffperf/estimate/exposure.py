"""Exposed time of communication: the part that the work beside it does not hide.

One rule holds for every purpose of communication and for every phase. Work hides communication as long as
neither its links nor its group of devices are occupied by other communication, and the rest is exposed. What
stays hidden takes compute units away from the work for as long (the `collective_units` of the software
stack), and bandwidth of device memory for what the collective reads and writes there; Rashidi et al. (ISCA
2021, arXiv 2007.00156) measured that both slow down the work. A stack that reserves units for the dispatch
to experts (`exchange_units`) pays for them in its kernels.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.machine import LevelTime
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import Transfer
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, choose, inverse, larger, smaller
from diffperf.workload.configuration import Configuration
from diffperf.workload.stages import over_kinds

_NO_TIME = 1e-15  # s, below the time of a byte on any link

# Of an average layer, of a layer of each kind, or of a step.
Seconds = Float[Array, "*kinds"]
Bytes = Float[Array, "*kinds"]


class Window(eqx.Module):
    """Work under which communication may run.

    - `time`: seconds.
    - `memory`: those of them that grow as device memory becomes slower. By the roofline's 4-norm of a
      kernel's parts, a part adds to the time by its fourth power.
    """

    time: Seconds
    memory: Seconds

    @classmethod
    def of(cls, work: Work, system: System, relax: Relaxation) -> "Window":
        """The window of some work.

        What does not follow the clock of the compute units follows device memory, but for the starts of
        kernels: it is no more than memory takes for its bytes.
        """
        served = work.traffic[system.accelerator.device_level - 1]
        bytes_time = served * memory_byte_time(system, relax)
        return cls(time=work.time, memory=smaller(work.time - work.clocked, bytes_time))

    def __mul__(self, count: Array | float) -> "Window":
        return Window(time=self.time * count, memory=self.memory * count)

    def in_layers(self, layers: Float[Array, " kinds"]) -> "Window":
        """The window of some layers of each kind in total, from that of one layer of each kind."""
        return Window(time=over_kinds(layers, self.time), memory=over_kinds(layers, self.memory))


def memory_byte_time(system: System, relax: Relaxation) -> Scalar:
    """Seconds in which device memory serves a byte."""
    return LevelTime.of(system.accelerator.device_memory, relax).byte


class LayerCompute(eqx.Module):
    """Computation in an average layer, or in a layer of each kind, under which its communication may run."""

    matmul: Window
    attention: Window
    whole: Window  # all operators of the layer, recomputed ones included


class Traffic(eqx.Module):
    """Communication of one purpose.

    - `time`: its seconds, hidden or not.
    - `busy`: the seconds for which its bytes fill the links of each network tier.
    - `memory`: the bytes that it reads from and writes to the device memory.
    """

    time: Seconds
    busy: Float[Array, "tiers *kinds"]
    memory: Bytes

    @classmethod
    def of(cls, transfer: Transfer, count: Float[Array, "*kinds"] | float = 1.0) -> "Traffic":
        """The traffic of a number of runs of a transfer, in all or in a layer of each kind."""
        return cls(
            time=transfer.time * count,
            busy=jnp.multiply.outer(transfer.busy, jnp.asarray(count)),
            memory=transfer.memory * count,
        )

    def __mul__(self, count: Array | float) -> "Traffic":
        return Traffic(time=self.time * count, busy=self.busy * count, memory=self.memory * count)

    def in_layers(self, layers: Float[Array, " kinds"]) -> "Traffic":
        """The traffic of some layers of each kind in total, from the traffic of one layer of each kind."""
        return jax.tree.map(lambda number: over_kinds(layers, number), self)


class Earlier(NamedTuple):
    """Traffic that comes first on the links that it shares with other traffic.

    - `others`: that of other groups of devices; `in_group`: that of the same group, whose collectives run
      one after the other.
    """

    others: Sequence[Traffic] = ()
    in_group: Sequence[Traffic] = ()


def exposed(
    traffic: Traffic,
    window: Window,
    overlap: Weights,
    c: Configuration,
    earlier: Earlier = Earlier(),
    reserved_units: Scalar | float = 0.0,
) -> Array:
    """Seconds that communication adds to the work of a window beside it.

    Where the strategy overlaps both, two bounds limit what the work hides, each on its own as in a roofline.
    Both allow for `earlier` traffic:

    - no more seconds than the window has, less those of the traffic in the group, because a library runs the
      collectives of a group one after the other (those of a communicator in NCCL, of a process group in
      PyTorch);
    - on each tier no more bytes than its links carry in the window beside those of all other traffic.

    The hidden part slows the work down by the share of each resource that it takes, as far as the work
    follows that resource: by the share of the bandwidth of device memory where the work follows that, and
    elsewhere by the share of the compute units, without those that stay reserved for it. Work that device
    memory binds all the time takes longer by what memory takes for the bytes of the hidden part.
    """

    def overlapped() -> Array:
        """Seconds that overlapped communication adds: the exposed part, and the slowdown by the rest."""
        relax, free = c.relax, window.time
        if earlier.in_group:
            free = relax.excess(window.time, sum(first.time for first in earlier.in_group))
        remaining = _not_covered(traffic.time, free, relax)
        on_links = [first.busy for first in (*earlier.others, *earlier.in_group)]
        if on_links:
            free_links = relax.excess(window.time, sum(on_links))
            kept_out = relax.reduce_maximum(_not_covered(traffic.busy, free_links, relax))
            remaining = relax.maximum(remaining, kept_out)
        units = larger(c.system.stack.collective_units - reserved_units, 0.0)
        of_units = smaller(units * inverse(c.system.accelerator.compute_units), 1.0)
        follows_memory = window.memory * inverse(window.time + _NO_TIME)
        # Memory serves the bytes in no more than the time of the communication. Where both are zero, slopes
        # are those of communication that takes hardly any time, all of which is hidden.
        served = traffic.memory * memory_byte_time(c.system, relax)
        hidden = 1 - remaining * inverse(traffic.time + _NO_TIME)
        of_memory = jnp.where(served > traffic.time, traffic.time, served) * hidden
        of_units = of_units * (traffic.time - remaining)
        return remaining + of_units + follows_memory * (of_memory - of_units)

    return choose(overlap, {"off": lambda: traffic.time, "on": overlapped})


def _not_covered(demand: Array, supply: Array, relax: Relaxation) -> Array:
    """The part of a demand that the supply does not cover.

    A smooth excess rises from a demand of 0 with a slope, and the largest of several excesses would have a
    corner there, where a group of one begins to communicate. Times the share of the demand in the larger of
    both, which is 1 where the exact excess is not 0, it rises without one.
    """
    share = (demand + _NO_TIME) * inverse(relax.maximum(demand, supply) + _NO_TIME)
    return relax.excess(demand, supply) * share


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
    context_overlap = Weights(jnp.stack([1 - ring, ring]), ("off", "on"))
    of_tensor, of_context = traffic["tensor parallelism"], traffic["context parallelism"]
    tensor = exposed(of_tensor, compute.matmul, strategy.overlap_tensor, c)
    context = exposed(of_context, compute.attention, context_overlap, c)
    experts = exposed(
        traffic["expert parallelism"],
        Window(time=compute.whole.time + tensor + context, memory=compute.whole.memory),
        strategy.overlap_experts,
        c,
        earlier=Earlier(others=(of_tensor, of_context)),
        reserved_units=c.system.stack.exchange_units,
    )
    return {"tensor parallelism": tensor, "context parallelism": context, "expert parallelism": experts}
