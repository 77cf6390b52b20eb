"""Activation memory of transformer layers, by what the backward pass recomputes.

Bytes follow Korthikanti et al. (arXiv 2205.05198, Equations 1–6 and Table 2), written out by tensor so
that gated MLPs, grouped-query attention and experts count what they store. With 2-byte elements, a plain
MLP of width 4h and as many KV heads as heads, one layer is s·b·h·(10 + 24/t + 5·a·s/(h·t)) bytes, all of
it divided by t under sequence parallelism.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.software.stack import Stack
from diffperf.workload.attention_operators import fused_softmax
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import inner_elements
from diffperf.workload.expert_tokens import expert_load, routed_tokens
from diffperf.workload.model import Layers, Model
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.strategy import Strategy

_OF_RECURRENCE = 5  # tensors that a recurrence keeps: gates f and g, candidates, states and outputs

# Tensors per token of the residual's width that a layer stores: the inputs of two norms, of QKV and of the
# MLP.
_RESIDUAL_INPUTS = 4


class LayerActivations(eqx.Module):
    """Bytes of one layer's activations of one micro-batch."""

    whole: Scalar  # all that the layer's backward pass reads
    kept: Scalar  # the part that stays from the forward pass, by the strategy's recomputation
    recomputed: Scalar  # the part that the backward pass computes a second time
    fetched: Scalar  # the part that the backward pass fetches from where it was offloaded

    @property
    def working(self) -> Float[Array, "*kinds"]:
        """Bytes that running the layer backward takes beyond what it kept."""
        return larger(self.recomputed, self.fetched)


class ModelActivations(eqx.Module):
    """Bytes of activations of one micro-batch in one layer of every kind, in the order of `Model.grouped`."""

    kept: Float[Array, " kinds"]  # from a layer's forward pass to its backward pass
    working: Float[Array, " kinds"]  # while a layer runs backward, beyond what it kept


def attention_score_bytes(layers: Layers, strategy: Strategy, stack: Stack | None = None) -> Scalar:
    """Bytes that standard attention stores: softmax output, dropout mask, dropout output.

    With 2-byte elements these are 5·a·s²·b/t (arXiv 2205.05198, Equation 2). A softmax that is not fused
    keeps its output in fp32 as well.
    """
    if not layers.attends:
        return jnp.zeros_like(strategy.tokens)
    element = strategy.activation_width
    heads = layers.heads / (strategy.tp * strategy.cp)
    scores = strategy.micro_batch * heads * strategy.sequence_length**2
    stored = element + layers.dropout.on * (1 + element)
    fused = None if stack is None else fused_softmax(layers, strategy, stack)
    if fused is not None:
        stored = stored + (1 - fused) * PRECISION_BYTES["fp32"]
    return scores * stored


class _LayerTensors(eqx.Module):
    """Bytes that one layer would keep of one micro-batch without recomputation, by what could recompute them.

    - `inner`: inputs and output of the MLP's activation function, of all experts that tokens visit, with
      tokens as experts get them and as they give them back.
    - `norm_outputs`, `function_outputs`, `projected`, `scores`: outputs of norms, of the activation
      function, of latent attention's up-projections, and stored attention scores; `function_outputs` are
      part of `inner`.
    - `others`: all else.
    """

    inner: Scalar
    norm_outputs: Scalar
    function_outputs: Scalar
    projected: Scalar
    scores: Scalar
    others: Scalar

    @property
    def without_scores(self) -> Scalar:
        """Bytes of all tensors but the attention scores."""
        return self.others + self.norm_outputs + self.projected + self.inner

    def recomputed_without_scores(self, shares: Recomputation) -> Scalar:
        """Bytes beside scores that the backward pass computes again in layers that it does not recompute
        whole.
        """
        block = shares.mlp + shares.experts  # layers have one of both
        return (
            shares.norms * self.norm_outputs
            + shares.up_projections * self.projected
            + block * self.inner
            + (1 - block) * shares.activation_functions * self.function_outputs
        )


def _attention_tensors(layers: Layers, strategy: Strategy) -> tuple[Scalar, Scalar, Scalar]:
    """Bytes per token of queries, keys, values and outputs and of the latents that they come from: outputs of
    latents' norms, outputs of up-projections, and all else.

    A recurrence has its gates f and g, candidates, states and outputs in their place; a state space its
    projections and its outputs, and computes the states of chunks again. Outputs are kept as inputs of a
    linear layer, the core's own inputs in the format of activations.
    """
    heads, element = layers.heads / strategy.tp, strategy.activation_width
    narrower = element - strategy.kept_activation_width
    none = jnp.zeros_like(heads)
    outputs = heads * layers.value_dim
    if layers.state_space is not None:
        projected = layers.state_space.projected(layers.channels, layers.heads)
        return none, none, element * (projected + layers.channels) / strategy.tp - narrower * outputs
    if layers.recurrence is not None:
        return none, none, element * _OF_RECURRENCE * heads * layers.head_dim - narrower * outputs
    if layers.latent is None:
        kept = 2 * (heads + layers.kv_heads_on_rank(strategy.tp)) * layers.head_dim
        return none, none, element * kept - narrower * outputs
    latents = (layers.latent.query_rank + layers.latent.kv_rank) / strategy.sequence_shards
    projected = heads * (2 * layers.head_dim + layers.value_dim)
    others = element * (outputs + latents + layers.latent.rotary_dim) - narrower * outputs
    return strategy.kept_activation_width * latents, element * projected, others


