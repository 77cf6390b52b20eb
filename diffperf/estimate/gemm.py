"""How long matrix products take: tiles on compute units, reuse through the memory levels."""

import jax.numpy as jnp
import numpy as np

from diffperf.estimate.machine import Machine, Work, memory_times
from diffperf.quantity import Scalar
from diffperf.workload.operators import Gemms

# Tiles (rows, columns) that a compute unit may work on: the shapes CUTLASS ships as defaults for large, medium and skinny GEMMs.
TILES = np.array([(256.0, 128.0), (128.0, 128.0), (64.0, 64.0), (16.0, 64.0)])


def _blocks(machine: Machine) -> list[Scalar]:
    """Side of the square block whose three operands fill each cache: √(capacity / (3 · element)) (Hong and Kung, STOC 1981).

    The innermost level is that of a cluster of compute units; the others are shared by all.
    """
    return [jnp.sqrt(capacity / (3 * machine.width)) for capacity in machine.accelerator.reuse_capacities]


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
    times = relax.maximum(compute, *memory_times(machine, [inner, *outer]))
    # The largest tile moves the fewest bytes between the innermost levels: what energy is charged for.
    return Work(
        relax.reduce_minimum(times) + machine.kernel_overhead,
        gemms.flops,
        jnp.stack([relax.reduce_minimum(inner), *outer]),
    )
