"""Operators of one pass through one layer: tables of matrix products, attention cores and element-wise
kernels.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.quantity import Scalar
from diffperf.relax import absent, is_multiple, larger, positive, smaller
from diffperf.software.stack import Stack
from diffperf.workload.model import Layers, Mixture, Model
from diffperf.workload.operators import DROPOUT_MASK, AttentionCore, Gemms, Streams
from diffperf.workload.strategy import Strategy


class TokenPass(eqx.Module):
    """The tokens that one pass through the model works on, in each replica.

    - `sequences`: sequences that a replica serves at once, or the micro-batch of a training step.
    - `queries`: new tokens of each sequence.
    - `context`: tokens that the last of them attends to, itself included.
    - `outputs`: tokens that each sequence generates in all, where the pass stands for the mean of all passes
      of a generation; None for a pass at the one context given.
    - `generating`: whether the new tokens follow a context in the KV cache, rather than being a prompt or
      a training sequence.
    - `serving`: whether the pass is inference, in which every rank of a tensor-parallel group ends a layer
      with the residual stream of all tokens of the group; in training the ranks of the group may hand on a
      part of the tokens each.
    """

    sequences: Scalar
    queries: Scalar
    context: Scalar
    outputs: Scalar | None = None
    generating: bool = eqx.field(static=True, default=False)
    serving: bool = eqx.field(static=True, default=False)

    @property
    def tokens(self) -> Scalar:
        """New tokens of all sequences."""
        return self.sequences * self.queries

    def up_projected_tokens(self, strategy: Strategy) -> Scalar:
        """Tokens whose keys and values a tensor-parallel group makes of their latents: of a prompt all that
        it attends to, those of a cached prefix too. Generated tokens attend to latents as they are, by
        products with as many FLOPs as keys and values of the new tokens (arXiv 2405.04434 §2.1.2).
        """
        new = self.tokens_on_rank(strategy)
        return new if self.generating else new * (self.context / self.queries)

    def tokens_on_rank(self, strategy: Strategy) -> Scalar:
        """New tokens that each rank of a tensor-parallel group multiplies.

        Context-parallel ranks share a prompt. Generated tokens are too few to share: every rank works on
        all of them, against its part of the context.
        """
        return self.tokens if self.generating else self.tokens / strategy.cp


def expert_load(strategy: Strategy) -> Scalar:
    """Tokens that the busiest device's experts compute on, over the mean of all devices.

    That is the capacity factor where experts have a set capacity, which dropped and padded tokens fill up,
    and the imbalance of the router where they have none and different devices have different experts.
    """
    imbalance = 1 + smaller(strategy.ep - 1, 1.0) * (strategy.expert_imbalance - 1)
    return jnp.where(strategy.capacity_factor > 0, strategy.capacity_factor, imbalance)


def routed_tokens(layers: Layers, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Tokens that a device sends to experts and gets back, a token once for each expert that it visits.

    The ranks of a tensor-parallel group send an equal part of the group's `tokens` each.
    """
    return tokens / strategy.tp * layers.experts_per_token


def _tokens_of_set(strategy: Strategy, tokens: Scalar) -> Scalar:
    """Tokens of all devices that share a set of experts, where a tensor-parallel group has `tokens`."""
    return tokens * strategy.experts_tp * strategy.ep / strategy.tp


def visited_share(mixture: Mixture, strategy: Strategy, tokens: Scalar) -> Scalar:
    """The share of the experts that at least one token visits, where a tensor-parallel group has `tokens`.

    Each of T tokens visits k of E experts at random, so an expert stays without any with the probability
    (1 − k/E)^T. T counts the tokens of all devices that share a set of experts.
    """
    of_set = _tokens_of_set(strategy, tokens)
    missed = positive(1 - mixture.experts_per_token / mixture.experts)
    return -jnp.expm1(of_set * jnp.log(missed))


def busiest_experts(
    mixture: Mixture, strategy: Strategy, tokens: Scalar, idle_experts: Scalar | float = 0.0
) -> Scalar:
    """Experts that the busiest device reads over those that the mean device reads.

    Of the E/ep experts of a device each is visited with the same probability v, so that E/ep·v are visited in
    the mean, with a standard deviation of √(E/ep·v·(1 − v)). The largest of ep such numbers lies as many
    standard deviations above the mean as the largest of ep normal numbers (Blom, *Statistical Estimates and
    Transformed Beta-Variables*, 1958: the quantile (ep − 3/8) / (ep + 1/4)), and is at least one expert: all
    devices wait for the one that has most to read. `idle_experts` is the share of the experts without tokens
    that are read as well.
    """
    visited, ways = visited_share(mixture, strategy, tokens), larger(strategy.ep, 1.0)
    of_device = mixture.experts / ways
    deviations = jax.scipy.special.ndtri((ways - 0.375) / (ways + 0.25))
    # The root has no derivative where every expert is visited: what is read is all of them then.
    spread = jnp.sqrt(positive(visited * (1 - visited) / of_device))
    one = smaller(_tokens_of_set(strategy, tokens) * mixture.experts_per_token, 1.0) / of_device
    busiest = larger(smaller(larger(visited + deviations * spread, one), 1.0), visited)
    return (busiest + idle_experts * (1 - busiest)) / (visited + idle_experts * (1 - visited))


