"""Time of matrix products: tiles on compute units, reuse through the memory levels."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.machine import Machine, MatrixUnits, PerProduct
from diffperf.estimate.kernels.roofline import (
    Work,
    clocked_time,
    fourth_root,
    idle_arithmetic,
    longest,
    memory_times,
    overlapping,
    stream_time,
    streamed,
)
from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.relax import inverse, larger, smaller
from diffperf.workload.operators import Gemms

# Tiles (rows, columns) that a compute unit may work on: the shapes that CUTLASS ships as defaults for large,
# medium and skinny GEMMs; the largest is that of Blackwell's pairs of units.
TILES = np.array([(256.0, 256.0), (256.0, 128.0), (128.0, 128.0), (64.0, 64.0), (16.0, 64.0)])

# Tiles of each shape that a compute unit holds at a time: one of 128 · 128 elements or more, and at most four
# smaller ones, with their operands of four stages in 228 KiB of shared memory (an estimate for Hopper).
_TILES_OF_UNIT = np.clip(128.0 * 128.0 / TILES.prod(axis=1), 1.0, 4.0)

# Rows that a kernel for few rows multiplies with one reading of the weights: MMVQ_MAX_BATCH_SIZE in
# ggml-cuda/mmvq.cuh of llama.cpp.
_VECTOR_ROWS = 8.0
# Most readings of the weights that a kernel for few rows is charged with.
_MOST_READINGS = 1e4


def gemm_work(gemms: Gemms, machine: Machine) -> Work:
    """Time, FLOPs, energy and memory traffic of each matrix product of a table.

    Every tile shape of `TILES`, with its K dimension whole or split, is a candidate, and the fastest
    candidate counts. Splitting K adds the start of a kernel that sums up the partial products. A candidate's
    time is the roofline over

    - waves of tiles over the compute units (tile and wave quantization, the latter as far as kernels do not
      balance the last wave), each tile running through K at its share of the peak rate, yet never faster
      than the pipeline of its main loop;
    - at every memory level, the bytes that reuse in blocks leaves: batch · (m·k·max(1, n / column block) +
      k·n·max(1, m / row block)) elements of operands and batch · m·n elements of products, of the widths
      of activations, stored weights and products; products that are added to C read and write it;
    - at device memory, no more than the units that have a tile can draw, in the mean over the waves;
    - on the vector units, the conversion of weights that are stored in another format than they are
      multiplied in, once for every row of tiles that reads them.

    The block of the level outside the innermost is that of a cluster of compute units, a tile for each, as
    far as their innermost level holds it: multicast fetches what they share once. Formats under 16 bits
    add the kernels that convert the activations.

    Products that the matrix units cannot take run at the same share of the vector units' peak rate.

    Tiles are multiplied whole: rows of a tile that no activation fills take the energy of other rows, and
    the smallest tile leaves the fewest of them. That is an upper bound, as operands of 0 toggle fewer bits.

    Where a batch takes several kernels, each has its own waves and its own start, and together they take no
    less than their launches by the host.
    """
    relax, units, matrix = machine.relax, machine.slots, machine.matrix
    m, n, k, whole_batch = gemms.m, gemms.n, gemms.k, larger(gemms.batch, 1.0)
    batch = whole_batch / gemms.kernels  # of one kernel
    rows, columns = jnp.asarray(TILES.T[..., None], m.dtype)
    if machine.serving:
        # In this order the derivative at 16 rows, the fewest there are, is that of more.
        rows = larger(gemms.untuned * machine.untuned_rows, rows)
    traffic = _traffic(gemms, batch, rows, columns, machine)

    flop_time, flop_energy = _of_units(gemms, machine)
    unit_flop_time = flop_time * inverse(_reached(gemms, machine)) * units
    row_tiles = relax.ceil(m / rows)
    if machine.serving:
        row_tiles = row_tiles + gemms.random_rows * (_tiles_of_random_rows(m / rows) - row_tiles)
    tiles = batch * row_tiles * relax.ceil(n / columns)
    flops = 2 * m * n * k * batch
    unpacked = batch * k * n * row_tiles
    unpacking = _unpacking(unpacked, matrix)

    def candidates(parts: PerProduct | float, partial_bytes: Array | float) -> list[Array]:
        """The times of all tile shapes that run at the same time, with K split in some parts."""
        work = tiles * parts / units
        waves = relax.waves(work)
        latency = matrix.format.k_latency * _exposed_latency(gemms, waves, machine)
        tile_time = k * relax.maximum(2 * rows * columns * unit_flop_time, latency)
        compute = _balanced(waves, work, machine) * inverse(jnp.asarray(parts, m.dtype)) * tile_time
        moved = _with_partial_products(traffic, partial_bytes, machine)
        times = memory_times(machine, moved)
        device = machine.accelerator.device_level - 1
        times[device] = relax.maximum(times[device], moved[device] * _drawing_time(waves, work, machine))
        return [compute, *times, *unpacking]

    # Partial products are written in fp32 to the level outside the innermost, and read again.
    split = matrix.format.split_k
    partial_bytes = 2 * PRECISION_BYTES["fp32"] * relax.minimum(split - 1, 1.0) * split * batch * m * n
    whole, in_parts = candidates(1.0, 0.0), candidates(split, partial_bytes)
    # The largest tile's times are a unit for all: those of the other tiles are near them.
    unit = longest(*(time[0] if time.ndim > m.ndim else time for time in whole))
    of_whole, of_parts = (
        fourth_root(unit, relax.reduce_minimum(overlapping(unit, *times))) for times in (whole, in_parts)
    )
    # Where K is not split, both are the same. A simplification: this start counts as time of computation.
    adds_up = relax.minimum(split - 1, 1.0) * machine.split_overhead
    fastest = relax.minimum(of_whole, of_parts + adds_up)
    roofline = _with_matrix_vector_kernel(gemms, fastest, traffic, machine)
    # The largest tile moves the fewest bytes between the innermost levels: what energy is charged for.
    least = _of_largest_tile(gemms, traffic)
    executed = 2 * _multiplied_rows(gemms, rows[-1] * row_tiles[-1], matrix) * n * k * batch
    work = Work(
        time=roofline + machine.kernel_overhead,
        starts=jnp.broadcast_to(machine.kernel_overhead, roofline.shape),
        clocked=clocked_time(machine, roofline, memory_times(machine, least)),
        flops=flops,
        arithmetic=executed * flop_energy + _unpacking_energy(unpacked, machine),
        traffic=jnp.stack(least),
    )
    work = _with_launch_wait(work * gemms.kernels, gemms.kernels, machine)
    return (work + _conversion(whole_batch * m * k, machine)) * smaller(1.0, gemms.batch)


def _balanced(waves: Array, work: Array, machine: Machine) -> Array:
    """Waves that tiles take on the units, of which `waves` whole ones hold `work`: less what kernels avoid of
    the idle time in the last wave. One tile takes a whole wave.
    """
    return waves - machine.matrix.format.wave_balance * (waves - larger(work, 1.0))


def _drawing_time(waves: Array, work: Array, machine: Machine) -> Array:
    """Seconds in which the units that have a tile draw a byte from device memory, each at the rate of its
    requests: the mean over all waves, in the last of which some units are idle.
    """
    tiles = larger(work * machine.slots, 1.0)  # a product without elements has none
    return waves * machine.accelerator.tiles_at_once * inverse(tiles * machine.accelerator.unit_bandwidth)


def _tiles_of_random_rows(tiles: Array) -> Array:
    """Mean number of row tiles of an expert that some token visits, where its tokens fill `tiles` tiles in
    the mean.

    Tokens choose their experts, some of which are more popular than others. The number of tokens of an expert
    is taken to be distributed exponentially, so that n more tiles follow with the chance e^(−n / tiles): the
    mean is 1 / (1 − e^(−1 / tiles)), 1 for few tokens and half a tile more than `tiles` for many.
    """
    return -inverse(jnp.expm1(-inverse(tiles)))


def _reached(gemms: Gemms, machine: Machine) -> Array:
    """The share of the peak rate that the matrix products reach."""
    efficiency = machine.matrix.format.efficiency
    if not machine.serving:
        return efficiency
    return efficiency * (1 + gemms.untuned * (machine.untuned_efficiency - 1))


def _of_units(gemms: Gemms, machine: Machine) -> tuple[Array, Array]:
    """Seconds and joules of a FLOP at the peak rate of the units that multiply: matrix or vector units."""
    vector, accelerator, matrix = gemms.on_vector_units, machine.accelerator, machine.matrix
    time = matrix.flop_time + vector * (inverse(accelerator.vector) - matrix.flop_time)
    energy = matrix.flop_energy + vector * (accelerator.vector_energy - matrix.flop_energy)
    return time, energy


def _multiplied_rows(gemms: Gemms, of_tiles: Array, matrix: MatrixUnits) -> Array:
    """Rows that the units multiply: those of whole tiles on the matrix units, and those that there are on
    the vector units.
    """
    whole_tiles = 1 - gemms.on_vector_units
    if matrix.matrix_vector is not None:
        whole_tiles = whole_tiles * (1 - matrix.matrix_vector)
    return gemms.m + whole_tiles * (of_tiles - gemms.m)


def _with_launch_wait(work: Work, kernels: Array, machine: Machine) -> Work:
    """The work of some kernels, which waits for the host where all their launches but one take longer.
    The wait does not count among the starts, so that it draws active power: a simplification.
    """
    wait = machine.relax.excess((kernels - 1) * machine.expert_launch, work.time)
    return dataclasses.replace(work, time=work.time + wait)


def _with_matrix_vector_kernel(gemms: Gemms, tiles: Array, traffic: list[Array], machine: Machine) -> Array:
    """The time of the kernel chosen: that of `tiles`, or in serving software with kernels for few rows one
    that multiplies on the vector units: it computes no row more than there are, and reads the weights once
    for every few of them.
    """
    matrix = machine.matrix
    if matrix.matrix_vector is None or matrix.unpacking_time is None:
        return tiles
    weights = gemms.k * gemms.n * larger(gemms.batch, 1.0)
    # Bounded, as many rows make this kernel slow anyway, and their bytes would overflow float32.
    passes = smaller(machine.relax.ceil(gemms.m / _VECTOR_ROWS), _MOST_READINGS)
    once = _of_largest_tile(gemms, traffic)
    products = 2 * gemms.m * weights * inverse(machine.accelerator.vector)
    vector = products + passes * weights * matrix.unpacking_time
    few_rows = functools.reduce(larger, memory_times(machine, [passes * served for served in once]), vector)
    # Not as a difference, which cancels in float32 where the kernel for few rows is far faster.
    return (1 - matrix.matrix_vector) * tiles + matrix.matrix_vector * smaller(tiles, few_rows)


def _exposed_latency(gemms: Gemms, waves: Array, machine: Machine) -> Array | float:
    """The share of the main loop's latency that no other tile on the same compute unit hides, for each shape
    of tiles.

    The kernels that serve a mixture of experts run many small tiles, of which a compute unit holds several
    at a time, as far as it has that many to work on.
    """
    if not machine.serving:
        return 1.0
    relax, several = machine.relax, smaller(larger(gemms.batch - 1, 0.0), 1.0)
    fitting = jnp.asarray(_TILES_OF_UNIT[:, None], waves.dtype)
    at_once = relax.maximum(relax.minimum(fitting, waves), 1.0)
    return 1 + several * (inverse(at_once) - 1)


def _traffic(gemms: Gemms, batch: Array, rows: Array, columns: Array, machine: Machine) -> list[Array]:
    """Bytes that every memory level outside the innermost serves, for each tile shape where no cache lies
    between the level and the compute units.

    A cache holds a square block whose three operands fill it, of side √(capacity / (3 · element)) (Hong
    and Kung, STOC 1981).
    """
    relax, matrix, shares = machine.relax, machine.matrix, machine.shares
    m, n, k, accumulator = gemms.m, gemms.n, gemms.k, gemms.accumulator
    product_width = jnp.where(accumulator > 0, 2 * accumulator, matrix.output_width)
    stored_width = matrix.width if matrix.stored_width is None else matrix.stored_width
    per_byte = inverse(3 * matrix.width)
    side = jnp.sqrt(machine.accelerator.cluster)  # of a cluster, in compute units

    def served(level: int) -> Array:
        """Bytes that a level serves, for each tile shape."""
        row_block = column_block = jnp.sqrt(machine.reuse[level] * per_byte)
        if machine.accelerator.inner_caches[level] == 0:
            row_block = relax.minimum(rows * side, row_block)
            column_block = relax.minimum(columns * side, column_block)
        left = matrix.width * (m * k * relax.maximum(1.0, n * inverse(column_block)))
        right = stored_width * (k * n * relax.maximum(1.0, m * inverse(row_block)))
        products = product_width * m * n
        if shares is not None:
            left, products = (part * shares.activations[level] for part in (left, products))
            right = right * shares.weights[level]
        return batch * (left + right + products)

    return [served(level) for level in range(len(machine.levels))]


def _of_largest_tile(gemms: Gemms, traffic: list[Array]) -> list[Array]:
    """The bytes of the largest tile, which is the first; levels whose traffic no tile changes have no axis of
    tiles.
    """
    return [served[0] if served.ndim > gemms.m.ndim else served for served in traffic]


def _with_partial_products(traffic: list[Array], bytes_: Array | float, machine: Machine) -> list[Array]:
    """Traffic with partial products, which live where activations do if no cache lies on their way."""
    if machine.shares is None:
        return [traffic[0] + bytes_, *traffic[1:]]
    return [
        served + bytes_ * machine.shares.activations[level] if cache == 0 else served
        for level, (served, cache) in enumerate(zip(traffic, machine.accelerator.inner_caches, strict=True))
    ]


def _unpacking(weights: Array, matrix: MatrixUnits) -> list[Array]:
    """Seconds to convert weights from the format that they are stored in, where it is not the operands'."""
    return [] if matrix.unpacking_time is None else [weights * matrix.unpacking_time]


def _unpacking_energy(weights: Array, machine: Machine) -> Array | float:
    """Joules to convert weights from the format that they are stored in, by the tiles of the most rows."""
    energy = machine.matrix.unpacking_energy
    return 0.0 if energy is None else energy * weights[0]


def _conversion(elements: Float[Array, " operators"], machine: Machine) -> Work:
    """The kernels that convert activations from 16 bits to the narrower format of a product; nothing for
    wider formats.
    """
    matrix = machine.matrix
    moved = matrix.format.conversion_passes * elements * (matrix.output_width + matrix.width)
    moved = matrix.converted * moved
    start = jnp.broadcast_to(matrix.converted * matrix.format.conversion_latency, moved.shape)
    return idle_arithmetic(start + stream_time(machine, moved), start, streamed(machine, moved))
