"""The list of all rules, and what they say together about a configuration."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import attention_rules as attention
from diffperf.workload.rules import batch_rules as batch
from diffperf.workload.rules import degree_rules as degrees
from diffperf.workload.rules import drafting_rules as drafting
from diffperf.workload.rules import expert_rules as experts
from diffperf.workload.rules import network_rules as network
from diffperf.workload.rules import pipeline_rules as pipeline
from diffperf.workload.rules import power_rules as power
from diffperf.workload.rules.verdict import Verdict, Violation, every

Rule = Callable[[Configuration], Verdict]

TRAINING = ("training",)
INFERENCE = ("prefill", "decode", "generate")
ALWAYS = TRAINING + INFERENCE

# Every rule with the phases that it is for, in the order in which violations are reported.
RULES: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (power.limit_exceeds_idle_power, ALWAYS),
    (network.network_reaches_all_devices, ALWAYS),
    (attention.tensor_ranks_divide_heads, ALWAYS),
    (degrees.degrees_are_whole, ALWAYS),
    (degrees.degrees_multiply_to_devices, ALWAYS),
    (attention.all_to_all_ranks_divide_heads, ALWAYS),
    (attention.context_ranks_divide_sequence, ALWAYS),
    (attention.key_value_heads_divide_heads, ALWAYS),
    (experts.tokens_visit_existing_experts, ALWAYS),
    (attention.positions_fit_into_heads, ALWAYS),
    (experts.expert_ranks_divide_experts, ALWAYS),
    (experts.expert_ranks_divide_stage, ALWAYS),
    (degrees.zero_ranks_divide_replicas, TRAINING),
    (pipeline.only_1f1b_interleaves, TRAINING),
    (pipeline.dualpipe_feeds_both_ends, TRAINING),
    (pipeline.every_chunk_has_a_layer, ALWAYS),
    (pipeline.given_stages_leave_layers, TRAINING),
    (pipeline.interleaving_needs_a_pipeline, ALWAYS),
    (batch.replicas_divide_training_batch, TRAINING),
    (pipeline.stages_divide_interleaved_micro_batches, TRAINING),
    (batch.every_replica_serves_a_sequence, INFERENCE),
    (drafting.steps_add_no_more_than_drafted, ("decode", "generate")),
)


def feasible(configuration: Configuration, phase: str = "training") -> Bool[Array, ""]:
    """Whether a configuration obeys every rule of a phase, in pure JAX."""
    return every(rule(configuration).holds for rule in _rules_of(phase))


def broken(configuration: Configuration, phase: str = "training") -> Int[Array, ""]:
    """Number of rules of a phase that a configuration breaks, in pure JAX."""
    return jnp.sum(jnp.stack([~rule(configuration).holds for rule in _rules_of(phase)]))


def first_violation(configuration: Configuration, phase: str = "training") -> Violation | None:
    """The violation of the first rule of a phase that a configuration breaks, None where it breaks none."""
    for rule in _rules_of(phase):
        verdict = rule(configuration)
        if not bool(verdict.holds):
            return verdict.explain()
    return None


def _rules_of(phase: str) -> list[Rule]:
    """The rules of a phase, in the order in which violations are reported."""
    return [rule for rule, phases in RULES if phase in phases]
