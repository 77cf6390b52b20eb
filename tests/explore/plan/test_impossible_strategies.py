"""Strategies that no rule allows: the error names the rule, and the nearest values that are possible."""

import pytest

import diffperf as dp
from diffperf.explore.plan.plan import Search, plan


@pytest.mark.parametrize(
    ("table", "n_devices", "words"),
    [
        (
            {"tp": 7},
            64,
            "7 for 96 attention heads; expected a divisor of the heads; use one of 1, 2, 3, 4, 6, 8, 12,",
        ),
        ({"tp": 7}, 64, "(nearest: 8 or 6)"),
        ({"tp": 6}, 1024, "strategy.tp: found 6, which leaves dp = 170.667 of 1024 devices"),
        ({"tp": 6}, 1024, "use tp 8 or 4"),
        ({"tp": 8, "pp": 3}, 1024, "use pp 4 or 2"),
        ({"pp": 97}, 1024, "use pp 64"),
        ({"tp": 8, "pp": 8}, 8, "set the devices to 64 or pp to 1"),
        ({"pp": 100}, 100, "use at most 96 chunks in all: pp 96"),
        ({"ep": 3}, 64, "3 for a model without experts; expected a divisor of the experts; use 1"),
        (
            {"global_batch": 7},
            1024,
            "7 sequences for dp·micro_batch = 4·1; expected a multiple of dp·micro_batch; use 8 or 4",
        ),
        (
            {"tp": 8, "pp": 3, "schedule": "dualpipe"},
            24,
            "use pp 4 or 2, or a larger global_batch or another schedule",
        ),
        (
            {"tp": 8, "pp": 8, "virtual_stages": 3, "micro_batch": 1, "global_batch": 60},
            64,
            "use a global_batch of 64 or 56, or set virtual_stages to 1",
        ),
        ({"cp": 3}, 48, "3 for sequences of 2048 tokens; expected a divisor of the sequence length"),
        ({"zero_ranks": 5, "tp": 8, "pp": 1}, 64, "5 of 8 data- and context-parallel ranks"),
        ({"tp": 8, "cp": 16, "context_parallel": "all_to_all"}, 128, 'use cp 12, or context_parallel "ring"'),
    ],
)
def test_impossible_strategies_name_the_rule_and_the_nearest(gpt, table, n_devices, words):
    with pytest.raises(dp.ConfigError) as caught:
        plan(Search.of(gpt, dp.load_system("dgx-a100", n_devices), table))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"ep": 3},
            "3 for 8 experts; expected a divisor of the experts; use one of 1, 2, 4, 8 (nearest: 4 or 2)",
        ),
        (
            {"ep": 8, "tp": 1, "pp": 4, "dp": 4, "expert_tp": 1},
            "use ep 4, or an expert_tp that shares them evenly",
        ),
    ],
)
def test_impossible_experts_name_the_nearest(table, words):
    with pytest.raises(dp.ConfigError) as caught:
        plan(Search.of(dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", 16), table))
    assert words in str(caught.value)
