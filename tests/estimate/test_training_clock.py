"""The clock that the power limit leaves a training step: the power of the report is the limit, wherever the
step has nothing longer to wait for than the limit averages over.
"""

import pytest
from helpers import training

import diffperf as dp
from diffperf.quantity import replace
from diffperf.relax import Exact


def limited(name: str, share: float, laid: dict, devices: int = 8):
    """A step of Llama 3 70B at a share of the device's power limit, and that limit in watts."""
    system = dp.load_system(name, n_devices=devices)
    limit = share * float(system.accelerator.power_limit)
    system = replace(system, {"accelerator.power_limit": limit})
    strategy = dp.load_strategy({"global_batch": 64, **laid}, n_devices=devices)
    return training(dp.load_model("llama-3-70b"), system, strategy, Exact()), limit


@pytest.mark.parametrize("share", [0.45, 0.7])
@pytest.mark.parametrize(
    "laid",
    [
        {"tp": 8},
        {"tp": 8, "overlap_tensor": "on"},
        {"tp": 4, "cp": 2, "sequence_length": 8192},
        {"tp": 8, "recompute": "full"},
    ],
    ids=["exposed", "hidden", "ring", "recomputed"],
)
@pytest.mark.parametrize("name", ["dgx-h100", "hgx-b200"])
def test_a_throttled_step_draws_its_limit(name, laid, share):
    """Tensor-parallel communication takes up to a fifth of these steps: devices draw less meanwhile, and
    their clock falls less.
    """
    report, limit = limited(name, share, laid)
    assert float(report.clock) < 0.95
    assert float(report.power) == pytest.approx(limit, rel=0.004)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_waits_for_the_host_count_in_the_power_that_is_limited(share):
    """A device that waits for its launches a fifth of the time is throttled only to its limit."""
    system = dp.load_system("dgx-h100", n_devices=8)
    limit = share * float(system.accelerator.power_limit)
    system = replace(system, {"accelerator.power_limit": limit, "stack.host_launch": 6e-3})
    strategy = dp.load_strategy({"tp": 8, "global_batch": 64}, n_devices=8)
    report = training(dp.load_model("llama-3-70b"), system, strategy, Exact())
    assert float(report.breakdown.host) > 0.2 * float(report.time)
    throttled = float(report.clock) < 1
    assert throttled == (share < 1)
    assert float(report.power) == pytest.approx(limit, rel=0.004) if throttled else report.power < limit


def test_a_bubble_does_not_raise_the_clock():
    """A pipeline waits for seconds, and its devices are throttled in between as without any wait."""
    short, limit = limited("dgx-h100", 0.5, {"tp": 8, "pp": 2, "global_batch": 64}, devices=16)
    long, _ = limited("dgx-h100", 0.5, {"tp": 8, "pp": 2, "global_batch": 4}, devices=16)
    assert float(long.breakdown.pipeline_bubble / long.time) > 0.15
    assert float(long.clock) == pytest.approx(float(short.clock), rel=1e-2)
    assert float(long.power) < 0.95 * limit
