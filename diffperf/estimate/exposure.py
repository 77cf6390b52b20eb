"""How much of communication is exposed: what no computation hides."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Weights
from diffperf.relax import Relaxation, choose
from diffperf.workload.strategy import Strategy

Seconds = Float[Array, "*kinds"]  # of an average layer, or of a layer of each kind


class LayerCompute(eqx.Module):
    """Seconds of computation in an average layer, or in a layer of each kind, under which its communication
    may run.
    """

    matmul: Seconds
    attention: Seconds
    whole: Seconds  # all operators of the layer, recomputed ones included


def exposed(time: Array, hidden_under: Array, overlap: Weights, relax: Relaxation) -> Array:
    """Seconds left of communication that runs under `hidden_under` seconds of computation, where it
    overlaps.
    """
    return choose(overlap, {"off": lambda: time, "on": lambda: relax.excess(time, hidden_under)})


def exposed_of_layer(
    times: Mapping[str, Array],
    compute: LayerCompute,
    strategy: Strategy,
    relax: Relaxation,
    *,
    generating: bool = False,
) -> dict[str, Array]:
    """Exposed seconds of an average layer's collectives by purpose, from the seconds that they take.

    Where the strategy overlaps them, tensor-parallel communication hides under matrix products, the ring
    of keys and values under attention, the dispatch to experts under another micro-batch's layer.
    """
    # Only a ring runs beside attention: heads are exchanged before and after, and generated outputs are
    # reduced after.
    ring = strategy.overlap_context.on * strategy.context_parallel.ring * (0.0 if generating else 1.0)
    context = Weights(jnp.stack([1 - ring, ring]), ("off", "on"))
    tensor = exposed(times["tensor parallelism"], compute.matmul, strategy.overlap_tensor, relax)
    experts = exposed(times["expert parallelism"], compute.whole, strategy.overlap_experts, relax)
    return {
        "tensor parallelism": tensor,
        "context parallelism": exposed(times["context parallelism"], compute.attention, context, relax),
        "expert parallelism": experts,
    }
