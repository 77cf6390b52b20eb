"""Attention kernels against answers worked out by hand: each term where it alone counts, and the limits in
which kernels agree.
"""

import itertools

import numpy as np
import pytest
from attention_cases import (
    EFFICIENCY,
    FIXED,
    GROUP_LATENCY,
    HBM,
    HEAD_LATENCY,
    L2,
    RATE,
    ROW_LATENCY,
    SOFTMAX,
    SPLIT_LATENCY,
    TILE_LATENCY,
    UNITS,
    VECTOR,
    attention_work,
    core_of,
    machine_of,
    seconds_per_score,
)

import diffperf as dp
from diffperf.estimate.kernels.attention import (
    SPLIT,
    TAIL,
    TILE,
    context_work,
    flash_traffic,
    generation_work,
)
from diffperf.estimate.kernels.machine import Machine
from diffperf.quantity import real, replace
from diffperf.relax import Exact

# What is to be computed


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize(("queries", "context"), [(1, 1), (5, 5), (1, 9), (4, 7)])
def test_visible_scores_by_enumeration(queries, context, window):
    """Query i is token context − queries + i, and sees itself and what comes before it, as far as the window
    goes.
    """
    positions = [context - queries + i for i in range(queries)]
    seen = [(p, j) for p, j in itertools.product(positions, range(context)) if p - window < j <= p]
    core = core_of(queries, context, heads=3, sequences=2, window=window)
    assert float(core.visible_scores) == pytest.approx(2 * 3 * len(seen), rel=1e-12)
    assert float(core.span) == len({j for _, j in seen})
    everything = core_of(queries, context, heads=3, sequences=2, causal=0.0)
    assert float(everything.visible_scores) == float(everything.scores)


def test_a_window_beyond_the_context_is_none(system):
    machine = machine_of(system, {"memory.hbm.bandwidth": HBM})
    for queries, context in ((4096, 4096), (1, 4096)):
        plain, wide = (
            attention_work(core_of(queries, context, **window), machine)
            for window in ({}, {"window": 4096.0})
        )
        assert float(plain.time) == float(wide.time)
        narrow = attention_work(core_of(queries, context, window=512.0), machine)
        assert float(narrow.time) < float(plain.time)


def test_latent_attention_reads_one_latent_for_all_heads(system):
    """DeepSeek-V2's decode: 512 + 64 elements a token, the 512 read once as keys and values (arXiv 2405.04434
    Table 1), also on a stack whose kernels for grouped queries process fewer heads together.
    """
    core = core_of(1, 4096, heads=128, kv_heads=1, sequences=8, head_dim=576, value_dim=real(512), latent=1.0)
    machine = machine_of(system, {"memory.hbm.bandwidth": HBM, "stack.grouped_heads": 8.0})
    assert float(core.kv_elements) == 8 * 4096 * 576
    work = generation_work(core, machine)
    assert float(work.traffic[-1]) == 2 * (8 * 4096 * 576 + 8 * 128 * (576 + 512))
    assert float(work.flops) == 2 * 8 * 128 * 4096 * (576 + 512)
    prompt = core_of(4096, heads=128, sequences=1, head_dim=192, value_dim=real(128))
    assert float(prompt.kv_elements) == 4096 * 128 * (192 + 128)


# The context kernel


def test_a_tile_takes_its_latency_and_its_scores(system):
    """128 queries see 128 keys each, the causal diagonal is computed whole; a lone tile is the longest and
    adds its tail.
    """
    tile = TILE * TILE * seconds_per_score() * UNITS
    expected = TILE_LATENCY + tile / UNITS + TAIL * (TILE_LATENCY + tile)
    work = context_work(core_of(128, heads=1), machine_of(system))
    assert float(work.time) == pytest.approx(expected + FIXED, rel=1e-9)


