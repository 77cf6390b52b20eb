"""Collectives: what the devices of a parallel group send each other, and how often. One function for each
group of devices.

How long a collective takes is `diffperf.estimate.network`'s business.
"""

import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import positive
from diffperf.workload.configuration import Configuration
from diffperf.workload.layer_operators import TokenPass, expert_load, routed_tokens
from diffperf.workload.model import Layers, Model
from diffperf.workload.stage_parameters import StageParameters, ZeroGroups
from diffperf.workload.strategy import Strategy

# The part of the time that collectives count as, by their purpose.
PARTS = {
    "tensor parallelism": "tensor_parallel",
    "context parallelism": "context_parallel",
    "expert parallelism": "expert_parallel",
    "pipeline": "pipeline_transfers",
    "gradients": "data_parallel",
    "weights": "data_parallel",
    "tied embedding": "data_parallel",
}


class Collective(eqx.Module):
    """A collective that a group of `degree` ranks, `stride` devices apart, runs on `volume` bytes.

    - `volume`: the larger buffer of a rank: the buffer of an all-reduce, the gathered output of an
      all-gather, the input of a reduce-scatter, the send buffer of an all-to-all, the message of a
      transfer between two ranks.
    - `forward`, `backward`: how often it runs in either pass of an average layer where `per` is "layer";
      where `per` is "step", it runs `forward` times in a training step or an inference pass.
    - `by_kind`: how often it runs in a layer of each kind, over an average layer; kinds are ordered as
      `Model.grouped`.
    - `recomputed`: share of its forward runs that the backward pass of training repeats.
    - `copies`: members to which a piece of an all-to-all's buffer goes.
    - `once`: share of those pieces that a network domain gets once, however many of its members they go
      to.
    - `kind`: a name from `diffperf.estimate.network.transfers.COLLECTIVES`.
    - `purpose`: what it is for, a key of `PARTS`, which says which part of the time it counts as.
    """

    degree: Scalar
    stride: Scalar
    volume: Scalar
    forward: Scalar | float = 1.0
    backward: Scalar | float = 0.0
    by_kind: Float[Array, " kinds"] | float = 1.0
    recomputed: Scalar | float = 0.0
    copies: Scalar | float = 1.0
    once: Scalar | float = 0.0
    name: str = eqx.field(static=True, kw_only=True)
    kind: str = eqx.field(static=True, kw_only=True)
    purpose: str = eqx.field(static=True, kw_only=True)
    per: str = eqx.field(static=True, kw_only=True, default="layer")

    @property
    def in_layer(self) -> Scalar | float:
        """How often it runs in both passes of an average layer, with what the backward pass repeats."""
        return self.forward * (1 + self.recomputed) + self.backward

    @property
    def part(self) -> str:
        """The field of a phase's breakdown that the collective counts as."""
        return PARTS[self.purpose]


def training_collectives(
    c: Configuration, tokens: TokenPass, parameters: StageParameters
) -> list[Collective]:
    """All collectives of a training step on a device that holds `parameters`; `tokens` are those of one
    micro-batch.

    Every chunk boundary of the pipeline is crossed once forward and once backward.
    """
    crossings = 2 * c.strategy.virtual_stages * c.strategy.micro_batches
    recomputed = c.strategy.recompute.full * c.strategy.recompute_share
    in_layers = [
        dataclasses.replace(collective, recomputed=recomputed) for collective in layer_collectives(c, tokens)
    ]
    return [
        *in_layers,
        boundary_transfer(c, tokens, crossings),
        *gradient_collectives(c, parameters),
        *weight_collectives(c, parameters),
        tied_embedding_reduction(c),
    ]


# --- between the ranks that share a layer


def layer_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """All collectives of an average layer of the model, for one pass: of training, prefill and decode
    alike.
    """
    return [
        *tensor_parallel_collectives(c, tokens),
        *context_parallel_collectives(c, tokens),
        *expert_parallel_collectives(c, tokens),
    ]


