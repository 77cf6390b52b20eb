"""The attention core of a layer, and which kernels compute standard attention in training."""

import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import absent, is_multiple
from diffperf.software.stack import Stack
from diffperf.workload.model import Layers
from diffperf.workload.operators import AttentionCore
from diffperf.workload.passes import TokenPass
from diffperf.workload.strategy import Strategy


def attention_core(layers: Layers, strategy: Strategy, tokens: TokenPass) -> AttentionCore:
    """The attention core of one layer, its heads split over the tensor-parallel group, its work over the
    context-parallel one.

    Context-parallel ranks share the work evenly: each has some heads (all-to-all: arXiv 2309.14509), or as
    much in all with a head and a tail of the queries (ring: arXiv 2310.01889, in causal order:
    2311.09431), or with a part of a generation's context. All count as heads here. Generating tokens,
    latent attention leaves keys and values in their latent, which all heads share (arXiv 2405.04434
    §2.1.2).
    """
    ways = strategy.tp * strategy.cp
    heads, kv_heads = layers.heads / ways, layers.kv_heads_on_rank(strategy.tp) / strategy.cp
    head_dim, value_dim, latent_share = layers.head_dim, None, 0.0
    if layers.latent is not None and tokens.generating:
        kv_heads, latent_share = 1 / strategy.cp, 1.0  # one latent, of which each rank has a part
        head_dim, value_dim = layers.latent.kv_rank + layers.latent.rotary_dim, layers.latent.kv_rank
    elif layers.latent is not None:
        kv_heads, value_dim = heads, layers.value_dim
    # A ring launches a kernel for every block of keys and values; ranks that generate launch one, on their
    # part of the context.
    blocks = 1.0 if tokens.generating else 1 + strategy.context_parallel.ring * (strategy.cp - 1)
    return AttentionCore(
        sequences=tokens.sequences,
        queries=tokens.queries,
        context=tokens.context,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=layers.window,
        value_dim=value_dim,
        latent=jnp.asarray(latent_share, heads.dtype),
        launches=blocks,
    )


def fused_softmax(layers: Layers, strategy: Strategy, stack: Stack) -> Scalar | None:
    """1 where one kernel scales and masks the scores of standard attention in training and takes their
    softmax, 0 where several do; None in stacks whose kernels do so for any scores.

    Megatron-LM's kernel takes sequences · heads in multiples of the four that a block of its threads works
    on (`is_kernel_available` in fused_softmax.py).
    """
    if absent(stack.fused_softmax_batches):
        return None
    batches = strategy.micro_batch * layers.heads / (strategy.tp * strategy.cp)
    return is_multiple(batches, stack.fused_softmax_batches)


def aligned_heads(layers: Layers, strategy: Strategy, stack: Stack) -> Scalar | None:
    """1 where the matrix units take the products of stored scores in training, 0 where the vector units do;
    None in stacks whose products the matrix units take in any case.

    The matrices of heads lie side by side in memory, so that each begins at a multiple of 16 bytes, as
    kernels for matrix units load them, where a head takes one (NVIDIA, "Tips for Optimizing GPU Performance
    Using Tensor Cores": dimensions of 16 bits in multiples of 8, else CUDA cores).
    """
    if absent(stack.head_alignment):
        return None
    width = strategy.activation_width
    queries, values = (
        is_multiple(size * width, stack.head_alignment) for size in (layers.head_dim, layers.value_dim)
    )
    return queries * values
