"""The LLM architecture: its dimensions, and the parameters that they add up to."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity, switch
from diffperf.relax import TINY, larger, smaller

# Tokens of a window that hides nothing: longer than any context.
NO_WINDOW = 1e12


class Mixture(eqx.Module):
    """A mixture of experts in place of one MLP. Every expert is an MLP of the layer's inner dimension."""

    experts: Scalar = quantity("", "experts of a layer", bounds=(1, 4096), integer=True)
    experts_per_token: Scalar = quantity("", "experts that each token visits", bounds=(1, 64), integer=True)
    shared_ffn: Scalar = quantity(
        "",
        "inner dimension of all shared experts together, which every token visits; 0 for none",
        bounds=(0, 1e6),
        default=0,
        integer=True,
    )
    groups: Scalar = quantity(
        "", "groups of experts to which routing is limited", bounds=(1, 4096), default=1, integer=True
    )
    groups_visited: Scalar = quantity(
        "",
        "groups whose experts a token may visit (node-limited routing where nodes hold a group each)",
        bounds=(1, 4096),
        default=1,
        integer=True,
    )


class Latent(eqx.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1).

    The keys and values of a token are projections of one latent, which is what the KV cache holds.

    A head's queries and keys have `head_dim` dimensions, of which `rotary_dim` carry positions and are
    shared by all keys.
    """

    query_rank: Scalar = quantity(
        "", "dimension of the queries' latent, 0 for none", bounds=(0, 1e5), integer=True
    )
    kv_rank: Scalar = quantity(
        "", "dimension of the latent of keys and values", bounds=(16, 1e5), integer=True
    )
    rotary_dim: Scalar = quantity(
        "", "dimensions of a query and a key that carry positions", bounds=(0, 1024), integer=True
    )
    value_dim: Scalar = quantity("", "dimension of a head's values", bounds=(16, 1024), integer=True)

    def parameters(self, hidden: Scalar, heads: Scalar, head_dim: Scalar) -> Scalar:
        """Weights of the projections of queries, keys and values; the output projection is not among them."""
        # The branch without a query latent keeps a finite slope in the one with it.
        through = larger(self.query_rank, TINY)
        queries = jnp.where(
            self.query_rank > 0, (hidden + heads * head_dim) * through, hidden * heads * head_dim
        )
        keys_and_values = hidden * (self.kv_rank + self.rotary_dim)
        return queries + keys_and_values + self.kv_rank * heads * self.projected_dim(head_dim)

    def projected_dim(self, head_dim: Scalar) -> Scalar:
        """Dimensions of a head's key and value that are projections of the latent."""
        return larger(head_dim - self.rotary_dim, 0.0) + self.value_dim


class Recurrence(eqx.Module):
    """An element-wise linear recurrence in place of the attention core: MLGRU (arXiv 2406.02528 §3).

    hₜ = fₜ ⊙ hₜ₋₁ + (1 − fₜ) ⊙ cₜ and oₜ = gₜ ⊙ hₜ, then the output projection: forget gate f, candidate c
    and output gate g are projections of the input, as wide as the query, key and value heads; the state h
    takes the place of the KV cache.
    """

    state: Scalar = quantity(
        "", "elements of the recurrent state of each channel", bounds=(1, 1024), default=1, integer=True
    )