def tensor_parallel_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """All-reduces of the residual stream after attention and after the MLP (Megatron-LM, arXiv 1909.08053
    §3).

    With sequence parallelism reduce-scatters and all-gathers move as many bytes (arXiv 2205.05198 §4.2.2).
    """
    reductions_of = functools.partial(_reductions, serving=tokens.serving)
    reductions = _average(c.model, reductions_of)
    return [
        Collective(
            name="all-reduce of the residual stream",
            kind="all_reduce",
            purpose="tensor parallelism",
            degree=c.strategy.tp,
            stride=c.strategy.stride_of("tp"),
            volume=_residual_bytes(c, tokens),
            forward=reductions,
            backward=reductions,
            by_kind=_by_kind(c.model, reductions_of),
        )
    ]


def context_parallel_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """What ranks that share a sequence exchange around the attention core.

    - A ring passes keys and values on from rank to rank, with their gradients on the way back (arXiv
      2310.01889).
    - All-to-all exchanges heads for tokens before and after attention (arXiv 2309.14509).
    - Generating, each rank holds a part of the context: the ranks all-reduce the outputs of all heads with
      the sums of their softmax (Tree Attention, arXiv 2408.04093 §5).
    """
    strategy, stride = c.strategy, c.strategy.stride_of("cp")
    keys_and_values = _average(c.model, functools.partial(_kv_elements, strategy=strategy))
    queries_and_outputs = _average(c.model, functools.partial(_query_elements, strategy=strategy))
    element = strategy.activation_width * tokens.tokens_on_rank(strategy)
    around = functools.partial(
        Collective,
        purpose="context parallelism",
        degree=strategy.cp,
        stride=stride,
        by_kind=_by_kind(c.model, lambda kind: jnp.asarray(float(kind.attends), kind.heads.dtype)),
    )
    if tokens.generating:
        outputs = _average(c.model, functools.partial(_generated_outputs, strategy=strategy))
        return [around(name="all-reduce of attention outputs", kind="all_reduce", volume=element * outputs)]
    collectives = []
    if strategy.context_parallel.possible["ring"]:
        hops = strategy.context_parallel.ring * (strategy.cp - 1)
        ring = around(
            name="ring of keys and values",
            kind="send_recv",
            volume=element * keys_and_values,
            forward=hops,
            backward=2 * hops,
        )
        collectives.append(ring)
    if strategy.context_parallel.possible["all_to_all"]:
        both = 2 * strategy.context_parallel.all_to_all  # before attention and after
        heads = around(
            name="exchange of heads for tokens",
            kind="all_to_all",
            volume=element * (keys_and_values + queries_and_outputs) / 2,
            forward=both,
            backward=both,
        )
        collectives.append(heads)
    return collectives


def expert_parallel_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """Tokens go to experts by one all-to-all and come back by another (GShard, arXiv 2006.16668).

    They are padded to the experts' capacity, or as many as the busiest device gets. The tensor-parallel
    ranks of an expert gather them. Serving, the ranks of a tensor-parallel group all have their group's
    tokens: nothing is dispatched where the experts' ranks are among them.
    """
    strategy, model = c.strategy, c.model
    mixtures = [(kind, kind.mixture) for kind in model.layers if kind.mixture is not None]
    if not mixtures:
        return []
    rank_tokens = tokens.tokens_on_rank(strategy)
    layers = sum(kind.count for kind, _ in mixtures)
    routed = sum(kind.count * routed_tokens(kind, strategy, rank_tokens) for kind, _ in mixtures) / layers
    visited = sum(kind.count * mixture.experts_per_token for kind, mixture in mixtures) / layers
    volume = routed * expert_load(strategy) * model.hidden * strategy.activation_width
    stride = strategy.stride_of("tp")
    both_ways = 2.0 * model.routed_share
    if tokens.serving:
        beyond_group = c.relax.excess(strategy.experts_tp * strategy.ep / strategy.tp, 1.0)
        both_ways = both_ways * c.relax.minimum(beyond_group, 1.0)
    among_kinds = _by_kind(model, lambda kind: jnp.asarray(float(kind.mixture is not None), volume.dtype))
    return [
        Collective(
            name="dispatch to experts and back",
            kind="all_to_all",
            purpose="expert parallelism",
            degree=strategy.ep,
            stride=stride * strategy.experts_tp,
            volume=volume,
            forward=both_ways,
            backward=both_ways,
            by_kind=among_kinds,
            copies=visited,
            once=c.system.stack.routed_once_per_domain,
        ),
        Collective(
            name="gathering of experts' tokens",
            kind="all_gather",
            purpose="expert parallelism",
            degree=strategy.experts_tp,
            stride=stride,
            volume=volume * strategy.experts_tp,
            forward=both_ways,
            backward=both_ways,
            by_kind=among_kinds,
        ),
    ]


