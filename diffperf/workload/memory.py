"""The memory footprint of a configuration on one device, in training and in inference."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.formats import PRECISION_BYTES, width
from diffperf.quantity import Declared, Scalar, output
from diffperf.relax import larger, largest
from diffperf.workload.activations import model_activations
from diffperf.workload.configuration import Configuration
from diffperf.workload.layer_operators import inner_elements, sequence_shards
from diffperf.workload.model import Layers, Model
from diffperf.workload.schedule import device_stages, in_flight, stage_layers
from diffperf.workload.stage_parameters import (
    ZeroGroups,
    embedding_parameters_on_device,
    kept_share,
    one_stage,
    parameters_of_layers,
    stage_parameters,
)
from diffperf.workload.strategy import Strategy


class StagePeaks(eqx.Module):
    """What devices of the first, a middle and the last pipeline stage allocate."""

    first: Scalar = output("byte", "allocation of a device of the first pipeline stage")
    middle: Scalar = output("byte", "allocation of a device of a middle pipeline stage")
    last: Scalar = output("byte", "allocation of a device of the last pipeline stage")


class Memory(Declared):
    """Bytes on the fullest device, and how they compare to what the device has."""

    weights: Scalar = output("byte", "weights")
    gradients: Scalar = output("byte", "gradients")
    optimizer: Scalar = output("byte", "optimizer state")
    activations: Scalar = output("byte", "activations kept for the backward pass, or in use")
    logits: Scalar = output("byte", "logits, with their copy in fp32")
    gathered: Scalar = output("byte", "weights and gradients of layers in use, gathered (ZeRO-3)")
    buffers: Scalar = output("byte", "communication buffers")
    kv_cache: Scalar = output("byte", "KV cache")
    fragmentation: Scalar = output("byte", "memory that the allocator holds beyond the tensors in it")
    reserve: Scalar = output("byte", "memory reserved by runtime and libraries")
    peak: Scalar = output("byte", "peak")
    capacity: Scalar = output("byte", "device memory")
    excess: Scalar = output("", "peak over capacity − 1 (above 0: out of memory)")
    stages: StagePeaks

    @classmethod
    def of(cls, c: Configuration, stages: dict[str, Float[Array, " stages"]]) -> "Memory":
        """The footprint from the parts that tensors take on the first, a middle and the last pipeline
        stage, or on one stage that stands for all.
        """
        totals = jnp.sum(jnp.stack(list(stages.values())), axis=0)
        # Derivatives of the maximum weigh the stages so that the fullest stage's parts add up to it: the
        # maximum is homogeneous, so Euler's theorem holds.
        share = jax.grad(c.relax.reduce_maximum)(totals)
        stack, capacity = c.system.stack, c.system.accelerator.device_memory.capacity
        allocated = c.relax.reduce_maximum(totals)
        fragmentation = allocated * (stack.fragmentation - 1)
        peak = allocated + fragmentation + stack.memory_reserve
        first, middle, last = jnp.broadcast_to(totals, (3,))
        return cls(
            **{name: jnp.sum(share * part) for name, part in stages.items()},
            fragmentation=fragmentation,
            reserve=stack.memory_reserve,
            peak=peak,
            capacity=capacity,
            excess=peak / capacity - 1,
            stages=StagePeaks(first=first, middle=middle, last=last),
        )

    @property
    def allocated(self) -> Scalar:
        """Bytes that the fullest device's tensors take."""
        return self.peak - self.reserve - self.fragmentation


# --- training


def training_memory(c: Configuration) -> Memory:
    """Peak of the fullest of the first, a middle and the last pipeline stage.

    The first stage has the input embedding and the most micro-batches in flight, the last the logits in fp32.
    """
    positions = jnp.asarray([0.0, 0.5, 1.0], c.strategy.tp.dtype)
    first, last = (positions == 0.0).astype(positions.dtype), (positions == 1.0).astype(positions.dtype)
    return Memory.of(c, jax.vmap(lambda *stage: _training_stage(c, *stage))(positions, first, last))


def _training_stage(c: Configuration, position: Scalar, first: Scalar, last: Scalar) -> dict[str, Scalar]:
    """Bytes on a device of one stage, by part.

    `position` runs from 0 for the first stage to 1 for the last; `first` and `last` are 1 for these
    stages, else 0.
    """
    model, strategy, stack = c.model, c.strategy, c.system.stack
    activations = model_activations(c)
    fullest, last_layers = stage_layers(model, strategy, c.relax)
    alone, tied = one_stage(strategy, c.relax), model.tied_embeddings
    layers = fullest + last * (last_layers - fullest)
    # With one stage, that stage has the embeddings at both ends of the pipeline.
    embeddings, heads = first + last * alone * (1 - first), last + first * alone * (1 - last)
    parameters = parameters_of_layers(
        model, strategy, layers=layers, embeddings=embeddings, heads=heads * (1 - alone * tied.on)
    )
    groups = ZeroGroups(strategy, c.relax)
    dense_ranks, expert_ranks = groups.dense, groups.experts
    optimizer, gradients, weights = (
        parameters.weighted(kept_share(sharded, dense_ranks), kept_share(sharded, expert_ranks))
        for sharded in (strategy.shards_optimizer, strategy.shards_gradients, strategy.shards_weights)
    )
    stages = device_stages(strategy)
    flying = activations.kept * layers * in_flight(strategy, c.relax, position)
    gradient_bytes = strategy.gradient_width + stack.gradient_buffers
    optimizer_bytes = strategy.optimizer_bytes + stack.optimizer_buffers
    return {
        "weights": stages * weights * strategy.kept_weight_width,
        "gradients": stages * gradients * gradient_bytes,
        "optimizer": optimizer * optimizer_bytes * (1 - strategy.offload_optimizer),
        "activations": flying * (1 - strategy.offload_activations) + activations.working,
        "logits": heads * _logits_bytes(model, strategy),
        "gathered": _gathered_bytes(model, strategy),
        "buffers": _buffer_bytes(c) + stack.training_buffers,
        "kv_cache": jnp.zeros_like(weights),
    }


