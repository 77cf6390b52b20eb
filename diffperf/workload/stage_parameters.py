"""The parameters that one device holds, and how they are shared between the ranks that would hold the
same.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, larger
from diffperf.workload.model import Model
from diffperf.workload.stages import at_both_ends, device_stages, held_stages, one_stage, over_kinds
from diffperf.workload.strategy import Strategy


class StageParameters(eqx.Module):
    """Number of parameters on one device, by the number of ranks that hold copies of them."""

    dense: Scalar  # held by every context- and data-parallel rank
    experts: Scalar  # held by fewer ranks, as experts are split over some of them

    @property
    def total(self) -> Scalar:
        """Number of all parameters on the device."""
        return self.dense + self.experts

    def weighted(self, dense: Scalar, experts: Scalar) -> Scalar:
        """The parameters, each kind times a number of its own."""
        return self.dense * dense + self.experts * experts


def parameters_of_layers(
    model: Model,
    strategy: Strategy,
    layers: Float[Array, " kinds"],
    *,
    embeddings: Scalar,
    heads: Scalar,
    modules: Scalar,
) -> StageParameters:
    """Parameters of some layers of every kind (ordered as `Model.grouped`), input embeddings, vocabulary
    projections and modules of multi-token prediction on one device.

    A module is a projection and a layer of the last kind (DeepSeek-V3, arXiv 2412.19437 §2.2), and shares
    the embeddings.
    """
    kinds, tp = model.grouped, strategy.tp
    of_kinds = jnp.stack([kind.dense_parameters_on_rank(model.hidden, tp) for kind in kinds])
    dense = over_kinds(layers, of_kinds)
    routed = over_kinds(layers, jnp.stack([kind.routed_parameters(model.hidden) for kind in kinds]))
    last = model.layers[-1]
    prediction = 2 * model.hidden**2 / tp + last.dense_parameters_on_rank(model.hidden, tp)
    tables = (embeddings + heads) * model.embedding_parameters / tp
    positions = embeddings * model.learned_positions * model.hidden
    routed = routed + modules * last.routed_parameters(model.hidden)
    return StageParameters(
        dense=dense + tables + modules * prediction + positions,
        experts=routed / (strategy.experts_tp * strategy.ep),
    )


def stage_parameters(model: Model, strategy: Strategy, relax: Relaxation) -> StageParameters:
    """Parameters on one device of the first pipeline stage, which ends its part of a step last, or of a
    middle stage where that one has more.

    With one stage a tied embedding is stored once; with more, the first and the last stage hold a copy
    each. A device of DualPipe holds both ends of the pipeline: twice the layers, both embeddings, and the
    modules of multi-token prediction.
    """
    stages, number = device_stages(model, strategy, relax), held_stages(strategy)
    alone = one_stage(strategy, relax)
    ends = [at_both_ends(rows, alone) for rows in (stages.embeddings, stages.heads, stages.modules)]

    def of_row(row: int) -> StageParameters:
        """Parameters of all stages that a device of the first (0) or a middle stage (1) holds."""
        embeddings, heads, modules = (number * rows[row] for rows in ends)
        heads = heads * (1 - alone * model.tied_embeddings.on)
        layers = number * stages.layers[row]
        return parameters_of_layers(
            model, strategy, layers, embeddings=embeddings, heads=heads, modules=modules
        )

    first, middle = of_row(0), of_row(1)
    has_more = first.total >= middle.total
    return jax.tree.map(lambda of_first, of_middle: jnp.where(has_more, of_first, of_middle), first, middle)


class ZeroGroups(eqx.Module):
    """The groups over which ZeRO shards parameters, by how many ranks hold the same: groups of all these
    ranks, or of as many as hybrid sharding says.
    """

    strategy: Strategy
    relax: Relaxation

    @property
    def dense(self) -> Scalar:
        """Ranks that share what every context- and data-parallel rank would hold."""
        return self._share(self.strategy.replicas)

    @property
    def experts(self) -> Scalar:
        """Ranks that share the experts that each of them would hold."""
        return self._share(self.strategy.expert_replicas)

    def _share(self, replicas: Scalar) -> Scalar:
        within_group = self.relax.minimum(self.strategy.zero_ranks, replicas)
        return larger(jnp.where(self.strategy.zero_ranks > 0, within_group, replicas), 1.0)


def kept_share(sharded: Scalar, ranks: Scalar) -> Scalar:
    """The share that each of some ranks keeps of what ZeRO shards over them (arXiv 1910.02054 §5).

    `sharded` is the weight of the ZeRO stages that shard it.
    """
    return 1 - sharded * (1 - 1 / ranks)


def owned_parameters(strategy: Strategy, parameters: StageParameters, relax: Relaxation) -> Scalar:
    """Parameters that a device updates: those whose optimizer state it keeps.

    Two devices of DualPipe hold the same two stages, and update half of them each.
    """
    groups, sharded = ZeroGroups(strategy, relax), strategy.shards_optimizer
    kept = parameters.weighted(kept_share(sharded, groups.dense), kept_share(sharded, groups.experts))
    return kept / held_stages(strategy)
