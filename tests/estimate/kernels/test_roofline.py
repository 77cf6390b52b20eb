"""Kernels that are matrix products or streams, against answers worked out by hand, in the limits in which one
term of the roofline counts.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.gemm import TILES, gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, overlapped, waiting
from diffperf.estimate.kernels.stream import stream_work
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.elementwise_operators import elementwise_kernels
from diffperf.workload.operators import Gemms, Streams, operators_of

RATE, UNITS, EFFICIENCY, OVERHEAD = 100e12, 100, 0.8, 3e-6
HBM, L2 = 1e12, 4e12  # byte/s, reachable
K_LATENCY = 1e-16  # s per element: out of the way
FREE = {"bandwidth": 1e30, "latency": 1e-30}


def _machine(system, relax=None, power_limit=1e30, **levels):
    """A round-numbered accelerator; `levels` changes memory levels."""
    values = {
        "matrix.bf16.rate": RATE,
        "matrix.bf16.efficiency": EFFICIENCY,
        "matrix.bf16.k_latency": K_LATENCY,
        "matrix.bf16.split_k": 1.0,
        "compute_units": UNITS,
        "kernel_latency": OVERHEAD / 3,
        "split_latency": 1e-15,  # out of the way
        "power_limit": power_limit,
        "memory.smem.capacity": 100 * 196608.0,  # per unit what a block of 181² needs
        "memory.l2.capacity": 48e6,
        "memory.l2.bandwidth": L2,
        "memory.l2.efficiency": 1.0,
        "memory.l2.latency": 1e-7,
        "memory.hbm.bandwidth": HBM / 0.5,
        "memory.hbm.efficiency": 0.5,
        "memory.hbm.latency": 1e-6,
    }
    for level, changes in levels.items():
        values |= {f"memory.{level}.{name}": value for name, value in changes.items()}
    system = replace(system, {f"accelerator.{path}": value for path, value in values.items()})
    system = replace(system, {"stack.kernel_overhead": OVERHEAD * 2 / 3, "stack.matrix_efficiency": 1.0})
    return Machine.of(system, dp.load_strategy({}), relax or Exact())


def _gemm(m, n, k, batch=1):
    return Gemms.table({"product": (real(m), real(n), real(k), real(batch))})


def test_whole_waves_of_tiles_compute(system):
    """m = 256, n = 128·150, k = 1000: 150 tiles of 256 × 128 on 100 units take 2 waves; the other tiles waste
    as much or more.
    """
    work = gemm_work(_gemm(256, 128 * 150, 1000), _machine(system, l2=FREE, hbm=FREE))
    waves = {(256, 256): 1, (256, 128): 2, (128, 128): 3, (64, 64): 12, (16, 64): 48}
    assert set(waves) == {tuple(map(int, tile)) for tile in TILES}
    times = [
        w * 2 * rows * columns * 1000 / (RATE * EFFICIENCY / UNITS) for (rows, columns), w in waves.items()
    ]
    assert float(work.time[0]) == pytest.approx(min(times) + OVERHEAD, rel=1e-12)
    assert float(work.flops[0]) == 2 * 256 * 128 * 150 * 1000


def test_a_tile_is_never_partly_paid(system):
    """One row costs what 16 do: the smallest tile's rows."""
    machine = _machine(system, l2=FREE, hbm=FREE)
    assert float(gemm_work(_gemm(1, 6400, 512), machine).time[0]) == float(
        gemm_work(_gemm(16, 6400, 512), machine).time[0]
    )


def test_a_skinny_gemm_streams_its_weights(system):
    """Decode: one token against a k × n matrix reads it once from device memory."""
    k, n = 8192, 8192
    work = gemm_work(_gemm(1, n, k), _machine(system))
    read = 2 * (k * n + k * max(1, n / (48e6 / 6) ** 0.5) + n)
    assert float(work.traffic[-1, 0]) == pytest.approx(read, rel=1e-12)
    waves, from_l2 = 2, 2 * (k * n / 1 * 1 + k * n / 64 + n)
    parts = [read / HBM + 1e-6, from_l2 / L2 + 1e-7, waves * k * 2 * 16 * 64 / (RATE * EFFICIENCY / UNITS)]
    assert float(work.time[0]) == pytest.approx(np.linalg.norm(parts, 4) + OVERHEAD, rel=1e-12)


