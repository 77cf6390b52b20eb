"""The memory footprint of a strategy on one device: parameters, gradients, optimizer, activations, KV cache.

Activation bytes follow Korthikanti et al. (arXiv 2205.05198, Equations 1–6 and Table 2), written out by tensor so that gated
MLPs, grouped-query attention and experts count what they store. With 2-byte elements, plain MLP of 4h and as many KV heads as
heads, one layer is s·b·h·(10 + 24/t + 5·a·s/(h·t)), all of it divided by t under sequence parallelism.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.formats import width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Relaxation, choose, larger, largest
from diffperf.software.stack import Stack
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import expert_load, inner_elements, routed_tokens, sequence_shards
from diffperf.workload.schedule import copies, in_flight, stage_layers
from diffperf.workload.strategy import Strategy

_FP32 = 4.0  # bytes


class StagePeaks(eqx.Module):
    """What devices of the first, a middle and the last pipeline stage allocate."""

    first: Scalar = output("byte", "first stage")
    middle: Scalar = output("byte", "a middle stage")
    last: Scalar = output("byte", "last stage")


class Memory(eqx.Module):
    """Bytes on the fullest device, and how they compare to what it has."""

    weights: Scalar = output("byte", "weights")
    gradients: Scalar = output("byte", "gradients")
    optimizer: Scalar = output("byte", "optimizer state")
    activations: Scalar = output("byte", "activations kept for the backward pass, or in use")
    logits: Scalar = output("byte", "logits, with their copy in fp32")
    gathered: Scalar = output("byte", "weights and gradients of layers in use, gathered (ZeRO-3)")
    buffers: Scalar = output("byte", "communication buffers")
    kv_cache: Scalar = output("byte", "KV cache")
    fragmentation: Scalar = output("byte", "what the allocator holds beyond")
    reserve: Scalar = output("byte", "runtime reserve")
    peak: Scalar = output("byte", "peak")
    capacity: Scalar = output("byte", "device memory")
    excess: Scalar = output("", "peak over capacity − 1 (above 0: out of memory)")
    stages: StagePeaks

    @classmethod
    def of(cls, system: System, stages: dict[str, Float[Array, "3"]], relax: Relaxation) -> "Memory":
        """From the parts that tensors take on the first, a middle and the last stage."""
        totals = sum(stages.values())
        # Derivatives of the maximum weigh the stages so that the fullest one's parts add up to it (Euler: it is homogeneous).
        share = jax.grad(relax.reduce_maximum)(totals)
        stack, capacity = system.stack, system.accelerator.device_memory.capacity
        allocated = relax.reduce_maximum(totals)
        fragmentation = allocated * (stack.fragmentation - 1)
        peak = allocated + fragmentation + stack.memory_reserve
        return cls(
            **{name: jnp.sum(share * part) for name, part in stages.items()},
            fragmentation=fragmentation,
            reserve=stack.memory_reserve,
            peak=peak,
            capacity=capacity,
            excess=peak / capacity - 1,
            stages=StagePeaks(*totals),
        )

    @property
    def allocated(self) -> Scalar:
        """What the fullest device's tensors take."""
        return self.peak - self.reserve - self.fragmentation


# --- activations


def attention_score_bytes(layers: Layers, strategy: Strategy) -> Scalar:
    """Stored by standard attention: softmax output, dropout mask, dropout output (5·a·s²·b/t with 2-byte elements)."""
    if layers.recurrence is not None:
        return jnp.zeros_like(strategy.tokens)
    element = strategy.activation_width
    scores = strategy.micro_batch * layers.heads * strategy.sequence_length**2 / (strategy.tp * strategy.cp)
    return scores * (element + layers.dropout.on * (1 + element))


