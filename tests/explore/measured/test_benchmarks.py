"""How long the kernels of measured rows ran, and what the layouts of experts' products mean."""

import pytest
from measured_cases import gemm, write

from diffperf.explore.measured.benchmarks import benchmarks, duration_and_runs
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import read_measurements

SIMUMAX = "github:MooreThreads/SimuMax@4dcaae513ba7:configs/system/b200_bf16_ceperm.json"


def table_of(folder, *cells):
    named = [gemm(**each) | {"id": f"row-{i}"} for i, each in enumerate(cells)]
    table = read_measurements(write(folder / "gemm.csv", named))
    assert not table.faults
    return table


def test_a_row_or_its_source_says_how_long_a_kernel_ran(tmp_path):
    cells = (
        {"source": SIMUMAX, "duration_s": ""},
        {"source": SIMUMAX, "duration_s": 0.25},
        {"source": "github:ai-dynamo/aiconfigurator@1", "duration_s": ""},
        {"source": "my own", "duration_s": ""},
    )
    found = [duration_and_runs(row) for row in table_of(tmp_path, *cells).rows]
    assert found == [(1e6, 0.0), (0.25, 0.0), (0.0, 6.0), (0.0, 10.0)]


def test_what_benchmarks_begin_with_is_theirs_alone():
    sources = [benchmark.source for benchmark in benchmarks()]
    assert not any(a != b and a.startswith(b) for a in sources for b in sources)


def test_only_throttled_kernels_depend_on_how_long_they_ran(tmp_path):
    """Products with K = 4,096 reach the limit of B200's power; with K = 8 they wait for memory."""
    sizes = {"m": 16384, "n": 16384, "hardware": "b200-sxm-180gb"}
    cells = [sizes | {"k": k, "source": source} for k in (4096, 8) for source in (SIMUMAX, "brief")]
    table = table_of(tmp_path, *cells)
    times = [found.values["latency_s"] for found in predict("gemm", table.rows, table.platforms)]
    assert times[0] > 1.1 * times[1]
    assert times[2] == pytest.approx(times[3], rel=1e-9)


def test_kernels_of_a_replay_share_its_start(tmp_path):
    """Weights of 2 MB and of 134 MB against the 126 MiB of B200's cache: a replay has five kernels with the
    one, the most there are, and one with the other. In fp8 the larger weights take two to fill the cache.
    """
    aic = "github:ai-dynamo/aiconfigurator@1"
    sizes = [("bf16", 1024, 1024, 5), ("bf16", 65536, 1024, 1), ("fp8", 65536, 1024, 2)]
    cells = [
        {"m": 16, "n": n, "k": k, "dtype": dtype, "hardware": "b200-sxm-180gb", "source": source}
        for dtype, n, k, _ in sizes
        for source in (aic, "alone")
    ]
    table = table_of(tmp_path, *cells)
    times = [found.values["latency_s"] for found in predict("gemm", table.rows, table.platforms)]
    start = next(known.replay_start for known in benchmarks() if aic.startswith(known.source))
    for (_, _, _, kernels), replayed, alone in zip(sizes, times[::2], times[1::2], strict=True):
        assert replayed - alone == pytest.approx(start / kernels, rel=1e-6)


def test_passes_of_experts_are_products_of_the_forward_sizes(tmp_path):
    """Against each pass as a row of its own sizes: gradients of inputs swap n and k, those of weights m and k
    and read and write sums of four bytes. A kernel for each expert takes as long as it does alone.
    """
    m, n, k, experts = 4096, 6144, 2048, 3
    sizes = {"m": m, "n": n, "k": k, "duration_s": 1e-6}
    passes = [sizes | {"layout": name, "batch": experts} for name in ("fwd", "bwd_grad_act", "bwd_grad_w")]
    alone = [sizes, sizes | {"n": k, "k": n}, sizes | {"m": k, "k": m}]
    table = table_of(tmp_path, *passes, *alone)
    times = [found.values["latency_s"] for found in predict("gemm", table.rows, table.platforms)]
    assert times[0] == pytest.approx(experts * times[3], rel=1e-9)
    assert times[1] == pytest.approx(experts * times[4], rel=1e-9)
    assert experts * times[5] < times[2] < experts * (times[5] + 6 * k * n / 2.6e12)
