"""What a device computes for one transformer layer: tables of GEMMs, attention cores and element-wise kernels.

All dimensions are per device, after tensor parallelism. A table's leading axis runs over its operators, so that one roofline
evaluation covers them all.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, smaller
from diffperf.workload.model import NO_WINDOW, Layers, Model
from diffperf.workload.strategy import Strategy


class Gemms(eqx.Module):
    """C[m, n] = A[m, k] · B[k, n], `batch` independent problems of each; less than one counts as a part of a kernel, 0 as none."""

    m: Float[Array, " operators"]
    n: Float[Array, " operators"]
    k: Float[Array, " operators"]
    batch: Float[Array, " operators"]

    @classmethod
    def table(cls, *rows: tuple[Array, Array, Array, Array]) -> "Gemms":
        """From one (m, n, k, batch) an operator."""
        return cls(
            *(
                jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, column)))
                for column in zip(*rows, strict=True)
            )
        )

    @property
    def flops(self) -> Float[Array, "..."]:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def input_gradient(self) -> "Gemms":
        """dA[m, k] = dC[m, n] · Bᵀ[n, k]."""
        return Gemms(self.m, self.k, self.n, self.batch)

    @property
    def weight_gradient(self) -> "Gemms":
        """dB[k, n] = Aᵀ[k, m] · dC[m, n]."""
        return Gemms(self.k, self.n, self.m, self.batch)

    @property
    def backward(self) -> "Gemms":
        """Both gradients of every operator, the input gradients first."""
        return concatenate(self.input_gradient, self.weight_gradient)


def concatenate(*tables: Gemms) -> Gemms:
    """One table with the rows of all."""
    return Gemms(
        *(jnp.concatenate([getattr(t, name) for t in tables], axis=-1) for name in ("m", "n", "k", "batch"))
    )


class AttentionCore(eqx.Module):
    """softmax(Q·Kᵀ)·V for `sequences` sequences: `queries` new tokens attend to a context that ends with them.

    - `causal`: weight of the causal mask; without it every query sees the whole context.
    - `window`: the latest tokens that a query sees at most (sliding window); `NO_WINDOW` for all of them.
    - `head_dim`: dimensions of a query and a key; `value_dim`: of a value and an output, as many unless given.
    - `latent`: weight of values that are part of the keys, read once. Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434
      §2.1) decodes so: one KV head whose keys are the latent and the rotary part (512 + 64), whose values are the latent (512).
    """

    sequences: Scalar
    queries: Scalar
    context: Scalar
    heads: Scalar
    kv_heads: Scalar
    head_dim: Scalar
    causal: Scalar = eqx.field(default=1.0, converter=jnp.asarray)
    window: Scalar = eqx.field(default=NO_WINDOW, converter=jnp.asarray)
    value_dim: Scalar | None = None
    latent: Scalar = eqx.field(default=0.0, converter=jnp.asarray)

    @functools.cached_property
    def values_dim(self) -> Scalar:
        return self.head_dim if self.value_dim is None else self.value_dim

    @functools.cached_property
    def group(self) -> Scalar:
        """Query heads that share a KV head."""
        return self.heads * inverse(self.kv_heads)

    @functools.cached_property
    def seen(self) -> Scalar:
        """Tokens that the last query sees."""
        return smaller(self.context, self.window)

    @functools.cached_property
    def span(self) -> Scalar:
        """Tokens that any query sees."""
        return smaller(self.context, self.window + self.queries - 1)

    @functools.cached_property
    def visible(self) -> Scalar:
        """Tokens that a query sees on average: with the causal mask query i of q sees context − q + i, or the window."""
        beyond = larger(
            self.seen - (self.context - self.queries + 1), 0.0
        )  # of the last query's that the first cannot see
        return self.seen - self.causal * beyond * (beyond + 1) * inverse(2 * self.queries)

    @functools.cached_property
    def scores(self) -> Scalar:
        """Elements of the full score matrices."""
        return self.sequences * self.heads * self.queries * self.context

    @functools.cached_property
    def visible_scores(self) -> Scalar:
        """Elements that the masks leave."""
        return self.sequences * self.heads * self.queries * self.visible

    @functools.cached_property
    def score_flops(self) -> Scalar:
        """FLOP of the forward pass per score: Q·Kᵀ and P·V."""
        return 2 * (self.head_dim + self.values_dim)

    @functools.cached_property
    def query_elements(self) -> Scalar:
        """Elements of Q."""
        return self.sequences * self.heads * self.queries * self.head_dim

    @functools.cached_property
    def output_elements(self) -> Scalar:
        return self.sequences * self.heads * self.queries * self.values_dim

    @functools.cached_property
    def kv_elements(self) -> Scalar:
        """Elements of K and V together that any query sees."""
        return (
            self.sequences * self.kv_heads * self.span * (self.head_dim + (1 - self.latent) * self.values_dim)
        )

    @functools.cached_property
    def gemms(self) -> Gemms:
        """The two batched GEMMs of standard attention, Q·Kᵀ and P·V, one per sequence and head."""
        batch = self.sequences * self.heads
        return Gemms.table(
            (self.queries, self.context, self.head_dim, batch),
            (self.queries, self.values_dim, self.context, batch),
        )


def expert_load(strategy: Strategy) -> Scalar:
    """Tokens that the busiest device's experts compute on, over the mean: padded to their capacity, or as the router sends them."""
    return jnp.where(strategy.capacity_factor > 0, strategy.capacity_factor, strategy.expert_imbalance)