def stage_activation_bytes(c: Configuration) -> Scalar:
    """Bytes that the fullest stage keeps of one micro-batch for its backward pass, wherever it keeps them."""
    return model_activations(c).kept * stage_layers(c.model, c.strategy, c.relax)[0]


def _logits_bytes(model: Model, strategy: Strategy) -> Scalar:
    """The vocabulary projection's output and its copy in fp32, for the model and for each further token that
    it predicts.
    """
    logits = strategy.tokens * model.vocabulary / strategy.tp
    return logits * (strategy.activation_width + PRECISION_BYTES["fp32"]) * (1 + model.mtp_layers)


def _gathered_bytes(model: Model, strategy: Strategy) -> Scalar:
    """What ZeRO-3 holds whole: the weights of the layer in use, those of the next layer if fetched early, one
    layer's gradients.
    """
    dense = sum(kind.count * kind.dense_parameters(model.hidden) for kind in model.layers) / model.depth
    routed = sum(kind.count * kind.routed_parameters(model.hidden) for kind in model.layers) / model.depth
    layer = dense / strategy.tp + routed / (strategy.experts_tp * strategy.ep)
    weights = 1 + strategy.overlap_weights.on
    return strategy.shards_weights * layer * (weights + 1) * strategy.kept_weight_width


def _buffer_bytes(c: Configuration) -> Scalar:
    """Sequence parallelism gathers a layer's input on every rank; stages receive a micro-batch's residual
    stream each way.
    """
    strategy = c.strategy
    residual = strategy.tokens * c.model.hidden * strategy.activation_width
    gathers = strategy.sequence_parallel.on * c.relax.minimum(strategy.tp - 1, 1.0)
    received = 2 * (1 - one_stage(strategy, c.relax)) / sequence_shards(strategy)
    return residual * (gathers + received)


# --- inference


def kv_cache_bytes(c: Configuration, context: Scalar) -> Scalar:
    """Keys and values of `context` tokens of every sequence that a replica serves, or their latents, on one
    device.

    Context-parallel ranks keep a part of the context each. A recurrence keeps its state, whatever the
    context; that of a state space is in fp32, as vLLM keeps it. A cache in blocks (PagedAttention, arXiv
    2309.06180 §4) fills its last block in part.
    """
    strategy, block = c.strategy, c.system.stack.cache_block
    sequences = strategy.global_batch / strategy.dp
    paged = c.relax.ceil(context / strategy.cp / block) * block

    def kept(layers: Layers) -> Scalar:
        """Bytes that one layer keeps of one sequence."""
        cached = width(strategy.kv_precision)
        if layers.state_space is not None:
            states = layers.channels * layers.state_space.state * PRECISION_BYTES["fp32"]
            taps = larger(layers.state_space.convolution - 1, 0.0)
            convolved = taps * layers.state_space.convolved(layers.channels)
            return (states + strategy.activation_width * convolved) / strategy.tp
        if layers.recurrence is not None:
            return cached * layers.recurrence.state * layers.channels / strategy.tp
        if layers.latent is not None:
            token = layers.latent.kv_rank + layers.latent.rotary_dim
        else:
            token = 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim
        return cached * token * jnp.minimum(paged, layers.window / strategy.cp)

    return sequences * sum(layers.count * kept(layers) for layers in c.model.layers) / strategy.pp


def served_weight_bytes(c: Configuration) -> Scalar:
    """Bytes of the weights on a device of the fullest stage, each class of weights in its format."""
    parameters = stage_parameters(c.model, c.strategy, c.relax)
    tables = embedding_parameters_on_device(c.model, c.strategy, c.relax)
    widths = c.strategy.served_head_width - c.strategy.served_weight_width
    in_layers = parameters.weighted(c.strategy.served_weight_width, c.strategy.served_expert_width)
    return in_layers + tables * widths


def inference_memory(c: Configuration) -> Memory:
    """Weights, the KV cache at the end of generation, and the widest activations of one pass.

    A pass works on the prompts of all sequences, or on as many of their tokens as the stack puts into one
    pass.
    """
    model, strategy = c.model, c.strategy
    prompts = strategy.global_batch / strategy.dp * strategy.sequence_length / strategy.cp
    tokens = c.relax.minimum(prompts, c.system.stack.pass_tokens)
    inner = [inner_elements(kind, strategy, tokens) * (1 + kind.gated.on) for kind in model.layers]
    widest = 2 * tokens * model.hidden + largest(jnp.stack(inner))
    zero = jnp.zeros_like(strategy.tp)
    stage = {
        "weights": served_weight_bytes(c),
        "gradients": zero,
        "optimizer": zero,
        "activations": strategy.activation_width * widest,
        "logits": _served_logits_bytes(c),
        "gathered": zero,
        "buffers": zero,
        "kv_cache": kv_cache_bytes(c, strategy.sequence_length + strategy.output_length),
    }
    return Memory.of(c, {name: part[None] for name, part in stage.items()})


def _served_logits_bytes(c: Configuration) -> Scalar:
    """The logits of the next token of every sequence, in fp32 for the sampler."""
    sequences = c.strategy.global_batch / c.strategy.dp
    return sequences * c.model.vocabulary / c.strategy.tp * PRECISION_BYTES["fp32"]