def test_traffic_is_left_by_reuse_in_blocks(system):
    """4096³: L2 (48 MB) holds blocks of 2828²; a unit's memory (192 KiB) holds 181², to which tiles are
    cut.
    """
    n, block = 4096, (48e6 / 6) ** 0.5
    tile_block = (196608.0 / 6) ** 0.5
    work = gemm_work(_gemm(n, n, n), _machine(system))
    outer = 2 * (2 * n**2 * n / block + n**2)
    inner = 2 * (2 * n**3 / tile_block + n**2)  # the largest tile's, which moves the least
    np.testing.assert_allclose(work.traffic[:, 0], [inner, outer], rtol=1e-12)


def test_batches_multiply(system):
    machine = _machine(system)
    single, many = gemm_work(_gemm(256, 256, 256), machine), gemm_work(_gemm(256, 256, 256, 1000), machine)
    assert float(many.flops[0]) == 1000 * float(single.flops[0])
    np.testing.assert_allclose(many.traffic, 1000 * single.traffic)
    # The batch pays for a single launch, and fills its waves.
    assert float(single.time[0]) < float(many.time[0]) < 1000 * float(single.time[0])


def _with(machine, **changes):
    """The machine with other numbers for the format of its operands."""
    matrix = dataclasses.replace(machine.matrix, format=replace(machine.matrix.format, changes))
    return dataclasses.replace(machine, matrix=matrix)


def test_a_kernel_for_each_expert_has_its_own_waves_and_start(system):
    """Against waves counted tile by tile: three products alone, and all their tiles in one kernel."""
    m, n, k, experts = 64, 64 * 30, 1000, 3

    def compute(products):
        tiles = [(products * math.ceil(m / r) * math.ceil(n / c), r * c) for r, c in TILES]
        return (
            min(math.ceil(number / UNITS) * size for number, size in tiles)
            * 2
            * k
            * UNITS
            / RATE
            / EFFICIENCY
        )

    device = _machine(system, hbm=FREE, l2=FREE)
    together, apart = (
        gemm_work(_gemm(m, n, k, experts).in_kernels(kernels), device) for kernels in (1.0, 3.0)
    )
    assert float(together.time[0]) == pytest.approx(compute(experts) + OVERHEAD, rel=1e-12)
    assert float(apart.time[0]) == pytest.approx(experts * (compute(1) + OVERHEAD), rel=1e-12)
    assert compute(experts) < 0.98 * experts * compute(1)
    assert float(apart.flops[0]) == float(together.flops[0])


def test_kernels_of_experts_wait_for_their_launches(system):
    """Eight small products take seven launches of the host, and their slope by the launch is seven."""
    device = _machine(system, hbm=FREE, l2=FREE)

    def time(launch, expert_kernels=8.0):
        slow_host = dataclasses.replace(device, expert_launch=launch)
        return gemm_work(_gemm(64, 64, 64, batch=8).in_kernels(expert_kernels), slow_host).time[0]

    assert float(time(real(1e-4))) == pytest.approx(7e-4, rel=1e-12)
    assert float(jax.grad(time)(real(1e-4))) == pytest.approx(7, rel=1e-12)
    assert float(time(real(1e-9))) == pytest.approx(8 * float(time(real(1e-9), 1.0)), rel=0.3)
    assert float(time(real(1e-4), 1.0)) == float(time(real(1e-9), 1.0))


@pytest.mark.parametrize("accumulator", [2.0, 4.0])
def test_products_that_are_added_read_and_write_their_sums(system, accumulator):
    """Of a gradient of weights over few tokens, whose time is that of its sums in device memory."""
    device = _machine(system, l2=FREE)
    m, n, k = 8192, 8192, 16
    alone, added = (
        gemm_work(table, device) for table in (_gemm(m, n, k), _gemm(m, n, k).added_to(accumulator))
    )
    more = (2 * accumulator - 2) * m * n
    assert float(added.traffic[1, 0] - alone.traffic[1, 0]) == pytest.approx(more, rel=1e-12)
    streamed = float(added.time[0]) - OVERHEAD - 1e-6
    assert streamed == pytest.approx(2 * accumulator * m * n / HBM, rel=0.01)


def test_a_tile_is_never_faster_than_its_main_loop(system):
    """A single tile runs through K in k · k_latency, whatever its size; more tiles than units run in waves of
    it.
    """
    machine = _with(_machine(system, l2=FREE, hbm=FREE), k_latency=1e-8)
    assert float(gemm_work(_gemm(1, 64, 4096), machine).time[0]) == pytest.approx(
        4096e-8 + OVERHEAD, rel=1e-9
    )
    assert float(gemm_work(_gemm(16, 64 * UNITS, 4096), machine).time[0]) == pytest.approx(
        4096e-8 + OVERHEAD, rel=1e-9
    )
    assert float(gemm_work(_gemm(16, 64, 4096, UNITS + 1), machine).time[0]) == pytest.approx(
        2 * 4096e-8 + OVERHEAD, rel=1e-9
    )


