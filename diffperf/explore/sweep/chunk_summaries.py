"""Summaries of chunks of points: what can be left out is left out on the device, where points are estimated.

A compiled program first finds which points of a chunk are possible layouts and fit memory, which takes a
tenth of an estimate, then estimates these, counts them into histograms, and marks the candidates: points
that beat the best of earlier chunks, or that no point of the front of earlier chunks dominates. Only these
few are looked at by the host, exactly.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.estimate.phases import estimate
from diffperf.explore.sweep.histograms import BINS, bins_of
from diffperf.explore.sweep.point_estimates import BLOCK, recorded_outputs
from diffperf.explore.sweep.summary import Summary, SummaryRules
from diffperf.report.tables import outputs
from diffperf.workload.rules import feasible

# The numbers that a chunk's program depends on beside its points: what earlier points reach.
Reached = tuple[list[Array], Array]


@dataclasses.dataclass(frozen=True)
class ChunkSummaries:
    """The compiled program that summarizes chunks of a space.

    - `chunk`: points of a chunk, a multiple of `BLOCK`.
    - `program`: from the digits of the first point, the number of points and what earlier points reach to
      counts, histograms, outputs and marks of candidates.
    """

    rules: SummaryRules
    chunk: int
    program: Callable[..., Any]

    def summarize(self, start: int, stop: int, earlier: Summary) -> Summary:
        """The summary of the points from number `start` to before `stop`, at most a chunk, as far as they
        change that of earlier points."""
        space, rules = self.rules.space, self.rules
        digits = jnp.asarray(space.digits(start), jnp.int32)
        reached = rules.thresholds(earlier), rules.references(earlier)
        found = jax.device_get(self.program(digits, np.int32(stop - start), reached))
        fitting = int(found["fitting"])
        numbers = start + found["offset"][:fitting].astype(np.int64)

        def rows(chosen: np.ndarray) -> np.ndarray:
            table = np.empty(len(chosen), rules.row_type)
            table["number"] = numbers[chosen]
            for path, column in found["outputs"].items():
                table[path] = column[chosen]
            return table

        return rules.of_candidates(
            rows(np.flatnonzero(found["candidate"][:fitting])),
            int(found["points"]),
            int(found["feasible"]),
            fitting,
            rows(np.flatnonzero(numbers % rules.stride == 0)),
            found["counts"].astype(np.int64),
        )


def compile_summaries(rules: SummaryRules, chunk: int) -> ChunkSummaries:
    """Compiles the program that summarizes chunks of at most so many points, a multiple of `BLOCK`."""
    digits = jax.ShapeDtypeStruct((len(rules.space.shape),), jnp.int32)
    nothing = rules.empty()
    reached = rules.thresholds(nothing), rules.references(nothing)
    program = jax.jit(_summarizer(rules, chunk)).lower(digits, np.int32(0), reached).compile()
    return ChunkSummaries(rules, chunk, program)


def _summarizer(rules: SummaryRules, chunk: int) -> Callable[..., Any]:
    """The function that `ChunkSummaries` compiles."""
    space, recorded = rules.space, recorded_outputs(rules.space)
    base = jax.tree.map(lambda leaf: leaf.astype(rules.dtype), space.inputs)

    def check(first: Int[Array, " dimensions"], offset: Int[Array, ""]) -> tuple[Array, Array]:
        """Whether a point is a possible layout, and whether it fits memory; XLA leaves out all else."""
        inputs = space.point(space.advance(first, offset), base)
        excess = outputs(estimate(inputs, space.phase))["memory.excess"][1]
        return feasible(inputs, space.phase), excess <= 0

    def evaluate(first: Int[Array, " dimensions"], offset: Int[Array, ""]) -> dict[str, Array]:
        """The recorded outputs of a point."""
        reported = outputs(estimate(space.point(space.advance(first, offset), base), space.phase))
        return {path: reported[path][1] for path in recorded}

    def summarize(
        first: Int[Array, " dimensions"], points: Int[Array, ""], reached: Reached
    ) -> dict[str, Any]:
        offsets = jnp.arange(chunk, dtype=jnp.int32)
        in_blocks = offsets.reshape(-1, BLOCK)
        possible, fits = jax.lax.map(jax.vmap(lambda offset: check(first, offset)), in_blocks)
        possible = possible.reshape(chunk) & (offsets < points)
        fitting = possible & fits.reshape(chunk)
        count = jnp.sum(fitting, dtype=jnp.int32)
        # The fitting points move to the front; the places behind them repeat the first point.
        (chosen,) = jnp.nonzero(fitting, size=chunk, fill_value=0)
        chosen = chosen.astype(jnp.int32)

        def step(block: Int[Array, ""], state: tuple[Any, ...]) -> tuple[Any, ...]:
            columns, candidate, counts = state
            begin = block * BLOCK
            offset = jax.lax.dynamic_slice(chosen, (begin,), (BLOCK,))
            found = jax.vmap(lambda offset: evaluate(first, offset))(offset)
            real = begin + jnp.arange(BLOCK, dtype=jnp.int32) < count
            marked = _candidates(rules, space.advance(first, offset), found, reached)
            columns = {
                path: jax.lax.dynamic_update_slice(columns[path], found[path], (begin,)) for path in recorded
            }
            candidate = jax.lax.dynamic_update_slice(candidate, marked & real, (begin,))
            return columns, candidate, _counted(rules, counts, found, real)

        state = (
            {path: jnp.zeros(chunk, rules.dtype) for path in recorded},
            jnp.zeros(chunk, bool),
            jnp.zeros((len(space.histograms), BINS), jnp.int32),
        )
        columns, candidate, counts = jax.lax.fori_loop(0, (count + BLOCK - 1) // BLOCK, step, state)
        return {
            "points": points,
            "feasible": jnp.sum(possible, dtype=jnp.int32),
            "fitting": count,
            "offset": chosen,
            "candidate": candidate,
            "outputs": columns,
            "counts": counts,
        }

    return summarize


def _candidates(
    rules: SummaryRules, digits: list[Array], found: dict[str, Array], reached: Reached
) -> Bool[Array, " points"]:
    """Which points may be among the best, or on the front, for all that is known of earlier points."""
    thresholds, references = reached
    rank = found[rules.space.rank_by] * (-1 if rules.space.descending else 1)
    marked = jnp.zeros(rank.shape, bool)
    for ranking, threshold in zip(rules.rankings, thresholds, strict=True):
        marked |= rank < threshold[ranking.of_digits(digits)]
    if not rules.space.objectives:
        return marked
    objectives = [found[path] * sign for path, sign in rules.space.objectives]
    better = [references[:, i, None] <= value for i, value in enumerate(objectives)]
    return marked | ~jnp.any(jnp.all(jnp.stack(better), axis=0), axis=0)


def _counted(
    rules: SummaryRules,
    counts: Int[Array, "outputs bins"],
    found: dict[str, Float[Array, " points"]],
    real: Bool[Array, " points"],
) -> Int[Array, "outputs bins"]:
    """The histograms with the values of further points."""
    for row, path in enumerate(rules.space.histograms):
        counts = counts.at[row, bins_of(found[path])].add(real.astype(jnp.int32))
    return counts