def sequence_shards(strategy: Strategy) -> Scalar:
    """Number of devices that split norms, dropouts and residuals along the sequence: tp with sequence
    parallelism, else 1 (arXiv 2205.05198 §4.2.2).
    """
    return strategy.sequence_parallel.off + strategy.sequence_parallel.on * strategy.tp


def linear_layers(
    layers: Layers,
    hidden: Scalar,
    strategy: Strategy,
    tokens: Scalar,
    idle_experts: Scalar | float = 0.0,
    context_tokens: Scalar | None = None,
) -> Gemms:
    """The products of one layer's linear layers in the forward pass, with Megatron-LM's column- and
    row-parallel split.

    Source of the split: arXiv 1909.08053 §3. A device's experts are independent products (`batch`), each
    over the tokens that the expert-parallel group routes to it. `idle_experts` is the share of the experts
    without tokens whose weights are read as well.

    Latent attention projects the latents of `context_tokens` tokens up to keys and values, those of `tokens`
    if None: of a prompt behind a cached prefix, the latents of the prefix too.
    """
    up_projected = tokens if context_tokens is None else context_tokens
    rows = _attention_projections(layers, hidden, strategy, tokens, up_projected)
    rows["attention output"] = (tokens, hidden, layers.heads * layers.value_dim / strategy.tp, 1.0)
    if layers.mixture is None:
        mlp = _dense_mlp(layers, hidden, strategy, tokens)
    else:
        mlp = _expert_mlp(layers, hidden, strategy, tokens, idle_experts)
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
    layers: Layers, hidden: Scalar, strategy: Strategy, tokens: Scalar, idle_experts: Scalar | float
) -> dict:
    """Products of routed experts, of the experts that every token visits, and of the router, as (m, n, k,
    batch).

    The experts that some token visits are read and computed, with the tokens that they share; of the others
    the share `idle_experts`.
    """
    mixture, up = layers.mixture, 1 + layers.gated.on
    assert mixture is not None
    inner = layers.ffn / strategy.experts_tp  # on one device
    visited = visited_share(mixture, strategy, tokens)
    experts = mixture.experts / strategy.ep * (visited + idle_experts * (1 - visited))
    routed = routed_tokens(layers, strategy, tokens) * expert_load(strategy)
    tokens_of_expert = routed * strategy.experts_tp / experts
    # A model without shared experts has a product of batch 0, whose dimensions stay safe to divide by.
    shared = larger(mixture.shared_ffn / strategy.tp, 1.0)
    has_shared = jnp.where(mixture.shared_ffn > 0, 1.0, 0.0)
    return {
        "experts up": (tokens_of_expert, up * inner, hidden, experts),
        "experts down": (tokens_of_expert, hidden, inner, experts),
        "shared experts up": (tokens, up * shared, hidden, has_shared),
        "shared experts down": (tokens, hidden, shared, has_shared),
        "router": (tokens / sequence_shards(strategy), mixture.experts, hidden, 1.0),
    }


def vocabulary_projection(model: Model, tp: Scalar, tokens: Scalar) -> Gemms:
    """The projection of `tokens` residual streams to logits over a rank's part of the vocabulary."""
    rows = {"vocabulary projection": (tokens, model.vocabulary / tp, model.hidden, 1.0)}
    return Gemms.table(rows, {"vocabulary projection": "head"})


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


def aligned_logits(model: Model, strategy: Strategy, stack: Stack) -> Scalar | None:
    """1 where each row of a device's logits begins at a multiple of the bytes that kernels for matrix units
    load at a time (`UnpaddedLogits`), else 0; None in stacks that pad the vocabulary. A rank has a whole
    number of its entries.
    """
    if stack.unpadded_logits is None:
        return None
    entries = jnp.floor(jax.lax.stop_gradient(model.vocabulary / strategy.tp))
    return is_multiple(entries * strategy.activation_width, stack.unpadded_logits.alignment)


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
    residual = tokens * model.hidden / sequence_shards(strategy)
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
    return _streams(elements, strategy, backward)


