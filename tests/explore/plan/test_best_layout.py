import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.plan.best_layout import best_layout


def degrees(layout):
    return tuple(float(getattr(layout.strategy, name)) for name in ("tp", "pp", "dp"))


@pytest.mark.slow
@pytest.mark.parametrize("n_devices", [8, 24])
def test_the_fastest_that_fits_of_all_layouts(n_devices):
    """Against an exhaustive loop over integer triples that uses the public functions only."""
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", n_devices)
    best = (np.inf, None)
    for tp in range(1, 9):
        for pp in range(1, n_devices + 1):
            rest = n_devices / (tp * pp)
            if rest != round(rest) or 64 % tp or 48 % pp:
                continue
            strategy = dp.load_strategy({"tp": tp, "pp": pp, "global_batch": n_devices}, n_devices=n_devices)
            report = training(model, system, strategy)
            if float(report.memory.excess) <= 0:
                best = min(best, (float(report.time), (tp, pp, rest)))
    found = best_layout(model, system, {})
    assert found.fits
    assert degrees(found) == best[1]
    assert float(found.report.time) == pytest.approx(best[0], rel=1e-12)
    assert found.chosen == {"tp": best[1][0], "pp": best[1][1], "dp": best[1][2], "global_batch": n_devices}


def test_what_is_given_is_kept(gpt, system):
    found = best_layout(gpt, system, {"tp": 4, "global_batch": 128})
    assert degrees(found)[0] == 4
    assert set(found.chosen) == {"pp", "dp"}
    assert float(found.strategy.global_batch) == 128
    given = best_layout(gpt, system, {"tp": 8, "pp": 4, "dp": 2})
    assert given.candidates == 1
    assert degrees(given) == (8, 4, 2)


def test_a_complete_strategy_is_the_plain_estimate(gpt, system, strategy):
    table = {"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64}
    found = best_layout(gpt, system, table)
    assert float(found.report.time) == pytest.approx(
        float(dp.training_step(gpt, system, strategy).time), rel=1e-12
    )


@pytest.mark.slow
def test_the_least_too_large_where_none_fits(gpt):
    found = best_layout(gpt, dp.load_system("dgx-a100", 8), {})
    assert not found.fits
    assert found.candidates > 1
    for tp, pp in ((1, 8), (2, 4), (8, 1), (1, 1)):
        strategy = dp.load_strategy({"tp": tp, "pp": pp, "global_batch": 8}, n_devices=8)
        report = training(gpt, dp.load_system("dgx-a100", 8), strategy)
        assert float(found.report.memory.excess) <= float(report.memory.excess) * (1 + 1e-12)


def test_inference_serves_every_replica(llama):
    system = dp.load_system("dgx-a100", 8)
    alone = best_layout(llama, system, {}, "generate")
    assert degrees(alone)[2] == 1
    assert "global_batch" not in alone.chosen
    assert best_layout(llama, system, {"global_batch": 64, "dp": 8}, "decode").fits


@pytest.mark.parametrize(
    ("table", "n_devices", "expected"),
    [
        ({"tp": 7}, 7, "a divisor of the heads"),
        ({"pp": 3}, 8, "whole numbers"),
        ({"tp": 8, "pp": 8}, 8, "the product of the degrees"),
        ({"pp": 200}, 200, "at least one layer"),
        ({"global_batch": 3, "dp": 8}, 8, "a multiple of dp"),
        ({"tpp": 3}, 8, "a key of Strategy"),
    ],
)
def test_impossible_layouts_name_the_rule(llama, table, n_devices, expected):
    with pytest.raises(dp.ConfigError, match=expected):
        best_layout(llama, dp.load_system("dgx-a100", n_devices), table)


def test_replicas_that_nobody_asks_for_are_named_with_their_layout(llama):
    system = dp.load_system("dgx-a100", 10)
    with pytest.raises(dp.ConfigError) as caught:
        best_layout(llama, system, {}, "decode")
    assert "1 sequence for 5 replicas in the likeliest layout (tp 2, pp 1, dp 5)" in str(caught.value)
    with pytest.raises(dp.ConfigError) as caught:
        best_layout(llama, system, {"tp": 2, "pp": 1, "dp": 5}, "decode")
    assert "likeliest" not in str(caught.value)


def test_experts_are_laid_out_too():
    """DeepSeek-V3 on eight B200: the experts over all devices, attention on each by itself."""
    model, system = dp.load_model("deepseek-v3"), dp.load_system("hgx-b200", 8)
    table = {"global_batch": 1024, "precision": "fp8"}
    best = best_layout(model, system, table, "decode")
    assert best.chosen == {"tp": 1, "pp": 1, "dp": 8, "ep": 8, "expert_tp": 0}
    given = best_layout(model, system, table | {"ep": 8}, "decode")
    assert float(best.report.time) == float(given.report.time)
    without = best_layout(model, system, table | {"ep": 1, "expert_tp": 0}, "decode")
    assert float(best.report.time) < 0.6 * float(without.report.time)
    assert "ep" not in without.chosen


def test_no_engine_has_two_copies_of_an_expert_in_a_tensor_parallel_group():
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("hgx-b200", 8)
    found = best_layout(model, system, {"global_batch": 64, "tp": 8}, "decode")
    strategy = found.strategy
    assert float(strategy.experts_tp * strategy.ep) % 8 == 0
