"""Measured training steps and generations as models, systems and strategies, and what the estimator says of them."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.estimate.inference import generate
from diffperf.estimate.training import model_flops, training_step
from diffperf.explore.measured.stacking import (
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
    weights,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.load import available, load_model
from diffperf.quantity import Scalar, Weights
from diffperf.relax import choose
from diffperf.workload.memory import Memory
from diffperf.workload.model import NO_WINDOW, Latent, Layers, Mixture, Model
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import SCHEDULES, Strategy


@functools.cache
def _shipped(name: str | None, x64: bool) -> Model | None:
    """The shipped config of a model that a table names, for what a table's columns do not hold."""
    return load_model(name) if name in available("models") else None


def _config(row: Row) -> Model | None:
    return _shipped(row["model"], bool(jax.config.jax_enable_x64))


def _latent(row: Row) -> Latent | None:
    """Ranks and dimensions of latent attention, which tables do not hold: those of the model's shipped config."""
    shipped = _config(row)
    return shipped.layers[-1].latent if row["attention"] == "mla" and shipped is not None else None


def _ahead(row: Row) -> float:
    """Modules that predict further tokens, which training runs of a model include if its config has them."""
    shipped = _config(row)
    return float(shipped.mtp_layers) if shipped is not None else 0.0


def _architecture(row: Row) -> str | None:
    return first(
        row["attention"] == "mla"
        and _latent(row) is None
        and "latent attention (MLA) of a model that is not shipped"
    )


def _structure(row: Row) -> tuple:
    """What tells the structure of models apart: experts, dense layers beside them, latent attention."""
    return row["experts"] > 0, row["experts"] > 0 and row["dense_layers"] > 0, row["attention"] == "mla"


def stacked_models(rows: Sequence[Row], *, positions: np.ndarray, training: bool) -> Model:
    """Models of one structure from the rows' own dimensions.

    Tables do not say more of a family than whether its MLP is gated: gated ones are read as Llama's (RMSNorm, rotary positions,
    no biases, no dropout), plain ones as GPT's (LayerNorm and biases, learned positions as long as the sequence, dropout in
    training).
    """
    gated, (sparse, mixed, latent) = numbers(rows, "gated_mlp"), _structure(rows[0])
    dense = numbers(rows, "dense_layers") if mixed else np.zeros(len(rows))
    common = {
        "heads": numbers(rows, "heads"),
        "kv_heads": numbers(rows, "kv_heads"),
        "head_dim": numbers(rows, "head_dim"),
        "gated": switch(gated),
        "biases": switch(1 - gated),
        "dropout": switch((1 - gated) * training),
        "qkv_biases": switch(0 * gated),
        "parallel": switch(0 * gated),
        "window": np.full(len(rows), NO_WINDOW),
        "latent": jax.tree.map(lambda *leaves: np.stack(leaves), *map(_latent, rows)) if latent else None,
    }
    layers = [Layers(count=numbers(rows, "layers") - dense, ffn=numbers(rows, "ffn"), **common)]
    if sparse:
        mixture = Mixture(
            numbers(rows, "experts"),
            numbers(rows, "experts_per_token"),
            numbers(rows, "shared_experts") * numbers(rows, "expert_ffn"),
        )
        sparse_layers = dataclasses.replace(layers[0], ffn=numbers(rows, "expert_ffn"), mixture=mixture)
        layers = [*([dataclasses.replace(layers[0], count=dense)] if mixed else []), sparse_layers]
    return Model(
        name="measured",
        hidden=numbers(rows, "hidden"),
        vocabulary=numbers(rows, "vocab"),
        tied_embeddings=switch(numbers(rows, "tied_embeddings")),
        layers=tuple(layers),
        learned_positions=np.where(gated > 0, 0.0, positions),
        mtp_layers=np.array([_ahead(row) * training for row in rows]),
    )


def _layout(model: Model, system: System, strategy: Strategy, memory: Memory, phase: str) -> Outputs:
    return {
        "peak_memory_bytes": memory.allocated,
        "reserved_memory_bytes": memory.peak
        - memory.reserve,  # what the allocator sees: not the runtime's own
        "excess": memory.excess,
        "possible": feasible(model, system, strategy, phase),
    }


# --- training

# Schedules by their names in tables; interleaving is a matter of virtual stages.
_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved": "1f1b",
    "gpipe": "gpipe",
    "afab": "gpipe",
    "zero_bubble": "zero_bubble",
    "zb-h1": "zero_bubble",
    "dualpipe": "dualpipe",
}


