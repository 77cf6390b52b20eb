"""Candidates of a chunk for the best points and the front: a test on the device that leaves out most points.

No point is left out that belongs to the summary of the chunk and all points before it. Points are often
better and better in their order, as where an axis is a bandwidth, so that what earlier chunks reach leaves
out little: the points of a chunk are compared with one another too.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.explore.sweep.device_sizes import block_of
from diffperf.explore.sweep.summary import Ranking, SummaryRules

# What points of earlier chunks reach: the ranks to be below, by ranking and group, and points of the front.
Reached = tuple[list[Array], Array]

_DIRECTIONS = 12  # in which points of a chunk are chosen that the others are compared with


def candidates(
    rules: SummaryRules,
    digits: list[Int[Array, " points"]],
    found: dict[str, Float[Array, " points"]],
    real: Bool[Array, " points"],
    reached: Reached,
) -> Bool[Array, " points"]:
    """Whether each point may be among the best, or on the front; false for points that are not `real`."""
    thresholds, references = reached
    rank = jnp.where(real, found[rules.space.rank_by] * (-1 if rules.space.descending else 1), jnp.inf)
    marked = jnp.zeros(rank.shape, bool)
    for ranking, threshold in zip(rules.rankings, thresholds, strict=True):
        marked |= _may_be_best(ranking, ranking.of_digits(digits), rank, threshold)
    if rules.space.objectives:
        objectives = jnp.stack([found[path] * sign for path, sign in rules.space.objectives])
        marked |= ~_dominated(jnp.where(real, objectives, jnp.inf), references)
    # An infinite objective is no number that the others could be compared with.
    return marked & real & jnp.isfinite(rank)


def _may_be_best(
    ranking: Ranking,
    group: Int[Array, " points"],
    rank: Float[Array, " points"],
    threshold: Float[Array, " groups"],
) -> Bool[Array, " points"]:
    """Whether each point may be among the best `ranking.keep` of its group.

    Such a point is below the threshold of earlier points. Also, the points of a group are divided into as
    many subsets as points are kept: each subset has a point that is no worse than the worst of the subsets'
    minima, so that points above that value are not among the best.
    """
    subset = jnp.arange(rank.size, dtype=jnp.int32) % ranking.keep
    subsets = ranking.count * ranking.keep
    best = jax.ops.segment_min(rank, group * ranking.keep + subset, subsets).reshape(-1, ranking.keep)
    return (rank < threshold[group]) & (rank <= jnp.max(best, axis=1)[group])


def _dominated(
    objectives: Float[Array, "objectives points"], references: Float[Array, "references objectives"]
) -> Bool[Array, " points"]:
    """Whether each point is equalled or beaten in every objective by a point of the earlier front, or by one
    of the best points of the chunk in some direction; of equal points of the chunk, the first is not.

    Points that are not real are at infinity, behind all others.
    """
    places, size = _best_in_directions(objectives), block_of(objectives.shape[1])
    own = objectives[:, places]

    def of_block(block: Int[Array, ""], dominated: Bool[Array, " points"]) -> Bool[Array, " points"]:
        begin = block * size
        points = jax.lax.dynamic_slice_in_dim(objectives, begin, size, axis=1)
        by_earlier = jnp.all(references.T[:, :, None] <= points[:, None], axis=0)
        as_good = jnp.all(own[:, :, None] <= points[:, None], axis=0)
        better = jnp.any(own[:, :, None] < points[:, None], axis=0)
        later = begin + jnp.arange(size) > places[:, None]
        beaten = jnp.any(by_earlier, axis=0) | jnp.any(as_good & (better | later), axis=0)
        return jax.lax.dynamic_update_slice(dominated, beaten, (begin,))

    last = jnp.max(jnp.where(jnp.isfinite(objectives[0]), jnp.arange(objectives.shape[1]), -1))
    blocks = last // size + 1
    return jax.lax.fori_loop(0, blocks, of_block, jnp.ones(objectives.shape[1], bool))


def _best_in_directions(objectives: Float[Array, "objectives points"]) -> Int[Array, " directions"]:
    """The places of the chunk's best points in directions spread over the simplex, the same in every run.

    Compilers look for the least number of a long array one by one. Here blocks of points are compared with
    one another, place by place, and only the best of each place are looked through.
    """
    finite = jnp.isfinite(objectives)
    low = jnp.min(objectives, axis=1, keepdims=True)
    high = jnp.max(jnp.where(finite, objectives, -jnp.inf), axis=1, keepdims=True)
    scaled = jnp.where(finite, (objectives - low) / jnp.where(high > low, high - low, 1), jnp.inf)
    weights = np.random.default_rng(0).dirichlet(np.ones(len(objectives)), _DIRECTIONS)
    by_objective, size = jnp.asarray(weights.T[:, :, None], scaled.dtype), block_of(objectives.shape[1])

    def of_block(block: Int[Array, ""], state: tuple[Array, Array]) -> tuple[Array, Array]:
        least, blocks = state
        points = jax.lax.dynamic_slice_in_dim(scaled, block * size, size, axis=1)
        values = sum(weight * row for weight, row in zip(by_objective, points, strict=True))
        return jnp.where(values < least, values, least), jnp.where(values < least, block, blocks)

    nothing = (
        jnp.full((_DIRECTIONS, size), jnp.inf, scaled.dtype),
        jnp.zeros((_DIRECTIONS, size), jnp.int32),
    )
    least, blocks = jax.lax.fori_loop(0, objectives.shape[1] // size, of_block, nothing)
    column = jnp.argmin(least, axis=1)
    return blocks[jnp.arange(_DIRECTIONS), column] * size + column.astype(jnp.int32)
