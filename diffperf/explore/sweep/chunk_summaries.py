"""Summaries of chunks of points: what can be left out is left out on the device, where points are estimated.

A compiled program first finds which points of a chunk are possible layouts and fit memory, which takes a
tenth of an estimate, then estimates these, counts them into histograms, and marks the candidates for the best
and for the front. Only these few are looked at by the host, exactly.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.explore.sweep.chunk_candidates import Reached, candidates
from diffperf.explore.sweep.designed_points import configuration_of, reported
from diffperf.explore.sweep.histograms import BINS, bins_of
from diffperf.explore.sweep.point_estimates import BLOCK, recorded_outputs
from diffperf.explore.sweep.space import Region
from diffperf.explore.sweep.summary import COUNTS, Summary, SummaryRules
from diffperf.workload.rules import feasible


@dataclasses.dataclass(frozen=True)
class ChunkSummaries:
    """The compiled programs that summarize chunks of a space, one for each region.

    - `chunk`: points of a chunk, a multiple of `BLOCK`.
    - `programs`: from the places of the first point, the number of points and what earlier points reach to
      counts, histograms, outputs and marks of candidates.
    """

    rules: SummaryRules
    chunk: int
    programs: dict[Region, Callable[..., Any]]

    def summarize(self, start: int, stop: int, earlier: Summary) -> Summary:
        """The summary of the points from number `start` to before `stop`, at most a chunk and of one region,
        as far as they change that of earlier points."""
        rules, region = self.rules, self.rules.space.region_of(start)
        places = np.asarray(region.places(start), np.int32)
        reached = rules.thresholds(earlier), rules.references(earlier)
        found = jax.device_get(self.programs[region](places, np.int32(stop - start), reached))
        fitting = int(found["fitting"])
        numbers = start + found["offset"][:fitting].astype(np.int64)

        def rows(chosen: np.ndarray) -> np.ndarray:
            table = np.empty(len(chosen), rules.row_type)
            table["number"] = numbers[chosen]
            for path, column in found["outputs"].items():
                table[path] = column[chosen]
            return table

        sample = rows(np.flatnonzero(numbers % rules.stride == 0))
        return rules.of_candidates(
            rows(np.flatnonzero(found["candidate"][:fitting])),
            {name: int(found[name]) for name in COUNTS},
            sample[np.isfinite(rules.ranks(sample))],
            found["counts"].astype(np.int64),
        )


def compile_summaries(rules: SummaryRules, chunk: int) -> ChunkSummaries:
    """Compiles the programs that summarize chunks of at most so many points, a multiple of `BLOCK`."""
    places = jax.ShapeDtypeStruct((len(rules.space.shape),), jnp.int32)
    nothing = rules.empty()
    arguments = places, np.int32(0), (rules.thresholds(nothing), rules.references(nothing))
    programs = {
        region: jax.jit(_summarizer(rules, chunk, region)).lower(*arguments).compile()
        for region in rules.space.regions
    }
    return ChunkSummaries(rules, chunk, programs)


def _summarizer(rules: SummaryRules, chunk: int, region: Region) -> Callable[..., Any]:
    """The function that `ChunkSummaries` compiles for a region."""
    space, recorded = rules.space, recorded_outputs(rules.space)
    base = space.base(rules.dtype)

    def check(first: Int[Array, " dimensions"], offset: Int[Array, ""]) -> tuple[Array, Array, Array]:
        """Whether a point satisfies the constraints, is a possible layout, and fits memory; XLA leaves out
        all else."""
        inputs = space.point(region.advance(first, offset), base, region)
        fits = reported(inputs, space.phase)["memory.excess"][1] <= 0
        return space.allows(inputs), feasible(configuration_of(inputs), space.phase), fits

    def evaluate(first: Int[Array, " dimensions"], offset: Int[Array, ""]) -> dict[str, Array]:
        """The recorded outputs of a point."""
        inputs = space.point(region.advance(first, offset), base, region)
        estimated = reported(inputs, space.phase)
        return {path: estimated[path][1] for path in recorded}

    def summarize(
        first: Int[Array, " dimensions"], points: Int[Array, ""], reached: Reached
    ) -> dict[str, Any]:
        offsets = jnp.arange(chunk, dtype=jnp.int32)
        in_blocks = offsets.reshape(-1, BLOCK)
        checked = jax.lax.map(jax.vmap(lambda offset: check(first, offset)), in_blocks)
        allowed, possible, fits = (facts.reshape(chunk) for facts in checked)
        allowed &= offsets < points
        possible &= allowed
        fitting = possible & fits
        count = jnp.sum(fitting, dtype=jnp.int32)
        # The fitting points move to the front; the places behind them repeat the first point.
        (chosen,) = jnp.nonzero(fitting, size=chunk, fill_value=0)
        chosen = chosen.astype(jnp.int32)

        def step(block: Int[Array, ""], state: tuple[Any, ...]) -> tuple[Any, ...]:
            columns, counts = state
            begin = block * BLOCK
            offset = jax.lax.dynamic_slice(chosen, (begin,), (BLOCK,))
            found = jax.vmap(lambda offset: evaluate(first, offset))(offset)
            real = begin + jnp.arange(BLOCK, dtype=jnp.int32) < count
            columns = {
                path: jax.lax.dynamic_update_slice(columns[path], found[path], (begin,)) for path in recorded
            }
            return columns, _counted(rules, counts, found, real & _sound(rules, found))

        state = (
            {path: jnp.zeros(chunk, rules.dtype) for path in recorded},
            jnp.zeros((len(space.histograms), BINS), jnp.int32),
        )
        columns, counts = jax.lax.fori_loop(0, (count + BLOCK - 1) // BLOCK, step, state)
        return {
            "points": jnp.sum(allowed, dtype=jnp.int32),
            "feasible": jnp.sum(possible, dtype=jnp.int32),
            "fitting": count,
            "unsound": jnp.sum(~_sound(rules, columns) & (offsets < count), dtype=jnp.int32),
            "offset": chosen,
            "candidate": jax.lax.cond(
                count > 0,
                lambda: candidates(rules, region.advance(first, chosen), columns, offsets < count, reached),
                lambda: jnp.zeros(chunk, bool),
            ),
            "outputs": columns,
            "counts": counts,
        }

    return summarize


def _sound(rules: SummaryRules, found: dict[str, Float[Array, " points"]]) -> Bool[Array, " points"]:
    """Whether all outputs that points are compared by are numbers."""
    compared = (rules.space.rank_by, *(path for path, _ in rules.space.objectives))
    return jnp.all(jnp.stack([jnp.isfinite(found[path]) for path in compared]), axis=0)


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