def _training_unrepresentable(row: Row) -> str | None:
    return first(
        _architecture(row),
        lacking(row, "precision"),
        row["grad_dtype_bytes"] not in (2, 4) and f"gradients of {row['grad_dtype_bytes']:g} bytes",
        row["schedule"] not in _SCHEDULES and f"schedule {row['schedule']}",
        row["virtual_stages"] is None and row["pp"] > 1 and "virtual stages unknown",
    )


def _training_stack(rows: Sequence[Row]) -> tuple[Model, System, Strategy]:
    """Gradients are reduced in the format they are accumulated in, under the backward pass where the stack does so by default."""
    systems = systems_of(rows)
    gradients = ["fp32" if row["grad_dtype_bytes"] == 4 else row["precision"] for row in rows]
    strategy = stacked_strategy(
        rows,
        **{
            name: numbers(rows, name)
            for name in ("tp", "pp", "dp", "cp", "ep", "micro_batch", "global_batch")
        },
        virtual_stages=np.array([row["virtual_stages"] or 1.0 for row in rows]),
        sequence_length=numbers(rows, "seq_len"),
        sequence_parallel=switch(numbers(rows, "sequence_parallel")),
        recompute=one_of(rows, "recompute", ("none", "selective", "full")),
        attention=switch(numbers(rows, "flash_attention")).array,
        expert_tp=np.array([row["expert_tp"] or 0.0 for row in rows]),
        schedule=weights([_SCHEDULES[row["schedule"]] for row in rows], SCHEDULES),
        zero=weights([f"{row['zero_stage']:.0f}" for row in rows], ("0", "1", "2", "3")),
        overlap_gradients=systems.stack.gradient_overlap,
        overlap_tensor=systems.stack.tensor_overlap,
        overlap_experts=systems.stack.expert_overlap,
        balanced_head=systems.stack.balanced_head,
        precision=precision(rows, "precision"),
        gradient_precision=weights(gradients, PRECISIONS),
    )
    return stacked_models(rows, positions=numbers(rows, "seq_len"), training=True), systems, strategy


def hardware_flops(model: Model, strategy: Strategy) -> Scalar:
    """`model_flops` of a step and what recomputation adds, attention never masked: the convention of Megatron-LM's hardware FLOP/s.

    Selective recomputation repeats the two products of the attention core, full recomputation the forward pass of all layers.
    """
    tokens, length = strategy.global_batch * strategy.sequence_length, strategy.sequence_length
    step = model_flops(model, tokens, length)
    core = tokens * sum(
        2 * length * kind.count * kind.heads * (kind.head_dim + kind.value_dim) for kind in model.layers
    )
    layers = step / 3 - 2 * tokens * model.embedding_parameters
    again = choose(
        strategy.recompute,
        {"none": lambda: jnp.zeros_like(step), "selective": lambda: core, "full": lambda: layers},
    )
    return step + strategy.recompute_share * again


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
        row["ep"] > 1 and "expert parallelism (ep > 1)",
        row["batch"] is None
        and ((row["concurrency"] is not None and "continuous batching (concurrency)") or "batch unknown"),
        _architecture(row),
        len(set(formats.values())) > 1
        and "weights in {weights}, activations in {activations}".format(**formats),
        lacking(row, "activation_dtype", "kv_dtype"),
    )


def _inference_stack(rows: Sequence[Row]) -> tuple[Model, System, Strategy, Weights]:
    strategy = stacked_strategy(
        rows,
        tp=numbers(rows, "tp"),
        pp=numbers(rows, "pp"),
        global_batch=numbers(rows, "batch"),
        sequence_length=numbers(rows, "input_len"),
        output_length=numbers(rows, "output_len"),
        attention=switch(numbers(rows, "flash_attention")).array,
        precision=precision(rows, "activation_dtype"),
        kv_precision=precision(rows, "kv_dtype"),
    )
    longest = numbers(rows, "input_len") + numbers(rows, "output_len")
    kinds = one_of(rows, "throughput_kind", ("output", "total"))
    return stacked_models(rows, positions=longest, training=False), systems_of(rows), strategy, kinds


def _inference_estimate(
    model: Model, system: System, strategy: Strategy, throughput_kind: Weights
) -> Outputs:
    report = generate(model, system, strategy)
    prompts = throughput_kind.total * strategy.global_batch * strategy.sequence_length / report.time
    return {
        "latency_s": report.time,
        "ttft_s": report.time_to_first_token,
        "tpot_s": report.time_per_output_token,
        "throughput_tokens_per_s": report.tokens_per_second + prompts,
        **_layout(model, system, strategy, report.memory, "generate"),
    }


TRAINING = Evaluator(_training_unrepresentable, _training_stack, _training_estimate, _structure)
INFERENCE = Evaluator(_inference_unrepresentable, _inference_stack, _inference_estimate, _structure)
