"""Matrix products of one layer's linear layers, and of the vocabulary projection."""

import jax
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import is_multiple, larger
from diffperf.software.stack import Stack
from diffperf.workload.expert_tokens import expert_load, routed_tokens, visited_share
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import Gemms
from diffperf.workload.strategy import Strategy


def linear_layers(
    layers: Layers,
    hidden: Scalar,
    strategy: Strategy,
    tokens: Scalar,
    read_experts: Scalar | None = None,
    context_tokens: Scalar | None = None,
) -> Gemms:
    """The products of one layer's linear layers in the forward pass, with Megatron-LM's column- and
    row-parallel split.

    Source of the split: arXiv 1909.08053 §3. A device's experts are independent products (`batch`), each
    over the tokens that the expert-parallel group routes to it. `read_experts` is the share of the experts
    whose weights are read; those that tokens in training visit if None.

    Latent attention projects the latents of `context_tokens` tokens up to keys and values, those of `tokens`
    if None: of a prompt behind a cached prefix, the latents of the prefix too.
    """
    up_projected = tokens if context_tokens is None else context_tokens
    rows = _attention_projections(layers, hidden, strategy, tokens, up_projected)
    rows["attention output"] = (tokens, hidden, layers.heads * layers.value_dim / strategy.tp, 1.0)
    if layers.mixture is None:
        mlp = _dense_mlp(layers, hidden, strategy, tokens)
    else:
        mlp = _expert_mlp(layers, hidden, strategy, tokens, read_experts)
    roles = dict.fromkeys(rows, "attention") | {"experts up": "expert", "experts down": "expert"}
    return Gemms.table(rows | mlp, roles)


def _attention_projections(
    layers: Layers, hidden: Scalar, strategy: Strategy, tokens: Scalar, up_projected: Scalar
) -> dict:
    """Products that make queries, keys and values, as (m, n, k, batch).

    Latent attention projects down to its latents, whole on every rank, and up again for the rank's heads, to
    keys and values for `up_projected` tokens (arXiv 2405.04434 §2.1).
    """
    heads = layers.heads / strategy.tp
    if layers.state_space is not None:
        projected = layers.state_space.projected(layers.channels, layers.heads)
        return {"state space inputs": (tokens, projected / strategy.tp, hidden, 1.0)}
    if layers.latent is None:
        outputs = (heads + 2 * layers.kv_heads_on_rank(strategy.tp)) * layers.head_dim
        return {"qkv": (tokens, outputs, hidden, 1.0)}
    latent = layers.latent
    has_query_latent = jnp.where(latent.query_rank > 0, 1.0, 0.0)
    query_inputs = has_query_latent * latent.query_rank + (1 - has_query_latent) * hidden
    down = latent.query_rank + latent.kv_rank + latent.rotary_dim
    return {
        "latents": (tokens, down, hidden, 1.0),
        "queries": (tokens, heads * layers.head_dim, query_inputs, 1.0),
        "keys and values": (
            up_projected,
            heads * latent.projected_dim(layers.head_dim),
            latent.kv_rank,
            1.0,
        ),
    }


def _dense_mlp(layers: Layers, hidden: Scalar, strategy: Strategy, tokens: Scalar) -> dict:
    """Products of an MLP without experts, as (m, n, k, batch). A gated MLP computes its gate beside its first
    product.
    """
    # A layer without an MLP has products of batch 0, whose dimensions stay safe to divide by.
    inner = larger(layers.ffn / strategy.tp, 1.0)
    return {
        "mlp up": (tokens, (1 + layers.gated.on) * inner, hidden, layers.has_mlp),
        "mlp down": (tokens, hidden, inner, layers.has_mlp),
    }


def _expert_mlp(
    layers: Layers, hidden: Scalar, strategy: Strategy, tokens: Scalar, read_experts: Scalar | None
) -> dict:
    """Products of routed experts, of the experts that every token visits, and of the router, as (m, n, k,
    batch).

    The share `read_experts` of the experts is read and computed, with the tokens that they share: in
    inference, where it is given, those of the device that gets most.
    """
    mixture, up = layers.mixture, 1 + layers.gated.on
    assert mixture is not None
    inner = layers.ffn / strategy.experts_tp  # on one device
    read = visited_share(mixture, strategy, tokens) if read_experts is None else read_experts
    experts = mixture.experts / strategy.ep * read
    served = None if read_experts is None else mixture
    routed = routed_tokens(layers, strategy, tokens) * expert_load(strategy, served)
    tokens_of_expert = routed * strategy.experts_tp / experts
    # A model without shared experts has a product of batch 0, whose dimensions stay safe to divide by.
    shared = larger(mixture.shared_ffn / strategy.tp, 1.0)
    has_shared = jnp.where(mixture.shared_ffn > 0, 1.0, 0.0)
    return {
        "experts up": (tokens_of_expert, up * inner, hidden, experts),
        "experts down": (tokens_of_expert, hidden, inner, experts),
        "shared experts up": (tokens, up * shared, hidden, has_shared),
        "shared experts down": (tokens, hidden, shared, has_shared),
        "router": (tokens / strategy.sequence_shards, mixture.experts, hidden, 1.0),
    }


def vocabulary_projection(model: Model, tp: Scalar, tokens: Scalar) -> Gemms:
    """The projection of `tokens` residual streams to logits over a rank's part of the vocabulary."""
    rows = {"vocabulary projection": (tokens, model.vocabulary / tp, model.hidden, 1.0)}
    return Gemms.table(rows, {"vocabulary projection": "head"})


def aligned_logits(model: Model, strategy: Strategy, stack: Stack) -> Scalar | None:
    """1 where each row of a device's logits begins at a multiple of the bytes that kernels for matrix units
    load at a time (`UnpaddedLogits`), else 0; None in stacks that pad the vocabulary. A rank has a whole
    number of its entries.
    """
    if stack.unpadded_logits is None:
        return None
    entries = jnp.floor(jax.lax.stop_gradient(model.vocabulary / strategy.tp))
    return is_multiple(entries * strategy.activation_width, stack.unpadded_logits.alignment)
