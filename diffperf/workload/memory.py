"""The memory footprint of a configuration on one device, in training and in inference."""

import dataclasses
import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.formats import PRECISION_BYTES, width
from diffperf.hardware.memory_level import TENSOR_CLASSES, MemoryLevel
from diffperf.quantity import Label, Scalar, label, output
from diffperf.relax import Relaxation, larger, largest
from diffperf.report.tables import Readable
from diffperf.workload.activations import ModelActivations, model_activations
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import inner_elements
from diffperf.workload.model import Layers, Model
from diffperf.workload.residency import Residency, holds_tensors, residency
from diffperf.workload.schedule import in_flight
from diffperf.workload.stage_parameters import (
    ZeroGroups,
    kept_share,
    parameters_of_layers,
)
from diffperf.workload.stages import (
    at_both_ends,
    device_stages,
    held_stages,
    one_stage,
    over_kinds,
    served_share_of_last,
)
from diffperf.workload.strategy import Strategy

# Classes of tensors that are weights.
_WEIGHTS = ("attention_weights", "mlp_weights", "expert_weights", "embeddings")


class StagePeaks(Readable):
    """Bytes that devices of the first, a middle and the last pipeline stage allocate."""

    first: Scalar = output("byte", "allocation of a device of the first pipeline stage")
    middle: Scalar = output("byte", "allocation of a device of a middle pipeline stage")
    last: Scalar = output("byte", "allocation of a device of the last pipeline stage")


class LevelUse(Readable):
    """Bytes in one memory level beside device memory, by class of tensors, and how they compare to its
    capacity.
    """

    name: Label = label("name of the memory level")
    activations: Scalar = output("byte", "activations and logits")
    attention_weights: Scalar = output("byte", "weights of the projections around attention")
    mlp_weights: Scalar = output("byte", "weights of MLPs and of all other layers without experts")
    kv_cache: Scalar = output("byte", "KV cache")
    expert_weights: Scalar = output("byte", "weights of routed experts")
    embeddings: Scalar = output("byte", "token embedding and vocabulary projection")
    peak: Scalar = output("byte", "all tensors that the memory level holds")
    capacity: Scalar = output("byte", "capacity of the memory level")
    excess: Scalar = output("", "peak over capacity − 1 (above 0: more than the memory level holds)")