@pytest.mark.parametrize("causal", [0.0, 1.0])
def test_long_contexts_are_bound_by_products_and_softmax(system, causal):
    """The whole device's rates, and of a causal context half of them and the diagonal's tiles."""
    n, heads = 65536, 100
    scores = heads * n * (n - causal * (n - TILE) / 2)
    waves = heads * n / TILE / UNITS
    longest = TILE_LATENCY + TILE * n * seconds_per_score() * UNITS
    expected = waves * TILE_LATENCY + scores * seconds_per_score() + TAIL * longest
    work = context_work(core_of(n, heads=heads, causal=causal), machine_of(system))
    assert float(work.time) == pytest.approx(expected + FIXED, rel=1e-9)
    assert float(work.flops) == pytest.approx(4 * 128 * heads * n * (n - causal * (n - 1) / 2), rel=1e-12)


@pytest.mark.parametrize("queries", [4096, 1024])
def test_tiles_of_a_window_compute_from_the_edge_of_their_first_query(system, queries):
    """A tile computes all scores from the first key that its first query sees to the last key of its last
    query: one of 128 queries in a window of 128 keys computes 255 keys for each of them.
    """
    context, window, heads = 4096, 128, 100
    first = np.arange(context - queries, context, TILE)  # position of a tile's first query
    computed = heads * TILE * np.sum(first + TILE - np.maximum(first - window + 1, 0))
    waves = heads * queries / TILE / UNITS
    longest = TILE_LATENCY + TILE * window * seconds_per_score() * UNITS
    expected = waves * TILE_LATENCY + computed * seconds_per_score() + TAIL * longest
    core = core_of(queries, context, heads=heads, window=window)
    assert float(context_work(core, machine_of(system)).time) == pytest.approx(expected + FIXED, rel=1e-9)


def test_small_heads_are_bound_by_the_softmax(system):
    """A score's softmax takes as long whatever the head's size: with heads of 4, almost all of the time."""
    n, heads = 32768, 100
    work = context_work(core_of(n, heads=heads, head_dim=4, causal=0.0), machine_of(system))
    assert float(work.time) == pytest.approx(heads * n * n * SOFTMAX / VECTOR, rel=0.05)


def test_tiles_come_in_whole_waves(system):
    machine = machine_of(system)
    times = [float(context_work(core_of(64, heads=1, sequences=b), machine).time) for b in (100, 101, 200)]
    waves = [TILE_LATENCY, 2 * TILE_LATENCY, 2 * TILE_LATENCY]
    assert np.diff(times)[0] == pytest.approx(np.diff(waves)[0] + 64 * TILE * seconds_per_score(), rel=1e-9)
    assert np.diff(times)[1] == pytest.approx(99 * 64 * TILE * seconds_per_score(), rel=1e-9)


def test_backward_recomputes_the_scores(system):
    """Five products for two, at the backward kernel's efficiency; O and dO read, and dQ's sums, 4 bytes set
    and read, written.
    """
    n, heads = 65536, 100
    per_score = np.hypot(2.5 * 512 / (RATE * EFFICIENCY * 0.5), SOFTMAX / VECTOR)
    core = core_of(n, heads=heads, causal=0.0)
    back = core_of(n, heads=heads, causal=0.0, backward=1.0)
    forward, backward = (context_work(given, machine_of(system)) for given in (core, back))
    expected = (
        n / TILE * TILE_LATENCY
        + heads * n * n * per_score
        + TAIL * (TILE_LATENCY + TILE * n * per_score * UNITS)
    )
    assert float(backward.time) == pytest.approx(expected + FIXED, rel=1e-9)
    assert float(backward.flops) == 2.5 * float(forward.flops)
    slow = context_work(back, machine_of(system, {"memory.hbm.bandwidth": 1e6}))
    around = heads * n * 128 * (2 * 2 + 2 * 4 + 2)
    assert float(slow.time) == pytest.approx(float(slow.traffic[-1]) / 1e6, rel=1e-3)
    assert float(slow.traffic[-1]) == pytest.approx(2 * float(forward.traffic[-1]) + around, rel=1e-12)


