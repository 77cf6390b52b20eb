"""The parameters that one device holds, and how they are shared between the ranks that would hold the
same.
"""

import functools
import operator

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, larger
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


class StageParameters(eqx.Module):
    """Parameters on one device, by how many ranks hold the same."""

    dense: Scalar  # held by every context- and data-parallel rank
    experts: Scalar  # held by fewer ranks, as experts are split over some of them

    @property
    def total(self) -> Scalar:
        return self.dense + self.experts

    def weighted(self, dense: Scalar, experts: Scalar) -> Scalar:
        """The parameters, each kind times a number of its own."""
        return self.dense * dense + self.experts * experts


def one_stage(strategy: Strategy, relax: Relaxation) -> Scalar:
    """1 where there is no pipeline, 0 from two stages on."""
    return 1 - relax.minimum(strategy.pp - 1, 1.0)


def parameters_of_layers(
    model: Model, strategy: Strategy, layers: Scalar, embeddings: Scalar, heads: Scalar
) -> StageParameters:
    """Parameters of some average layers, input embeddings and vocabulary projections on one device.

    Modules of multi-token prediction lie beside the vocabulary projection: each is a projection and a
    layer of the last kind (DeepSeek-V3, arXiv 2412.19437 §2.2), and shares the embeddings.
    """
    share = layers / model.depth
    dense = share * sum(kind.count * kind.dense_parameters(model.hidden) for kind in model.layers)
    routed = share * sum(kind.count * kind.routed_parameters(model.hidden) for kind in model.layers)
    last, modules = model.layers[-1], heads * model.mtp_layers
    prediction = 2 * model.hidden**2 + last.dense_parameters(model.hidden)
    tables = (embeddings + heads) * model.embedding_parameters
    positions = embeddings * model.learned_positions * model.hidden
    routed = routed + modules * last.routed_parameters(model.hidden)
    return StageParameters(
        dense=(dense + tables + modules * prediction) / strategy.tp + positions,
        experts=routed / (strategy.experts_tp * strategy.ep),
    )


def embedding_parameters_on_device(model: Model, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Parameters of the token embedding and the vocabulary projection among those of `stage_parameters`."""
    both = 1 + one_stage(strategy, relax) * model.tied_embeddings.off
    return both * model.embedding_parameters / strategy.tp


def attention_parameters_on_device(model: Model, strategy: Strategy) -> Scalar:
    """Parameters of the projections around attention among those of `stage_parameters`."""
    kinds = (kind.count * kind.attention_parameters(model.hidden) for kind in model.layers)
    return functools.reduce(operator.add, kinds) / (strategy.pp * strategy.tp)


def stage_parameters(model: Model, strategy: Strategy, relax: Relaxation) -> StageParameters:
    """Parameters on one device of the fullest stage: its layers, and the embeddings where the pipeline begins
    or ends.

    With one stage a tied embedding is stored once; with more, the first and the last stage hold a copy
    each.
    """
    alone = one_stage(strategy, relax)
    return parameters_of_layers(
        model,
        strategy,
        layers=model.depth / strategy.pp,
        embeddings=jnp.ones_like(alone),
        heads=alone * model.tied_embeddings.off,
    )


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
    """Parameters that a device updates: those whose optimizer state it keeps."""
    groups, sharded = ZeroGroups(strategy, relax), strategy.shards_optimizer
    return parameters.weighted(kept_share(sharded, groups.dense), kept_share(sharded, groups.experts))