def expert_copies(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> Streams | None:
    """The kernels that copy `tokens` tokens in the order of their experts, and back; None without experts."""
    if layers.mixture is None:
        return None
    copied = 2 * routed_tokens(layers, strategy, tokens) * model.hidden
    return _streams({"copy to experts": copied, "copy from experts": copied}, strategy, backward)


def local_expert_sorts(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that sort the tokens on a device by its own experts, and back, and how many of them a pass
    has: two where a device has two experts or more, none where it has one.

    An all-to-all brings tokens in the order of the ranks that they come from. Megatron-Core's all-to-all
    dispatcher copies them in the order of the device's experts (`sort_chunks_by_idxs` in
    megatron/core/transformer/moe/token_dispatcher.py); DeepEP and HybridEP write them in that order when they
    arrive.
    """
    assert layers.mixture is not None
    on_device = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * strategy.experts_tp
    copied = 2 * on_device * model.hidden
    several = larger(smaller(layers.mixture.experts / strategy.ep - 1, 1.0), 0.0)
    names = ("sort by local experts", "sort back by ranks")
    return _streams(dict.fromkeys(names, copied), strategy, backward), several


def expert_bias_kernels(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that add the bias of an expert's second product, times the probability of the expert, and
    how many of them a pass has. The bytes are those of a mean kernel.

    Megatron-Core adds these biases for one expert after the other, with probabilities in fp32, and then puts
    the experts' outputs together (`TEGroupedMLP._apply_bias` in megatron/core/transformer/moe/experts.py).
    Forward there are two kernels for each expert, the product (writes fp32) and the sum (reads the output
    and fp32, writes fp32), then the concatenation and the conversion back. Backward there are five for each
    expert: the conversion of the sum's gradient, the gradients of probability and bias as products that are
    written in fp32 and then summed up; the gradient is converted once before, and put together once after.
    """
    assert layers.mixture is not None
    element, single = strategy.activation_width, PRECISION_BYTES["fp32"]
    on_device = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * strategy.experts_tp
    experts = layers.mixture.experts / strategy.ep
    if backward:
        conversions, joined = 2 * (element + single), 2 * element
        gradients = 2 * (2 * single + single)  # a product reads and writes, its sum reads
        moved, kernels, suffix = conversions + joined + gradients, 5 * experts + 2, ", backward"
    else:
        product, added = single, element + 2 * single
        joined, converted = 2 * single, single + element
        moved, kernels, suffix = product + added + joined + converted, 2 * experts + 2, ""
    size = moved * on_device * model.hidden
    return Streams.table({f"biases of experts{suffix}": size / kernels}), kernels


# Kernels of Megatron-Core and PyTorch with the bytes that each reads and writes for an element in 16 bits; a
# Boolean mask has one byte.
_CLAMPS = (
    2 + 2,  # gates below the limit
    2 + 2,  # their factors within both limits
    4 + 4,  # both put together again
)
_CLAMPS_BACKWARD = (
    2 + 1,  # which gates are below the limit
    1 + 2 + 2,  # gradients of those, 0 for the others
    2 + 1,  # which factors are above the lower limit
    2 + 1,  # below the upper one
    1 + 1 + 1,  # and both
    1 + 2 + 2,  # gradients of those
    4 + 4,  # both put together
)


def clamp_kernels(
    layers: Layers, strategy: Strategy, tokens: Scalar, *, backward: bool = False
) -> tuple[Streams, Scalar]:
    """The kernels that clamp the inputs of the activation function of gated experts, and how many of them a
    pass has. The bytes are those of a mean kernel.

    Megatron-Core clamps gates and their factors one after the other and puts them together again, before the
    fused activation function (`weighted_bias_quick_geglu_impl` in
    megatron/core/fusions/fused_bias_geglu.py). Backward PyTorch compares each with each of its limits and
    selects gradients by the mask (`clamp_backward` in torch/csrc/autograd/FunctionsManual.cpp).
    """
    kernels = _CLAMPS_BACKWARD if backward else _CLAMPS
    elements = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * layers.ffn
    number = jnp.full_like(elements, len(kernels))
    suffix = ", backward" if backward else ""
    return Streams.table({f"clamps of experts{suffix}": sum(kernels) * elements / number}), number


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


def _streams(elements: dict[str, Scalar], strategy: Strategy, backward: bool) -> Streams:
    """Kernels that read and write so many elements of activations, by name."""
    suffix = ", backward" if backward else ""
    width = strategy.activation_width
    return Streams.table({f"{name}{suffix}": width * count for name, count in elements.items()})


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
