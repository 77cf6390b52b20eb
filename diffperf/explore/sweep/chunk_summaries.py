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
from diffperf.compiler import throughput_options
from diffperf.explore.sweep.chunk_candidates import Reached, candidates
from diffperf.explore.sweep.designed_points import Inputs, configuration_of, reported
from diffperf.explore.sweep.device_sizes import block_of, on_cpu
from diffperf.explore.sweep.histograms import BINS, bins_of
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space import Region
from diffperf.explore.sweep.summary import COUNTS, Rows, Summary, SummaryRules
from diffperf.workload.rules import feasible

# Candidates whose places the device lists; where a chunk has more, the host looks through all of its points.
_MOST_CANDIDATES = 2**14
_GREATEST = 2**31 - 1  # of the 32-bit numbers that the device counts points with


class _Kept(NamedTuple):
    """Values of every chunk that the host reads.

    - `totals`: numbers of points, by the names of `COUNTS`; `counts`: the histograms.
    - `candidates`, `sample`: places of points that may be among the best or on the front, and of those in the
      sample; `candidate_count`, `sample_count`: how many there are, of which `candidates` may have fewer.
    """

    totals: dict[str, Any]
    counts: Any
    candidates: Any
    candidate_count: Any
    sample: Any
    sample_count: Any


class _Columns(NamedTuple):
    """The points of a chunk: their offsets from the first point, their outputs, and which are candidates."""

    offset: Any
    outputs: dict[str, Any]
    candidate: Any


