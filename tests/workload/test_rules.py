"""Rules of layouts: what a possible configuration is, and what is said about one that is not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_error

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.hardware.system import System
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import RULES, broken, feasible, first_violation
from diffperf.workload.whole_numbers import divides, divisors, equals, is_whole, reaches


@pytest.mark.parametrize(
    ("table", "phase", "key", "words"),
    [
        (
            {"tp": 7, "pp": 1, "dp": 1},
            "training",
            "strategy.tp",
            ["7 for 96 attention heads", "use one of 1, 2, 3, 4, 6, 8"],
        ),
        ({"tp": 1, "pp": 97, "dp": 1}, "training", "strategy.pp", ["97 stages", "96 layers"]),
        (
            {"pp": 32, "virtual_stages": 4},
            "training",
            "strategy.pp",
            ["32 stages of 4 chunks", "use at most 96"],
        ),
        ({"tp": 1.5, "dp": 2}, "training", "strategy.tp", ["1.5", "whole numbers"]),
        ({"tp": 8, "virtual_stages": 2}, "training", "strategy.virtual_stages", ["one pipeline stage"]),
        (
            {"tp": 8, "dp": 4, "global_batch": 6},
            "training",
            "strategy.global_batch",
            ["multiple of dp·micro_batch", "use 8"],
        ),
        (
            {"tp": 8, "dp": 4, "micro_batch": 2, "global_batch": 12},
            "training",
            "strategy.global_batch",
            ["4·2", "use 16"],
        ),
        ({"tp": 8, "dp": 4, "global_batch": 2}, "training", "strategy.global_batch", ["use 4"]),
        (
            {"pp": 8, "virtual_stages": 2, "global_batch": 12},
            "training",
            "strategy.virtual_stages",
            ["12 micro-batches", "multiple of pp"],
        ),
        (
            {"dp": 4, "global_batch": 2},
            "generate",
            "strategy.global_batch",
            ["at least one sequence per replica"],
        ),
    ],
)
def test_combinations_that_cannot_be(gpt, table, phase, key, words):
    strategy = replace(dp.load_strategy({}), table)
    system = dp.load_system("dgx-a100", n_devices=float(strategy.devices))
    with pytest.raises(ConfigError) as caught:
        dp.check(gpt, system, strategy, phase)
    check_error(caught.value)
    assert key in caught.value.key
    for word in words:
        assert word in str(caught.value)


def test_devices_must_be_the_product_of_the_degrees(gpt):
    system = dp.load_system("dgx-a100", n_devices=64)
    with pytest.raises(ConfigError, match=r"tp·pp·dp·cp = 8·4·1·1 = 32") as caught:
        dp.check(gpt, system, dp.load_strategy({"tp": 8, "pp": 4, "dp": 1}))
    assert "set the devices to 32" in caught.value.remedy


def test_combinations_that_can_be(gpt, system, strategy):
    dp.check(gpt, system, strategy)
    dp.check(gpt, system, dp.load_strategy({"tp": 8, "dp": 8, "global_batch": 8}), phase="generate")


@pytest.mark.parametrize(
    ("path", "value", "words"), [("kv_heads", 7.0, "divisor"), ("mixture.experts_per_token", 9.0, "experts")]
)
def test_impossible_layers_are_refused(path, value, words):
    system = dp.load_system("dgx-a100")
    model = replace(dp.load_model("mixtral-8x7b"), {f"layers.0.{path}": value})
    with pytest.raises(ConfigError, match=words):
        dp.check(model, system, dp.load_strategy({"tp": 8, "global_batch": 8}, n_devices=8))


def test_positions_of_more_dimensions_than_a_head_has_are_refused():
    model = replace(dp.load_model("deepseek-v3"), {"layers.1.latent.rotary_dim": 256.0})
    with pytest.raises(ConfigError, match=r"rotary_dim: found 256 of a head's dimensions.*use at most 192"):
        dp.check(
            model, dp.load_system("dgx-a100"), dp.load_strategy({"tp": 8, "global_batch": 8}, n_devices=8)
        )


# --- every rule

# A configuration that breaks each rule: its model, fields of the strategy in place of those of one device,
# and the phase.
BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "tensor_ranks_divide_heads": ("gpt3-175b", {"tp": 7.0}, "training"),
    "given_stages_leave_layers": (
        "gpt3-175b",
        {"pp": 2.0, "first_stage_layers": 9.0, "last_stage_layers": 9.0},
        "training",
    ),
    "degrees_are_whole": ("gpt3-175b", {"micro_batch": 1.5, "global_batch": 3.0}, "training"),
    "degrees_multiply_to_devices": ("gpt3-175b", {"n_devices": 3.0}, "decode"),
    "all_to_all_ranks_divide_heads": ("gpt3-175b", {"cp": 64.0, "context_parallel": "all_to_all"}, "prefill"),
    "context_ranks_divide_sequence": ("gpt3-175b", {"cp": 3.0}, "training"),
    "key_value_heads_divide_heads": ("llama-3-8b", {"layers.0.kv_heads": 7.0}, "generate"),
    "tokens_visit_existing_experts": (
        "mixtral-8x7b",
        {"layers.0.mixture.experts_per_token": 9.0},
        "training",
    ),
    "positions_fit_into_heads": ("deepseek-v3", {"layers.0.latent.rotary_dim": 200.0}, "training"),
    "expert_ranks_divide_experts": ("mixtral-8x7b", {"ep": 3.0, "dp": 3.0, "global_batch": 3.0}, "training"),
    "expert_ranks_divide_stage": ("mixtral-8x7b", {"ep": 2.0}, "decode"),
    "zero_ranks_divide_replicas": (
        "gpt3-175b",
        {"dp": 4.0, "global_batch": 4.0, "zero_ranks": 3.0},
        "training",
    ),
    "only_1f1b_interleaves": (
        "gpt3-175b",
        {"pp": 2.0, "virtual_stages": 2.0, "global_batch": 8.0, "schedule": "gpipe"},
        "training",
    ),
    "dualpipe_feeds_both_ends": ("gpt3-175b", {"pp": 3.0, "schedule": "dualpipe"}, "training"),
    "every_chunk_has_a_layer": ("gpt3-175b", {"pp": 128.0}, "training"),
    "interleaving_needs_a_pipeline": ("gpt3-175b", {"virtual_stages": 2.0}, "training"),
    "replicas_divide_training_batch": ("gpt3-175b", {"dp": 2.0, "global_batch": 3.0}, "training"),
    "stages_divide_interleaved_micro_batches": (
        "gpt3-175b",
        {"pp": 4.0, "virtual_stages": 2.0, "global_batch": 6.0},
        "training",
    ),
    "every_replica_serves_a_sequence": ("gpt3-175b", {"dp": 2.0}, "generate"),
    "network_reaches_all_devices": (
        "gpt3-175b",
        {"dp": 4.0, "global_batch": 4.0, "system.network.infiniband.size": 2.0},
        "training",
    ),
    "limit_exceeds_idle_power": ("gpt3-175b", {"system.accelerator.power_limit": 50.0}, "prefill"),
    "steps_add_no_more_than_drafted": ("gpt3-175b", {"draft_tokens": 2.0, "tokens_per_step": 3.5}, "decode"),
}


def test_every_rule_is_listed_once_with_its_example():
    names = [rule.__name__ for rule, _ in RULES]
    assert len(set(names)) == len(names)
    assert set(names) == set(BROKEN)


@pytest.fixture(scope="module")
def node() -> System:
    return dp.load_system("dgx-a100", calibration="none")


def configuration(system: System, model: str, values: dict[str, Any]) -> Configuration:
    """A configuration with its fields, those of the strategy and `n_devices`, in place of those of a single
    device.
    """
    architecture, strategy = dp.load_model(model), dp.load_strategy({})
    strategy = replace(strategy, {path: value for path, value in values.items() if hasattr(strategy, path)})
    of_system = {path: value for path, value in values.items() if path.startswith("system.")}
    architecture = replace(
        architecture, {path: value for path, value in values.items() if "." in path and path not in of_system}
    )
    n_devices = values.get("n_devices", strategy.devices)
    inputs = Configuration(architecture, replace(system, {"n_devices": n_devices}), strategy)
    return replace(inputs, of_system)


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_alone_is_broken(node, name):
    """Its example breaks the rule and no other; it is explained in plain Python, and counted by compiled
    programs.
    """
    model, values, phase = BROKEN[name]
    example = configuration(node, model, values)
    rule, phases = next((rule, phases) for rule, phases in RULES if rule.__name__ == name)
    assert phase in phases
    assert not bool(rule(example).holds)
    violation = first_violation(example, phase)
    assert violation == rule(example).explain()
    check_error(ConfigError("arguments", *violation))
    assert not bool(jax.jit(feasible, static_argnums=1)(example, phase))
    assert int(jax.jit(broken, static_argnums=1)(example, phase)) == 1


def test_a_possible_configuration_breaks_no_rule(node):
    example = configuration(node, "mixtral-8x7b", {"tp": 8.0})
    for phase in dp.PHASES:
        assert first_violation(example, phase) is None
        assert bool(feasible(example, phase))
        assert int(broken(example, phase)) == 0


def test_rules_of_one_phase_leave_others_alone(node):
    """A batch that training refuses can be served, and the other way round."""
    serving = configuration(node, "gpt3-175b", {"dp": 2.0, "global_batch": 3.0})
    assert (bool(feasible(serving, "training")), bool(feasible(serving, "generate"))) == (False, True)
    dualpipe = configuration(node, "gpt3-175b", {"pp": 3.0, "schedule": "dualpipe"})
    assert (bool(feasible(dualpipe)), bool(feasible(dualpipe, "decode"))) == (False, True)


def test_rules_broken_by_a_batch_of_strategies(node):
    """Rules are pure JAX: counted for several strategies at once as for each alone."""
    example = configuration(node, "gpt3-175b", {})
    degrees = jnp.array([1.0, 5.0, 7.5])

    def with_degree(tp: jax.Array) -> Configuration:
        return replace(example, {"strategy.tp": tp})

    counts = jax.vmap(lambda tp: broken(with_degree(tp)))(degrees)
    assert counts.tolist() == [int(broken(with_degree(tp))) for tp in degrees] == [0, 2, 3]


@pytest.mark.parametrize(
    ("model", "values", "remedy"),
    [
        ("gpt3-175b", {"tp": 7.0}, "use one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 (nearest: 8 or 6)"),
        (
            "mixtral-8x7b",
            {"ep": 3.0, "dp": 3.0, "global_batch": 3.0},
            "use one of 1, 2, 4, 8 (nearest: 4 or 2)",
        ),
        (
            "gpt3-175b",
            {"cp": 64.0, "context_parallel": "all_to_all"},
            'use cp 48 or 96, or context_parallel "ring"',
        ),
        ("gpt3-175b", {"pp": 3.0, "schedule": "dualpipe", "global_batch": 8.0}, "use pp 4 or 2, or a larger"),
        ("gpt3-175b", {"dp": 1.5, "tp": 4.0, "n_devices": 6.0}, "use tp 3 or 6"),
        (
            "gpt3-175b",
            {"pp": 64.0, "virtual_stages": 2.0},
            "use at most 96 chunks in all: pp 48 or virtual_stages 1",
        ),
        (
            "llama-3.1-405b",  # 126 layers for 128 chunks, as Llama 3 was trained (arXiv 2407.21783 §3.3.2)
            {"pp": 16.0, "virtual_stages": 8.0, "global_batch": 16.0},
            "use at most 126 chunks in all: pp 15 or virtual_stages 7, "
            "or embedding_in_split and loss_in_split on",
        ),
        (
            "gpt3-175b",
            {"pp": 97.0},
            "use at most 96 chunks in all: pp 96, or in training loss_in_split on",
        ),
    ],
)
def test_remedies_name_values_that_are_possible(node, model, values, remedy):
    violation = first_violation(configuration(node, model, values))
    assert violation is not None
    assert violation.remedy.startswith(remedy)


def test_embeddings_fill_the_chunks_that_a_remedy_says(node):
    """No remedy names them where chunks are missing beyond the two."""
    values = {"pp": 16.0, "virtual_stages": 8.0, "global_batch": 16.0}
    filled = values | {"embedding_in_split": True, "loss_in_split": True}
    assert bool(feasible(configuration(node, "llama-3.1-405b", filled)))
    violation = first_violation(configuration(node, "llama-3.1-405b", values | {"virtual_stages": 9.0}))
    assert violation is not None
    assert "in_split" not in violation.remedy


def test_violations_are_those_of_the_layers_that_break_the_rule(node):
    """Of several kinds of layers the explanation names the heads of the one that cannot be shared."""
    example = configuration(node, "deepseek-v3", {"layers.1.kv_heads": 3.0})
    assert first_violation(example).found == "3 for 128 heads"


# --- whole numbers


def test_divisors():
    assert divisors(1) == [1]
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(49) == [1, 7, 49]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_numbers_within_rounding(dtype):
    third = dtype(3000) / dtype(7) * dtype(7) / dtype(3)  # 1000, but for rounding
    assert bool(is_whole(third))
    assert bool(divides(dtype(8), dtype(96)))
    assert bool(equals(third, dtype(1000)))
    assert bool(reaches(third, dtype(1000)))
    assert bool(is_whole(dtype(0)))
    assert not bool(is_whole(dtype(7.5)))
    assert not bool(divides(dtype(7), dtype(96)))
    assert not bool(equals(dtype(1001), dtype(1000)))
    assert not bool(reaches(dtype(999), dtype(1000)))
    assert not bool(is_whole(dtype("nan")))