def routed_tokens(layers: Layers, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Tokens that a device sends to experts and gets back, a token once for each expert it visits.

    The ranks of a tensor-parallel group send an equal part of its `tokens` each (with sequence parallelism they hold no more).
    """
    return tokens / strategy.tp * layers.experts_per_token


def linear_layers(layers: Layers, hidden: Scalar, strategy: Strategy, tokens: Scalar) -> Gemms:
    """The GEMMs of the linear layers of one layer's forward pass: QKV, output, MLP up (and gate), MLP down.

    Megatron's column- and row-parallel split (arXiv 1909.08053 §3). Each expert that a device holds is a GEMM over the tokens that
    the expert-parallel group routes to it. Latent attention projects down to its latents, whole on every rank, and up again
    (arXiv 2405.04434 §2.1).
    """
    tp, one = strategy.tp, jnp.ones_like(tokens)
    outputs = layers.heads * layers.value_dim / tp
    if layers.latent is None:
        qkv = (layers.heads / tp + 2 * layers.kv_heads_on_rank(tp)) * layers.head_dim
        rows = [(tokens, qkv, hidden, one)]
    else:
        latent, heads = layers.latent, layers.heads / tp
        has_latent = jnp.where(latent.query_rank > 0, 1.0, 0.0)
        down = latent.query_rank + latent.kv_rank + latent.rotary_dim
        inner = has_latent * latent.query_rank + (1 - has_latent) * hidden
        rows = [
            (tokens, down, hidden, one),
            (tokens, heads * layers.head_dim, inner, one),
            (tokens, heads * latent.projected_dim(layers.head_dim), latent.kv_rank, one),
        ]
    rows.append((tokens, hidden, outputs, one))
    up = 1 + layers.gated.on
    if layers.mixture is None:
        inner = layers.ffn / tp
        rows += [(tokens, up * inner, hidden, one), (tokens, hidden, inner, one)]
    else:
        mixture, inner = layers.mixture, layers.ffn / strategy.experts_tp
        held = mixture.experts / strategy.ep
        each = routed_tokens(layers, strategy, tokens) * strategy.experts_tp / held * expert_load(strategy)
        shared, has_shared = larger(mixture.shared_ffn / tp, 1.0), jnp.where(mixture.shared_ffn > 0, 1.0, 0.0)
        rows += [
            (each, up * inner, hidden, held),
            (each, hidden, inner, held),
            (tokens, up * shared, hidden, has_shared),
            (tokens, hidden, shared, has_shared),
            (tokens / sequence_shards(strategy), mixture.experts, hidden, one),
        ]
    return Gemms.table(*rows)


def head(model: Model, tp: Scalar, tokens: Scalar) -> Gemms:
    """The projection to the vocabulary."""
    return Gemms.table((tokens, model.vocabulary / tp, model.hidden, jnp.ones_like(tokens)))


def attention_core(
    layers: Layers,
    strategy: Strategy,
    sequences: Scalar,
    queries: Scalar,
    context: Scalar,
    *,
    generating: bool = False,
) -> AttentionCore:
    """The attention core of one layer, its heads split over the tensor-parallel group, and its work over the context-parallel one.

    Context-parallel ranks share the work evenly, each with some heads (all-to-all: arXiv 2309.14509) or, as much in all, with a
    head and a tail of the queries (ring: arXiv 2310.01889, causal order: 2311.09431); both count as heads here. Generating tokens,
    latent attention leaves keys and values in their latent, shared by all heads (arXiv 2405.04434 §2.1.2).
    """
    ways = strategy.tp * strategy.cp
    heads, kv_heads = layers.heads / ways, layers.kv_heads_on_rank(strategy.tp) / strategy.cp
    if layers.latent is None:
        return AttentionCore(
            sequences, queries, context, heads, kv_heads, layers.head_dim, window=layers.window
        )
    if generating:
        kept = layers.latent.kv_rank
        one = jnp.ones_like(heads)
        return AttentionCore(
            sequences, queries, context, heads, one, kept + layers.latent.rotary_dim,
            window=layers.window, value_dim=kept, latent=one,
        )  # fmt: skip
    return AttentionCore(
        sequences,
        queries,
        context,
        heads,
        heads,
        layers.head_dim,
        window=layers.window,
        value_dim=layers.value_dim,
    )


def sequence_shards(strategy: Strategy) -> Scalar:
    """How many ways norms, dropouts and residuals are split: tp with sequence parallelism, else 1 (arXiv 2205.05198 §4.2.2)."""
    return strategy.sequence_parallel.off + strategy.sequence_parallel.on * strategy.tp


def _rotary(model: Model) -> Scalar:
    """1 for rotary position embeddings, which every model without learned ones is taken to have."""
    return jnp.where(model.learned_positions > 0, 0.0, 1.0)


def inner_elements(layers: Layers, strategy: Strategy, tokens: Scalar) -> Scalar:
    """Elements on one device of the MLP's inner activation, those of all experts that its tokens visit together."""
    if layers.mixture is None:
        return tokens * layers.ffn / strategy.tp
    routed = routed_tokens(layers, strategy, tokens) * expert_load(strategy) * layers.ffn
    return routed + tokens * layers.mixture.shared_ffn / strategy.tp


def _activation_sizes(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Elements on one device of the residual stream, of the MLP's inner activation, and of what rotary embeddings rotate."""
    residual = tokens * model.hidden / sequence_shards(strategy)
    if layers.latent is None:
        heads = layers.heads / strategy.tp + layers.kv_heads_on_rank(strategy.tp)
        rotated = heads * layers.head_dim
    else:
        rotated = (layers.heads / strategy.tp + 1) * layers.latent.rotary_dim
    if layers.recurrence is not None:
        rotated = jnp.zeros_like(rotated)
    return residual, inner_elements(layers, strategy, tokens), _rotary(model) * tokens * rotated


def elementwise_forward(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar
) -> Float[Array, " kernels"]:
    """Elements that each fused element-wise kernel of one layer's forward pass moves to or from device memory.

    Two norms (read, write), two residual additions with bias and dropout (read two, write one, and a one-byte mask), the MLP's
    activation with its bias, the rotary embedding. Counted from the fusions of Megatron-LM (bias-GELU, bias-dropout-add). A block
    whose parts are parallel has one norm and one addition. To experts, tokens are copied there and back.
    """
    residual, inner, rotated = _activation_sizes(layers, model, strategy, tokens)
    add, second = (3 + 0.5 * layers.dropout.on) * residual, 1 - layers.parallel.on
    kernels = [
        2 * residual,
        second * 2 * residual,
        add,
        second * add,
        (2 + layers.gated.on) * inner,
        2 * rotated,
    ]
    if layers.mixture is not None:
        copied = 2 * routed_tokens(layers, strategy, tokens) * model.hidden
        kernels += [copied, copied]
    return jnp.stack(kernels)


def elementwise_backward(
    layers: Layers, model: Model, strategy: Strategy, tokens: Scalar
) -> Float[Array, " kernels"]:
    """As `elementwise_forward`, for the backward pass: each kernel reads its incoming gradient and saved input as well."""
    residual, inner, rotated = _activation_sizes(layers, model, strategy, tokens)
    add, second = (2 + 0.5 * layers.dropout.on) * residual, 1 - layers.parallel.on
    kernels = [
        3 * residual,
        second * 3 * residual,
        add,
        second * add,
        (3 + 2 * layers.gated.on) * inner,
        2 * rotated,
    ]
    if layers.mixture is not None:
        copied = 2 * routed_tokens(layers, strategy, tokens) * model.hidden
        kernels += [copied, copied]
    return jnp.stack(kernels)


def recurrence_kernels(
    layers: Layers, strategy: Strategy, sequences: Scalar, queries: Scalar
) -> Float[Array, "2 kernels"]:
    """Elements that the two kernels of an element-wise recurrence move, in the forward pass and in the backward pass.

    The scan over tokens reads f and c and writes h, its state on chip but at both ends of a pass; the output gate, with the norm
    before it, reads g and h and writes o (hgrn/recurrent_fuse.py and layernorm.py of github.com/ridgerchu/matmulfreellm). Backward
    the scan reads f, c, h and dh and writes df and dc, the gate reads g, h and do and writes dg and dh. Channels count as many as
    compute units need: the latency of one step after another, which shows in few sequences, is not modelled.
    """
    channels = layers.heads * layers.head_dim / strategy.tp
    streamed = sequences * queries / strategy.cp * channels
    ends = 2 * layers.recurrence.state * sequences * channels
    return jnp.stack(
        [jnp.stack([3 * streamed + ends, 3 * streamed]), jnp.stack([6 * streamed + ends, 5 * streamed])]
    )
