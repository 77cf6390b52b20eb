"""What a device computes for one transformer layer: tables of GEMMs, attention cores and element-wise kernels.

All dimensions are per device, after tensor parallelism. A table's leading axis runs over its operators, so that one roofline
evaluation covers them all.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.workload.model import Layers, Model
from diffperf.workload.strategy import Strategy


class Gemms(eqx.Module):
    """C[m, n] = A[m, k] · B[k, n], `batch` independent problems of each."""

    m: Float[Array, " operators"]
    n: Float[Array, " operators"]
    k: Float[Array, " operators"]
    batch: Float[Array, " operators"]

    @classmethod
    def table(cls, *rows: tuple[Array, Array, Array, Array]) -> "Gemms":
        """From one (m, n, k, batch) an operator."""
        return cls(*(jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, column))) for column in zip(*rows, strict=True)))

    @property
    def flops(self) -> Float[Array, " operators"]:
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
    return Gemms(*(jnp.concatenate([getattr(t, name) for t in tables]) for name in ("m", "n", "k", "batch")))


NO_WINDOW = 1e12  # tokens: longer than any context


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

    @property
    def values_dim(self) -> Scalar:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def seen(self) -> Scalar:
        """Tokens that the last query sees."""
        return jnp.minimum(self.context, self.window)

    @property
    def span(self) -> Scalar:
        """Tokens that any query sees."""
        return jnp.minimum(self.context, self.window + self.queries - 1)

    @property
    def visible(self) -> Scalar:
        """Tokens that a query sees on average: with the causal mask query i of q sees context − q + i, or the window."""
        beyond = jnp.maximum(self.seen - (self.context - self.queries + 1), 0.0)  # of the last query's that the first cannot see
        return self.seen - self.causal * beyond * (beyond + 1) / (2 * self.queries)

    @property
    def scores(self) -> Scalar:
        """Elements of the full score matrices."""
        return self.sequences * self.heads * self.queries * self.context

    @property
    def visible_scores(self) -> Scalar:
        """Elements that the masks leave."""
        return self.sequences * self.heads * self.queries * self.visible

    @property
    def score_flops(self) -> Scalar:
        """FLOP of the forward pass per score: Q·Kᵀ and P·V."""
        return 2 * (self.head_dim + self.values_dim)

    @property
    def query_elements(self) -> Scalar:
        """Elements of Q."""
        return self.sequences * self.heads * self.queries * self.head_dim

    @property
    def output_elements(self) -> Scalar:
        return self.sequences * self.heads * self.queries * self.values_dim

    @property
    def kv_elements(self) -> Scalar:
        """Elements of K and V together that any query sees."""
        return self.sequences * self.kv_heads * self.span * (self.head_dim + (1 - self.latent) * self.values_dim)

    @property
    def gemms(self) -> Gemms:
        """The two batched GEMMs of standard attention, Q·Kᵀ and P·V, one per sequence and head."""
        batch = self.sequences * self.heads
        return Gemms.table(
            (self.queries, self.context, self.head_dim, batch),
            (self.queries, self.values_dim, self.context, batch),
        )


def linear_layers(layers: Layers, hidden: Scalar, tp: Scalar, tokens: Scalar) -> Gemms:
    """The GEMMs of the linear layers of one layer's forward pass: QKV, output, MLP up (and gate), MLP down.

    Each of the `experts` is a GEMM over the tokens routed to it, evenly (Megatron's column- and row-parallel split: arXiv
    1909.08053 §3).
    """
    queries, keys = layers.heads * layers.head_dim / tp, layers.kv_heads_on_rank(tp) * layers.head_dim
    expert_tokens = tokens * layers.experts_per_token / layers.experts
    inner = layers.ffn / tp
    one = jnp.ones_like(tokens)
    return Gemms.table(
        (tokens, queries + 2 * keys, hidden, one),
        (tokens, hidden, queries, one),
        (expert_tokens, (1 + layers.gated[1]) * inner, hidden, layers.experts),
        (expert_tokens, hidden, inner, layers.experts),
    )


def head(model: Model, tp: Scalar, tokens: Scalar) -> Gemms:
    """The projection to the vocabulary."""
    return Gemms.table((tokens, model.vocabulary / tp, model.hidden, jnp.ones_like(tokens)))


def attention_core(layers: Layers, tp: Scalar, sequences: Scalar, queries: Scalar, context: Scalar) -> AttentionCore:
    """The attention core of one layer, its heads split over the tensor-parallel group."""
    return AttentionCore(sequences, queries, context, layers.heads / tp, layers.kv_heads_on_rank(tp), layers.head_dim)


def sequence_shards(strategy: Strategy) -> Scalar:
    """How many ways norms, dropouts and residuals are split: tp with sequence parallelism, else 1 (arXiv 2205.05198 §4.2.2)."""
    return strategy.sequence_parallel[0] + strategy.sequence_parallel[1] * strategy.tp


def _rotary(model: Model) -> Scalar:
    """1 for rotary position embeddings, which every model without learned ones is taken to have."""
    return jnp.where(model.learned_positions > 0, 0.0, 1.0)


def _activation_sizes(layers: Layers, model: Model, strategy: Strategy, tokens: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Elements on one device of the residual stream, of the MLP's inner activation, and of what rotary embeddings rotate."""
    residual = tokens * model.hidden / sequence_shards(strategy)
    inner = tokens * layers.experts_per_token * layers.ffn / strategy.tp
    heads = layers.heads / strategy.tp + layers.kv_heads_on_rank(strategy.tp)
    return residual, inner, _rotary(model) * tokens * heads * layers.head_dim


def elementwise_forward(layers: Layers, model: Model, strategy: Strategy, tokens: Scalar) -> Float[Array, " kernels"]:
    """Elements that each fused element-wise kernel of one layer's forward pass moves to or from device memory.

    Two norms (read, write), two residual additions with bias and dropout (read two, write one, and a one-byte mask), the MLP's
    activation with its bias, the rotary embedding. Counted from the fusions of Megatron-LM (bias-GELU, bias-dropout-add).
    """
    residual, inner, rotated = _activation_sizes(layers, model, strategy, tokens)
    add = (3 + 0.5 * layers.dropout[1]) * residual
    return jnp.stack([2 * residual, 2 * residual, add, add, (2 + layers.gated[1]) * inner, 2 * rotated])


def elementwise_backward(layers: Layers, model: Model, strategy: Strategy, tokens: Scalar) -> Float[Array, " kernels"]:
    """As `elementwise_forward`, for the backward pass: each kernel reads its incoming gradient and saved input as well."""
    residual, inner, rotated = _activation_sizes(layers, model, strategy, tokens)
    add = (2 + 0.5 * layers.dropout[1]) * residual
    return jnp.stack([3 * residual, 3 * residual, add, add, (3 + 2 * layers.gated[1]) * inner, 2 * rotated])