class StateSpace(eqx.Module):
    """A selective state space, or linear attention, in place of softmax attention.

    Every head of `head_dim` channels keeps a matrix of head_dim · `state` numbers, which each token decays
    and adds the product of an input and a key to, and reads with a query: Mamba-2 (arXiv 2405.21060, where
    keys are B, queries C), lightning attention (arXiv 2401.04658) and their kin, for which `state` is the
    dimension of keys. Inputs, gates, keys and queries are one projection of the residual stream.
    """

    state: Scalar = quantity(
        "", "rows of a head's recurrent state: dimension of keys", bounds=(1, 1024), integer=True
    )
    groups: Scalar = quantity(
        "", "groups of heads that share keys and queries", bounds=(1, 1024), default=1, integer=True
    )
    convolution: Scalar = quantity(
        "",
        "taps of the causal convolution over inputs, keys and queries, 0 for none",
        bounds=(0, 16),
        default=4,
        integer=True,
    )
    time_steps: Weights = switch("a projected time step for every head, as in Mamba-2", default=True)

    def convolved(self, channels: Scalar) -> Scalar:
        """Inputs, keys and queries of a token, which the convolution goes over."""
        return channels + 2 * self.groups * self.state

    def projected(self, channels: Scalar, heads: Scalar) -> Scalar:
        """Numbers that a token is projected to: those that are convolved, a gate for each channel, and time
        steps.
        """
        return channels + self.convolved(channels) + self.time_steps.on * heads

    def parameters(self, channels: Scalar, heads: Scalar) -> Scalar:
        """Parameters beside the projections: taps and biases of the convolution, A, D and the time step's
        bias of every head, and a norm of the channels.
        """
        has_taps = jnp.where(self.convolution > 0, 1.0, 0.0)
        taps = (self.convolution + has_taps) * self.convolved(channels)
        return taps + 3 * self.time_steps.on * heads + channels