def _attention_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of queries, keys, values and outputs, and of the latents they come from; of a recurrence's gates f and g,
    its candidates, states and outputs."""
    heads = layers.heads / strategy.tp
    if layers.recurrence is not None:
        return 5 * heads * layers.head_dim
    if layers.latent is None:
        return 2 * (heads + layers.kv_heads_on_rank(strategy.tp)) * layers.head_dim
    latents = (
        2 * (layers.latent.query_rank + layers.latent.kv_rank) / sequence_shards(strategy)
        + layers.latent.rotary_dim
    )
    return 2 * heads * (layers.head_dim + layers.value_dim) + latents


class LayerActivations(eqx.Module):
    """Bytes of one layer's activations of one micro-batch."""

    whole: Scalar  # all that its backward pass reads
    kept: Scalar  # what of them stays from the forward pass, by the strategy's recomputation
    again: Scalar  # what the backward pass computes again


def layer_activations(
    layers: Layers, model: Model, strategy: Strategy, stack: Stack | None = None
) -> LayerActivations:
    """What one layer keeps of one micro-batch for its backward pass.

    A stack may keep more than Megatron-LM's fusions, and the inputs of its column-parallel layers whole.
    """
    element, tokens, shards = strategy.activation_width, strategy.tokens, sequence_shards(strategy)
    residual = tokens * model.hidden
    # Configuration of two norms, of QKV and of the MLP, and two dropout masks: split only by sequence parallelism.
    outside = residual * ((4 - layers.parallel.on) * element + 2 * layers.dropout.on)
    # Input(s) and output of the activation; tokens as experts get them and as they give them back.
    inner = inner_elements(layers, strategy, tokens) * (2 + layers.gated.on)
    if layers.mixture is not None:
        inner = inner + 2 * routed_tokens(layers, strategy, tokens) * expert_load(strategy) * model.hidden
    others = outside / shards + element * (tokens * _attention_elements(layers, strategy) + inner)
    own_input = residual * element / shards
    if stack is not None:
        gathered = 2 * element * residual * (1 - 1 / shards)  # inputs of QKV and of the MLP
        others = stack.kept_activations * others + stack.gathered_inputs * gathered
        own_input = stack.kept_activations * own_input
    nothing = jnp.zeros_like(others)
    scores = choose(
        strategy.attention,
        {"standard": lambda: attention_score_bytes(layers, strategy), "flash": lambda: nothing},
    )
    whole, share = others + scores, strategy.recompute_share
    kept = choose(
        strategy.recompute, {"none": lambda: whole, "selective": lambda: others, "full": lambda: own_input}
    )
    again = choose(
        strategy.recompute, {"none": lambda: nothing, "selective": lambda: scores, "full": lambda: whole}
    )
    return LayerActivations(whole, share * kept + (1 - share) * whole, share * again)


def _layers_bytes(model: Model, strategy: Strategy, stack: Stack) -> tuple[Scalar, Scalar]:
    """Activations that an average layer keeps of a micro-batch; and those that the fullest one has while it runs backward beyond
    them: what it computes again, or fetches from where it was offloaded."""
    of_each = jax.vmap(layer_activations, in_axes=(0, None, None, None))
    groups = [(group.count, of_each(group, model, strategy, stack)) for group in model.kinds]
    kept = sum(jnp.sum(count * layer.kept) for count, layer in groups) / model.depth
    working = [
        largest(larger(layer.again, strategy.offload_activations * layer.whole)) for _, layer in groups
    ]
    return kept, largest(jnp.stack(working))