class Memory(Readable):
    """Bytes in device memory of the fullest device, and how they compare to its capacity.

    `elsewhere` are the memory levels that may hold tensors beside device memory; `excess` is that of the
    fullest memory level.
    """

    weights: Scalar = output("byte", "weights")
    gradients: Scalar = output("byte", "gradients")
    optimizer: Scalar = output("byte", "optimizer state")
    activations: Scalar = output("byte", "activations kept for the backward pass, or in use")
    logits: Scalar = output("byte", "logits in fp32, in training in the format of activations too")
    gathered: Scalar = output("byte", "weights and gradients of layers in use, gathered (ZeRO-3)")
    buffers: Scalar = output("byte", "communication buffers")
    kv_cache: Scalar = output("byte", "KV cache")
    fragmentation: Scalar = output("byte", "memory that the allocator holds beyond the tensors in it")
    reserve: Scalar = output("byte", "memory reserved by runtime and libraries")
    peak: Scalar = output("byte", "peak of the allocated memory")
    capacity: Scalar = output("byte", "capacity of the device memory")
    excess: Scalar = output("", "use over capacity − 1 of the fullest memory level (above 0: out of memory)")
    stages: StagePeaks
    elsewhere: tuple[LevelUse, ...] = ()

    @classmethod
    def of(
        cls,
        c: Configuration,
        stages: dict[str, Float[Array, " stages"]],
        elsewhere: tuple[LevelUse, ...] = (),
    ) -> "Memory":
        """The footprint from the parts that tensors take in device memory on the first, a middle and the
        last pipeline stage, or on one stage that stands for all, and from what they take elsewhere.
        """
        totals = jnp.sum(jnp.stack(list(stages.values())), axis=0)
        # Derivatives of the maximum weigh the stages so that the fullest stage's parts add up to it: the
        # maximum is homogeneous, so Euler's theorem holds.
        share = jax.grad(c.relax.reduce_maximum)(totals)
        stack, capacity = c.system.stack, c.system.accelerator.device_memory.capacity
        allocated = c.relax.reduce_maximum(totals)
        fragmentation = allocated * (stack.fragmentation - 1)
        peak = allocated + fragmentation + stack.memory_reserve
        first, middle, last = jnp.broadcast_to(totals, (3,))
        return cls(
            **{name: jnp.sum(share * part) for name, part in stages.items()},
            fragmentation=fragmentation,
            reserve=stack.memory_reserve,
            peak=peak,
            capacity=capacity,
            excess=_fullest(peak / capacity, elsewhere, c.relax) - 1,
            stages=StagePeaks(first=first, middle=middle, last=last),
            elsewhere=elsewhere,
        )

    def with_cache(self, c: Configuration, cache: Scalar) -> "Memory":
        """The footprint with `cache` bytes of KV cache in device memory, on every stage alike."""
        more = cache - self.kv_cache
        allocated = more * c.system.stack.fragmentation  # fragmentation is a share of what is allocated
        peak = self.peak + allocated
        return dataclasses.replace(
            self,
            kv_cache=cache,
            fragmentation=self.fragmentation + allocated - more,
            peak=peak,
            excess=_fullest(peak / self.capacity, self.elsewhere, c.relax) - 1,
            stages=jax.tree.map(lambda stage: stage + more, self.stages),
        )

    @property
    def allocated(self) -> Scalar:
        """Bytes that the fullest device's tensors take."""
        return self.peak - self.reserve - self.fragmentation


def _fullest(use: Scalar, elsewhere: tuple[LevelUse, ...], relax: Relaxation) -> Scalar:
    """The use over capacity of the fullest memory level: device memory, of the given use, or another."""
    return relax.maximum(use, *(level.peak / level.capacity for level in elsewhere)) if elsewhere else use


# --- training


def training_memory(c: Configuration) -> Memory:
    """Peak of the fullest of the first, a middle and the last pipeline stage.

    The first stage has the input embedding and the most micro-batches in flight, the last the logits in fp32.
    """
    activations, last_kind = model_activations(c), c.model.last_kind
    return Memory.of(c, jax.vmap(lambda row: _training_stage(c, row, activations, last_kind))(_stage_rows(c)))


class _StageRow(eqx.Module):
    """Contents of a device of the first, a middle or the last stage, for each stage that it holds; with a
    leading axis of stages, of all three.
    """

    position: Float[Array, "*stages"]  # from 0 for the first stage to 1 for the last
    layers: Float[Array, "*stages kinds"]
    embeddings: Float[Array, "*stages"]
    heads: Float[Array, "*stages"]
    modules: Float[Array, "*stages"]  # of multi-token prediction


def _stage_rows(c: Configuration) -> _StageRow:
    """Contents of devices of the first, a middle and the last stage; with one stage, that stage has the
    embeddings at both ends of the pipeline.
    """
    stages = device_stages(c.model, c.strategy, c.relax)
    alone = one_stage(c.strategy, c.relax)
    return _StageRow(
        position=jnp.asarray([0.0, 0.5, 1.0], c.strategy.tp.dtype),
        layers=stages.layers,
        embeddings=at_both_ends(stages.embeddings, alone),
        heads=at_both_ends(stages.heads, alone),
        modules=at_both_ends(stages.modules, alone),
    )