def test_splitting_k_occupies_idle_units(system):
    """One tile of 16 × 64 in four parts takes a quarter and pays for fp32 partial sums, moved twice; 100
    tiles gain nothing.
    """
    free = _with(_machine(system, l2=FREE, hbm=FREE), k_latency=1e-8, split_k=4.0)
    assert float(gemm_work(_gemm(16, 64, 4096), free).time[0]) == pytest.approx(
        4096e-8 / 4 + OVERHEAD, rel=1e-9
    )
    assert float(gemm_work(_gemm(16, 64 * UNITS, 4096), free).time[0]) == pytest.approx(
        4096e-8 + OVERHEAD, rel=1e-9
    )
    narrow = _with(_machine(system, l2={"bandwidth": 1e8}, hbm=FREE), k_latency=1e-7, split_k=4.0)
    moved = 2 * (16 * 256 + 64 * 256 + 16 * 64)
    whole = np.linalg.norm([256e-7, moved / 1e8 + 1e-7], 4)
    split = np.linalg.norm([64e-7, (moved + 4 * 8 * 16 * 64) / 1e8 + 1e-7], 4)
    assert float(gemm_work(_gemm(16, 64, 256), narrow).time[0]) == pytest.approx(
        min(whole, split) + OVERHEAD, rel=1e-9
    )


def test_a_split_product_starts_a_kernel_for_its_sums(system):
    """A tile through K = 4,096 takes 41 µs whole and 10 µs in four parts, which win with 5 µs more; those of
    K = 256 do not. A stack that hides half of the starts of kernels hides half of this one.
    """
    free = _with(_machine(system, l2=FREE, hbm=FREE), k_latency=1e-8, split_k=4.0)
    machine = dataclasses.replace(free, split_overhead=real(5e-6))
    for k, expected in ((4096, 4096e-8 / 4 + 5e-6), (256, 256e-8)):
        time = float(gemm_work(_gemm(16, 64, k), machine).time[0])
        assert time == pytest.approx(expected + OVERHEAD, rel=1e-9)
    never = _with(machine, split_k=1.0)
    assert float(gemm_work(_gemm(16, 64, 4096), never).time[0]) == pytest.approx(4096e-8 + OVERHEAD, rel=1e-9)
    half = replace(system, {"accelerator.split_latency": 4e-6, "stack.exposed_start": 0.5})
    hidden = Machine.of(half, dp.load_strategy({}), Exact())
    assert float(hidden.split_overhead) == pytest.approx(2e-6, rel=1e-12)


@pytest.mark.parametrize(("tiles", "busy"), [(40, 40), (150, 75), (7 * UNITS, UNITS)])
def test_idle_units_draw_nothing_from_memory(system, tiles, busy):
    """One row against tiles of 64 columns: 40 units of 100 draw 40 times the rate of one; 150 tiles run on
    100 and then on 50 units, which is 75 in the mean; whole waves keep all units busy.
    """
    rate = 1e8
    machine = _machine(replace(system, {"accelerator.unit_bandwidth": rate}), l2=FREE)
    k, n = 1000, 64 * tiles
    read = 2 * (k * n + k * max(1, n / (48e6 / 6) ** 0.5) + n)
    time = float(gemm_work(_gemm(1, n, k), machine).time[0])
    assert time == pytest.approx(read / (busy * rate) + OVERHEAD, rel=1e-6)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balance_fills_the_last_wave(system, balance):
    """150 tiles of 256 × 128 on 100 units take 2 waves, and 1.5 if no time of the last one is lost; one tile
    takes a whole wave in any case.
    """
    machine = _with(_machine(system, l2=FREE, hbm=FREE), wave_balance=balance)
    k = 1000

    def expected(m, n):
        work = [math.ceil(m / rows) * math.ceil(n / columns) / UNITS for rows, columns in TILES]
        waves = [balance * max(x, 1) + (1 - balance) * math.ceil(x) for x in work]
        return min(
            w * 2 * rows * columns * k / (RATE * EFFICIENCY / UNITS)
            for w, (rows, columns) in zip(waves, TILES, strict=True)
        )

    for m, n in ((256, 128 * 150), (16, 64)):
        time = float(gemm_work(_gemm(m, n, k), machine).time[0])
        assert time == pytest.approx(expected(m, n) + OVERHEAD, rel=1e-9)


def _without_conversion(machine):
    """The machine where no kernel of its own converts activations."""
    matrix = dataclasses.replace(machine.matrix, converted=real(0.0))
    return dataclasses.replace(machine, matrix=matrix)