def test_traffic_follows_its_theorem(system):
    """Θ(N²·d²/M): four times for twice the tokens, half for twice the memory (arXiv 2205.14135, Theorem
    2).
    """

    def streamed(tokens, capacity):
        core = core_of(tokens, causal=0.0)
        machine = machine_of(system, {"memory.smem.capacity": UNITS * capacity})
        return float(flash_traffic(core, machine, 1.0)[0]) - 4 * float(core.query_elements)

    n, d, m = 65536, 128, 1e5
    assert streamed(n, m) == pytest.approx(
        8 * 2 * n * d * 2 * n / (m / (4 * d * 2)), rel=1e-9
    )  # heads · K, V · query blocks
    assert streamed(n, m) == pytest.approx(4 * streamed(n / 2, m), rel=1e-9)
    assert streamed(n, m) == pytest.approx(2 * streamed(n, 2 * m), rel=1e-9)
    masked = flash_traffic(core_of(n), machine_of(system, {"memory.smem.capacity": UNITS * m}), 1.0)[0]
    masked = masked - 4 * 8 * n * d
    assert float(masked) == pytest.approx(streamed(n, m) / 2, rel=1e-4)


def test_caches_that_hold_everything_read_each_operand_once(system):
    core = core_of(4096, heads=32, kv_heads=8)
    machine = machine_of(system, {"memory.smem.capacity": 1e14, "memory.l2.capacity": 1e14})
    q, kv = 4096 * 32 * 128 * 2, 2 * 4096 * 8 * 128 * 2
    inner, outer = flash_traffic(core, machine, 1.0)
    assert (float(inner), float(outer)) == (
        2 * q + 4 * kv,
        2 * q + kv,
    )  # a head at a time, four share what the cache holds


# The generation kernel


def test_generation_streams_the_cache_once(system):
    core = core_of(1, 2048, heads=32, kv_heads=32, sequences=64)
    work = attention_work(core, machine_of(system, {"memory.hbm.bandwidth": HBM}))
    cache = 64 * 2 * 2048 * 32 * 128 * 2
    assert float(work.traffic[-1]) == cache + 2 * 64 * 32 * 128 * 2
    assert float(work.time) == pytest.approx(cache / HBM + FIXED + HEAD_LATENCY, rel=0.01)


def test_generated_tiles_take_their_latency(system):
    """250 KV heads on 100 units, contexts too short to split: three waves, the first before the stream."""
    machine = machine_of(system)
    scores = seconds_per_score() * 2
    for group, latency in ((1, HEAD_LATENCY), (4, GROUP_LATENCY), (32, GROUP_LATENCY)):
        core = core_of(1, 2, heads=group, kv_heads=1, sequences=250)
        rows = group * ROW_LATENCY if group > 1 else 0.0
        tile = (latency**4 + rows**4) ** 0.25
        expected = FIXED + 3 * tile + 250 * group * scores
        assert float(generation_work(core, machine).time) == pytest.approx(expected, rel=1e-6), group


def test_more_heads_than_a_kernel_takes_are_on_their_own(system):
    """64 query heads per KV head: kernels for 32 work through 64 heads, each with a stream from the caches of
    its own.
    """
    core = core_of(1, 1024, heads=64, kv_heads=1, sequences=100)
    alone, grouped = (
        generation_work(core, machine_of(system, {"stack.grouped_heads": heads})) for heads in (32.0, 64.0)
    )
    kv = 100 * 2 * 1024 * 128 * 2
    assert float(alone.traffic[0] - grouped.traffic[0]) == 63 * kv
    assert float(alone.traffic[-1]) == float(grouped.traffic[-1])
    assert float(alone.time) > 64 * HEAD_LATENCY > float(grouped.time)