class Layers(eqx.Module):
    """`count` transformer layers of one kind: attention, then a plain or gated MLP or a mixture of MLPs."""

    count: Scalar = quantity("", "layers of this kind", bounds=(1, 2000), integer=True)
    heads: Scalar = quantity("", "query heads", bounds=(1, 1024), integer=True)
    kv_heads: Scalar = quantity(
        "",
        "key and value heads (grouped-query attention when fewer than heads)",
        bounds=(1, 1024),
        integer=True,
    )
    head_dim: Scalar = quantity("", "dimension of one head", bounds=(16, 1024), integer=True)
    ffn: Scalar = quantity(
        "",
        "inner dimension of the MLP (of one expert), 0 for layers without one",
        bounds=(0, 1e6),
        integer=True,
    )
    gated: Weights = switch("gated MLP with three matrices (SwiGLU) instead of two")
    biases: Weights = switch(
        "biases in linear layers and norms (LayerNorm instead of RMSNorm)", default=False
    )
    dropout: Weights = switch("dropout after attention and MLP, and on attention scores", default=False)
    qkv_biases: Weights = switch(
        "whether the query, key and value projections have biases although the other linear layers have none",
        default=False,
    )
    parallel: Weights = switch(
        "attention and MLP side by side, behind one norm (GPT-NeoX, PaLM)", default=False
    )
    clamped_activation: Weights = switch(
        "inputs of the activation function of gated experts are clamped (gpt-oss)", default=False
    )
    scaled_rotary: Weights = switch(
        "cosines and sines of rotary embeddings are scaled (YaRN, arXiv 2309.00071 §3.4)", default=False
    )
    window: Scalar = quantity(
        "",
        "latest tokens that a query sees (sliding window)",
        bounds=(1, NO_WINDOW),
        default=NO_WINDOW,
        integer=True,
    )
    leading: Weights = switch(
        "layers of this kind before those of all other kinds, rather than spread evenly among them",
        default=False,
    )
    mixture: Mixture | None = None
    latent: Latent | None = None
    recurrence: Recurrence | None = None
    state_space: StateSpace | None = None

    @property
    def attends(self) -> bool:
        """Whether the layer has softmax attention, with a KV cache, rather than a recurrent state."""
        return self.recurrence is None and self.state_space is None

    @property
    def channels(self) -> Scalar:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def has_mlp(self) -> Scalar:
        """1 for layers with an MLP or experts, 0 for layers of attention alone."""
        return jnp.where(self.ffn > 0, 1.0, 0.0)

    @property
    def second_block(self) -> Scalar:
        """1 for layers whose MLP follows the attention, 0 where it stands beside it or is absent."""
        return self.has_mlp * (1 - self.parallel.on)

    @property
    def value_dim(self) -> Scalar:
        """Dimension of a head's values."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def experts_per_token(self) -> Scalar | float:
        """MLPs of the inner dimension that a token visits."""
        return 1.0 if self.mixture is None else self.mixture.experts_per_token

    @property
    def shared_ffn(self) -> Scalar | float:
        """Inner dimension of the experts that every token visits."""
        return 0.0 if self.mixture is None else self.mixture.shared_ffn

    def kv_heads_on_rank(self, tp: Scalar) -> Scalar:
        """Key and value heads of a tensor-parallel rank: its share, or one replica where ranks outnumber
        heads.
        """
        return larger(1.0, self.kv_heads / tp)

    def attention_matrices(self, hidden: Scalar) -> Scalar:
        """Weights of the query, key, value and output projections."""
        output = self.heads * self.value_dim * hidden
        if self.state_space is not None:
            return output + hidden * self.state_space.projected(self.channels, self.heads)
        if self.latent is not None:
            return output + self.latent.parameters(hidden, self.heads, self.head_dim)
        return output + hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    def attention_parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of query, key, value and output projections, and of the norms of latents; those of a
        state space in their place.
        """
        if self.state_space is not None:
            own = self.state_space.parameters(self.channels, self.heads)
            return self.attention_matrices(hidden) + own + self.biases.on * hidden
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inner = larger(self.biases.on, self.qkv_biases.on) * (queries + 2 * keys)
        norms = 0.0 if self.latent is None else self.latent.query_rank + self.latent.kv_rank
        return self.attention_matrices(hidden) + inner + self.biases.on * hidden + norms

    def attention_parameters_on_rank(self, hidden: Scalar, tp: Scalar) -> Scalar:
        """Those of `attention_parameters` that a tensor-parallel rank holds.

        That is an equal share, but key and value projections of at least one head, and the projections down
        to latents whole (`ReplicatedLinear` of vllm/model_executor/models/deepseek_v2.py).
        """
        share = self.attention_parameters(hidden) / tp
        if self.state_space is not None or self.recurrence is not None:
            return share
        if self.latent is None:
            repeated_heads = self.kv_heads_on_rank(tp) - self.kv_heads / tp
            return share + 2 * hidden * self.head_dim * repeated_heads
        down = hidden * (self.latent.query_rank + self.latent.kv_rank + self.latent.rotary_dim)
        return share + down * (1 - 1 / tp)

    def mlp_matrices(self, hidden: Scalar, ffn: Scalar) -> Scalar:
        """Weights of an MLP of some inner dimension."""
        return (2 + self.gated.on) * hidden * ffn

    def expert_parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of one expert, or of the MLP."""
        biases = (1 + self.gated.on) * self.ffn + self.has_mlp * hidden
        return self.mlp_matrices(hidden, self.ffn) + self.biases.on * biases

    def router_matrix(self, hidden: Scalar) -> Scalar:
        """Weights of the matrix that scores the experts for a token; none in a dense layer."""
        return jnp.zeros_like(hidden) if self.mixture is None else hidden * self.mixture.experts

    def routed_parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of all experts that tokens are routed to; none in a dense layer."""
        return (
            jnp.zeros_like(hidden)
            if self.mixture is None
            else self.mixture.experts * self.expert_parameters(hidden)
        )

    def dense_parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of one layer that expert parallelism does not split: all but the routed experts."""
        norms = (1 + self.second_block) * hidden * (1 + self.biases.on)
        if self.mixture is None:
            mlp = self.expert_parameters(hidden)
        else:
            mlp = self.router_matrix(hidden) + self.mlp_matrices(hidden, self.mixture.shared_ffn)
        return self.attention_parameters(hidden) + mlp + norms

    def dense_parameters_on_rank(self, hidden: Scalar, tp: Scalar) -> Scalar:
        """Those of `dense_parameters` that a tensor-parallel rank holds: an equal share, but for what each
        rank repeats of the attention, and the router, which is whole. Norms, which are small, count as
        split.
        """
        around_attention = self.attention_parameters(hidden)
        others = (self.dense_parameters(hidden) - around_attention) / tp
        router = self.router_matrix(hidden) * (1 - 1 / tp)
        return self.attention_parameters_on_rank(hidden, tp) + others + router

    def parameters(self, hidden: Scalar) -> Scalar:
        """Parameters of one layer, norms included."""
        return self.dense_parameters(hidden) + self.routed_parameters(hidden)

    def active_matrices(self, hidden: Scalar) -> Scalar:
        """Weights of the matrices that a token is multiplied with."""
        visited = self.experts_per_token * self.ffn + self.shared_ffn
        return (
            self.attention_matrices(hidden) + self.router_matrix(hidden) + self.mlp_matrices(hidden, visited)
        )


class Model(Declared):
    """A decoder-only transformer."""

    name: Label = label("identifier, such as gpt3-175b")
    hidden: Scalar = quantity("", "width of the residual stream", bounds=(64, 1e5), integer=True)
    vocabulary: Scalar = quantity("", "tokens in the vocabulary", bounds=(100, 1e6), integer=True)
    tied_embeddings: Weights = switch("input and output embeddings share one matrix")
    layers: tuple[Layers, ...]
    learned_positions: Scalar = quantity(
        "", "rows of a learned position embedding, 0 for none", bounds=(0, 1e6), default=0, integer=True
    )
    context_window: Scalar = quantity(
        "",
        "tokens of the longest sequence that the model is made for, prompt and answer, 0 where none is known",
        bounds=(0, 1e9),
        default=0,
        integer=True,
    )

    mtp_layers: Scalar = quantity(
        "",
        "modules of multi-token prediction, each with a layer of the last kind and a use of the head",
        bounds=(0, 16),
        default=0,
        integer=True,
    )

    quantization: Label = label(
        "method and number format in which the weights are published, such as gptq int4, where its config "
        "says so",
        default="",
    )

    @property
    def longest_sequence(self) -> Scalar:
        """Tokens of the longest sequence in inference, prompt and answer: the model's window or its learned
        positions, infinite where neither is known.
        """
        limits = (self.context_window, self.learned_positions)
        return smaller(*(jnp.where(limit > 0, limit, jnp.inf) for limit in limits))

    @property
    def _alike(self) -> list[list[Layers]]:
        """The kinds of layers, grouped by their structure: with or without experts, latents, a recurrence."""
        groups: dict[object, list[Layers]] = {}
        for layers in self.layers:
            groups.setdefault(jax.tree.structure(layers), []).append(layers)
        return list(groups.values())

    @property
    def kinds(self) -> list[Layers]:
        """The kinds of layers, those of one structure stacked on a leading axis, to map over."""
        return [jax.tree.map(lambda *leaves: jnp.stack(leaves), *group) for group in self._alike]

    @property
    def grouped(self) -> list[Layers]:
        """The kinds of layers in the order of `kinds`: those of one structure next to each other."""
        return [layers for group in self._alike for layers in group]

    @property
    def last_kind(self) -> int:
        """Index in `grouped` of the kind of the model's last layers."""
        return next(index for index, layers in enumerate(self.grouped) if layers is self.layers[-1])

    @property
    def kind_names(self) -> list[tuple[str, ...]]:
        """A name for each kind of layers, grouped and ordered as `kinds`; empty for layers all of one
        kind.
        """
        if len(self.layers) == 1:
            return [("",)]
        names = []
        for group in self._alike:
            sort = "dense layers" if group[0].mixture is None else "expert layers"
            sort = f"state-space {sort}" if group[0].state_space is not None else sort
            names.append(tuple(f"{sort} {i + 1}" if len(group) > 1 else sort for i in range(len(group))))
        return names

    @property
    def depth(self) -> Scalar:
        """Layers of all kinds."""
        return functools.reduce(operator.add, (layers.count for layers in self.layers))

    @property
    def routed_share(self) -> Scalar:
        """The share of layers that route tokens to experts."""
        return sum(layers.count for layers in self.layers if layers.mixture is not None) / self.depth

    @property
    def embedding_parameters(self) -> Scalar:
        """Parameters of the token embedding matrix."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> Scalar:
        """Parameters of all layers."""
        parameters = (layers.count * layers.parameters(self.hidden) for layers in self.layers)
        return functools.reduce(operator.add, parameters)

    @property
    def parameters(self) -> Scalar:
        """Parameters of embeddings (counted once if tied), positions, layers and the final norm."""
        embeddings = (
            self.embedding_parameters * (1 + self.tied_embeddings.off) + self.learned_positions * self.hidden
        )
        return embeddings + self.layer_parameters + self.hidden * (1 + self.layers[-1].biases.on)