def _training_stage(
    c: Configuration, row: _StageRow, activations: ModelActivations, last_kind: int
) -> dict[str, Scalar]:
    """Bytes on a device of one stage, by part; modules of multi-token prediction have a layer of the last
    kind.
    """
    model, strategy, stack = c.model, c.strategy, c.system.stack
    alone, tied, stages = one_stage(strategy, c.relax), model.tied_embeddings, held_stages(strategy)
    parameters = parameters_of_layers(
        model,
        strategy,
        row.layers,
        embeddings=row.embeddings,
        heads=row.heads * (1 - alone * tied.on),
        modules=row.modules,
    )
    groups = ZeroGroups(strategy, c.relax)
    dense_ranks, expert_ranks = groups.dense, groups.experts
    optimizer, gradients, weights = (
        parameters.weighted(kept_share(sharded, dense_ranks), kept_share(sharded, expert_ranks))
        for sharded in (strategy.shards_optimizer, strategy.shards_gradients, strategy.shards_weights)
    )
    kept = over_kinds(row.layers, activations.kept) + row.modules * activations.kept[last_kind]
    flying = kept * in_flight(strategy, c.relax, row.position)
    gradient_bytes = strategy.gradient_width + stack.gradient_buffers
    optimizer_bytes = strategy.optimizer_bytes + stack.optimizer_buffers
    # Two devices of DualPipe hold the same two stages, and share their optimizer states.
    return {
        "weights": stages * weights * strategy.kept_weight_width,
        "gradients": stages * gradients * gradient_bytes,
        "optimizer": optimizer * optimizer_bytes * (1 - strategy.offload_optimizer),
        "activations": flying * (1 - strategy.offload_activations) + largest(activations.working),
        "logits": stages * row.heads * _logits_bytes(model, strategy),
        "gathered": _gathered_bytes(c, row, alone),
        "buffers": _buffer_bytes(c) + stack.training_buffers,
        "kv_cache": jnp.zeros_like(weights),
    }


def stage_activation_bytes(c: Configuration) -> Scalar:
    """Bytes that the fullest stage keeps of one micro-batch for its backward pass, wherever it keeps them."""
    stages = device_stages(c.model, c.strategy, c.relax)
    return largest(over_kinds(stages.all_layers, model_activations(c).kept))


def _logits_bytes(model: Model, strategy: Strategy) -> Scalar:
    """The vocabulary projection's output and its copy in fp32, for the model and for each further token that
    it predicts.
    """
    logits = strategy.tokens * model.vocabulary / strategy.tp
    return logits * (strategy.activation_width + PRECISION_BYTES["fp32"]) * (1 + model.mtp_layers)


def _gathered_bytes(c: Configuration, row: _StageRow, alone: Scalar) -> Scalar:
    """Bytes that ZeRO-3 holds gathered on a device of one stage: the weights of the layer in use, those of
    the next layer if fetched early, and one layer's gradients. What a device holds whole, as no other rank
    would hold the same, is not gathered.

    Embeddings and vocabulary projection stay gathered from the forward pass to the backward pass, as those of
    FSDP's root module do (PyTorch documentation, `fully_shard`), which begins with the gradients of the
    latter. `alone` is 1 where one stage has both, which share one matrix if embeddings are tied.
    """
    model, strategy, groups = c.model, c.strategy, ZeroGroups(c.strategy, c.relax)
    sharded, sharded_experts = c.relax.has_others(groups.dense), c.relax.has_others(groups.experts)
    of_rank = [kind.count * kind.dense_parameters_on_rank(model.hidden, strategy.tp) for kind in model.layers]
    routed = sum(kind.count * kind.routed_parameters(model.hidden) for kind in model.layers) / model.depth
    experts = routed / (strategy.experts_tp * strategy.ep)
    layer = sharded * sum(of_rank) / model.depth + sharded_experts * experts
    weights = 1 + strategy.overlap_weights.on
    matrices = row.embeddings + row.heads * (1 - alone * model.tied_embeddings.on) + row.heads
    ends = sharded * matrices * model.vocabulary * model.hidden / strategy.tp
    return strategy.shards_weights * (layer * (weights + 1) + ends) * strategy.kept_weight_width


