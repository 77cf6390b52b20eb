"""The operators of a state space or of linear attention: chunks of a prompt as matrix products, generated
tokens as updates of the state.
"""

import jax.numpy as jnp

from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.quantity import Scalar
from diffperf.workload.model import Layers
from diffperf.workload.operators import Gemms, Streams
from diffperf.workload.passes import TokenPass
from diffperf.workload.strategy import Strategy

_BACKWARD = 1.5  # bytes of a backward kernel over those of the forward one: it reads gradients as well

# Tokens of a chunk, inside which tokens see each other by products of queries and keys: chunk_size in
# Nemotron-H's configurations.
CHUNK = 128.0


def state_space_operators(
    layers: Layers, strategy: Strategy, tokens: TokenPass, *, backward: bool = False
) -> list[Gemms | Streams]:
    """The operators of one state-space layer between its projections in one pass."""
    if tokens.generating:
        return [_generation_kernels(layers, strategy, tokens)]
    products = _chunk_products(layers, strategy, tokens)
    kernels = _stream_kernels(layers, strategy, tokens, backward=backward)
    if backward:
        return [products.input_gradient, products.weight_gradient, kernels]
    return [products, kernels]


def _chunk_products(layers: Layers, strategy: Strategy, tokens: TokenPass) -> Gemms:
    """The four products of every chunk (state space duality: arXiv 2405.21060 §6): scores of its tokens, the
    outputs that these give, the state that the chunk leaves, and what the state before it gives.
    """
    space, tp = layers.state_space, strategy.tp
    assert space is not None
    chunk = jnp.where(tokens.queries < CHUNK, tokens.queries, CHUNK)
    chunks = tokens.sequences * tokens.queries / strategy.cp / chunk
    of_heads, of_groups = (
        chunks * layers.heads / tp,
        chunks * jnp.where(space.groups > tp, space.groups / tp, 1.0),
    )
    rows = {
        "chunk scores": (chunk, chunk, space.state, of_groups),
        "chunk outputs": (chunk, layers.head_dim, chunk, of_heads),
        "chunk states": (space.state, layers.head_dim, chunk, of_heads),
        "state outputs": (chunk, layers.head_dim, space.state, of_heads),
    }
    return Gemms.table(rows, dict.fromkeys(rows, "activations"))


def _stream_kernels(layers: Layers, strategy: Strategy, tokens: TokenPass, *, backward: bool) -> Streams:
    """The kernels around the products: the convolution, the pass of states from chunk to chunk in fp32, the
    gated norm. Backward each reads gradients as well.
    """
    space = layers.state_space
    assert space is not None
    element = strategy.activation_width
    rank_tokens = tokens.tokens_on_rank(strategy) / strategy.tp
    states = rank_tokens / CHUNK * layers.channels * space.state * PRECISION_BYTES["fp32"]
    taps = jnp.where(space.convolution > 0, 1.0, 0.0)
    times, suffix = (_BACKWARD, ", backward") if backward else (1.0, "")
    rows = {
        "convolution": 2 * element * taps * rank_tokens * space.convolved(layers.channels),
        "pass of states": 2 * states,
        "gated norm": 3 * element * rank_tokens * layers.channels,
    }
    return Streams.table({f"{name}{suffix}": times * moved for name, moved in rows.items()})


def _generation_kernels(layers: Layers, strategy: Strategy, tokens: TokenPass) -> Streams:
    """The kernels of generated tokens: every sequence's state is read and written for each of them, and the
    last inputs of the convolution.
    """
    space, tp = layers.state_space, strategy.tp
    assert space is not None
    element = strategy.activation_width
    states = layers.channels * space.state * PRECISION_BYTES["fp32"] / tp
    taps = space.convolution * space.convolved(layers.channels) / tp
    rows: dict[str, Scalar] = {
        "convolution of a token": 2 * element * tokens.tokens * taps,
        "update of the state": 2 * tokens.tokens * states,
        "gated norm": 3 * element * tokens.tokens * layers.channels / tp,
    }
    return Streams.table(rows)