@dataclasses.dataclass(frozen=True)
class ChunkSummaries:
    """The compiled programs that summarize chunks of a space, one for each region.

    - `chunk`: points of a chunk, a multiple of `BLOCK`.
    - `programs`: from the places of the first point, the number of points, the first place of the sample,
      what earlier points reach and whether all points are estimated at once, to what the host reads of every
      chunk, and to the columns of which it reads a few rows.
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
        # The first point of the sample may lie more than 2³¹ points after the start. Any place beyond the
        # chunk selects none of its points, so that the greatest 32-bit number stands for it.
        first_sampled = np.int32(min(-start % rules.stride, _GREATEST - 1))
        program, points = self.programs[region], np.int32(stop - start)
        kept, columns = program(places, points, first_sampled, reached, np.bool_(together))
        facts: _Kept = jax.device_get(kept)
        candidates = facts.candidates[: facts.candidate_count]
        if len(candidates) < facts.candidate_count:
            candidates = np.flatnonzero(jax.device_get(columns.candidate))
        sample = _rows_at(facts.sample[: facts.sample_count], columns, rules, start)
        return rules.of_candidates(
            _rows_at(candidates, columns, rules, start),
            {name: int(facts.totals[name]) for name in COUNTS},
            sample[np.isfinite(rules.ranks(sample))],
            facts.counts.astype(np.int64),
        )


def compile_summaries(rules: SummaryRules, chunk: int) -> ChunkSummaries:
    """Compiles the programs that summarize chunks of at most so many points, a multiple of `BLOCK`."""
    places = jax.ShapeDtypeStruct((len(rules.space.shape),), jnp.int32)
    nothing = rules.empty()
    reached = rules.thresholds(nothing), rules.references(nothing)
    arguments = places, np.int32(0), np.int32(0), reached, np.bool_(False)
    programs = {
        region: jax.jit(_Summarizer.of(rules, chunk, region).summarize)
        .lower(*arguments)
        .compile(throughput_options())
        for region in rules.space.regions
    }
    return ChunkSummaries(rules, chunk, programs)


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


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity: arrays have no hash, `jax.jit` needs one
class _Summarizer:
    """What `ChunkSummaries` compiles for a region.

    - `base`: the inputs of the space in the precision to compute in; `recorded`: paths of recorded outputs.
    - `block`: points that are estimated at once, a divisor of those of a chunk.
    """

    rules: SummaryRules
    region: Region
    base: Inputs
    recorded: tuple[str, ...]
    chunk: int
    block: int

    @classmethod
    def of(cls, rules: SummaryRules, chunk: int, region: Region) -> "_Summarizer":
        """The summarizer of chunks of so many points."""
        space = rules.space
        base, recorded = space.base(rules.dtype), recorded_outputs(space)
        return cls(
            rules=rules,
            region=region,
            base=base,
            recorded=recorded,
            chunk=chunk,
            block=block_of(chunk, space.phase),
        )

    def summarize(
        self,
        first: Int[Array, " dimensions"],
        points: Int[Array, ""],
        first_sampled: Int[Array, ""],
        reached: Reached,
        together: Bool[Array, ""],
    ) -> tuple[_Kept, _Columns]:
        """What the host reads of a chunk, and its columns; the arguments are those of the programs of
        `ChunkSummaries`."""
        none = jnp.zeros(self.chunk, bool)
        unknown = Facts(allowed=none, possible=none, fits=none)
        offsets = jnp.arange(self.chunk, dtype=jnp.int32)
        checked, chosen, count = jax.lax.cond(
            together, lambda: (unknown, offsets, points), lambda: self._check(first, offsets, points)
        )
        outputs, evaluated, counts = self._estimate(first, chosen, count, unknown)
        facts = jax.tree.map(lambda early, late: jnp.where(together, late, early), checked, evaluated)
        real = evaluated.fits
        candidate = jax.lax.cond(
            jnp.any(real),
            lambda: candidates(self.rules, self.region.advance(first, chosen), outputs, real, reached),
            lambda: none,
        )
        in_sample = real & ((chosen - first_sampled) % np.int32(min(self.rules.stride, _GREATEST)) == 0)
        totals = {
            "points": jnp.sum(facts.allowed, dtype=jnp.int32),
            "feasible": jnp.sum(facts.possible, dtype=jnp.int32),
            "fitting": jnp.sum(real, dtype=jnp.int32),
            "unsound": jnp.sum(~_sound(self.rules, outputs) & real, dtype=jnp.int32),
        }
        kept = _Kept(
            totals=totals,
            counts=counts,
            candidates=_places(candidate, min(self.chunk, _MOST_CANDIDATES)),
            candidate_count=jnp.sum(candidate, dtype=jnp.int32),
            sample=_places(in_sample, self.chunk // self.rules.stride + 1),
            sample_count=jnp.sum(in_sample, dtype=jnp.int32),
        )
        return kept, _Columns(chosen, outputs, candidate)

    def _check(
        self, first: Int[Array, " dimensions"], offsets: Int[Array, " points"], points: Int[Array, ""]
    ) -> tuple[Facts, Int[Array, " points"], Int[Array, ""]]:
        """The facts of all points; and the offsets of those that fit, moved to the front, with their number.
        The places behind them repeat the first point."""
        blocks = offsets.reshape(-1, self.block)
        checked = jax.lax.map(lambda block: self._evaluate(first, block)[0], blocks)
        facts = jax.tree.map(jnp.ravel, checked).among(offsets < points)
        (chosen,) = jnp.nonzero(facts.fits, size=self.chunk, fill_value=0)
        return facts, chosen.astype(jnp.int32), jnp.sum(facts.fits, dtype=jnp.int32)

    def _estimate(
        self,
        first: Int[Array, " dimensions"],
        chosen: Int[Array, " points"],
        count: Int[Array, ""],
        unknown: Facts,
    ) -> tuple[dict[str, Array], Facts, Int[Array, "outputs bins"]]:
        """Outputs and facts of the first `count` of the chosen points, and the histograms of their outputs;
        other points have zeros and `unknown` facts."""

        def add_block(block: Int[Array, ""], state: tuple[Any, ...]) -> tuple[Any, ...]:
            columns, facts, counts = state
            begin = block * self.block
            now, outputs = self._evaluate(first, jax.lax.dynamic_slice(chosen, (begin,), (self.block,)))
            now = now.among(begin + jnp.arange(self.block, dtype=jnp.int32) < count)
            columns, facts = jax.tree.map(
                lambda column, values: jax.lax.dynamic_update_slice(column, values, (begin,)),
                (columns, facts),
                (outputs, now),
            )
            real = now.fits & _sound(self.rules, outputs)
            return columns, facts, _counted(self.rules, counts, outputs, real)

        nothing = (
            {path: jnp.zeros(self.chunk, self.rules.dtype) for path in self.recorded},
            unknown,
            jnp.zeros((len(self.rules.space.histograms), BINS), jnp.int32),
        )
        return jax.lax.fori_loop(0, (count + self.block - 1) // self.block, add_block, nothing)

    def _evaluate(
        self, first: Int[Array, " dimensions"], offsets: Int[Array, " points"]
    ) -> tuple[Facts, dict[str, Array]]:
        """Whether points satisfy the constraints, are possible layouts and fit memory, and their recorded
        outputs; XLA leaves out what is not used."""
        space = self.rules.space

        def evaluate(offset: Int[Array, ""]) -> tuple[Facts, dict[str, Array]]:
            """The facts and the outputs of one point."""
            inputs = space.point(self.region.advance(first, offset), self.base, self.region)
            estimated = reported(inputs, space.phase)
            facts = Facts(
                allowed=jnp.asarray(space.allows(inputs)),
                possible=feasible(configuration_of(inputs), space.phase),
                fits=estimated["memory.excess"][1] <= 0,
            )
            return facts, {path: estimated[path][1] for path in self.recorded}

        return vmap_last(evaluate)(offsets)


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


def _places(marked: Bool[Array, " points"], most: int) -> Int[Array, " most"]:
    """The places of marked points, as many as `most`; what is left of these repeats the first point."""
    (places,) = jnp.nonzero(marked, size=most, fill_value=0)
    return places.astype(jnp.int32)


def _rows_at(places: np.ndarray, columns: _Columns, rules: SummaryRules, start: int) -> Rows:
    """The rows at some places of a chunk whose first point has the number `start`.

    From a GPU only these rows are copied, since to copy whole columns takes longer than to estimate their
    points; as many as a power of two, so that few programs are compiled.
    """
    if on_cpu():
        taken = jax.tree.map(lambda column: np.asarray(column)[places], columns)
    else:
        padded = np.zeros(1 << max(len(places) - 1, 0).bit_length(), np.int32)
        padded[: len(places)] = places
        taken = jax.device_get(_taken(columns, padded))
    rows = np.empty(len(places), rules.row_type)
    rows["number"] = start + taken.offset[: len(places)].astype(np.int64)
    for path, values in taken.outputs.items():
        rows[path] = values[: len(places)]
    return rows


@jax.jit
def _taken(columns: _Columns, places: Int[Array, " rows"]) -> _Columns:
    """The columns at some places."""
    return jax.tree.map(lambda column: column[places], columns)