def _buffer_bytes(c: Configuration) -> Scalar:
    """Bytes of communication buffers: a layer's input gathered on every rank (sequence parallelism), and a
    micro-batch's residual stream received from either neighbouring stage.
    """
    strategy = c.strategy
    residual = strategy.tokens * c.model.hidden * strategy.activation_width
    gathers = strategy.sequence_parallel.on * c.relax.has_others(strategy.tp)
    received = 2 * (1 - one_stage(strategy, c.relax)) / strategy.sequence_shards
    return residual * (gathers + received)


# --- inference


def kv_cache_bytes(c: Configuration, context: Scalar) -> Scalar:
    """Keys and values of `context` tokens of every sequence that a replica serves, or their latents, on a
    device of the stage that keeps most.
    """
    kept = over_kinds(_served_rows(c).layers, _cache_of_layers(c, context))
    return c.strategy.replica_sequences * largest(kept)


def _cache_of_layers(c: Configuration, context: Scalar) -> Float[Array, " kinds"]:
    """Bytes that a layer of every kind keeps on a device of one sequence of `context` tokens.

    Context-parallel ranks keep a part of the context each. A recurrence keeps its state, whatever the
    context; that of a state space is in fp32, as vLLM keeps it. A cache in blocks (PagedAttention, arXiv
    2309.06180 §4) fills its last block in part.
    """
    strategy, block = c.strategy, c.system.stack.cache_block
    paged = c.relax.ceil(context / strategy.cp / block) * block

    def kept(layers: Layers) -> Scalar:
        """Bytes that one layer keeps of one sequence."""
        cached = width(strategy.kv_precision)
        if layers.state_space is not None:
            states = layers.channels * layers.state_space.state * PRECISION_BYTES["fp32"]
            taps = larger(layers.state_space.convolution - 1, 0.0)
            convolved = taps * layers.state_space.convolved(layers.channels)
            return (states + strategy.activation_width * convolved) / strategy.tp
        if layers.recurrence is not None:
            return cached * layers.recurrence.state * layers.channels / strategy.tp
        if layers.latent is not None:
            token = layers.latent.kv_rank + layers.latent.rotary_dim
        else:
            token = 2 * layers.kv_heads_on_rank(strategy.tp) * layers.head_dim
        return cached * token * jnp.minimum(paged, layers.window / strategy.cp)

    return jnp.stack([kept(kind) for kind in c.model.grouped])


def tensor_bytes(c: Configuration) -> dict[str, Scalar]:
    """Bytes of each of `TENSOR_CLASSES` on a device of the fullest stage in inference, wherever they live.

    Each class of weights has its format. The KV cache is that of the end of generation. Activations are
    the widest of one pass, which works on what the prefill computes of all prompts, or on as many of these
    tokens as the stack puts into one pass, and the logits.
    """
    return {"activations": _widest_activations(c) + _served_logits_bytes(c)} | _kept_bytes(c)


def _kept_bytes(c: Configuration) -> dict[str, Scalar]:
    """Those of `tensor_bytes` that outlast a pass: weights by class, and the KV cache.

    The fullest stage is chosen exactly, since stages are alike more often than not: a smooth maximum would
    be some per cent above them.
    """
    cache = _cache_of_layers(c, c.strategy.sequence_length + c.strategy.output_length)
    stages = jax.vmap(lambda row: _kept_on_stage(c, row, cache))(_served_rows(c))
    totals = functools.reduce(operator.add, stages.values())
    fullest = jax.grad(largest)(totals)  # 1 for the fullest stage
    return {name: jnp.sum(fullest * part) for name, part in stages.items()}


def _served_rows(c: Configuration) -> _StageRow:
    """Contents of devices of the first, a middle and the last stage of serving software."""
    rows, of_last = _stage_rows(c), served_share_of_last(c.model, c.strategy, c.relax)
    return dataclasses.replace(rows, layers=rows.layers.at[-1].multiply(of_last))