def test_narrow_formats_convert_their_activations(system):
    """fp8: products are as fast as the rate says, written at 16 bits; the activations pass through memory on
    their own first.
    """
    m, n, k = 2048, 1024, 1024
    system = replace(system, {f"accelerator.matrix.{f}.rate": 2 * RATE for f in ("fp8", "fp16")})
    system = replace(
        system,
        {"accelerator.matrix.fp8.conversion_latency": 7e-6, "accelerator.matrix.fp8.conversion_passes": 3.0},
    )
    fp16, fp8 = (
        Machine.of(system, dp.load_strategy({"precision": name}), Exact()) for name in ("fp16", "fp8")
    )
    work = gemm_work(_gemm(m, n, k), fp8)
    hbm = system.accelerator.device_memory
    converted = 3 * 3 * m * k
    assert float(work.traffic[-1, 0]) == pytest.approx(m * k + k * n + 2 * m * n + converted, rel=1e-9)
    without = gemm_work(_gemm(m, n, k), _without_conversion(fp8))
    expected = 7e-6 + converted / float(hbm.bandwidth * hbm.efficiency)
    assert float(work.time[0] - without.time[0]) == pytest.approx(expected, rel=1e-9)
    assert float(fp16.matrix.converted) == 0


def test_parts_of_a_kernel_overlap_all_but_near_the_ridge():
    assert float(overlapped(real(1e-3), real(1e-5))) == pytest.approx(1e-3, rel=1e-8)
    assert float(overlapped(real(2e-6), real(2e-6))) == pytest.approx(2e-6 * 2**0.25, rel=1e-12)
    assert np.isfinite(overlapped(jnp.float32(1e3), jnp.float32(1e-9)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_what_waiting_adds_keeps_its_digits(dtype):
    """The 4-norm less its first part: for a much shorter second part y⁴ / (4·x³), far below the digits of the
    norm itself.
    """
    with jax.enable_x64(dtype is jnp.float64):
        for time, other in ((1.0, 1.0), (3e-3, 2e-3), (1e-3, 5.0)):
            expected = (time**4 + other**4) ** 0.25 - time
            assert float(waiting(dtype(time), dtype(other))) == pytest.approx(expected, rel=1e-5)
        assert float(waiting(dtype(1e-2), dtype(1e-5))) == pytest.approx(1e-20 / (4 * 1e-6), rel=1e-5)
        slopes = jax.grad(lambda pair: waiting(*pair))((dtype(1e-2), dtype(1e-9)))
        assert np.isfinite(slopes).all()


def test_rows_of_a_table_do_not_see_each_other(system):
    machine = _machine(system)
    rows = {
        "few": (64.0, 4096.0, 1024.0, 1.0),
        "many": (4096.0, 4096.0, 4096.0, 1.0),
        "batch": (1.0, 1000.0, 64.0, 32.0),
    }
    together = gemm_work(Gemms.table(rows), machine)
    for position, row in enumerate(rows.values()):
        alone = float(gemm_work(_gemm(*row), machine).time[0])
        assert float(together.time[position]) == pytest.approx(alone, rel=1e-12)


def test_a_table_adds_up_by_how_often_its_operators_run(system):
    machine, runs = _machine(system), jnp.array([3.0, 0.0, 0.5])
    table = Gemms.table(
        {
            "wide": (64.0, 4096.0, 1024.0, 1.0),
            "absent": (4096.0, 4096.0, 4096.0, 1.0),
            "shared": (256.0, 4096.0, 4096.0, 8.0),
        }
    )
    timed = evaluate([operators_of(table, part="matmul", runs=runs)], machine)
    total, work = timed.total(), gemm_work(table, machine)
    assert float(total.time) == pytest.approx(float(work.time @ runs), rel=1e-12)
    assert float(total.flops) == pytest.approx(float(work.flops @ runs), rel=1e-12)
    np.testing.assert_allclose(total.traffic, work.traffic @ runs, rtol=1e-12)


def test_half_the_width_moves_half_the_bytes(system, llama):
    """Of operands and products; activations stay at 16 bits between products unless they have a format of
    their own.
    """
    tables = [
        {"precision": "bf16"},
        {"precision": "fp8"},
        {"precision": "fp8", "activation_precision": "fp8"},
    ]
    strategies = [dp.load_strategy(table) for table in tables]
    machines = [Machine.of(system, strategy, Exact()) for strategy in strategies]
    assert [float(machine.matrix.width) for machine in machines] == [2, 1, 1]
    assert [float(machine.matrix.output_width) for machine in machines] == [2, 2, 2]
    layers, tokens = llama.layers[0], real(1024)
    kernels = [elementwise_kernels(layers, llama, strategy, tokens).bytes for strategy in strategies]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    np.testing.assert_allclose(kernels[0], 2 * kernels[2])


def test_elementwise_kernels_stream(system):
    work = stream_work(Streams.table({"large": 2e9, "small": 2e6, "absent": 0.0}), _machine(system))
    fixed = 1e-6 + OVERHEAD
    np.testing.assert_allclose(work.time, [2e9 / HBM + fixed, 2e6 / HBM + fixed, 0.0])
    np.testing.assert_array_equal(work.traffic, [[2e9, 2e6, 0.0]] * 2)
    assert float(work.flops.sum()) == 0


def test_streams_of_inference_stay_in_the_shared_cache(system):
    """A kernel whose bytes fit takes the cache's bandwidth and latency; of twice the bytes, half do."""
    machine = dataclasses.replace(_machine(system), serving=True)
    capacity, (cache, memory) = 48e6, machine.levels
    bytes_ = {"fits": capacity / 4, "twice": 2 * capacity, "large": 100 * capacity, "absent": 0.0}
    work = stream_work(Streams.table(bytes_), machine)
    shares, moved = np.array([1.0, 0.5, 0.01, 1.0]), np.array(list(bytes_.values()))
    times = moved * (shares / L2 + (1 - shares) / HBM)
    latencies = shares * float(cache.latency) + (1 - shares) * float(memory.latency)
    present = np.array([1, 1, 1, 0])
    np.testing.assert_allclose(work.time, (times + latencies + OVERHEAD) * present, rtol=1e-9)
    np.testing.assert_allclose(work.traffic, [moved, moved * (1 - shares)], rtol=1e-9)


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)])
@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
def test_slopes_of_cached_streams_are_differences(system, share, relax):
    """By the bytes that a kernel moves over the capacity: below the kink, at it and above it."""
    machine = dataclasses.replace(_machine(system, relax), serving=True)

    def time(bytes_over_capacity):
        return stream_work(Streams(jnp.array([48e6 * bytes_over_capacity])), machine).time[0]

    step = 1e-5
    slope = float(jax.grad(time)(share))
    sides = [float((time(share + d) - time(share)) / d) for d in (-step, step)]
    low, high = min(sides), max(sides)
    assert low - 1e-3 * abs(low) <= slope <= high + 1e-3 * abs(high)
    if share != 1.0:
        assert slope == pytest.approx(sum(sides) / 2, rel=1e-5)