def test_few_long_contexts_are_split(system):
    """Two KV heads on 100 units: 50 splits each, fewer where that leaves less than a split's tokens; then
    they are combined.
    """
    machine = machine_of(system)
    long, short, none = (
        float(generation_work(core_of(1, n, heads=2), machine).time) for n in (1e5, 10 * SPLIT, SPLIT)
    )
    scores = 2 * seconds_per_score()
    assert none == pytest.approx(FIXED + HEAD_LATENCY + SPLIT * scores, rel=1e-9)
    assert short == pytest.approx(FIXED + HEAD_LATENCY + 10 * SPLIT * scores + SPLIT_LATENCY, rel=1e-9)
    assert long == pytest.approx(FIXED + HEAD_LATENCY + 1e5 * scores + SPLIT_LATENCY, rel=1e-9)


def test_new_tokens_that_follow_others_are_generated(system):
    machine = machine_of(system, {"memory.hbm.bandwidth": HBM})
    for queries, context, kernel in (
        (1, 2, generation_work),
        (1, 1, context_work),
        (4, 999, generation_work),
    ):
        core = core_of(queries, context)
        assert float(attention_work(core, machine).time) == float(kernel(core, machine).time)
    chunk = core_of(512, 8192)
    assert float(attention_work(chunk, machine).time) == float(context_work(chunk, machine).time)


# Formats and libraries


def test_the_cache_says_what_is_multiplied(system):
    """fp8 caches use fp8 kernels and rates where silicon has them; int4 ones are converted to 16 bits; fp32
    stays itself.
    """
    hopper, core = dp.load_system("dgx-h100"), core_of(8192, heads=64)

    def rate(**formats):
        machine = Machine.of(hopper, dp.load_strategy(formats), Exact())
        return float(
            1
            / (
                machine.attention.flop_time
                * machine.attention.format.efficiency
                * hopper.stack.attention_efficiency
            )
        )

    matrix = hopper.accelerator.matrix
    assert rate() == pytest.approx(float(matrix.bf16.rate), rel=1e-12)
    assert rate(kv_precision="fp8") == pytest.approx(float(matrix.fp8.rate), rel=1e-12)
    assert rate(kv_precision="int4") == pytest.approx(float(matrix.bf16.rate), rel=1e-12)
    assert rate(precision="fp32") == pytest.approx(float(matrix.fp32.rate), rel=1e-12)
    changed = replace(hopper, {"accelerator.attention.fp8.tile_latency": 1e-4})
    times = {
        kv: [
            float(context_work(core, Machine.of(s, dp.load_strategy({"kv_precision": kv}), Exact())).time)
            for s in (hopper, changed)
        ]
        for kv in ("bf16", "fp8")
    }
    assert times["bf16"][0] == times["bf16"][1]
    assert times["fp8"][0] < times["fp8"][1]


def test_a_librarys_share_scales_products_alone(system):
    n, heads = 65536, 100
    half = context_work(
        core_of(n, heads=heads, causal=0.0), machine_of(system, {"stack.attention_efficiency": 0.5})
    )
    per_score = seconds_per_score(rate=RATE * EFFICIENCY / 2)
    expected = (
        n / TILE * TILE_LATENCY
        + heads * n * n * per_score
        + TAIL * (TILE_LATENCY + TILE * n * per_score * UNITS)
    )
    assert float(half.time) == pytest.approx(expected + FIXED, rel=1e-9)


def test_standard_attention_materializes_its_scores(system):
    machine = machine_of(system, {"memory.hbm.bandwidth": HBM, "memory.l2.bandwidth": L2})
    core = core_of(4096)
    standard, flash = (attention_work(core, machine, kernel) for kernel in ("standard", "flash"))
    scores = 8 * 4096 * 4096 * 2
    assert float(standard.flops) == 4 * 8 * 4096 * 4096 * 128
    # Q·Kᵀ writes them, softmax reads and writes, P·V reads.
    assert float(standard.traffic[-1]) > 4 * scores > float(flash.traffic[-1])
    assert float(standard.time) > float(flash.time)
    backward = attention_work(core, machine, "standard", "backward")
    assert float(backward.flops) == 2 * float(standard.flops)