def _kept_on_stage(c: Configuration, row: _StageRow, cache: Float[Array, " kinds"]) -> dict[str, Scalar]:
    """Bytes that outlast a pass on a device of one stage, whose layers of every kind keep `cache` bytes of a
    sequence.
    """
    model, strategy = c.model, c.strategy
    heads = row.heads * (1 - one_stage(strategy, c.relax) * model.tied_embeddings.on)
    parameters = parameters_of_layers(
        model, strategy, row.layers, embeddings=row.embeddings, heads=heads, modules=row.modules
    )
    around_attention = [
        kind.attention_parameters_on_rank(model.hidden, strategy.tp) for kind in model.grouped
    ]
    attention = over_kinds(row.layers, jnp.stack(around_attention))
    tables = (row.embeddings + heads) * model.embedding_parameters / strategy.tp
    return {
        "attention_weights": attention * strategy.served_weight_width,
        "mlp_weights": (parameters.dense - attention - tables) * strategy.served_weight_width,
        "kv_cache": strategy.replica_sequences * over_kinds(row.layers, cache),
        "expert_weights": parameters.experts * strategy.served_expert_width,
        "embeddings": tables * strategy.served_head_width,
    }


def _total_weights(tensors: dict[str, Scalar]) -> Scalar:
    """Bytes of all classes of weights among the bytes of tensors by class."""
    return functools.reduce(operator.add, (tensors[name] for name in _WEIGHTS))


def inference_residency(c: Configuration) -> Residency | None:
    """The memory levels in which tensors of inference live; None where all of them can only live in device
    memory.
    """
    if not holds_tensors(c.system.accelerator):
        return None
    return residency(c.system, tensor_bytes(c), c.relax)


def inference_memory(c: Configuration) -> Memory:
    """Weights, the KV cache at the end of generation, and the widest activations of one pass."""
    accelerator, placed = c.system.accelerator, inference_residency(c)
    activations, logits = _widest_activations(c), _served_logits_bytes(c)
    if placed is None:
        here, elsewhere = _kept_bytes(c), ()
    else:
        here = dict(zip(TENSOR_CLASSES, placed.stored[accelerator.device_level], strict=True))
        share = placed.shares[accelerator.device_level, TENSOR_CLASSES.index("activations")]
        activations, logits = activations * share, logits * share
        levels = zip(accelerator.memory, placed.stored, strict=True)
        elsewhere = tuple(_level_use(level, stored) for level, stored in levels if level.holds is not None)
    zero = jnp.zeros_like(c.strategy.tp)
    stage = {
        "weights": _total_weights(here),
        "gradients": zero,
        "optimizer": zero,
        "activations": activations,
        "logits": logits,
        "gathered": zero,
        "buffers": zero,
        "kv_cache": here["kv_cache"],
    }
    return Memory.of(c, {name: part[None] for name, part in stage.items()}, elsewhere)


def _level_use(level: MemoryLevel, stored: Float[Array, " classes"]) -> LevelUse:
    """The use of a memory level that stores some bytes of each of `TENSOR_CLASSES`."""
    peak = jnp.sum(stored)
    return LevelUse(
        name=level.name,
        **dict(zip(TENSOR_CLASSES, stored, strict=True)),
        peak=peak,
        capacity=level.capacity,
        excess=peak / level.capacity - 1,
    )


def _widest_activations(c: Configuration) -> Scalar:
    """Bytes of the widest activations of one pass: twice the residual stream and a layer's inner
    activation.
    """
    strategy = c.strategy
    prompts = strategy.replica_sequences * strategy.prefilled_length / strategy.cp
    tokens = c.relax.minimum(prompts, c.system.stack.pass_tokens)
    inner = [inner_elements(kind, strategy, tokens) * (1 + kind.gated.on) for kind in c.model.layers]
    return strategy.activation_width * (2 * tokens * c.model.hidden + largest(jnp.stack(inner)))


def _served_logits_bytes(c: Configuration) -> Scalar:
    """The logits of the next token of every sequence, and after each drafted one, in fp32 for the sampler."""
    rows = c.strategy.replica_sequences * (1 + c.strategy.draft_tokens)
    return rows * c.model.vocabulary / c.strategy.tp * PRECISION_BYTES["fp32"]
