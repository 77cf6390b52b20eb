"""Measured training steps and generations as models, systems and strategies, and what the estimator says of them."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from diffperf.estimate.inference import generate
from diffperf.estimate.training import model_flops, training_step
from diffperf.explore.measurements import Row
from diffperf.explore.stacking import (
    Evaluator,
    Outputs,
    first,
    lacking,
    numbers,
    one_of,
    precision,
    stacked_strategy,
    switch,
    systems_of,
)
from diffperf.hardware.accelerator import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import choose
from diffperf.workload.memory import Memory
from diffperf.workload.model import Layers, Model
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy


def _architecture(row: Row) -> str | None:
    return first(
        row["attention"] == "mla" and "latent attention (MLA)",
        row["ep"] > 1 and "expert parallelism (ep > 1)",
        row["shared_experts"] > 0 and "shared experts",
        row["experts"] > 0 and row["dense_layers"] > 0 and "leading dense layers",
    )


def stacked_models(rows: Sequence[Row], *, positions: np.ndarray, training: bool) -> Model:
    """Models from the rows' own dimensions.

    Tables do not say more of a family than whether its MLP is gated: gated ones are read as Llama's (RMSNorm, rotary positions,
    no biases, no dropout), plain ones as GPT's (LayerNorm and biases, learned positions as long as the sequence, dropout in
    training).
    """
    gated, experts = numbers(rows, "gated_mlp"), numbers(rows, "experts")
    layers = Layers(
        count=numbers(rows, "layers"),
        heads=numbers(rows, "heads"),
        kv_heads=numbers(rows, "kv_heads"),
        head_dim=numbers(rows, "head_dim"),
        ffn=np.where(experts > 0, numbers(rows, "expert_ffn"), numbers(rows, "ffn")),
        gated=switch(gated),
        biases=switch(1 - gated),
        dropout=switch((1 - gated) * training),
        experts=np.maximum(experts, 1),
        experts_per_token=np.maximum(numbers(rows, "experts_per_token"), 1),
    )
    return Model(
        name="measured",
        hidden=numbers(rows, "hidden"),
        vocabulary=numbers(rows, "vocab"),
        tied_embeddings=switch(numbers(rows, "tied_embeddings")),
        layers=(layers,),
        learned_positions=np.where(gated > 0, 0.0, positions),
    )


def _layout(model: Model, system: System, strategy: Strategy, memory: Memory, phase: str) -> Outputs:
    held = memory.peak - memory.reserve  # what an allocator sees: not the runtime's own
    return {
        "peak_memory_bytes": held,
        "reserved_memory_bytes": held,
        "excess": memory.excess,
        "possible": feasible(model, system, strategy, phase),
    }


# --- training


def _training_unrepresentable(row: Row) -> str | None:
    return first(
        _architecture(row),
        row["cp"] > 1 and "context parallelism (cp > 1)",
        row["zero_stage"] > 1 and f"ZeRO stage {row['zero_stage']:g}",
        row["expert_tp"] not in (None, row["tp"]) and row["experts"] > 0 and "expert tensor parallelism (expert_tp ≠ tp)",
        lacking(row, "precision"),
        # The estimator's format is that of operands, weights and activations alike.
        row["precision"] not in ("bf16", "fp16", "fp32", "tf32") and f"{row['precision']} for matrix products only",
        row["grad_dtype_bytes"] not in (2, 4) and f"gradients of {row['grad_dtype_bytes']:g} bytes",
        row["schedule"] not in ("1f1b", "interleaved") and f"schedule {row['schedule']}",
        row["virtual_stages"] is None and row["pp"] > 1 and "virtual stages unknown",
    )


def _training_stack(rows: Sequence[Row]) -> tuple[Model, System, Strategy]:
    """Gradients are reduced in the format they are accumulated in, under the backward pass where the stack does so by default."""
    systems = systems_of(rows)
    full, half = np.eye(len(PRECISIONS))[PRECISIONS.index("fp32")], precision(rows, "precision")
    wide = numbers(rows, "grad_dtype_bytes") == 4
    strategy = stacked_strategy(
        rows,
        **{name: numbers(rows, name) for name in ("tp", "pp", "dp", "micro_batch", "global_batch")},
        virtual_stages=np.array([row["virtual_stages"] or 1.0 for row in rows]),
        sequence_length=numbers(rows, "seq_len"),
        sequence_parallel=switch(numbers(rows, "sequence_parallel")),
        recompute=one_of(rows, "recompute", ("none", "selective", "full")),
        attention=switch(numbers(rows, "flash_attention")),
        zero=switch(numbers(rows, "zero_stage")),
        overlap_gradients=systems.stack.gradient_overlap,
        precision=precision(rows, "precision"),
        gradient_precision=np.where(wide[:, None], full, half),
    )
    return stacked_models(rows, positions=numbers(rows, "seq_len"), training=True), systems, strategy


def hardware_flops(model: Model, strategy: Strategy) -> Scalar:
    """`model_flops` of a step and what recomputation adds, attention never masked: the convention of Megatron-LM's hardware FLOP/s.

    Selective recomputation repeats the two products of the attention core, full recomputation the forward pass of all layers.
    """
    tokens, length = strategy.global_batch * strategy.sequence_length, strategy.sequence_length
    step = model_flops(model, tokens, length)
    core = tokens * sum(4 * length * kind.count * kind.heads * kind.head_dim for kind in model.layers)
    layers = step / 3 - 2 * tokens * model.embedding_parameters
    return step + choose(strategy.recompute, [lambda: jnp.zeros_like(step), lambda: core, lambda: layers])


def _training_estimate(model: Model, system: System, strategy: Strategy) -> Outputs:
    report = training_step(model, system, strategy)
    devices = strategy.devices
    tera = 1e12 * report.time * devices
    return {
        "step_time_s": report.time,
        "tokens_per_s_per_device": report.tokens_per_second / devices,
        "model_tflops_per_device": report.mfu * system.accelerator.matrix_rate(strategy.precision) / 1e12,
        "hardware_tflops_per_device": hardware_flops(model, strategy) / tera,
        "mfu": report.mfu,
        **_layout(model, system, strategy, report.memory, "training"),
    }


# --- inference


def _inference_unrepresentable(row: Row) -> str | None:
    formats = {"weights": row["weight_dtype"], "activations": row["activation_dtype"]}
    return first(
        row["batch"] is None and ((row["concurrency"] is not None and "continuous batching (concurrency)") or "batch unknown"),
        _architecture(row),
        len(set(formats.values())) > 1 and "weights in {weights}, activations in {activations}".format(**formats),
        lacking(row, "activation_dtype", "kv_dtype"),
    )


def _inference_stack(rows: Sequence[Row]) -> tuple[Model, System, Strategy, np.ndarray]:
    strategy = stacked_strategy(
        rows,
        tp=numbers(rows, "tp"),
        pp=numbers(rows, "pp"),
        global_batch=numbers(rows, "batch"),
        sequence_length=numbers(rows, "input_len"),
        output_length=numbers(rows, "output_len"),
        attention=switch(numbers(rows, "flash_attention")),
        precision=precision(rows, "activation_dtype"),
        kv_precision=precision(rows, "kv_dtype"),
    )
    longest = numbers(rows, "input_len") + numbers(rows, "output_len")
    kinds = one_of(rows, "throughput_kind", ("output", "total"))
    return stacked_models(rows, positions=longest, training=False), systems_of(rows), strategy, kinds


def _inference_estimate(model: Model, system: System, strategy: Strategy, throughput_kind: Weights) -> Outputs:
    report = generate(model, system, strategy)
    prompts = throughput_kind[1] * strategy.global_batch * strategy.sequence_length / report.time
    return {
        "latency_s": report.time,
        "ttft_s": report.time_to_first_token,
        "tpot_s": report.time_per_output_token,
        "throughput_tokens_per_s": report.tokens_per_second + prompts,
        **_layout(model, system, strategy, report.memory, "generate"),
    }


TRAINING = Evaluator(_training_unrepresentable, _training_stack, _training_estimate)
INFERENCE = Evaluator(_inference_unrepresentable, _inference_stack, _inference_estimate)
