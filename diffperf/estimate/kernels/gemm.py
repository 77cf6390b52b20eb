"""How long matrix products take: tiles on compute units, reuse through the memory levels."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.roofline import (
    Machine,
    Work,
    fourth_root,
    longest,
    memory_times,
    overlapping,
    power_time,
    stream_time,
)
from diffperf.hardware import formats
from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, smaller
from diffperf.workload.operators import Gemms

# Tiles (rows, columns) that a compute unit may work on: the shapes CUTLASS ships as defaults for large, medium, skinny GEMMs; the
# largest that of Blackwell's pairs of units.
TILES = np.array([(256.0, 256.0), (256.0, 128.0), (128.0, 128.0), (64.0, 64.0), (16.0, 64.0)])


def _blocks(machine: Machine) -> list[Scalar]:
    """Side of the square block whose three operands fill each cache: √(capacity / (3 · element)) (Hong and Kung, STOC 1981).

    The innermost level is that of a cluster of compute units; the others are shared by all.
    """
    per_byte = inverse(3 * machine.width)
    return [jnp.sqrt(capacity * per_byte) for capacity in machine.accelerator.reuse_capacities]


def gemm_work(gemms: Gemms, machine: Machine) -> Work:
    """Each GEMM of a table.

    For every candidate tile, whole or with its K dimension split: whole waves over the compute units (tile and wave
    quantization), and at each memory level the traffic left after reuse in blocks, batch · (m·k·max(1, n/column block) +
    k·n·max(1, m/row block)) operands and batch · m·n products. The block of the level outside the innermost is that of a cluster
    of compute units, a tile each, as far as their innermost level holds it: multicast fetches what they share once. The fastest
    candidate wins. Formats under 16 bits add the kernels that convert the activations.
    """
    relax, accelerator, matrix = machine.relax, machine.accelerator, machine.matrix
    m, n, k, batch = gemms.m, gemms.n, gemms.k, larger(gemms.batch, 1.0)
    first_block, *outer_blocks = _blocks(machine)
    rows, columns = jnp.asarray(TILES.T[..., None], m.dtype)

    def traffic(row_block, column_block):
        left = m * k * relax.maximum(n * inverse(column_block), 1.0)
        right = k * n * relax.maximum(m * inverse(row_block), 1.0)
        return batch * (machine.width * (left + right) + machine.output_width * m * n)

    side = jnp.sqrt(accelerator.cluster)
    inner = traffic(relax.minimum(rows * side, first_block), relax.minimum(columns * side, first_block))
    outer = [traffic(block, block) for block in outer_blocks]

    # A tile runs through K at its share of the peak rate, yet never faster than the pipeline of its main loop.
    unit_flop = machine.flop * inverse(matrix.efficiency) * accelerator.compute_units
    per_tile = k * relax.maximum(2 * rows * columns * unit_flop, matrix.k_latency)
    tiles = batch * relax.ceil(m / rows) * relax.ceil(n / columns)
    flops = 2 * m * n * k * batch
    power = power_time(machine, flops, [inner, *outer])

    def candidates(parts: Scalar, partial_bytes):
        waves = relax.ceil(tiles * parts / accelerator.compute_units) * inverse(parts)
        return waves * per_tile, *memory_times(machine, [inner + partial_bytes, *outer]), power

    # Partial products are written in fp32 to the level outside the innermost, and read again.
    split = matrix.split_k
    partial_bytes = (
        2 * formats.PRECISION_BYTES["fp32"] * relax.minimum(split - 1, 1.0) * split * batch * m * n
    )
    whole, in_parts = candidates(1.0, 0.0), candidates(split, partial_bytes)
    unit = longest(
        *(time[0] if time.ndim > m.ndim else time for time in whole)
    )  # the largest tile's: others are near it
    fastest = relax.minimum(*(relax.reduce_minimum(overlapping(unit, *times)) for times in (whole, in_parts)))
    time = fourth_root(unit, fastest) + machine.kernel_overhead
    # The largest tile moves the fewest bytes between the innermost levels: what energy is charged for.
    work = Work(time, flops, jnp.stack([relax.reduce_minimum(inner), *outer]))
    return (work + _conversion(batch * m * k, machine)) * smaller(gemms.batch, 1.0)


def _conversion(elements: Float[Array, " operators"], machine: Machine) -> Work:
    """The kernels that convert `elements` activations from 16 bits to the narrower format of a product; nothing for wider ones."""
    matrix = machine.matrix
    bytes_ = machine.converted * matrix.conversion_passes * elements * (machine.output_width + machine.width)
    levels = len(machine.accelerator.memory) - 1
    time = machine.converted * matrix.conversion_latency + stream_time(machine, bytes_)
    return Work(time, jnp.zeros_like(time), jnp.stack([bytes_] * levels))
