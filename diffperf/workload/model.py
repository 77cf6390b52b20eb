"""The LLM architecture: dimensions, and the parameters they add up to."""

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.quantity import Label, Scalar, Weights, label, quantity, switch


class Layers(eqx.Module):
    """`count` transformer layers of one kind: attention, then a plain or gated MLP, dense (`experts` = 1) or mixture of experts."""

    count: Scalar = quantity("", "layers of this kind", bounds=(1, 2000), integer=True)
    heads: Scalar = quantity("", "query heads", bounds=(1, 1024), integer=True)
    kv_heads: Scalar = quantity(
        "", "key and value heads (grouped-query attention when fewer than heads)", bounds=(1, 1024), integer=True
    )
    head_dim: Scalar = quantity("", "dimension of one head", bounds=(16, 1024), integer=True)
    ffn: Scalar = quantity("", "inner dimension of the MLP (of one expert)", bounds=(32, 1e6), integer=True)
    gated: Weights = switch("gated MLP with three matrices (SwiGLU) instead of two")
    biases: Weights = switch("biases in linear layers and norms (LayerNorm instead of RMSNorm)", default=False)
    dropout: Weights = switch("dropout after attention and MLP, and on attention scores", default=False)
    experts: Scalar = quantity("", "experts per layer, 1 for a dense MLP", bounds=(1, 4096), default=1, integer=True)
    experts_per_token: Scalar = quantity("", "experts each token visits", bounds=(1, 64), default=1, integer=True)

    def kv_heads_on_rank(self, tp: Scalar) -> Scalar:
        """Key and value heads a tensor-parallel rank holds: its share, but at least one, replicated where ranks outnumber heads."""
        return jnp.maximum(self.kv_heads / tp, 1.0)

    def attention_parameters(self, hidden: Scalar) -> Scalar:
        """Query, key, value and output projections."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return hidden * (2 * queries + 2 * keys) + self.biases[1] * (queries + 2 * keys + hidden)

    def mlp_parameters(self, hidden: Scalar) -> Scalar:
        """All experts and the router."""
        matrices = 2 + self.gated[1]
        expert = matrices * hidden * self.ffn + self.biases[1] * ((1 + self.gated[1]) * self.ffn + hidden)
        router = jnp.where(self.experts > 1, hidden * self.experts, 0.0)
        return self.experts * expert + router

    def parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of one layer, norms included."""
        norms = 2 * hidden * (1 + self.biases[1])
        return self.attention_parameters(hidden) + self.mlp_parameters(hidden) + norms


class Model(eqx.Module):
    """A decoder-only transformer."""

    name: Label = label("identifier, such as gpt3-175b")
    hidden: Scalar = quantity("", "width of the residual stream", bounds=(64, 1e5), integer=True)
    vocabulary: Scalar = quantity("", "tokens in the vocabulary", bounds=(100, 1e6), integer=True)
    tied_embeddings: Weights = switch("input and output embeddings share one matrix")
    layers: tuple[Layers, ...]
    learned_positions: Scalar = quantity(
        "", "rows of a learned position embedding, 0 for none", bounds=(0, 1e6), default=0, integer=True
    )

    @property
    def stacked_layers(self) -> Layers:
        """The kinds of layers as one module with a leading axis, to map over."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.layers)

    @property
    def depth(self) -> Scalar:
        return sum(layers.count for layers in self.layers)

    @property
    def embedding_parameters(self) -> Scalar:
        """The token embedding matrix."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> Scalar:
        return sum(layers.count * layers.parameters(self.hidden) for layers in self.layers)

    @property
    def parameters(self) -> Scalar:
        """All parameters: embeddings (once if tied), positions, layers and the final norm."""
        embeddings = self.embedding_parameters * (1 + self.tied_embeddings[0]) + self.learned_positions * self.hidden
        return embeddings + self.layer_parameters + self.hidden * (1 + self.layers[-1].biases[1])
