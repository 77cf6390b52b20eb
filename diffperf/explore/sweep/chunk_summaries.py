"""Summaries of chunks of points: what can be left out is left out on the device, where points are estimated.

A compiled program first finds which points of a chunk are possible layouts and fit memory, which takes a
tenth of an estimate, then estimates these, counts them into histograms, and marks the candidates for the best
and for the front. Only these few are looked at by the host, exactly. Where most points of the chunk before
fit memory, looking for them first costs more than it saves: then all points are estimated at once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.batch_last import vmap_last
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
    - `programs`: from the places of the first point, the number of points, what earlier points reach and
      whether all points are estimated at once to counts, histograms, outputs and marks of candidates.
    """

    rules: SummaryRules
    chunk: int
    programs: dict[Region, Callable[..., Any]]

    def summarize(self, start: int, stop: int, earlier: Summary, together: bool = False) -> Summary:
        """The summary of the points from number `start` to before `stop`, at most a chunk and of one region,
        as far as they change that of earlier points.

        - `together`: all points are estimated at once, because most of them are expected to fit memory. The
          summary is the same, but for rounding.
        """
        rules, region = self.rules, self.rules.space.region_of(start)
        places = np.asarray(region.places(start), np.int32)
        reached = rules.thresholds(earlier), rules.references(earlier)
        program, points = self.programs[region], np.int32(stop - start)
        found = jax.device_get(program(places, points, reached, np.bool_(together)))
        offsets = found["offset"] if together else found["offset"][: found["fitting"]]

        def rows(chosen: np.ndarray) -> np.ndarray:
            table = np.empty(len(chosen), rules.row_type)
            table["number"] = start + offsets[chosen].astype(np.int64)
            for path, column in found["outputs"].items():
                table[path] = column[chosen]
            return table

        in_sample = np.arange(-start % rules.stride, stop - start, rules.stride)
        chosen = _places_of(in_sample, offsets)
        sample = rows(chosen[found["real"][chosen]])
        return rules.of_candidates(
            rows(np.flatnonzero(found["candidate"])),
            {name: int(found[name]) for name in COUNTS},
            sample[np.isfinite(rules.ranks(sample))],
            found["counts"].astype(np.int64),
        )


def compile_summaries(rules: SummaryRules, chunk: int) -> ChunkSummaries:
    """Compiles the programs that summarize chunks of at most so many points, a multiple of `BLOCK`."""
    places = jax.ShapeDtypeStruct((len(rules.space.shape),), jnp.int32)
    nothing = rules.empty()
    reached = rules.thresholds(nothing), rules.references(nothing)
    arguments = places, np.int32(0), reached, np.bool_(False)
    programs = {
        region: jax.jit(_summarizer(rules, chunk, region)).lower(*arguments).compile()
        for region in rules.space.regions
    }
    return ChunkSummaries(rules, chunk, programs)


def _summarizer(rules: SummaryRules, chunk: int, region: Region) -> Callable[..., Any]:
    """The function that `ChunkSummaries` compiles for a region."""
    space, recorded = rules.space, recorded_outputs(rules.space)
    base = space.base(rules.dtype)

    def evaluate(first: Int[Array, " dimensions"], offset: Int[Array, ""]) -> tuple[Facts, dict[str, Array]]:
        """Whether a point satisfies the constraints, is a possible layout and fits memory, and its recorded
        outputs; XLA leaves out what is not used."""
        inputs = space.point(region.advance(first, offset), base, region)
        estimated = reported(inputs, space.phase)
        facts = Facts(
            allowed=jnp.asarray(space.allows(inputs)),
            possible=feasible(configuration_of(inputs), space.phase),
            fits=estimated["memory.excess"][1] <= 0,
        )
        return facts, {path: estimated[path][1] for path in recorded}

    def summarize(
        first: Int[Array, " dimensions"], points: Int[Array, ""], reached: Reached, together: Bool[Array, ""]
    ) -> dict[str, Any]:
        offsets = jnp.arange(chunk, dtype=jnp.int32)
        evaluate_all = vmap_last(lambda offset: evaluate(first, offset))

        def after_check() -> tuple[Facts, Array, Array]:
            """The facts of all points, and those that fit moved to the front; the places behind them repeat
            the first point."""
            checked = jax.lax.map(lambda block: evaluate_all(block)[0], offsets.reshape(-1, BLOCK))
            facts = jax.tree.map(jnp.ravel, checked).among(offsets < points)
            (chosen,) = jnp.nonzero(facts.fits, size=chunk, fill_value=0)
            return facts, chosen.astype(jnp.int32), jnp.sum(facts.fits, dtype=jnp.int32)

        def without_check() -> tuple[Facts, Array, Array]:
            unknown = Facts(*[jnp.zeros(chunk, bool)] * 3)
            return unknown, offsets, points

        checked, chosen, count = jax.lax.cond(together, without_check, after_check)

        def step(block: Int[Array, ""], state: tuple[Any, ...]) -> tuple[Any, ...]:
            columns, facts, counts = state
            begin = block * BLOCK
            now, found = evaluate_all(jax.lax.dynamic_slice(chosen, (begin,), (BLOCK,)))
            now = now.among(begin + jnp.arange(BLOCK, dtype=jnp.int32) < count)
            columns, facts = jax.tree.map(
                lambda column, values: jax.lax.dynamic_update_slice(column, values, (begin,)),
                (columns, facts),
                (found, now),
            )
            return columns, facts, _counted(rules, counts, found, now.fits & _sound(rules, found))

        state = (
            {path: jnp.zeros(chunk, rules.dtype) for path in recorded},
            Facts(*[jnp.zeros(chunk, bool)] * 3),
            jnp.zeros((len(space.histograms), BINS), jnp.int32),
        )
        columns, evaluated, counts = jax.lax.fori_loop(0, (count + BLOCK - 1) // BLOCK, step, state)
        facts = jax.tree.map(lambda early, late: jnp.where(together, late, early), checked, evaluated)
        real = evaluated.fits
        return {
            "points": jnp.sum(facts.allowed, dtype=jnp.int32),
            "feasible": jnp.sum(facts.possible, dtype=jnp.int32),
            "fitting": jnp.sum(real, dtype=jnp.int32),
            "unsound": jnp.sum(~_sound(rules, columns) & real, dtype=jnp.int32),
            "offset": chosen,
            "real": real,
            "candidate": jax.lax.cond(
                jnp.any(real),
                lambda: candidates(rules, region.advance(first, chosen), columns, real, reached),
                lambda: jnp.zeros(chunk, bool),
            ),
            "outputs": columns,
            "counts": counts,
        }

    return summarize


class Facts(NamedTuple):
    """Whether points satisfy the constraints of a space, are possible layouts, and fit memory."""

    allowed: Bool[Array, "*points"]
    possible: Bool[Array, "*points"]
    fits: Bool[Array, "*points"]

    def among(self, real: Bool[Array, "*points"]) -> "Facts":
        """Each fact only where those before it hold too, and the point is real."""
        allowed = real & self.allowed
        possible = allowed & self.possible
        return Facts(allowed, possible, possible & self.fits)


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


def _places_of(wanted: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """The places of those of the wanted numbers that are among ascending ones."""
    places = np.searchsorted(ascending, wanted)
    before_end = places < len(ascending)
    places, wanted = places[before_end], wanted[before_end]
    return places[ascending[places] == wanted]