def stage_activation_bytes(model: Model, system: System, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Bytes that the fullest stage keeps of one micro-batch for its backward pass, wherever it keeps them."""
    kept, _ = _layers_bytes(model, strategy, system.stack)
    return kept * stage_layers(model, strategy, relax)[0]


def _logits_bytes(model: Model, strategy: Strategy) -> Scalar:
    """The vocabulary projection's output and its copy in fp32, once for the model and once for each module that looks further."""
    logits = strategy.tokens * model.vocabulary / strategy.tp
    return logits * (strategy.activation_width + _FP32) * (1 + model.mtp_layers)


# --- parameters


class StageParameters(eqx.Module):
    """Parameters on one device, by how many ranks hold the same."""

    dense: Scalar
    experts: Scalar

    @property
    def total(self) -> Scalar:
        return self.dense + self.experts

    def times(self, dense: Scalar, experts: Scalar) -> Scalar:
        return self.dense * dense + self.experts * experts


def _one_stage(strategy: Strategy, relax: Relaxation) -> Scalar:
    """1 where there is no pipeline, 0 from two stages on."""
    return 1 - relax.minimum(strategy.pp - 1, 1.0)


def _parameters(
    model: Model, strategy: Strategy, layers: Scalar, embeddings: Scalar, heads: Scalar
) -> StageParameters:
    """Those of a stage's layers, average ones, and of some input embeddings and vocabulary projections.

    Modules that predict further tokens lie beside the vocabulary projection.
    """
    share = layers / model.depth
    dense = share * sum(kind.count * kind.dense_parameters(model.hidden) for kind in model.layers)
    routed = share * sum(kind.count * kind.routed_parameters(model.hidden) for kind in model.layers)
    last, further = model.layers[-1], heads * model.mtp_layers
    ahead = 2 * model.hidden**2 + last.dense_parameters(model.hidden)
    tables = (embeddings + heads) * model.embedding_parameters
    return StageParameters(
        (dense + tables + further * ahead) / strategy.tp
        + embeddings * model.learned_positions * model.hidden,
        (routed + further * last.routed_parameters(model.hidden)) / (strategy.experts_tp * strategy.ep),
    )


def stage_parameters(model: Model, strategy: Strategy, relax: Relaxation) -> StageParameters:
    """Parameters on one device of the fullest stage: its layers, and the embeddings where the pipeline begins or ends.

    With one stage a tied embedding is stored once; with more, the first and the last stage hold one each.
    """
    alone = _one_stage(strategy, relax)
    return _parameters(
        model, strategy, model.depth / strategy.pp, jnp.ones_like(alone), alone * model.tied_embeddings.off
    )


def zero_ranks(strategy: Strategy, replicas: Scalar, relax: Relaxation) -> Scalar:
    """Of ranks that hold the same parameters, how many share them: all, or as many as hybrid sharding says."""
    within = relax.minimum(strategy.zero_ranks, replicas)
    return larger(jnp.where(strategy.zero_ranks > 0, within, replicas), 1.0)


def kept_share(strategy: Strategy, stage: int, ranks: Scalar) -> Scalar:
    """What a rank keeps of what ZeRO shards from a stage on: weights 3, gradients 2, optimizer state 1 (arXiv 1910.02054 §5)."""
    shared = sum(strategy.zero[str(level)] for level in range(stage, 4))
    return 1 - shared * (1 - 1 / ranks)


# --- training


def training_memory(model: Model, system: System, strategy: Strategy, relax: Relaxation) -> Memory:
    """Peak of the fullest of the first, a middle and the last pipeline stage.

    The first has the input embedding and the most micro-batches in flight, the last the logits in fp32.
    """
    kept, working = _layers_bytes(model, strategy, system.stack)
    fullest, last_layers = stage_layers(model, strategy, relax)
    alone = _one_stage(strategy, relax)
    ranks = [
        zero_ranks(strategy, replicas, relax) for replicas in (strategy.replicas, strategy.expert_replicas)
    ]
    tied = model.tied_embeddings

    def stage(position: Scalar, first: Scalar, last: Scalar) -> dict[str, Scalar]:
        embeddings, heads = first + last * alone * (1 - first), last + first * alone * (1 - last)
        layers = fullest + last * (last_layers - fullest)
        parameters = _parameters(model, strategy, layers, embeddings, heads * (1 - alone * tied.on))
        shares = [[kept_share(strategy, level, of) for of in ranks] for level in (1, 2, 3)]
        optimizer, gradients, weights = (parameters.times(*pair) for pair in shares)
        twice = copies(strategy)
        in_use = kept * layers * in_flight(strategy, relax, position) * (1 - strategy.offload_activations)
        return {
            "weights": twice * weights * strategy.kept_weight_width,
            "gradients": twice
            * gradients
            * (width(strategy.gradient_precision) + system.stack.gradient_buffers),
            "optimizer": optimizer
            * (strategy.optimizer_bytes + system.stack.optimizer_buffers)
            * (1 - strategy.offload_optimizer),
            "activations": in_use + working,
            "logits": heads * _logits_bytes(model, strategy),
            "gathered": _gathered_bytes(model, strategy),
            "buffers": _buffer_bytes(model, strategy, relax) + system.stack.training_buffers,
            "kv_cache": jnp.zeros_like(kept),
        }

    positions, first, last = jnp.asarray([[0.0, 0.5, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], kept.dtype)
    return Memory.of(system, jax.vmap(stage)(positions, first, last), relax)


def _gathered_bytes(model: Model, strategy: Strategy) -> Scalar:
    """What ZeRO-3 holds whole: the weights of the layer in use and of the next one, fetched ahead, and the gradients of one."""
    dense = (
        sum(kind.count * kind.dense_parameters(model.hidden) for kind in model.layers)
        / model.depth
        / strategy.tp
    )
    routed = sum(kind.count * kind.routed_parameters(model.hidden) for kind in model.layers) / model.depth
    layer = dense + routed / (strategy.experts_tp * strategy.ep)
    ahead = 1 + strategy.overlap_weights.on
    return strategy.zero["3"] * layer * (ahead * strategy.kept_weight_width + strategy.kept_weight_width)


def _buffer_bytes(model: Model, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Sequence parallelism gathers a layer's input on every rank; stages receive a micro-batch's residual stream each way."""
    residual = strategy.tokens * model.hidden * strategy.activation_width
    gathers = strategy.sequence_parallel.on * relax.minimum(strategy.tp - 1, 1.0)
    received = 2 * (1 - _one_stage(strategy, relax)) / sequence_shards(strategy)
    return residual * (gathers + received)


# --- inference


def kv_cache_bytes(model: Model, strategy: Strategy, context: Scalar) -> Scalar:
    """Keys and values of `context` tokens of every sequence a replica serves, or their latents, on one device; of a recurrence the
    state, whatever the context."""
    sequences = strategy.global_batch / strategy.dp

    def held_by(layers: Layers) -> Scalar:
        if layers.recurrence is not None:
            return layers.recurrence.state * layers.heads * layers.head_dim / strategy.tp
        return per_token(layers) * jnp.minimum(context, layers.window)

    def per_token(layers: Layers) -> Scalar:
        if layers.latent is not None:
            return layers.latent.kv_rank + layers.latent.rotary_dim
        return 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim

    held = sum(layers.count * held_by(layers) for layers in model.layers)
    return sequences * held * width(strategy.kv_precision) / strategy.pp


def inference_memory(model: Model, system: System, strategy: Strategy, relax: Relaxation) -> Memory:
    """Weights, the KV cache at the end of generation, and the widest activations of the prompt."""
    tokens = strategy.global_batch / strategy.dp * strategy.sequence_length
    widest = [inner_elements(kind, strategy, tokens) * (1 + kind.gated.on) for kind in model.layers]
    zero = jnp.zeros_like(strategy.tp)
    stage = {
        "weights": stage_parameters(model, strategy, relax).total * strategy.served_weight_width,
        "gradients": zero,
        "optimizer": zero,
        "activations": strategy.activation_width * (2 * tokens * model.hidden + largest(jnp.stack(widest))),
        "logits": zero,
        "gathered": zero,
        "buffers": zero,
        "kv_cache": kv_cache_bytes(model, strategy, strategy.sequence_length + strategy.output_length),
    }
    return Memory.of(system, jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), stage), relax)
