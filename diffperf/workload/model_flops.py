"""FLOPs that a model asks for, by the conventions in which utilization is reported."""

import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import smaller
from diffperf.workload.model import Layers, Model
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.strategy import Strategy


def model_flops(model: Model, tokens: Scalar, context: Scalar, causal: Scalar | float = 0.0) -> Scalar:
    """FLOPs of one training pass over `tokens` tokens: three times those of the forward pass, attention over
    the whole context.

    Korthikanti et al. (arXiv 2205.05198, Appendix A): 72·b·s·l·h²·(1 + s/6h + V/12hl) for a plain GPT.
    Modules of multi-token prediction count as well.

    - `causal`: 1 where attention counts as far as a causal mask leaves it (half of it, without a window), as
      in the log of Megatron-LM (num_floating_point_operations of megatron/training/training.py).
    """

    def forward(layers: Layers) -> Scalar:
        """FLOPs of one token's forward pass through a layer."""
        return 2 * layers.active_matrices(model.hidden) + _core(layers, context, causal)

    layers = sum(kind.count * forward(kind) for kind in model.layers)
    prediction = forward(model.layers[-1]) + _prediction_head(model)
    return 3 * tokens * (layers + 2 * model.embedding_parameters + model.mtp_layers * prediction)


def hardware_flops(model: Model, strategy: Strategy) -> Scalar:
    """`model_flops` of a step and what recomputation adds, attention never masked: the convention of
    Megatron-LM's hardware FLOP/s.

    Selective recomputation repeats the two products of the attention core where scores are stored, full
    recomputation the forward pass of all layers, recomputation by class the products of that class.
    """
    tokens, length = strategy.global_batch * strategy.sequence_length, strategy.sequence_length
    step, shares = model_flops(model, tokens, length), Recomputation.of(strategy)
    repeated = [_repeated(kind, model, strategy, shares) for kind in model.layers]
    by_class = sum(kind.count * flops for kind, flops in zip(model.layers, repeated, strict=True))
    by_class = tokens * (by_class + model.mtp_layers * repeated[-1])
    heads = 2 * model.embedding_parameters + model.mtp_layers * _prediction_head(model)
    return step + shares.layer * (step / 3 - tokens * heads) + by_class


def _core(layers: Layers, context: Scalar, causal: Scalar | float = 0.0) -> Scalar:
    """FLOPs of one token's forward pass through a layer's attention core, or what stands in its place;
    `causal` as in `model_flops`.
    """
    if layers.state_space is not None:  # the state's update and its reading
        return 4 * layers.channels * layers.state_space.state
    if layers.recurrence is not None:  # as many elements as tokens, and no scores
        return jnp.zeros_like(layers.window)
    seen = smaller(context * jnp.ones_like(layers.window), layers.window)
    seen = seen * (1 - causal * seen / (2 * context))
    return 2 * seen * layers.heads * (layers.head_dim + layers.value_dim)


def _prediction_head(model: Model) -> Scalar:
    """FLOPs of one token's forward pass through a module of multi-token prediction, beside its layer."""
    return 4 * model.hidden**2 + 2 * model.embedding_parameters


def _repeated(layers: Layers, model: Model, strategy: Strategy, shares: Recomputation) -> Scalar:
    """FLOPs of one token's forward pass through the classes of operators of a layer that recomputes them."""
    own = shares.of_layers(layers)
    visited = layers.experts_per_token * layers.ffn + layers.shared_ffn
    mlp = layers.mlp_matrices(model.hidden, visited)
    products = own.mlp * mlp + own.experts * (mlp + layers.router_matrix(model.hidden))
    if (latent := layers.latent) is not None:
        # Without a query latent, queries are projected from the residual stream.
        inputs = jnp.where(latent.query_rank > 0, latent.query_rank, model.hidden)
        projected = inputs * layers.head_dim + latent.kv_rank * latent.projected_dim(layers.head_dim)
        products = products + own.up_projections * layers.heads * projected
    return 2 * products + own.core(strategy.attention.standard) * _core(layers, strategy.sequence_length)