def _average(model: Model, number_of: Callable[[Layers], Scalar]) -> Scalar:
    """The mean of a number over the layers of a model."""
    return sum(kind.count * number_of(kind) for kind in model.layers) / model.depth


def _by_kind(model: Model, number_of: Callable[[Layers], Scalar]) -> Float[Array, " kinds"] | float:
    """A number of each kind of layers over its mean over the layers of a model, 1 for layers all of one
    kind.
    """
    if len(model.layers) == 1:
        return 1.0
    return jnp.stack([number_of(kind) for kind in model.grouped]) / positive(_average(model, number_of))


def _residual_bytes(c: Configuration, tokens: TokenPass) -> Scalar:
    """Bytes of the residual stream of a tensor-parallel group's tokens."""
    return tokens.tokens_on_rank(c.strategy) * c.model.hidden * c.strategy.activation_width


def _reductions(layers: Layers, serving: bool) -> Scalar:
    """All-reduces of the residual stream in one pass of a layer: after attention, and after an MLP that does
    not stand beside it.

    In training the tokens of routed experts come back complete, and only shared experts are reduced.
    Serving, the ranks of a tensor-parallel group add up what each rank's experts or slices of experts gave
    for the same tokens.
    """
    if layers.mixture is None or serving:
        return 1 + layers.second_block
    return 1 + jnp.where(layers.mixture.shared_ffn > 0, 1 - layers.parallel.on, 0.0)


def _kv_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of keys and values on a tensor-parallel rank; a recurrence passes on its state
    alone.
    """
    if not layers.attends:
        return 0.0 * layers.heads
    if layers.latent is None:
        return 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim
    return layers.heads / strategy.tp * (layers.head_dim + layers.value_dim)


def _query_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of queries and attention outputs on a tensor-parallel rank."""
    if not layers.attends:
        return 0.0 * layers.heads
    return layers.heads / strategy.tp * (layers.head_dim + layers.value_dim)


