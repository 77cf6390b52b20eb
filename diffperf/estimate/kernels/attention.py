"""How long the attention core takes, by kernel: scores through memory, or fused.

Fused kernels come in two shapes. The context kernel (FlashAttention: arXiv 2205.14135, 2307.08691) works on tiles of queries and
is bound by products and softmax. The generation kernel (Flash-Decoding) works on the few query heads that share a KV head, splits
long contexts over the compute units, and is bound by the way of the KV cache from memory.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.elementwise import stream_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.roofline import (
    Machine,
    Work,
    longest,
    memory_times,
    overlapped,
    power_time,
    stream_time,
)
from diffperf.hardware import formats
from diffperf.quantity import Scalar, Weights
from diffperf.relax import choose, inverse, smaller
from diffperf.workload.operators import AttentionCore, concatenate

TILE = 128.0  # queries of a tile: FlashAttention-2 (arXiv 2307.08691 §3.3) and 3 (arXiv 2407.08608 §4.1)
SPLIT = 128.0  # least tokens of a context that a compute unit takes alone: kMinHistoryTokensPerBlock of TensorRT-LLM's XQA kernels
GENERATED = (
    16.0  # new tokens of a sequence up to which the generation kernel runs: speculative drafts included
)

# Share of the longest tile's time by which the last compute unit ends later than with all work spread evenly. An estimate: any
# order of the tiles has at most 1 (Graham, 1969), and causal kernels start the longest first.
TAIL = 0.7

_BACKWARD_PRODUCTS = 2.5  # five block products for the forward pass's two: arXiv 2205.14135, Algorithm 4


def flash_traffic(
    core: AttentionCore, machine: Machine, passes: Scalar | float, together: Scalar
) -> list[Scalar]:
    """Bytes that each level outside the innermost serves: no scores, K and V streamed once per block of queries.

    A level of capacity M holds a block of M / (4·d·element) queries with its K, V and output blocks, so the level outside serves
    Q and O once and K and V once per block: Θ(N²d²/M) in all (arXiv 2205.14135, Theorem 2), less what the masks hide from a block.
    Query heads that share a KV head share its stream: all of them in the caches, in a compute unit as many as it works on
    `together`. `passes` scales the traffic: 1 forward, 2 backward (Q, K, V, dO read; dQ, dK, dV written).
    """
    relax, group = machine.relax, core.group
    # Over a capacity: blocks that the queries of a head take, by the share of K and V that a block sees.
    blocks = (
        2
        * (core.head_dim + core.values_dim)
        * machine.attention_width
        * core.queries
        * core.visible
        * inverse(core.span)
    )

    def streams(capacity, sharing):
        return group * relax.maximum(blocks * inverse(capacity), inverse(sharing))

    inner, *caches = machine.accelerator.reuse_capacities
    once = machine.attention_width * core.query_elements + machine.output_width * core.output_elements
    kv_bytes = machine.kv_width * core.kv_elements
    return [
        passes * (once + kv_bytes * reads)
        for reads in (streams(inner, together), *(streams(c, group) for c in caches))
    ]


def score_time(core: AttentionCore, machine: Machine, products: Scalar | float = 1.0) -> Scalar:
    """Seconds of the whole device per score: its products on the matrix units, its softmax on the vector units.

    The softmax of one tile runs under the products of another, in part: the root of the sum of squares is taken, an estimate
    between the sum, as FlashAttention-3 (arXiv 2407.08608, Figure 5) on H100, and the longer of both.
    """
    matrix, softmax = products * core.score_flops * machine.attention_flop, machine.softmax
    unit = longest(matrix, softmax)  # keeps the squares inside float32
    per_unit = 1 / unit
    return unit * jnp.sqrt(jnp.square(matrix * per_unit) + jnp.square(softmax * per_unit))


def context_work(core: AttentionCore, machine: Machine, *, backward: Scalar | float = 0.0) -> Work:
    """The context kernel: a tile of queries of one head to a compute unit, whole tiles of scores up to the causal diagonal.

    Every tile takes its latency, in whole waves; the last ends with a part of the longest tile's time for which other units idle.
    The backward pass (`backward` 1) recomputes the scores, and streams O, dO and the fp32 sums of dQ in kernels around its own
    (FlashAttention-2).
    """
    relax, units, attention = machine.relax, machine.accelerator.compute_units, machine.attention
    attention_kernels = machine.accelerator.attention
    products, passes = 1 + (_BACKWARD_PRODUCTS - 1) * backward, 1 + backward
    slower = 1 + (inverse(attention_kernels.backward_efficiency) - 1) * backward
    per_score = score_time(core, machine, products * slower)

    rows = relax.ceil(core.queries / TILE)
    tiles = core.sequences * core.heads * rows
    diagonal = (
        core.causal * (smaller(core.queries, TILE) - 1) / 2
    )  # masked scores that a tile computes, per query
    scores = tiles * TILE * (core.visible + diagonal)
    last = attention.tile_latency + TILE * core.seen * per_score * units
    compute = relax.ceil(tiles / units) * attention.tile_latency + scores * per_score + TAIL * last

    flops = products * core.score_flops * core.visible_scores
    traffic = flash_traffic(core, machine, passes, 1.0)
    time = overlapped(compute, *memory_times(machine, traffic), power_time(machine, flops, traffic))
    time = time + attention_kernels.latency + machine.kernel_overhead
    fp32 = formats.PRECISION_BYTES["fp32"]
    around = (
        2 * machine.output_width * core.output_elements
        + (2 * fp32 + machine.attention_width) * core.query_elements
    )
    around = backward * around
    return Work(time + stream_time(machine, around), flops, jnp.stack([level + around for level in traffic]))


def context_passes(core: AttentionCore, machine: Machine) -> tuple[Work, Work]:
    """The context kernel's forward and backward pass, in one evaluation."""
    both = jax.vmap(lambda backward: context_work(core, machine, backward=backward))(
        jnp.asarray([0.0, 1.0], machine.attention_flop.dtype)
    )
    return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in (0, 1))


