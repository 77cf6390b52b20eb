"""Collectives: what the devices of a parallel group send each other, and how often. One function for each
group of devices.

How long a collective takes is `diffperf.estimate.network`'s business.
"""

import dataclasses
import functools

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.workload.collective import Collective, average_of_layers, relative_by_kind
from diffperf.workload.configuration import Configuration
from diffperf.workload.expert_collectives import expert_parallel_collectives
from diffperf.workload.model import Layers
from diffperf.workload.passes import TokenPass
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.stage_parameters import StageParameters, ZeroGroups
from diffperf.workload.strategy import Strategy


def training_collectives(
    c: Configuration, tokens: TokenPass, parameters: StageParameters
) -> list[Collective]:
    """All collectives of a training step on a device that holds `parameters`; `tokens` are those of one
    micro-batch.

    Every chunk boundary of the pipeline is crossed once forward and once backward.
    """
    crossings = 2 * c.strategy.virtual_stages * c.strategy.micro_batches
    repeated = Recomputation.of(c.strategy)
    reductions = functools.partial(_reductions, serving=False)
    second = average_of_layers(c.model, lambda kind: _second_reductions(kind, repeated))
    # Shares that the backward pass repeats of the collectives of a purpose, beside whole layers.
    repeated_alone = {
        "tensor parallelism": second / average_of_layers(c.model, reductions),
        "expert parallelism": repeated.experts,
    }
    in_layers = layer_collectives(c, tokens)
    with_repeated = [
        dataclasses.replace(
            collective, recomputed=repeated.layer + repeated_alone.get(collective.purpose, 0.0)
        )
        for collective in in_layers
    ]
    return [
        *with_repeated,
        *training_vocabulary_collectives(c, in_layers[0]),
        boundary_transfer(c, tokens, crossings),
        *gradient_collectives(c, parameters),
        *weight_collectives(c, parameters),
        tied_embedding_reduction(c),
    ]


def inference_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """All collectives of one inference pass on a device."""
    in_layers = layer_collectives(c, tokens)
    return [
        *in_layers,
        *inference_vocabulary_collectives(c, tokens, in_layers[0]),
        boundary_transfer(c, tokens, c.strategy.pp - 1),
    ]


# --- between the ranks that share a layer


def layer_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """All collectives of an average layer of the model, for one pass: of training, prefill and decode
    alike. The first is the all-reduce of the residual stream.
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
    reductions = average_of_layers(c.model, reductions_of)
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
            by_kind=relative_by_kind(c.model, reductions_of),
        )
    ]


def training_vocabulary_collectives(c: Configuration, in_layer: Collective) -> list[Collective]:
    """What ranks that share the vocabulary send for each micro-batch: they add up the embedded tokens, of
    which each has those in its part of the table, and the gradients of the vocabulary projection's inputs
    (Megatron-LM, arXiv 1909.08053 §3). The sums that its cross-entropy exchanges, a few numbers for each
    token, are not counted.

    Both are all-reduces of the residual stream, as that of layers (`in_layer`).
    """
    embedded = _embedded_tokens(in_layer)
    gradients = dataclasses.replace(
        embedded,
        name="all-reduce of the vocabulary projection's input gradients",
        purpose="vocabulary projection",
        forward=1.0 + c.model.mtp_layers,  # of the model's logits, and of those of further tokens
    )
    return [embedded, gradients]


def inference_vocabulary_collectives(
    c: Configuration, tokens: TokenPass, in_layer: Collective
) -> list[Collective]:
    """What ranks that share the vocabulary send in an inference pass: the sum of the embedded tokens, an
    all-reduce as that of layers (`in_layer`), and the logits that each has of its part of the vocabulary
    (`VocabParallelEmbedding` and `LogitsProcessor` of github.com/vllm-project/vllm).
    """
    embedded = _embedded_tokens(in_layer)
    logits = dataclasses.replace(
        embedded,
        name="gathering of logits",
        kind="all_gather",
        purpose="vocabulary projection",
        volume=tokens.logits * c.model.vocabulary * c.strategy.activation_width,
    )
    return [embedded, logits]


def _embedded_tokens(in_layer: Collective) -> Collective:
    """The all-reduce of a micro-batch's embedded tokens: that of layers (`in_layer`), once."""
    return dataclasses.replace(
        in_layer,
        name="all-reduce of embedded tokens",
        purpose="embeddings",
        per="micro-batch",
        forward=1.0,
        backward=0.0,
        by_kind=1.0,
    )


