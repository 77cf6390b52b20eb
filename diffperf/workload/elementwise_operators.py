"""Element-wise kernels of one pass through one layer, with the bytes that each reads and writes."""

import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.workload.expert_tokens import expert_load, routed_tokens
from diffperf.workload.model import Layers, Model
from diffperf.workload.operators import DROPOUT_MASK, Streams
from diffperf.workload.passes import TokenPass
from diffperf.workload.strategy import Strategy


def elementwise_kernels(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> Streams:
    """The fused element-wise kernels of one layer in one pass, with the bytes that each moves to or from
    device memory.

    Counted from the fusions of Megatron-LM (bias-GELU, bias-dropout-add). Forward, two norms read and
    write the residual stream; two additions of bias, dropout and residual read two tensors and write one,
    and a mask; the MLP's activation reads one or two tensors and writes one; the rotary embedding rotates
    in place. Backward, each kernel reads its incoming gradient and its saved input. A block whose parts are
    parallel has one norm and one addition.
    """
    residual = tokens * model.hidden / strategy.sequence_shards
    inner = inner_elements(layers, strategy, tokens)
    norm, addition = (3, 2) if backward else (2, 3)  # tensors that the kernel reads and writes
    activation = 3 + 2 * layers.gated.on if backward else 2 + layers.gated.on
    added = (addition + DROPOUT_MASK * layers.dropout.on) * residual
    second = layers.second_block
    elements = {
        "norm 1": norm * residual,
        "norm 2": second * norm * residual,
        "residual 1": added,
        "residual 2": second * added,
        "activation": activation * inner,
        "rotary embedding": 2 * _rotated_elements(layers, model, strategy, tokens),
    }
    return streams_of_elements(elements, strategy, backward)


def inner_elements(layers: Layers, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Elements on one device of the MLP's inner activation, summed over all experts that its tokens visit."""
    if layers.mixture is None:
        return tokens * layers.ffn / strategy.tp
    routed = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * layers.ffn
    return routed + tokens * layers.mixture.shared_ffn / strategy.tp


def _rotated_elements(layers: Layers, model: Model, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Elements of queries and keys that rotary embeddings rotate; every model without learned positions is
    taken to have them.
    """
    heads = layers.heads / strategy.tp
    if not layers.attends:
        return jnp.zeros_like(tokens)
    if layers.latent is None:
        rotated = (heads + layers.kv_heads_on_rank(strategy.tp)) * layers.head_dim
    else:
        rotated = (heads + 1) * layers.latent.rotary_dim
    return jnp.where(model.learned_positions > 0, 0.0, 1.0) * tokens * rotated


# Passes over all elements of a tensor that is rotated, of each kernel.
_ROTATION = (
    2.0,  # times cosines
    1.0,  # the sign of one half
    2.0,  # both halves put together
    2.0,  # times sines
    3.0,  # sum
    2.0,  # put together with the dimensions that are not rotated, of which there are none
)

_ROTATION_BACKWARD = (
    2.0,  # gradient times sines
    2.0,  # times cosines
    1.0,  # the sign of one half
    2.0,  # gradients of both halves put together
    3.0,  # sum of both parts
    1.0,  # zeros as the gradient of the dimensions that are not rotated
    3.0,  # added
)


def scaled_rotary_kernels(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that rotate queries and keys by scaled cosines and sines, beyond the one that rotates both
    in two passes, and how many of them a pass has. The bytes are those of a mean kernel.

    Megatron-Core's fused kernel takes no scale, so that rotary embeddings of YaRN run as
    `_apply_rotary_pos_emb_bshd` writes them, for queries and for keys
    (megatron/core/models/common/embeddings/rope_utils.py: "mscale is not supported by TE's fused RoPE").
    """
    passes = _ROTATION_BACKWARD if backward else _ROTATION
    rotated = _rotated_elements(layers, model, strategy, tokens)
    number = jnp.full_like(rotated, 2 * len(passes) - 1)
    suffix = ", backward" if backward else ""
    size = strategy.activation_width * (sum(passes) - 2) * rotated
    return Streams.table({f"scaled rotary embedding{suffix}": size / number}), number


def recurrence_kernels(
    layers: Layers, strategy: Strategy, tokens: TokenPass, *, backward: bool = False
) -> Streams:
    """The two kernels of an element-wise recurrence in one pass, with the bytes that each moves.

    The scan over tokens reads f and c and writes h, its state on chip but at both ends of a pass; the
    output gate, with the norm before it, reads g and h and writes o (hgrn/recurrent_fuse.py and
    layernorm.py of github.com/ridgerchu/matmulfreellm). Backward the scan reads f, c, h and dh and writes
    df and dc, the gate reads g, h and do and writes dg and dh. Channels count as many as compute units
    need: the latency of one step after another, which shows in few sequences, is not modelled.
    """
    assert layers.recurrence is not None
    element = strategy.activation_width
    channels = layers.heads * layers.head_dim / strategy.tp
    streamed = tokens.tokens_on_rank(strategy) * channels
    ends = 2 * layers.recurrence.state * tokens.sequences * channels
    scan, gate, suffix = (6, 5, ", backward") if backward else (3, 3, "")
    return Streams.table(
        {
            f"recurrence{suffix}": element * (scan * streamed + ends),
            f"output gate{suffix}": element * gate * streamed,
        }
    )


def streams_of_elements(elements: dict[str, Scalar], strategy: Strategy, backward: bool) -> Streams:
    """Kernels that read and write so many elements of activations, by name."""
    suffix = ", backward" if backward else ""
    width = strategy.activation_width
    return Streams.table({f"{name}{suffix}": width * count for name, count in elements.items()})
