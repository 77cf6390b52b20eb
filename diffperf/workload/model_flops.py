"""FLOPs that a model asks for, by the conventions in which utilization is reported."""

import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import choose, smaller
from diffperf.workload.model import Layers, Model
from diffperf.workload.strategy import Strategy


def model_flops(model: Model, tokens: Scalar, context: Scalar) -> Scalar:
    """FLOPs of one training pass over `tokens` tokens: three times those of the forward pass, attention over
    the whole context.

    Korthikanti et al. (arXiv 2205.05198, Appendix A): 72·b·s·l·h²·(1 + s/6h + V/12hl) for a plain GPT.
    Modules of multi-token prediction count as well.
    """

    def forward(layers: Layers) -> Scalar:
        """FLOPs of one token's forward pass through a layer."""
        products = 2 * layers.active_matrices(model.hidden)
        if layers.state_space is not None:  # the state's update and its reading
            return products + 4 * layers.channels * layers.state_space.state
        if layers.recurrence is not None:  # as many elements as tokens, and no scores
            return products
        seen = smaller(context * jnp.ones_like(layers.window), layers.window)
        return products + 2 * seen * layers.heads * (layers.head_dim + layers.value_dim)

    layers = sum(kind.count * forward(kind) for kind in model.layers)
    prediction = forward(model.layers[-1]) + 4 * model.hidden**2 + 2 * model.embedding_parameters
    return 3 * tokens * (layers + 2 * model.embedding_parameters + model.mtp_layers * prediction)


def hardware_flops(model: Model, strategy: Strategy) -> Scalar:
    """`model_flops` of a step and what recomputation adds, attention never masked: the convention of
    Megatron-LM's hardware FLOP/s.

    Selective recomputation repeats the two products of the attention core, full recomputation the forward
    pass of all layers.
    """
    tokens, length = strategy.global_batch * strategy.sequence_length, strategy.sequence_length
    step = model_flops(model, tokens, length)
    scores = sum(
        2 * length * kind.count * kind.heads * (kind.head_dim + kind.value_dim) for kind in model.layers
    )
    core = tokens * scores
    layers = step / 3 - 2 * tokens * model.embedding_parameters
    repeated = choose(
        strategy.recompute,
        {"none": lambda: jnp.zeros_like(step), "selective": lambda: core, "full": lambda: layers},
    )
    return step + strategy.recompute_share * repeated