def context_parallel_collectives(c: Configuration, tokens: TokenPass) -> list[Collective]:
    """Collectives around the attention core of the ranks that share a sequence.

    - A ring passes keys and values on from rank to rank, with their gradients on the way back (arXiv
      2310.01889).
    - All-to-all exchanges heads for tokens before and after attention (arXiv 2309.14509). Where there are
      more ranks than heads of keys and values, each of these goes to all ranks that have queries for it.
    - Generating, each rank holds a part of the context: the ranks all-reduce the outputs of all heads with
      the sums of their softmax (Tree Attention, arXiv 2408.04093 §5).
    """
    strategy, stride = c.strategy, c.strategy.stride_of("cp")
    keys_and_values = average_of_layers(c.model, functools.partial(_kv_elements, strategy=strategy))
    queries_and_outputs = average_of_layers(c.model, functools.partial(_query_elements, strategy=strategy))
    element = strategy.activation_width * tokens.tokens_on_rank(strategy)
    around = functools.partial(
        Collective,
        purpose="context parallelism",
        degree=strategy.cp,
        stride=stride,
        by_kind=relative_by_kind(c.model, lambda kind: jnp.asarray(float(kind.attends), kind.heads.dtype)),
    )
    if tokens.generating:
        outputs = average_of_layers(c.model, functools.partial(_generated_outputs, strategy=strategy))
        return [around(name="all-reduce of attention outputs", kind="all_reduce", volume=element * outputs)]
    collectives = []
    if strategy.context_parallel.possible["ring"]:
        hops = strategy.context_parallel.ring * (strategy.cp - 1)
        ring = around(
            name="ring of keys and values",
            kind="ring_shift",
            volume=element * keys_and_values,
            forward=hops,
            backward=2 * hops,
        )
        collectives.append(ring)
    if strategy.context_parallel.possible["all_to_all"]:
        both = 2 * strategy.context_parallel.all_to_all  # before attention and after
        copied = average_of_layers(c.model, functools.partial(_copied_kv_elements, strategy=strategy))
        heads = around(
            name="exchange of heads for tokens",
            kind="all_to_all",
            volume=element * (copied + queries_and_outputs) / 2,
            forward=both,
            backward=both,
        )
        collectives.append(heads)
    return collectives


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


def _second_reductions(layers: Layers, repeated: Recomputation) -> Scalar:
    """All-reduces after the MLP or the experts that the backward pass repeats, where it recomputes these."""
    shares = repeated.of_layers(layers)
    return (_reductions(layers, serving=False) - 1) * (shares.mlp + shares.experts)


def _kv_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of keys and values on a tensor-parallel rank; a recurrence passes on its state
    alone.
    """
    if not layers.attends:
        return 0.0 * layers.heads
    if layers.latent is None:
        return 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim
    return layers.heads / strategy.tp * (layers.head_dim + layers.value_dim)


def _copied_kv_elements(layers: Layers, strategy: Strategy) -> Scalar:
    """Elements per token of keys and values on a tensor-parallel rank, times the context-parallel ranks that
    a head of them goes to.
    """
    heads = layers.kv_heads_on_rank(strategy.tp) if layers.latent is None else layers.heads / strategy.tp
    return _kv_elements(layers, strategy) * larger(strategy.cp / larger(heads, 1.0), 1.0)


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
        volume=c.model.embedding_parameters / strategy.tp * strategy.reduced_gradient_width,
        forward=c.model.tied_embeddings.on,
    )


# --- between the ranks that hold the same parameters


def gradient_collectives(c: Configuration, parameters: StageParameters) -> list[Collective]:
    """The reduction of a step's gradients between the ranks that hold the same parameters, once or layer by
    layer.

    All-reduced, or reduce-scattered to their owners (ZeRO, arXiv 1910.02054 §7): at once, and from stage 2
    on for every micro-batch; at stage 3 layer by layer. Ranks that share in groups (hybrid: arXiv
    2304.11277 §3.2.2) all-reduce their parts between the groups. At stage 1 software may all-reduce them
    as without ZeRO (`whole_gradients` of a stack).
    """
    strategy, element = c.strategy, c.strategy.reduced_gradient_width
    whole = late_exchange(c)
    times = strategy.gradient_reductions
    pieces = _sharded_pieces(c)
    collectives = []
    for part in _replicated(c, parameters):
        reduction = functools.partial(Collective, purpose="gradients", per="step")
        if strategy.zero.possible["0"] or c.system.stack.whole_gradients.possible["on"]:
            reduce = reduction(
                name=f"all-reduce of gradients{part.suffix}",
                kind="all_reduce",
                degree=part.ranks,
                stride=part.stride,
                volume=part.size * element,
                forward=strategy.zero["0"] + whole,
            )
            collectives.append(reduce)
        if strategy.may_shard:
            scatter = reduction(
                name=f"reduce-scatter of gradients{part.suffix}",
                kind="reduce_scatter",
                degree=part.owners,
                stride=part.stride,
                volume=part.size * element / pieces,
                forward=(strategy.shards_optimizer - whole) * pieces * times,
            )
            across = reduction(
                name=f"all-reduce of gradients between groups{part.suffix}",
                kind="all_reduce",
                degree=part.ranks / part.owners,
                stride=part.stride * part.owners,
                volume=part.size * element / part.owners,
                forward=strategy.shards_optimizer - whole,
            )
            collectives += [scatter, across]
    return collectives


def late_exchange(c: Configuration) -> Scalar:
    """Weight of an exchange at ZeRO's stage 1 whose gradients are all-reduced, and which no pass hides."""
    return c.system.stack.whole_gradients.on * c.strategy.zero["1"]


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
            volume=part.size * strategy.gathered_weight_width / pieces,
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
