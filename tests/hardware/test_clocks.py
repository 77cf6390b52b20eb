"""Clocks of accelerators: the peak rates hold at the boost clock, and reports say what is left of it."""

import jax
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.load import available
from diffperf.quantity import real, replace

# Dense 16-bit FLOP per cycle of a compute unit with sums in fp32, from the whitepapers of the architectures:
# NVIDIA's V100 (page 12), A100 (Table 2), GA102, Ada, H100 (Table 2) and Blackwell, AMD's CDNA 2 and 3 (and
# CDNA 4 from ISSCC 2026), TPUs' matrix units of 128 × 128 (arXiv 2304.01433), Xe HPC's eight engines of 4,096
# bits (glennklockwood.com).
FLOP_PER_CYCLE = {
    ("a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-80gb"): 2048,
    ("h100-sxm5-80gb", "h100-96gb", "h100-nvl", "h100-pcie-80gb", "h200-sxm-141gb", "h800-sxm-80gb"): 4096,
    ("gh200-96gb", "gh200-144gb", "gh200-96gb-host-memory"): 4096,
    ("b200-sxm-180gb", "b300-sxm", "gb200", "gb300"): 8192,
    ("a40", "rtx-a6000", "l40s", "rtx-4000-ada", "rtx-5000-ada", "rtx-6000-ada"): 1024,
    ("rtx-3060-12gb", "rtx-3070", "rtx-3080-10gb", "rtx-3080ti", "rtx-3090"): 512,
    ("rtx-4070ti", "rtx-4080", "rtx-4090", "rtx-5080", "rtx-5090"): 512,
    ("mi210", "mi250", "mi250-package", "mi250x"): 1024,
    ("mi300x", "mi325x"): 2048,
    ("mi355x",): 4096,
    ("tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p"): 2 * 128 * 128,
    ("intel-max-1550",): 4096,
}
OF_UNIT = {name: flop for names, flop in FLOP_PER_CYCLE.items() for name in names}


def accelerator(name: str):
    return dp.load_system({"extends": "one-device", "accelerator": name}).accelerator


@pytest.mark.parametrize("name", OF_UNIT)
def test_peak_rates_hold_at_the_boost_clock(name):
    device = accelerator(name)
    peak = float(device.compute_units * device.boost_clock) * OF_UNIT[name]
    assert peak == pytest.approx(float(device.matrix.bf16.rate), rel=0.01)


def test_v100_multiplies_in_fp16():
    device = accelerator("v100-sxm2-32gb")
    assert 80 * 1024 * float(device.boost_clock) == pytest.approx(float(device.matrix.fp16.rate), rel=0.01)


@pytest.mark.slow
def test_every_boost_clock_is_checked():
    given = {name for name in available("accelerators") if float(accelerator(name).boost_clock) > 0}
    assert given == {*OF_UNIT, "v100-sxm2-32gb"}


def test_a_base_clock_above_the_boost_clock_is_refused():
    table = {"extends": "a40", "base_clock": "1.8 GHz"}
    with pytest.raises(ConfigError, match="at most the boost clock"):
        dp.load_system({"extends": "one-device", "accelerator": table})


@pytest.mark.slow
def test_reports_say_the_clock():
    """A training step's clock is the share of the boost clock that the power limit leaves."""
    system = dp.load_system("dgx-h100", n_devices=8)
    strategy = dp.load_strategy({"tp": 2, "global_batch": 16, "micro_batch": 2}, n_devices=8)
    model = dp.load_model("llama-2-7b")

    def step(boost):
        return dp.training_step(model, replace(system, {"accelerator.boost_clock": boost}), strategy)

    estimate, slope = jax.jit(step), jax.jit(jax.grad(lambda boost: step(boost).frequency))
    report = estimate(system.accelerator.boost_clock)
    assert 0.1 < float(report.clock) < 1  # at the power limit
    assert float(estimate(real(2e9)).frequency) == pytest.approx(2e9 * float(report.clock), rel=1e-12)
    assert float(slope(real(2e9))) == pytest.approx(float(report.clock), rel=1e-9)
    unknown = estimate(real(0.0))
    assert float(unknown.frequency) == 0.0
    assert float(unknown.time) == pytest.approx(float(report.time), rel=1e-12)


def test_a_clock_below_the_base_clock_is_said():
    asked = {"devices": 4, "tp": 4, "global_batch": 16, "micro_batch": 2}
    slow = dp.estimate("llama-2-7b", "h100-pcie-pairs", **asked, set={"accelerator.power_limit": "250 W"})
    assert "Below the base clock" in str(slow)
    free = dp.estimate("llama-2-7b", "h100-pcie-pairs", **asked, set={"accelerator.power_limit": "700 W"})
    assert "Below the base clock" not in str(free)
    set_lower = {"accelerator.power_limit": "700 W", "accelerator.clock_limit": 0.3}
    limited = dp.estimate("llama-2-7b", "h100-pcie-pairs", **asked, set=set_lower)
    assert float(limited.report.frequency) < float(dp.load_system("h100-pcie-pairs").accelerator.base_clock)
    assert "Below the base clock" not in str(limited)  # the user's choice


def test_limits_that_no_clock_keeps_are_said_or_refused():
    """An idle H100 draws 90 W."""
    asked = {"devices": 8, "tp": 8, "global_batch": 8}
    low = dp.estimate("llama-3-8b", "dgx-h100", **asked, set={"accelerator.power_limit": "92 W"})
    assert float(low.report.power) > 92
    assert "Above the power limit of 92 W: even at the least clock" in " ".join(str(low).split())
    assert "Above the power limit" not in str(dp.estimate("llama-3-8b", "dgx-h100", **asked))
    with pytest.raises(dp.ConfigError, match=r"power_limit: found 90 W; expected more than the 90 W"):
        dp.estimate("llama-3-8b", "dgx-h100", **asked, set={"accelerator.power_limit": "90 W"})
