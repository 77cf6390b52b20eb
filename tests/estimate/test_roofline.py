"""The roofline by hand: cases whose answer fits on a line, and the limits in which the formulas become simple."""

import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.attention import attention_backward, attention_forward, flash_work
from diffperf.estimate.elementwise import stream_work
from diffperf.estimate.gemm import TILES, gemm_work
from diffperf.estimate.machine import Machine, Work
from diffperf.quantity import real, replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.operators import AttentionCore, Gemms

RATE, UNITS, EFFICIENCY, OVERHEAD = 100e12, 100, 0.8, 3e-6
HBM, L2 = 1e12, 4e12  # byte/s, reachable
FREE = {"bandwidth": 1e30, "latency": 1e-30}


def _machine(system, relax=None, **levels):
    """A round-numbered accelerator; `levels` changes memory levels."""
    values = {
        "matrix.bf16": RATE,
        "compute_units": UNITS,
        "matrix_efficiency": EFFICIENCY,
        "attention_efficiency": EFFICIENCY,
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
    system = replace(system, {"stack.kernel_overhead": OVERHEAD})
    return Machine.of(system, dp.load_strategy({}), relax or Exact())


def _gemm(m, n, k, batch=1):
    return Gemms.table(tuple(map(real, (m, n, k, batch))))


def test_whole_waves_of_tiles_compute(system):
    """m = 256, n = 128·150, k = 1000: 150 tiles of 256 × 128 on 100 units take 2 waves, and no smaller tile wastes less."""
    work = gemm_work(_gemm(256, 128 * 150, 1000), _machine(system, l2=FREE, hbm=FREE))
    waves = {(256, 128): 2, (128, 128): 3, (64, 64): 12, (16, 64): 48}
    assert set(waves) == {tuple(map(int, tile)) for tile in TILES}
    times = [w * 2 * rows * columns * 1000 / (RATE * EFFICIENCY / UNITS) for (rows, columns), w in waves.items()]
    assert float(work.time[0]) == pytest.approx(min(times) + OVERHEAD, rel=1e-12)
    assert float(work.flops[0]) == 2 * 256 * 128 * 150 * 1000


def test_a_tile_is_never_partly_paid(system):
    """One row costs what 16 do: the smallest tile's rows."""
    machine = _machine(system, l2=FREE, hbm=FREE)
    assert float(gemm_work(_gemm(1, 6400, 512), machine).time[0]) == float(gemm_work(_gemm(16, 6400, 512), machine).time[0])


def test_a_skinny_gemm_streams_its_weights(system):
    """Decode: one token against a k × n matrix reads it once from device memory."""
    k, n = 8192, 8192
    work = gemm_work(_gemm(1, n, k), _machine(system))
    read = 2 * (k * n + k * max(1, n / (48e6 / 6) ** 0.5) + n)
    assert float(work.traffic[-1, 0]) == pytest.approx(read, rel=1e-12)
    assert float(work.time[0]) == pytest.approx(read / HBM + 1e-6 + OVERHEAD, rel=1e-12)


def test_traffic_is_left_by_reuse_in_blocks(system):
    """4096³: L2 (48 MB) holds blocks of 2828²; a unit's memory (192 KiB) holds 181², so tiles are cut to 181 × 128."""
    n, block = 4096, (48e6 / 6) ** 0.5
    tile_block = (196608.0 / 6) ** 0.5
    work = gemm_work(_gemm(n, n, n), _machine(system))
    outer = 2 * (2 * n**2 * n / block + n**2)
    inner = 2 * (n**3 / 128 + n**3 / tile_block + n**2)  # the largest tile's, which moves the least
    np.testing.assert_allclose(work.traffic[:, 0], [inner, outer], rtol=1e-12)


def test_batches_multiply(system):
    machine = _machine(system)
    one, many = gemm_work(_gemm(256, 256, 256), machine), gemm_work(_gemm(256, 256, 256, 1000), machine)
    assert float(many.flops[0]) == 1000 * float(one.flops[0])
    np.testing.assert_allclose(many.traffic, 1000 * one.traffic)
    assert float(one.time[0]) < float(many.time[0]) < 1000 * float(one.time[0])  # one launch, and full waves


def test_rows_of_a_table_do_not_see_each_other(system):
    machine = _machine(system)
    rows = [(64, 4096, 1024, 1), (4096, 4096, 4096, 1), (1, 1000, 64, 32)]
    together = gemm_work(Gemms.table(*(tuple(map(real, row)) for row in rows)), machine)
    for i, row in enumerate(rows):
        assert float(together.time[i]) == pytest.approx(float(gemm_work(_gemm(*row), machine).time[0]), rel=1e-12)
    total = together.total()
    assert float(total.time) == pytest.approx(float(together.time.sum()))
    assert total.traffic.shape == (2,)


def test_half_the_width_moves_half_the_bytes(system):
    bf16 = _machine(system)
    fp8 = Machine.of(replace(system, {}), dp.load_strategy({"precision": "fp8"}), Exact())
    assert float(fp8.width) == 1
    assert float(bf16.width) == 2
    stream = [stream_work(jnp.array([1e9]), machine).traffic for machine in (bf16, fp8)]
    np.testing.assert_allclose(stream[0], 2 * stream[1])


def test_elementwise_kernels_stream(system):
    work = stream_work(jnp.array([1e9, 1e6]), _machine(system))
    np.testing.assert_allclose(work.time, [2e9 / HBM + 1e-6 + OVERHEAD, 2e6 / HBM + 1e-6 + OVERHEAD])
    assert float(work.flops.sum()) == 0


def _core(queries, context, heads=8, kv_heads=8, sequences=1):
    return AttentionCore(*map(real, (sequences, queries, context, heads, kv_heads, 128)))


def test_flash_attention_bound_by_compute(system):
    machine = _machine(system, l2=FREE, hbm=FREE)
    assert float(flash_work(_core(4096, 4096), machine, real(1e12), 1.0).time) == pytest.approx(
        1e12 / (RATE * EFFICIENCY) + OVERHEAD
    )


def test_flash_attention_with_room_for_everything_reads_each_operand_once(system):
    core = _core(4096, 4096, heads=32, kv_heads=8)
    machine = _machine(system, smem={"capacity": 1e14}, l2={"capacity": 1e14})
    q, kv = 4096 * 32 * 128 * 2, 2 * 4096 * 8 * 128 * 2
    np.testing.assert_allclose(flash_work(core, machine, real(1.0), 1.0).traffic, 2 * q + kv, rtol=1e-12)


def test_flash_attention_traffic_follows_its_theorem(system):
    """Θ(N²·d²/M): four times for twice the tokens, half for twice the memory (arXiv 2205.14135, Theorem 2)."""

    def traffic(tokens, capacity):
        machine = _machine(system, smem={"capacity": UNITS * capacity}, l2={"capacity": 1e6})
        core = _core(tokens, tokens)
        return float(flash_work(core, machine, real(1.0), 1.0).traffic[0]) - 2 * 2 * float(core.query_elements)

    assert traffic(65536, 1e5) == pytest.approx(4 * traffic(32768, 1e5), rel=1e-9)
    assert traffic(65536, 1e5) == pytest.approx(2 * traffic(65536, 2e5), rel=1e-9)
    n, d, m = 65536, 128, 1e5
    assert traffic(n, m) == pytest.approx(
        8 * 2 * n * d * 2 * n / (m / (4 * d * 2)), rel=1e-9
    )  # heads · K and V · blocks of queries


def test_causal_flash_attention_computes_half(system):
    machine = _machine(system)
    core = _core(4096, 4096)
    flash = jnp.array([0.0, 1.0])
    forward, backward = attention_forward(core, real(0), machine, flash), attention_backward(core, real(0), machine, flash)
    full = 4 * 8 * 4096 * 4096 * 128
    assert float(forward.flops) == pytest.approx(full / 2, rel=1e-3)
    assert float(backward.flops) == pytest.approx(2.5 * float(forward.flops), rel=1e-12)
    assert float(forward.traffic[-1]) < float(backward.traffic[-1])


def test_standard_attention_materializes_its_scores(system):
    machine = _machine(system)
    core = _core(4096, 4096)
    standard, flash = (attention_forward(core, real(0), machine, jnp.eye(2)[i]) for i in (0, 1))
    scores = 8 * 4096 * 4096 * 2
    assert float(standard.flops) == 4 * 8 * 4096 * 4096 * 128
    # Q·Kᵀ writes them, softmax reads and writes, P·V reads.
    assert float(standard.traffic[-1]) > 4 * scores > float(flash.traffic[-1])
    assert float(standard.time) > float(flash.time)


def test_decode_attention_reads_the_cache_once(system):
    core = _core(1, 2048, heads=32, kv_heads=32, sequences=64)
    work = attention_forward(core, real(0), _machine(system), jnp.array([0.0, 1.0]))
    cache = 64 * 2 * 2048 * 32 * 128 * 2
    assert float(work.time) == pytest.approx(cache / HBM + OVERHEAD, rel=0.01)


def test_work_adds_and_scales():
    one = Work(real(1.0), real(2.0), jnp.array([3.0, 4.0]))
    both = one + one * 2
    assert (float(both.time), float(both.flops)) == (3, 6)
    np.testing.assert_array_equal(both.traffic, [9, 12])


@pytest.mark.parametrize("sharpness", [5.0, 20.0, 200.0])
def test_smooth_times_stay_within_their_bounds(system, sharpness):
    """Three terms at most, minimum over four tiles, three staircases that may save almost a step each."""
    gemms = Gemms.table(*(tuple(map(real, row)) for row in [(4096, 4096, 4096, 1), (1, 8192, 8192, 1), (2048, 512, 128, 96)]))
    exact, smooth = (gemm_work(gemms, _machine(system, relax)).time for relax in (Exact(), Smooth(sharpness)))
    assert np.all(smooth <= exact * 3 ** (1 / sharpness) * 2 ** (1 / sharpness) * (1 + 1e-9))
    assert np.all(smooth >= exact * 4 ** (-1 / sharpness) * 0.5)


def test_a_cluster_fetches_what_it_shares_once(system):
    """Four units side by side work on 512 × 256 as one: half the operand bytes of a lone tile, the same output."""
    roomy = {"capacity": 1e12}
    m = n = k = 4096
    alone = gemm_work(_gemm(m, n, k), _machine(system, smem=roomy)).traffic[0, 0]
    clustered = replace(system, {"accelerator.cluster": 4.0})
    together = gemm_work(_gemm(m, n, k), _machine(clustered, smem=roomy)).traffic[0, 0]
    output = 2 * m * n
    assert float(alone) == pytest.approx(2 * (m * k * n / 128 + k * n * m / 256) + output, rel=1e-12)
    assert float(together) - output == pytest.approx((float(alone) - output) / 2, rel=1e-12)
