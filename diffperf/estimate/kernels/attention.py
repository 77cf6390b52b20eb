"""Time of fused attention kernels.

They come in two shapes. The context kernel (FlashAttention: arXiv 2205.14135, 2307.08691) works on tiles
of queries and is bound by products and softmax. The generation kernel (Flash-Decoding) works on the few
query heads that share a KV head, splits long contexts over the compute units, and is bound by the way of
the KV cache from memory. Standard attention, which writes its scores to memory, needs no kernel of its
own: it is matrix products and streams.
"""

import jax.numpy as jnp
from jaxtyping import Array

from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import (
    Work,
    clocked_time,
    longest,
    memory_times,
    overlapped,
    stream_time,
    streamed,
)
from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.quantity import Scalar
from diffperf.relax import inverse, smaller
from diffperf.workload.operators import AttentionCore, PerCore

TILE = 128.0  # queries of a tile: FlashAttention-2 (arXiv 2307.08691 §3.3) and 3 (arXiv 2407.08608 §4.1)
# Least tokens of a context that a compute unit takes alone: kMinHistoryTokensPerBlock of TensorRT-LLM's XQA
# kernels.
SPLIT = 128.0
# New tokens of a sequence, drafted ones included, up to which the generation kernel runs (an estimate).
GENERATED = 16.0

# Share of the longest tile's time by which the last compute unit ends later than with all work spread evenly.
# An estimate: any order of the tiles has at most 1 (Graham, 1969), and causal kernels start the longest
# first.
TAIL = 0.7

_BACKWARD_PRODUCTS = 2.5  # five block products for the forward pass's two: arXiv 2205.14135, Algorithm 4

# Least query heads that share a KV head for the generation kernel to process them as a group rather than one
# by one: two, with half a head of room on either side for degrees that are not whole.
_SEVERAL_HEADS = 1.5


def flash_traffic(core: AttentionCore, machine: Machine, shared_heads: PerCore | float) -> list[Array]:
    """Bytes that each level outside the innermost serves: no scores, K and V streamed once for every block of
    queries.

    A level of capacity M holds a block of M / (4·d·element) queries with its K, V and output blocks, so
    the level outside serves Q and O once and K and V once for every block: Θ(N²d²/M) in all (arXiv
    2205.14135, Theorem 2), less what the masks hide from a block. Query heads that share a KV head share
    its stream: all of them in the caches, `shared_heads` of them in a compute unit. The backward pass
    moves twice as much (it reads Q, K, V and dO and writes dQ, dK and dV).
    """
    relax, group, units = machine.relax, core.group, machine.attention
    # Times a capacity: the blocks that the queries of a head take, by the share of K and V that a block sees.
    block_bytes = 2 * (core.head_dim + core.values_dim) * units.width
    blocks = block_bytes * core.queries * core.visible * inverse(core.span)

    def streams(capacity: Scalar, sharing: PerCore | float) -> Array:
        return group * relax.maximum(blocks * inverse(capacity), inverse(jnp.asarray(sharing, group.dtype)))

    once = units.width * core.query_elements + machine.matrix.output_width * core.output_elements
    kv_bytes = units.kv_width * core.kv_elements
    reads = [
        streams(capacity, shared_heads if cache == 0 else group)
        for capacity, cache in zip(machine.reuse, machine.accelerator.inner_caches, strict=True)
    ]
    shares, passes = machine.shares, 1 + core.backward
    if shares is None:
        return [passes * (once + kv_bytes * times) for times in reads]
    columns = zip(reads, shares.activations, shares.kv_cache, strict=True)
    return [passes * (once * here + kv_bytes * times * kv_here) for times, here, kv_here in columns]


def score_time(core: AttentionCore, machine: Machine, products: PerCore | float = 1.0) -> PerCore:
    """Seconds of the whole device for one score: its products on the matrix units, its softmax on the vector
    units.

    The softmax of one tile runs under the products of another, in part: the root of the sum of squares is
    taken, an estimate between the sum, as FlashAttention-3 (arXiv 2407.08608, Figure 5) on H100, and the
    longer of both. `products` counts the products over those of the forward pass.
    """
    matrix = products * core.score_flops * machine.attention.flop_time
    softmax = machine.attention.softmax_time
    unit = longest(matrix, softmax)  # keeps the squares inside float32
    per_unit = 1 / unit
    return unit * jnp.sqrt(jnp.square(matrix * per_unit) + jnp.square(softmax * per_unit))


def _arithmetic(
    core: AttentionCore, machine: Machine, flops: PerCore, passes: PerCore | float = 1.0
) -> PerCore:
    """Joules of the products of an attention core, and of the softmax of its scores in some passes."""
    units = machine.attention
    return flops * units.flop_energy + passes * core.visible_scores * units.softmax_energy


