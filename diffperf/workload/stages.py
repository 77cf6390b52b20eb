"""Contents of the first, a middle and the last pipeline stage (layers of every kind, embeddings, modules of
multi-token prediction), and of the devices that hold stages.

Degrees are real numbers, so stages are not listed one by one: all middle stages are alike, and arrays have
three rows. Kinds of layers are in the order of `Model.grouped`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import TINY, Relaxation, choose, larger, smaller
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

STAGES = 3  # rows of every array: the first, a middle and the last stage

Rows = Float[Array, "stages"]


class StageLayers(eqx.Module):
    """Layers of the first, a middle and the last pipeline stage, as real numbers."""

    first: Scalar
    middle: Scalar
    last: Scalar


class DeviceStages(eqx.Module):
    """Contents of a device of the first, a middle and the last pipeline stage, for each stage that it holds.

    A device of DualPipe holds two stages, one from either end of the pipeline, and works on half of the
    micro-batches in each (DeepSeek-V3, arXiv 2412.19437 §3.2.1): the rows are the means of the two stages.
    Under all other schedules a device holds one stage (`held_stages`).

    Where layers do not divide evenly, the rows are those of the fullest stages. Some of the middle stages
    then hold less, so that all stages together hold the layers of the model: `middles`.
    """

    layers: Float[Array, "stages kinds"]  # without those of multi-token prediction
    middles: Float[Array, " kinds"]  # layers of all middle stages together
    lighter: Scalar  # middle stages that hold a layer less in every chunk than the fullest
    embeddings: Rows  # token embeddings
    heads: Rows  # vocabulary projections
    modules: Rows  # modules of multi-token prediction, each with a layer of the last kind
    last_kind: int = eqx.field(static=True)  # the kind of the model's last layers

    @property
    def all_layers(self) -> Float[Array, "stages kinds"]:
        """Layers of every kind, with those of multi-token prediction."""
        return self.layers.at[:, self.last_kind].add(self.modules)


def over_kinds(counts: Float[Array, "... kinds"], numbers: Float[Array, "..."]) -> Array:
    """The sum of a number of every kind of layers, each times the count of such layers."""
    if counts.shape[-1] == 1:
        return (counts * numbers)[..., 0]
    return jnp.sum(counts * numbers, axis=-1)


def one_stage(strategy: Strategy, relax: Relaxation) -> Scalar:
    """1 where there is no pipeline, 0 from two stages on."""
    return 1 - relax.has_others(strategy.pp)


def held_stages(strategy: Strategy) -> Scalar:
    """Stages whose layers a device holds: two with DualPipe, one from either end of the pipeline, else
    one.
    """
    return 1 + strategy.schedule.dualpipe


def stage_layers(model: Model, strategy: Strategy, relax: Relaxation) -> StageLayers:
    """Layers of the first, a middle and the last pipeline stage.

    Stages hold the same whole number of layers in each chunk, at least the fullest ones do, but for what the
    strategy says of the first and the last stage: numbers of layers of their own, or embeddings that take the
    place of a layer. The second of two stages holds what the first leaves. With a balanced head the last
    stage holds fewer layers, so that all stages compute as much, or no layer where the projection alone is
    more: layers and projection count by the size of their matrices (the partition of
    github.com/huggingface/nanotron).
    """
    depth = model.depth
    alone = one_stage(strategy, relax)

    def split() -> StageLayers:
        return _split_layers(depth, strategy, alone, relax)

    def balanced() -> StageLayers:
        """Stages that compute as much as each other, with the vocabulary projection counted as layers."""
        matrices = sum(kind.count * kind.active_matrices(model.hidden) for kind in model.layers)
        projection = model.embedding_parameters * depth / matrices  # in layers
        last = relax.excess((depth + projection) / strategy.pp, projection)
        others = relax.ceil((depth - last) / larger(strategy.pp - 1, 1.0))
        fullest = (1 - alone) * others + alone * depth
        return StageLayers(first=fullest, middle=fullest, last=last)

    return choose(strategy.balanced_head, {"off": split, "on": balanced})


def _split_layers(depth: Scalar, strategy: Strategy, alone: Scalar, relax: Relaxation) -> StageLayers:
    """Stages of alike chunks, but for the first and the last stage (Megatron-LM's
    `get_num_layers_to_build`, megatron/core/transformer/transformer_block.py).

    Embeddings that stand in for a layer count as one more layer to share out, which the first or the last
    stage does not have.
    """
    beyond_one = 1 - alone
    first, last = strategy.first_stage_layers, strategy.last_stage_layers
    given_first, given_last = jnp.where(first > 0, beyond_one, 0.0), jnp.where(last > 0, beyond_one, 0.0)
    embedding = strategy.embedding_in_split.on * beyond_one * (1 - given_first)
    loss = strategy.loss_in_split.on * beyond_one * (1 - given_last)
    others = larger(strategy.pp - given_first - given_last, 1.0)
    shared = larger(depth - given_first * first - given_last * last, 0.0) + embedding + loss
    middle = relax.ceil(shared / (others * strategy.virtual_stages)) * strategy.virtual_stages
    first = given_first * first + (1 - given_first) * larger(middle - embedding, 0.0)
    last = given_last * last + (1 - given_last) * larger(middle - loss, 0.0)
    # Two stages have no middle one: it must not be the fullest.
    has_middle = relax.minimum(larger(strategy.pp - 2, 0.0), 1.0)
    last = jnp.where(strategy.pp >= 2, smaller(last, larger(depth - first, 0.0)), last)
    least = smaller(first, last)
    return StageLayers(first=first, middle=least + has_middle * (middle - least), last=last)


def served_share_of_last(model: Model, strategy: Strategy, relax: Relaxation) -> Scalar:
    """The layers of the last stage of serving software, over those of the last of `stage_layers`.

    Where stages cannot be alike, the last one has none of the remaining layers (`get_pp_indices` of
    vllm/distributed/utils.py).
    """
    fullest = larger(stage_layers(model, strategy, relax).last, 1.0)
    alike = relax.floor(model.depth / strategy.pp)
    return jnp.where(strategy.pp >= 2, smaller(alike / fullest, 1.0), 1.0)


def device_stages(model: Model, strategy: Strategy, relax: Relaxation) -> DeviceStages:
    """Contents of the devices of the first, a middle and the last pipeline stage."""
    stages = stage_layers(model, strategy, relax)
    ends = jnp.eye(STAGES, dtype=strategy.pp.dtype)
    heads = _of_devices(ends[-1], strategy)
    if len(model.layers) == 1:
        layers = jnp.stack([stages.first, stages.middle, stages.last])[:, None]
    else:
        layers = _layers_by_kind(model, strategy, relax, stages)
    counts = jnp.stack([kind.count for kind in model.grouped])
    between = larger(strategy.pp - 2, 0.0)
    middles = larger(counts - layers[0] - layers[-1], 0.0)
    lacking = larger(between * stages.middle - jnp.sum(middles), 0.0)  # layers
    return DeviceStages(
        layers=_of_devices(layers, strategy),
        middles=middles,
        lighter=smaller(lacking / strategy.virtual_stages, between),
        embeddings=_of_devices(ends[0], strategy),
        heads=heads,
        modules=heads * model.mtp_layers,
        last_kind=model.last_kind,
    )


def at_both_ends(rows: Rows, alone: Scalar) -> Rows:
    """Contents of the stages, each end with the contents of the other end too where a stage is `alone`."""
    return rows + alone * larger(rows[::-1] - rows, 0.0)


def _of_devices(rows: Float[Array, "stages *kinds"], strategy: Strategy) -> Float[Array, "stages *kinds"]:
    """A number of the stages of a device, as a mean over them.

    With DualPipe the devices at both ends hold the first and the last stage, those between them two middle
    stages.
    """
    return rows + strategy.schedule.dualpipe / 2 * (rows[::-1] - rows)


def _layers_by_kind(
    model: Model, strategy: Strategy, relax: Relaxation, stages: StageLayers
) -> Float[Array, "stages kinds"]:
    """Layers of every kind on the first, a middle and the last stage.

    Leading layers fill the first stage; what does not fit there is spread over the others. Layers of all
    other kinds alternate, and are spread evenly.
    """
    kinds = model.grouped
    counts = jnp.stack([kind.count for kind in kinds])
    leading = jnp.stack([kind.leading.on for kind in kinds]) * counts
    following = counts - leading
    depth, leads = jnp.sum(counts), jnp.sum(leading)
    share_leading = leading / larger(leads, TINY)
    share_following = following / larger(depth - leads, TINY)

    def split(layers: Scalar, leads: Scalar) -> Float[Array, " kinds"]:
        """The layers of a stage by kind, of which a number leads."""
        return leads * share_leading + (layers - leads) * share_following

    on_first = relax.minimum(leads, stages.first)
    elsewhere = larger(leads - on_first, 0.0) / larger(depth - stages.first, 1.0)
    first = split(stages.first, on_first)
    alone = one_stage(strategy, relax)

    def beyond_first(layers: Scalar) -> Float[Array, " kinds"]:
        """The layers of a stage after the first, or of the first where there is no other."""
        return (1 - alone) * split(layers, smaller(elsewhere, 1.0) * layers) + alone * first

    return jnp.stack([first, beyond_first(stages.middle), beyond_first(stages.last)])


def layers_of_model(model: Model) -> Float[Array, " kinds"]:
    """The layers of every kind of a model, with those of its modules of multi-token prediction."""
    counts = jnp.stack([kind.count for kind in model.grouped])
    return counts.at[model.last_kind].add(model.mtp_layers)
