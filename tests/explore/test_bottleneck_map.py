"""What limits a cell is what saves most when it grows; a little more of it saves what the map says."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.bottleneck_map import bottleneck_map
from diffperf.explore.bottlenecks import OVERHEAD
from diffperf.explore.points import outputs_at
from diffperf.explore.ranges import Range
from diffperf.quantity import locate
from diffperf.workload.configuration import Configuration

HBM, NVLINK = "system.accelerator.memory.hbm.bandwidth", "system.network.nvlink.bandwidth"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def c() -> Configuration:
    strategy = dp.load_strategy({"tp": 8, "global_batch": 64}, n_devices=8)
    return Configuration(dp.load_model("llama-2-7b"), dp.load_system("dgx-a100", n_devices=8), strategy)


@pytest.fixture(scope="module")
def found(c):
    ranges = [
        Range(path, locate(c, path)[1], *ends) for path, ends in ((HBM, (5e10, 4e12)), (NVLINK, (1e9, 9e11)))
    ]
    return bottleneck_map(c, *ranges, "decode", cells=6)


def test_times_are_estimates(c, found):
    across, down = (grid.ravel() for grid in np.meshgrid(found.x, found.y))
    expected = outputs_at(c, {HBM: across, NVLINK: down}, "decode")
    np.testing.assert_allclose(found.time.ravel(), expected["time"], rtol=1e-12)
    np.testing.assert_allclose(found.excess.ravel(), expected["memory.excess"], rtol=1e-9)


def test_shares_are_those_of_differences(c, found):
    """Of bandwidth of memory, cell by cell: central differences of the estimate."""
    across, down = (grid.ravel() for grid in np.meshgrid(found.x, found.y))
    step = 1e-5
    ends = [
        outputs_at(c, {HBM: across * factor, NVLINK: down}, "decode")["time"]
        for factor in (1 + step, 1 - step)
    ]
    saved = -np.log(ends[0] / ends[1]) / (2 * step)
    ours = found.shares[..., found.resources.index("hbm bandwidth")].ravel()
    np.testing.assert_allclose(ours, saved, atol=2e-4)


def test_slow_resources_limit_and_shares_add_up(found):
    names = np.array(found.resources)[found.binding]
    assert names[-1, 0] == "hbm bandwidth"  # the slowest memory, the fastest network
    assert names[0, -1] == "nvlink network"  # the reverse
    np.testing.assert_allclose(found.shares.sum(axis=-1), 1.0, atol=1e-3)
    assert found.resources[-1] == OVERHEAD
