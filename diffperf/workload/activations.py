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

from diffperf.quantity import Scalar
from diffperf.relax import choose, larger
from diffperf.software.stack import Stack
from diffperf.workload.configuration import Configuration
from diffperf.workload.layer_operators import expert_load, inner_elements, routed_tokens, sequence_shards
from diffperf.workload.model import Layers, Model
from diffperf.workload.strategy import Strategy

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


def attention_score_bytes(layers: Layers, strategy: Strategy) -> Scalar:
    """Bytes that standard attention stores: softmax output, dropout mask, dropout output.

    With 2-byte elements these are 5·a·s²·b/t (arXiv 2205.05198, Equation 2).
    """
    if not layers.attends:
        return jnp.zeros_like(strategy.tokens)
    element = strategy.activation_width
    heads = layers.heads / (strategy.tp * strategy.cp)
    scores = strategy.micro_batch * heads * strategy.sequence_length**2
    return scores * (element + layers.dropout.on * (1 + element))


def _attention_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of queries, keys, values and outputs, and of the latents that they come from.

    A recurrence has its gates f and g, candidates, states and outputs in their place; a state space its
    projections and its outputs, and computes the states of chunks again.
    """
    heads = layers.heads / strategy.tp
    if layers.state_space is not None:
        projected = layers.state_space.projected(layers.channels, layers.heads)
        return (projected + layers.channels) / strategy.tp
    if layers.recurrence is not None:
        return 5 * heads * layers.head_dim
    if layers.latent is None:
        return 2 * (heads + layers.kv_heads_on_rank(strategy.tp)) * layers.head_dim
    latents = 2 * (layers.latent.query_rank + layers.latent.kv_rank) / sequence_shards(strategy)
    return 2 * heads * (layers.head_dim + layers.value_dim) + latents + layers.latent.rotary_dim


def layer_activations(
    layers: Layers, model: Model, strategy: Strategy, stack: Stack | None = None
) -> LayerActivations:
    """What one layer keeps of one micro-batch for its backward pass.

    Without a stack, the layer keeps what Megatron-LM's fusions do; a stack may keep more, and the inputs
    of its column-parallel layers whole.
    """
    element, tokens, shards = strategy.activation_width, strategy.tokens, sequence_shards(strategy)
    residual = tokens * model.hidden
    # Inputs of norms, QKV and MLP, and two dropout masks of one byte: only sequence parallelism splits them.
    without_mlp = 2 * (1 - layers.has_mlp)  # neither its input nor that of the norm before it
    inputs = (_RESIDUAL_INPUTS - layers.parallel.on - without_mlp) * element
    outside = residual * (inputs + 2 * layers.dropout.on)
    # Input(s) and output of the MLP's activation; tokens as experts get them and as they give them back.
    inner = inner_elements(layers, strategy, tokens) * (2 + layers.gated.on)
    if layers.mixture is not None:
        visiting = routed_tokens(layers, strategy, tokens) * expert_load(strategy)
        inner = inner + 2 * visiting * model.hidden
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
        strategy.recompute,
        {"none": lambda: whole, "selective": lambda: others, "full": lambda: own_input},
    )
    recomputed = choose(
        strategy.recompute,
        {"none": lambda: nothing, "selective": lambda: scores, "full": lambda: whole},
    )
    return LayerActivations(
        whole=whole,
        kept=share * kept + (1 - share) * whole,
        recomputed=share * recomputed,
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