def context_work(core: AttentionCore, machine: Machine) -> Work:
    """The context kernel: a tile of queries of one head to a compute unit, whole tiles of scores up to the
    causal diagonal, and from the edge of a sliding window on.

    Every tile takes its latency, in whole waves; the last ends with a part of the longest tile's time for
    which other units idle. The backward pass recomputes the scores, and streams O, dO and the fp32 sums of
    dQ in kernels around its own (FlashAttention-2). A pass that a ring splits in several launches pays the
    launch for each of them, in both kernels of the backward pass.
    """
    relax, units, backward = machine.relax, machine.accelerator.compute_units, core.backward
    tile_latency, kernels = machine.attention.format.tile_latency, machine.accelerator.attention
    products = 1 + (_BACKWARD_PRODUCTS - 1) * backward
    slower = 1 + (inverse(kernels.backward_efficiency) - 1) * backward
    per_score = score_time(core, machine, products * slower)

    tiles = core.sequences * core.heads * relax.ceil(core.queries / TILE)
    # Masked scores that a tile computes along the diagonal and along the edge of a window, per query: the
    # window of the tile's first query begins so many tokens before that of its last query.
    masked = (core.causal + core.windowed) * (smaller(core.queries, TILE) - 1) / 2
    scores = tiles * TILE * (core.visible + masked)
    last = tile_latency + TILE * core.seen * per_score * units
    compute = relax.waves(tiles / units) * tile_latency + scores * per_score + TAIL * last

    flops = products * core.score_flops * core.visible_scores
    traffic = flash_traffic(core, machine, 1.0)
    served = memory_times(machine, traffic)
    roofline = overlapped(compute, *served)
    around = backward * (
        2 * machine.matrix.output_width * core.output_elements
        + (2 * PRECISION_BYTES["fp32"] + machine.attention.width) * core.query_elements
    )
    launches = 1 + (1 + backward) * (core.launches - 1)
    starts = launches * machine.attention.launch
    return Work(
        time=roofline + starts + stream_time(machine, around),
        starts=jnp.broadcast_to(starts, roofline.shape),
        clocked=clocked_time(machine, roofline, served),
        flops=flops,
        arithmetic=_arithmetic(core, machine, flops, 1 + backward),
        traffic=jnp.stack(traffic) + streamed(machine, around),
    )


def generation_work(core: AttentionCore, machine: Machine) -> Work:
    """The generation kernel: a sequence's KV head with the query heads that share it to a compute unit.

    As many heads as the stack's kernels process together share one stream of K and V; where more heads
    share a KV head, each has a stream of its own. All heads of latent attention share the stream of their
    latent: it has kernels of its own. Contexts are split as long as compute units would idle.
    The first tile's latency stands before the stream, and that of the others overlaps with it.
    """
    relax, units, kernels = machine.relax, machine.accelerator.compute_units, machine.accelerator.attention
    one_stream = relax.step(1 - core.group * inverse(machine.attention.grouped_heads))
    within_group = core.latent + (1 - core.latent) * one_stream
    shared_heads = 1 + within_group * (core.group - 1)
    per_head = inverse(shared_heads)
    # With more new tokens than the kernel runs for it has no weight, and only has to stay finite.
    rows = smaller(core.queries, GENERATED) * shared_heads
    tiles = core.sequences * core.heads * per_head * relax.ceil(rows / TILE)
    several = relax.step(1 - _SEVERAL_HEADS * per_head)
    group_latency = overlapped(machine.attention.format.group_latency, rows * kernels.row_latency)
    latency = kernels.head_latency + several * (group_latency - kernels.head_latency)
    splits = relax.maximum(relax.minimum(units * inverse(tiles), core.span * (1 / SPLIT)), 1.0)
    further_waves = relax.excess(relax.ceil(tiles * splits / units), 1.0)

    flops = core.score_flops * core.visible_scores
    traffic = flash_traffic(core, machine, shared_heads)
    compute = further_waves * latency + core.visible_scores * score_time(core, machine)
    served = memory_times(machine, traffic)
    roofline = overlapped(compute, *served)
    around = latency + relax.minimum(splits - 1, 1.0) * kernels.split_latency + machine.attention.launch
    return Work(
        time=roofline + around,
        starts=jnp.broadcast_to(around, roofline.shape),
        clocked=clocked_time(machine, roofline, served),
        flops=flops,
        arithmetic=_arithmetic(core, machine, flops),
        traffic=jnp.stack(traffic),
    )


def generated_share(core: AttentionCore, machine: Machine) -> PerCore:
    """1 where the new tokens of a core are generated, 0 where they are a prompt: which kernel a measured core
    ran.

    A few new tokens that follow a longer context are generated; all else is context, a prompt of one token
    too.
    """
    few = machine.relax.step(1 - core.queries * (1 / GENERATED))
    follow = machine.relax.step(1 - 2 * core.queries * inverse(core.context))
    return few * follow