def test_work_adds_and_scales():
    work = Work(
        time=real(1.0),
        starts=real(0.25),
        clocked=real(0.5),
        flops=real(2.0),
        arithmetic=real(5.0),
        traffic=jnp.array([3.0, 4.0]),
    )
    both = work + work * 2
    assert (float(both.time), float(both.flops)) == (3, 6)
    np.testing.assert_array_equal(both.traffic, [9, 12])


@pytest.mark.parametrize("sharpness", [5.0, 20.0, 200.0])
def test_smooth_times_stay_within_their_bounds(system, sharpness):
    """Three terms at most, minimum over four tiles, three staircases that may save almost a step each."""
    gemms = Gemms.table(
        {
            "square": (4096.0, 4096.0, 4096.0, 1.0),
            "skinny": (1.0, 8192.0, 8192.0, 1.0),
            "batch": (2048.0, 512.0, 128.0, 96.0),
        }
    )
    exact, smooth = (gemm_work(gemms, _machine(system, relax)).time for relax in (Exact(), Smooth(sharpness)))
    assert np.all(smooth <= exact * 3 ** (1 / sharpness) * 2 ** (1 / sharpness) * (1 + 1e-9))
    assert np.all(smooth >= exact * 4 ** (-1 / sharpness) * 0.5)


def test_a_cluster_fetches_what_it_shares_once(system):
    """Four units side by side work on 512 × 512 as one: half the operand bytes of a lone tile, the same
    output.
    """
    roomy = {"capacity": 1e12}
    m = n = k = 4096
    alone = gemm_work(_gemm(m, n, k), _machine(system, smem=roomy)).traffic[0, 0]
    clustered = replace(system, {"accelerator.cluster": 4.0})
    together = gemm_work(_gemm(m, n, k), _machine(clustered, smem=roomy)).traffic[0, 0]
    output = 2 * m * n
    assert float(alone) == pytest.approx(2 * (m * k * n / 256 + k * n * m / 256) + output, rel=1e-12)
    assert float(together) - output == pytest.approx((float(alone) - output) / 2, rel=1e-12)
