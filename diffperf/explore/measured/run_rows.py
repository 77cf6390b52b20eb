"""Measured training steps, and the estimator's times, rates and memory of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffperf.estimate.training import training_step
from diffperf.explore.measured.model_rows import model_structure, stacked_models, unknown_architecture
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.stacking import (
    Evaluator,
    Outputs,
    first_reason,
    numbers,
    one_of,
    precision,
    stacked_strategy,
    switch,
    systems_of,
    unknown_precision,
    weights,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory
from diffperf.workload.model import Model
from diffperf.workload.model_flops import hardware_flops, model_flops
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import SCHEDULES, Strategy


def layout_outputs(model: Model, system: System, strategy: Strategy, memory: Memory, phase: str) -> Outputs:
    """Bytes of memory, how many of them are too many, and whether the layout exists."""
    return {
        "peak_memory_bytes": memory.allocated,
        # What the allocator reserves: without the runtime's own memory.
        "reserved_memory_bytes": memory.peak - memory.reserve,
        "excess": memory.excess,
        "possible": feasible(Configuration(model, system, strategy), phase),
    }


# --- training

# The schedule that a name in a table means; interleaving follows from the number of virtual stages.
_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved": "1f1b",
    "gpipe": "gpipe",
    "afab": "gpipe",
    "zero_bubble": "zero_bubble",
    "zb-h1": "zero_bubble",
    "dualpipe": "dualpipe",
}
_FP32_BYTES, _HALF_BYTES = 4, 2  # of a gradient element


def _training_unrepresentable(row: Row) -> str | None:
    gradient_bytes = row["grad_dtype_bytes"]
    return first_reason(
        unknown_architecture(row),
        unknown_precision(row, "precision"),
        gradient_bytes not in (None, _HALF_BYTES, _FP32_BYTES) and f"gradients of {gradient_bytes:g} bytes",
        row["schedule"] not in _SCHEDULES and f"schedule {row['schedule']}",
        row["virtual_stages"] is None and row["pp"] > 1 and "virtual stages unknown",
    )


def _training_inputs(rows: Sequence[Row], platforms: Platforms) -> tuple[Model, System, Strategy]:
    """Models, systems and strategies of training steps.

    Gradients are reduced in the number format in which they are accumulated. What a row does not say (which
    collectives are hidden, whether the last stage has fewer layers, how wide gradients are) is what its
    software does by default.
    """
    systems = systems_of(rows, platforms)
    half = np.asarray(systems.stack.half_gradients.on) > 0.5
    gradients = [_gradients_of(row, bool(of_stack)) for row, of_stack in zip(rows, half, strict=True)]
    same_names = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "global_batch")
    functions = np.array([_recomputes_functions(row) for row in rows], dtype=float)
    functions = functions * np.asarray(systems.stack.recomputes_functions.on)
    strategy = stacked_strategy(
        rows,
        **{name: numbers(rows, name) for name in same_names},
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
        **_uneven_stages(rows, systems),
        recompute_norms=functions,
        recompute_activation_functions=functions,
        recompute_up_projections=np.array([_recomputes_up_projections(row) for row in rows], dtype=float),
        precision=precision(rows, "precision"),
        gradient_precision=weights(gradients, PRECISIONS),
    )
    models = stacked_models(rows, positions=numbers(rows, "seq_len"), training=True, modules=1.0)
    return models, systems, strategy


def _uneven_stages(rows: Sequence[Row], systems: System) -> dict[str, Any]:
    """The first and the last stage of runs whose layers do not divide, which tables do not say.

    Megatron-LM splits layers evenly, counting the embeddings as layers: Llama 3.1 405B (126 layers) and
    Qwen3 235B (94) run so. Where that is not even either, stacks that balance stages so give the last stage
    what the others leave (DeepSeek-V3 in Megatron-Bridge, whose last stage has the further tokens'
    prediction as well).
    """
    layers, stages = numbers(rows, "layers"), numbers(rows, "pp")
    virtual = np.array([row["virtual_stages"] or 1.0 for row in rows])
    chunks = stages * virtual
    balanced = np.asarray(systems.stack.uneven_stages.on) > 0.5
    uneven = (layers % chunks != 0) & (balanced | (chunks > layers))
    embeddings = uneven & ((layers + 2) % chunks == 0)
    left = layers - np.ceil(layers / chunks) * virtual * (stages - 1)
    return {
        "embedding_in_split": switch(embeddings).array,
        "loss_in_split": switch(embeddings).array,
        "last_stage_layers": np.where(uneven & ~embeddings, np.maximum(left, 0.0), 0.0),
    }


def _recomputes_up_projections(row: Row) -> bool:
    """Whether selective recomputation is that of latent attention's up-projections, as FlashAttention leaves
    it nothing of the core (Megatron-Core's module mla_up_proj).
    """
    return row["attention"] == "mla" and row["recompute"] == "selective" and bool(row["flash_attention"])


def _gradients_of(row: Row, half: bool) -> str:
    """The number format of a run's gradients; `half` says whether that of its products is its software's
    default, rather than fp32.
    """
    gradient_bytes = row["grad_dtype_bytes"] or (_HALF_BYTES if half else _FP32_BYTES)
    return "fp32" if gradient_bytes == _FP32_BYTES else row["precision"]


def _recomputes_functions(row: Row) -> bool:
    """Whether selective recomputation may be that of norms and of the experts' activation functions, as
    FlashAttention leaves it nothing of the core (Megatron-Core's modules layernorm and moe_act, which recipes
    of gpt-oss name: scripts/performance/configs/gpt_oss of github.com/NVIDIA-NeMo/Megatron-Bridge).
    """
    routed, latent = (row["experts"] or 0) > 0, row["attention"] == "mla"
    return routed and not latent and row["recompute"] == "selective" and bool(row["flash_attention"])


def _training_estimate(model: Model, system: System, strategy: Strategy) -> Outputs:
    report = training_step(model, system, strategy)
    devices = strategy.devices
    device_teraseconds = 1e12 * report.time * devices
    peak_rate = system.accelerator.matrix_rate(strategy.precision)
    length, causal = strategy.sequence_length, system.stack.causal_flops.on
    counted = model_flops(model, strategy.global_batch * length, length, causal) / device_teraseconds
    return {
        "step_time_s": report.time,
        "tokens_per_s_per_device": report.tokens_per_second / devices,
        "model_tflops_per_device": counted,
        "hardware_tflops_per_device": hardware_flops(model, strategy) / device_teraseconds,
        "mfu": counted * 1e12 / peak_rate,
        **layout_outputs(model, system, strategy, report.memory, "training"),
    }


TRAINING = Evaluator(_training_unrepresentable, _training_inputs, _training_estimate, model_structure)