def _routed_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements on one device of the inner activation of all experts that tokens are routed to."""
    return routed_tokens(layers, strategy, strategy.tokens) * expert_load(strategy) * layers.ffn


def _layer_tensors(layers: Layers, model: Model, strategy: Strategy, stack: Stack | None) -> _LayerTensors:
    """Activations that Megatron-LM's fusions keep of one layer and one micro-batch."""
    element, kept = strategy.activation_width, strategy.kept_activation_width
    tokens, residual = strategy.tokens, strategy.tokens * model.hidden
    # Only sequence parallelism splits inputs of norms, QKV and MLP, and two dropout masks of one byte.
    shards = strategy.sequence_shards
    without_mlp = 2 * (1 - layers.has_mlp)  # neither its input nor that of the norm before it
    norm_inputs = 1 + layers.second_block
    norm_outputs = _RESIDUAL_INPUTS - layers.parallel.on - without_mlp - norm_inputs
    # Input(s) and output of the MLP's activation; tokens as experts get them and as they give them back.
    functions = kept * inner_elements(layers, strategy, tokens)
    inner = functions * (2 + layers.gated.on)
    if stack is not None and layers.mixture is not None and stack.separate_clamps.possible["on"]:
        # Gates and factors stay as they were before their clamps, and after.
        clamped = stack.separate_clamps.on * layers.clamped_activation.on * layers.gated.on
        before = 2 * element * clamped * _routed_elements(layers, strategy)
        functions, inner = functions + before, inner + before
    if layers.mixture is not None:
        visiting = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * model.hidden
        # The ranks that an expert is split over gather its tokens (`expert_parallel_collectives`).
        inner = inner + visiting * (kept * strategy.experts_tp + element * strategy.early_routing_weights.off)
    latent_norms, projected, attention = _attention_tensors(layers, strategy)
    return _LayerTensors(
        inner=inner,
        norm_outputs=residual * kept * norm_outputs / shards + tokens * latent_norms,
        function_outputs=functions,
        projected=tokens * projected,
        scores=attention_score_bytes(layers, strategy, stack) * strategy.attention.standard
        if strategy.attention.possible["standard"]
        else jnp.zeros_like(inner),
        others=residual * (norm_inputs * element + 2 * layers.dropout.on) / shards + tokens * attention,
    )


def layer_activations(
    layers: Layers, model: Model, strategy: Strategy, stack: Stack | None = None
) -> LayerActivations:
    """Activations that one layer keeps of one micro-batch for its backward pass.

    Without a stack, the layer keeps what Megatron-LM's fusions do; a stack may keep more, and the inputs
    of its column-parallel layers whole.
    """
    tensors = _layer_tensors(layers, model, strategy, stack)
    residual = strategy.tokens * model.hidden * strategy.activation_width
    shards = strategy.sequence_shards
    shares = Recomputation.of(strategy).of_layers(layers)
    factor, gathered = 1.0, 0.0
    if stack is not None:
        factor = stack.kept_activations
        gathered = stack.gathered_inputs * 2 * residual * (1 - 1 / shards)  # inputs of QKV and of the MLP
    whole = factor * tensors.without_scores + gathered + tensors.scores
    by_class = factor * tensors.recomputed_without_scores(shares) + shares.attention * tensors.scores
    own_input = factor * residual / shards
    return LayerActivations(
        whole=whole,
        kept=whole - shares.layer * (whole - own_input) - by_class,
        recomputed=shares.layer * whole + by_class,
        fetched=strategy.offload_activations * whole,
    )


def model_activations(c: Configuration) -> ModelActivations:
    """Activations of one micro-batch in one layer of every kind of a model."""
    of_each = jax.vmap(layer_activations, in_axes=(0, None, None, None))
    layers = [of_each(kinds, c.model, c.strategy, c.system.stack) for kinds in c.model.kinds]
    return ModelActivations(
        kept=jnp.concatenate([kinds.kept for kinds in layers]),
        working=jnp.concatenate([kinds.working for kinds in layers]),
    )