def generation_work(core: AttentionCore, machine: Machine) -> Work:
    """The generation kernel: a sequence's KV head with the query heads that share it to a compute unit.

    As many heads as the stack's kernels process together share one stream of K and V; with more, each has its own. Contexts are
    split as long as compute units would idle. The first tile's latency stands before the stream, that of others overlaps with it.
    """
    relax, units, attention = machine.relax, machine.accelerator.compute_units, machine.accelerator.attention
    together = 1 + relax.step(1 - core.group * inverse(machine.grouped_heads)) * (core.group - 1)
    per_head = inverse(together)
    rows = smaller(core.queries, GENERATED) * together  # with more, a kernel without weight stays finite
    tiles = core.sequences * core.heads * per_head * relax.ceil(rows / TILE)
    several = relax.step(1 - 1.5 * per_head)
    latency = attention.head_latency + several * (
        overlapped(machine.attention.group_latency, rows * attention.row_latency) - attention.head_latency
    )
    splits = relax.maximum(relax.minimum(units * inverse(tiles), core.span * (1 / SPLIT)), 1.0)
    further = relax.excess(relax.ceil(tiles * splits / units), 1.0)  # waves

    flops = core.score_flops * core.visible_scores
    traffic = flash_traffic(core, machine, 1.0, together)
    compute = further * latency + core.visible_scores * score_time(core, machine)
    time = latency + overlapped(compute, *memory_times(machine, traffic), power_time(machine, flops, traffic))
    time = time + relax.minimum(splits - 1, 1.0) * attention.split_latency
    return Work(time + attention.latency + machine.kernel_overhead, flops, jnp.stack(traffic))


def attention_forward(core: AttentionCore, dropout: Scalar, machine: Machine, kernel: Weights) -> Work:
    """The attention core, by weights over (standard, flash)."""

    def standard():
        return (
            gemm_work(core.gemms, machine).total()
            + stream_work(softmax_elements(core, dropout, backward=False), machine).total()
        )

    def flash():
        # A few new tokens that follow others are generated; all else is context, a prompt of one token too.
        few = machine.relax.step(1 - core.queries * (1 / GENERATED))
        follow = machine.relax.step(1 - 2 * core.queries * inverse(core.context))
        generated = few * follow
        kernels = Weights(jnp.stack([1 - generated, generated]), ("context", "generation"))
        return choose(
            kernels,
            {
                "context": lambda: context_work(core, machine),
                "generation": lambda: generation_work(core, machine),
            },
        )

    return choose(kernel, {"standard": standard, "flash": flash})


def attention_backward(core: AttentionCore, dropout: Scalar, machine: Machine, kernel: Weights) -> Work:
    """The backward pass of the attention core."""

    def standard():
        gemms = concatenate(core.gemms.input_gradient, core.gemms.weight_gradient)
        return (
            gemm_work(gemms, machine).total()
            + stream_work(softmax_elements(core, dropout, backward=True), machine).total()
        )

    return choose(kernel, {"standard": standard, "flash": lambda: context_work(core, machine, backward=1.0)})


def softmax_elements(core: AttentionCore, dropout: Scalar, *, backward: bool) -> Float[Array, "2"]:
    """Elements moved by the fused scale-mask-softmax kernel and by the dropout on its output (with a one-byte mask)."""
    softmax = 3.0 if backward else 2.0
    return jnp.stack([softmax * core.scores, 2.5 * dropout * core.scores])
