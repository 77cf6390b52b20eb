"""How much of communication is exposed: what no computation hides."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, choose
from diffperf.workload.strategy import Strategy


class LayerCompute(eqx.Module):
    """Seconds of computation in an average layer, under which its communication may run."""

    matmul: Scalar
    attention: Scalar
    whole: Scalar  # all operators of the layer, recomputed ones included


def exposed(time: Scalar, hidden_under: Scalar, overlap: Weights, relax: Relaxation) -> Scalar:
    """Seconds left of communication that runs under `hidden_under` seconds of computation, where it
    overlaps.
    """
    return choose(overlap, {"off": lambda: time, "on": lambda: relax.excess(time, hidden_under)})


def exposed_of_layer(
    times: Mapping[str, Scalar],
    compute: LayerCompute,
    strategy: Strategy,
    relax: Relaxation,
    *,
    generating: bool = False,
) -> dict[str, Scalar]:
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