def _generated_outputs(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per generated token of all heads' outputs on a tensor-parallel rank, with two numbers of a
    head's softmax.

    Latent attention's outputs are still in the latent (arXiv 2405.04434 §2.1.2).
    """
    if not layers.attends:
        return 0.0 * layers.heads
    output = layers.value_dim if layers.latent is None else layers.latent.kv_rank
    return layers.heads / strategy.tp * (output + 2)


# --- between pipeline stages


def boundary_transfer(c: Configuration, tokens: TokenPass, runs: Scalar) -> Collective:
    """The residual stream across a boundary between pipeline stages: each tensor-parallel rank sends its
    share.

    Source: Narayanan et al., arXiv 2104.04473 §4.1.
    """
    return Collective(
        name="transfer between pipeline stages",
        kind="send_recv",
        purpose="pipeline",
        per="step",
        degree=c.strategy.pp,
        stride=c.strategy.stride_of("pp"),
        volume=_residual_bytes(c, tokens) / c.strategy.tp,
        forward=runs,
    )


def tied_embedding_reduction(c: Configuration) -> Collective:
    """The all-reduce of a tied embedding's gradients between the first and the last stage (arXiv 1909.08053
    §5).
    """
    strategy, ends = c.strategy, c.relax.minimum(c.strategy.pp, 2.0)
    return Collective(
        name="all-reduce of the tied embedding's gradients",
        kind="all_reduce",
        purpose="tied embedding",
        per="step",
        degree=ends,
        stride=strategy.stride_of("pp") * strategy.pp / ends,
        volume=c.model.embedding_parameters / strategy.tp * strategy.gradient_width,
        forward=c.model.tied_embeddings.on,
    )


# --- between the ranks that hold the same parameters


def gradient_collectives(c: Configuration, parameters: StageParameters) -> list[Collective]:
    """The reduction of a step's gradients between the ranks that hold the same parameters, once or layer by
    layer.

    All-reduced, or reduce-scattered to their owners (ZeRO, arXiv 1910.02054 §7): at once, and from stage 2
    on for every micro-batch; at stage 3 layer by layer. Ranks that share in groups (hybrid: arXiv
    2304.11277 §3.2.2) all-reduce their parts between the groups.
    """
    strategy, element = c.strategy, c.strategy.gradient_width
    times = 1 + strategy.shards_gradients * (strategy.micro_batches - 1)
    pieces = _sharded_pieces(c)
    collectives = []
    for part in _replicated(c, parameters):
        reduction = functools.partial(Collective, purpose="gradients", per="step")
        if strategy.zero.possible["0"]:
            reduce = reduction(
                name=f"all-reduce of gradients{part.suffix}",
                kind="all_reduce",
                degree=part.ranks,
                stride=part.stride,
                volume=part.size * element,
                forward=strategy.zero["0"],
            )
            collectives.append(reduce)
        if strategy.may_shard:
            scatter = reduction(
                name=f"reduce-scatter of gradients{part.suffix}",
                kind="reduce_scatter",
                degree=part.owners,
                stride=part.stride,
                volume=part.size * element / pieces,
                forward=strategy.shards_optimizer * pieces * times,
            )
            across = reduction(
                name=f"all-reduce of gradients between groups{part.suffix}",
                kind="all_reduce",
                degree=part.ranks / part.owners,
                stride=part.stride * part.owners,
                volume=part.size * element / part.owners,
                forward=strategy.shards_optimizer,
            )
            collectives += [scatter, across]
    return collectives


def weight_collectives(c: Configuration, parameters: StageParameters) -> list[Collective]:
    """The gathering of weights from the ranks that own them (ZeRO, arXiv 1910.02054 §7).

    Once in a step, or at stage 3 layer by layer, for every micro-batch and for either pass.
    """
    strategy = c.strategy
    if not strategy.may_shard:
        return []
    times = 1 + strategy.shards_weights * (2 * strategy.micro_batches - 1)
    pieces = _sharded_pieces(c)
    return [
        Collective(
            name=f"gathering of weights{part.suffix}",
            kind="all_gather",
            purpose="weights",
            per="step",
            degree=part.owners,
            stride=part.stride,
            volume=part.size * strategy.kept_weight_width / pieces,
            forward=strategy.shards_optimizer * pieces * times,
        )
        for part in _replicated(c, parameters)
    ]


def _sharded_pieces(c: Configuration) -> Scalar:
    """Collectives in which ZeRO moves a stage's parameters: one, or at stage 3 one for each layer."""
    return 1 + c.strategy.shards_weights * (c.model.depth / c.strategy.pp - 1)


class _Replicated(eqx.Module):
    """The part of a stage's parameters that the same ranks hold, or share by ZeRO."""

    size: Scalar  # parameters
    ranks: Scalar  # that hold the same
    owners: Scalar  # ranks that ZeRO shards them over
    stride: Scalar  # devices between neighbours of the ranks
    suffix: str = eqx.field(static=True)  # of the names of collectives


def _replicated(c: Configuration, parameters: StageParameters) -> list[_Replicated]:
    """The parts of a stage that different numbers of ranks hold: experts, and all else."""
    strategy, groups = c.strategy, ZeroGroups(c.strategy, c.relax)
    dense = _Replicated(
        suffix="",
        size=parameters.dense,
        ranks=strategy.replicas,
        owners=groups.dense,
        stride=strategy.replica_stride,
    )
    if all(kind.mixture is None for kind in c.model.layers):
        return [dense]
    experts = _Replicated(
        suffix=" of experts",
        size=parameters.experts,
        ranks=strategy.expert_replicas,
        owners=groups.experts,
        stride=strategy.expert_replica_stride,
    )
    return [dense, experts]
