"""How long the attention core takes, by kernel: scores through memory, or fused."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.elementwise import stream_work
from diffperf.estimate.gemm import gemm_work
from diffperf.estimate.machine import Machine, Work, memory_times
from diffperf.quantity import Scalar
from diffperf.relax import choose
from diffperf.workload.operators import AttentionCore, concatenate


def flash_work(core: AttentionCore, machine: Machine, flops: Scalar, passes: float) -> Work:
    """A fused attention kernel: no scores in memory, K and V streamed once per block of queries.

    A level of capacity M holds a block of M / (4·d·element) queries with its K, V and output blocks, so the level outside serves
    Q and O once and K and V once per block: Θ(N²d²/M) in all (FlashAttention, arXiv 2205.14135, Theorem 2). Query heads that
    share a KV head share its stream. `passes` scales the traffic: 1 forward, 2 backward (Q, K, V, O, dO read; dQ, dK, dV
    written).
    """
    relax, accelerator = machine.relax, machine.accelerator
    shared_queries = core.queries * core.heads / core.kv_heads

    def traffic(capacity):
        block = capacity / (4 * core.head_dim * machine.width)
        reads = relax.maximum(shared_queries / block, 1.0)
        return passes * (2 * core.query_elements * machine.width + core.kv_elements * machine.kv_width * reads)

    levels = [traffic(capacity) for capacity in accelerator.reuse_capacities]
    compute = flops / (machine.rate * accelerator.attention_efficiency)
    time = relax.maximum(compute, *memory_times(machine, levels)) + machine.kernel_overhead
    return Work(time, flops, jnp.stack(levels))


def attention_forward(core: AttentionCore, dropout: Scalar, machine: Machine, kernel: Float[Array, "2"]) -> Work:
    """The attention core, by weights over (standard, flash)."""

    def standard():
        return (
            gemm_work(core.gemms, machine).total() + stream_work(softmax_elements(core, dropout, backward=False), machine).total()
        )

    def flash():
        return flash_work(core, machine, 4 * core.visible_scores * core.head_dim, passes=1.0)

    return choose(kernel, [standard, flash])


def attention_backward(core: AttentionCore, dropout: Scalar, machine: Machine, kernel: Float[Array, "2"]) -> Work:
    """The backward pass of the attention core: FlashAttention recomputes scores, 5 block products for the forward's 2."""

    def standard():
        gemms = concatenate(core.gemms.input_gradient, core.gemms.weight_gradient)
        return gemm_work(gemms, machine).total() + stream_work(softmax_elements(core, dropout, backward=True), machine).total()

    def flash():
        return flash_work(core, machine, 10 * core.visible_scores * core.head_dim, passes=2.0)

    return choose(kernel, [standard, flash])


def softmax_elements(core: AttentionCore, dropout: Scalar, *, backward: bool) -> Float[Array, "2"]:
    """Elements moved by the fused scale-mask-softmax kernel and by the dropout on its output (with a one-byte mask)."""
    softmax = 3.0 if backward else 2.0
    return jnp.stack([softmax * core.scores, 2.5 * dropout * core.scores])
