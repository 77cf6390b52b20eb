"""How long each operator takes on an accelerator: hierarchical roofline with tiling through the memory levels.

A kernel's time is the relaxed maximum of its compute time and, for every memory level outside the innermost, of bytes / bandwidth +
latency; plus the overhead that no other kernel hides (Williams et al., CACM 2009; hierarchical form: arXiv 2407.14645 §III).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator, width
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, choose
from diffperf.workload.operators import AttentionCore, Gemms, concatenate
from diffperf.workload.strategy import Strategy

# Tiles (rows, columns) that a compute unit may work on: the shapes CUTLASS ships as defaults for large, medium and skinny GEMMs.
TILES = np.array([(256.0, 128.0), (128.0, 128.0), (64.0, 64.0), (16.0, 64.0)])


class Work(eqx.Module):
    """What a set of kernels takes of one device. Adds up, and scales with a count."""

    time: Float[Array, "..."]  # s
    flops: Float[Array, "..."]  # FLOP on the matrix units
    traffic: Float[Array, "levels ..."]  # bytes served by each memory level outside the innermost

    def __add__(self, other: "Work") -> "Work":
        return Work(self.time + other.time, self.flops + other.flops, self.traffic + other.traffic)

    def __mul__(self, count: Array) -> "Work":
        return Work(self.time * count, self.flops * count, self.traffic * count)

    def total(self) -> "Work":
        """The sum over all operators."""
        return Work(jnp.sum(self.time), jnp.sum(self.flops), jnp.sum(self.traffic, axis=tuple(range(1, self.traffic.ndim))))


class Machine(eqx.Module):
    """What the rooflines need to know: the device, its peak for the operands' format, and the relaxation."""

    accelerator: Accelerator
    kernel_overhead: Scalar
    rate: Scalar  # peak FLOP/s of the matrix units for the operands' format
    width: Scalar  # bytes of an operand element
    kv_width: Scalar  # bytes of a KV-cache element
    relax: Relaxation

    @classmethod
    def of(cls, system, strategy: Strategy, relax: Relaxation) -> "Machine":
        accelerator = system.accelerator
        return cls(
            accelerator,
            system.stack.kernel_overhead,
            accelerator.matrix_rate(strategy.precision),
            width(strategy.precision),
            width(strategy.kv_precision),
            relax,
        )


def _blocks(machine: Machine) -> list[Scalar]:
    """Side of the square block whose three operands fill each cache: √(capacity / (3 · element)) (Hong and Kung, STOC 1981).

    The innermost level is that of a cluster of compute units; the others are shared by all.
    """
    return [jnp.sqrt(capacity / (3 * machine.width)) for capacity in machine.accelerator.reuse_capacities]


def _memory_time(machine: Machine, traffic: list[Array]) -> list[Array]:
    """Time each level outside the innermost needs for its bytes."""
    levels = machine.accelerator.memory[1:]
    return [bytes_ / (level.bandwidth * level.efficiency) + level.latency for bytes_, level in zip(traffic, levels, strict=True)]


def gemm_work(gemms: Gemms, machine: Machine) -> Work:
    """Each GEMM of a table.

    For every candidate tile: whole waves of tiles over the compute units (tile and wave quantization), and at each memory level the
    traffic left after reuse in blocks, batch · (m·k·max(1, n/column block) + k·n·max(1, m/row block) + m·n) elements. The
    block of the level outside the innermost is that of a cluster of compute units, a tile each, as far as their innermost
    level holds it: multicast fetches what they share once. The fastest tile wins.
    """
    relax, accelerator = machine.relax, machine.accelerator
    m, n, k, batch = gemms.m, gemms.n, gemms.k, gemms.batch
    first_block, *outer_blocks = _blocks(machine)
    rows, columns = jnp.asarray(TILES.T[..., None], m.dtype)

    tiles = batch * relax.ceil(m / rows) * relax.ceil(n / columns)
    waves = relax.ceil(tiles / accelerator.compute_units)
    unit_rate = machine.rate * accelerator.matrix_efficiency / accelerator.compute_units
    compute = waves * 2 * rows * columns * k / unit_rate

    def traffic(row_block, column_block):
        left = m * k * relax.maximum(n / column_block, 1.0)
        right = k * n * relax.maximum(m / row_block, 1.0)
        return machine.width * batch * (left + right + m * n)

    side = jnp.sqrt(accelerator.cluster)
    inner = traffic(relax.minimum(rows * side, first_block), relax.minimum(columns * side, first_block))
    outer = [traffic(block, block) for block in outer_blocks]
    times = relax.maximum(compute, *_memory_time(machine, [inner, *outer]))
    # The largest tile moves the fewest bytes between the innermost levels: what energy is charged for.
    return Work(
        relax.reduce_minimum(times) + machine.kernel_overhead,
        gemms.flops,
        jnp.stack([relax.reduce_minimum(inner), *outer]),
    )


def stream_work(elements: Float[Array, " kernels"], machine: Machine) -> Work:
    """Element-wise kernels, bound by device memory: each moves `elements` operand-sized elements."""
    bytes_ = elements * machine.width
    levels = len(machine.accelerator.memory) - 1
    time = _memory_time(machine, [bytes_] * levels)[-1] + machine.kernel_overhead
    return Work(time, jnp.zeros_like(time), jnp.stack([bytes_] * levels))


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
    time = relax.maximum(compute, *_memory_time(machine, levels)) + machine.kernel_overhead
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
