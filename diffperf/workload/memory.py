"""The memory footprint of a strategy on one device: parameters, gradients, optimizer, activations, KV cache.

Activation bytes follow Korthikanti et al. (arXiv 2205.05198, Equations 1–6 and Table 2), written out by tensor so that gated
MLPs and grouped-query attention count what they store. With 2-byte elements, plain MLP of 4h and as many KV heads as heads,
one layer is s·b·h·(10 + 24/t + 5·a·s/(h·t)), all of it divided by t under sequence parallelism.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.hardware.accelerator import width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation, choose
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import sequence_shards
from diffperf.workload.strategy import Strategy


class Memory(eqx.Module):
    """Bytes on the fullest device, and how they compare to what it has."""

    weights: Scalar = output("byte", "weights")
    gradients: Scalar = output("byte", "gradients")
    optimizer: Scalar = output("byte", "optimizer state")
    activations: Scalar = output("byte", "activations kept for the backward pass, or in use")
    kv_cache: Scalar = output("byte", "KV cache")
    reserve: Scalar = output("byte", "runtime reserve")
    peak: Scalar = output("byte", "peak")
    capacity: Scalar = output("byte", "device memory")
    excess: Scalar = output("", "peak over capacity − 1 (above 0: out of memory)")

    @classmethod
    def add_up(cls, system: System, **parts: Scalar) -> "Memory":
        capacity, peak = system.accelerator.device_memory.capacity, sum(parts.values()) + system.stack.memory_reserve
        return cls(**parts, reserve=system.stack.memory_reserve, peak=peak, capacity=capacity, excess=peak / capacity - 1)


def attention_score_bytes(layers: Layers, strategy: Strategy) -> Scalar:
    """Stored by standard attention: softmax output, dropout mask, dropout output (5·a·s²·b/t with 2-byte elements)."""
    element = width(strategy.precision)
    scores = strategy.micro_batch * layers.heads * strategy.sequence_length**2 / strategy.tp
    return scores * (element + layers.dropout[1] * (1 + element))


def layer_activation_bytes(layers: Layers, model: Model, strategy: Strategy) -> Scalar:
    """Bytes one layer keeps of one micro-batch for its backward pass, by the strategy's recomputation."""
    element = width(strategy.precision)
    tokens = strategy.micro_batch * strategy.sequence_length
    residual = tokens * model.hidden
    shards = sequence_shards(strategy)

    def all_but_scores():
        # Inputs of two norms, of QKV and of the MLP, and two dropout masks: split only by sequence parallelism.
        outside = residual * (4 * element + 2 * layers.dropout[1]) / shards
        heads = layers.heads / strategy.tp + layers.kv_heads_on_rank(strategy.tp)
        inner = layers.ffn * layers.experts_per_token * (2 + layers.gated[1]) / strategy.tp  # activation input(s) and output
        return outside + tokens * element * (2 * heads * layers.head_dim + inner)

    def everything():
        scores = choose(strategy.attention, [lambda: attention_score_bytes(layers, strategy), lambda: jnp.zeros_like(residual)])
        return all_but_scores() + scores

    def layer_input():
        return residual * element / shards

    return choose(strategy.recompute, [everything, all_but_scores, layer_input])


def in_flight(strategy: Strategy, relax: Relaxation) -> Scalar:
    """Micro-batches whose activations the first stage holds, in units of all its layers.

    1F1B holds one per stage; interleaving adds (p − 1)/v of one (arXiv 2205.05198 §4.2.3; 2104.04473 §2.2). Never more than
    there are.
    """
    chunks = relax.minimum(strategy.virtual_stages - 1, 1.0)
    held = strategy.pp + chunks * (strategy.pp - 1) / strategy.virtual_stages
    return relax.minimum(held, strategy.micro_batches)


def stage_parameters(model: Model, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Parameters on one device of the fullest stage: its layers, and the embeddings where the pipeline begins or ends.

    With one stage a tied embedding is stored once; with more, the first and the last stage hold one each.
    """
    one_stage = 1 - relax.minimum(strategy.pp - 1, 1.0)
    positions = model.learned_positions * model.hidden
    embeddings = model.embedding_parameters * (1 + one_stage * model.tied_embeddings[0])
    return (model.layer_parameters / strategy.pp + embeddings) / strategy.tp + positions


def training_memory(model: Model, system: System, strategy: Strategy, relax: Relaxation) -> Memory:
    """Peak of the first pipeline stage, or of the last where fp32 logits outweigh its fewer micro-batches in flight.

    Parameters follow ZeRO (arXiv 1910.02054 §5): weights, gradients and optimizer state, the last over dp at stage 1.
    """
    element = width(strategy.precision)
    parameters = stage_parameters(model, strategy, relax)
    tokens = strategy.micro_batch * strategy.sequence_length
    layers = model.stacked_layers
    stored = jax.vmap(layer_activation_bytes, in_axes=(0, None, None))(layers, model, strategy)
    stage_bytes = jnp.sum(stored * layers.count) / strategy.pp

    # Full recomputation keeps one layer's activations alive while it runs backward.
    whole = eqx.tree_at(lambda s: s.recompute, strategy, jnp.eye(3, dtype=element.dtype)[0])
    working = strategy.recompute[2] * jnp.max(jax.vmap(layer_activation_bytes, in_axes=(0, None, None))(layers, model, whole))
    logits = tokens * model.vocabulary / strategy.tp * (element + 4.0)

    first = stage_bytes * in_flight(strategy, relax)
    last = stage_bytes * relax.minimum(strategy.micro_batches, 1.0) + logits
    one_stage = 1 - relax.minimum(strategy.pp - 1, 1.0)
    return Memory.add_up(
        system,
        weights=parameters * element,
        gradients=parameters * width(strategy.gradient_precision),
        optimizer=choose(
            strategy.zero,
            [
                lambda: parameters * strategy.optimizer_bytes,
                lambda: parameters * strategy.optimizer_bytes / strategy.dp,
            ],
        ),
        activations=relax.maximum(first + one_stage * logits, last) + working,
        kv_cache=jnp.zeros_like(parameters),
    )


def kv_cache_bytes(model: Model, strategy: Strategy, context: Scalar) -> Scalar:
    """Keys and values of `context` tokens of every sequence a replica serves, on one device."""
    sequences = strategy.global_batch / strategy.dp
    per_token = sum(2 * layers.count * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim for layers in model.layers)
    return sequences * context * per_token * width(strategy.kv_precision) / strategy.pp


def inference_memory(model: Model, system: System, strategy: Strategy, relax: Relaxation) -> Memory:
    """Weights, the KV cache at the end of generation, and the widest activations of the prompt."""
    element = width(strategy.precision)
    tokens = strategy.global_batch / strategy.dp * strategy.sequence_length
    layers = model.stacked_layers
    widest = jnp.max(layers.ffn * layers.experts_per_token * (1 + layers.gated[:, 1]))
    zero = jnp.zeros_like(element)
    return Memory.add_up(
        system,
        weights=stage_parameters(model, strategy, relax) * element,
        gradients=zero,
        optimizer=zero,
        activations=tokens * element * (2 * model.hidden + widest / strategy.tp),
        kv_cache=kv_cache_bytes(model, strategy, strategy.sequence_length + strategy.output_length),
    )
