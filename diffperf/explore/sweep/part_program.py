"""The work of one part of a sweep: its summary, and the rows of its points where a table is asked for."""

import dataclasses
from collections.abc import Callable

import jax
import pyarrow as pa

from diffperf.explore.sweep.chunk_summaries import ChunkSummaries, compile_summaries
from diffperf.explore.sweep.part_tables import TableBytes
from diffperf.explore.sweep.point_estimates import FEW, chunk_tables
from diffperf.explore.sweep.summary import Summary
from diffperf.explore.sweep.sweep_plan import SweepPlan
from diffperf.explore.sweep.sweep_result import table_summary

# Where more than this share of a chunk's points fit memory, those of the next are estimated without looking
# first for the points that do, which takes about a tenth of an estimate.
MOST_FITTING = 0.9


@dataclasses.dataclass(frozen=True)
class Part:
    """Result of a part of a sweep: the summary of its points, and with a table a Parquet file of their
    rows.
    """

    summary: Summary
    table: bytes | None = None


@dataclasses.dataclass(frozen=True)
class PartProgram:
    """The programs that finish the parts of a sweep: of summaries, or of rows, for a table or few points."""

    plan: SweepPlan
    summaries: ChunkSummaries | None = None
    rows: Callable[[int, int], pa.Table] | None = None

    @classmethod
    def compile(cls, plan: SweepPlan) -> "PartProgram":
        """Compiles what a plan needs. JAX's x64 mode is on meanwhile, whatever the caller's, so that all
        workers compile the same."""
        with jax.enable_x64(True):
            if plan.table or plan.space.size <= FEW:
                dtype = plan.rules.dtype
                return cls(plan, rows=chunk_tables(plan.space, plan.parts.chunk, dtype))
            return cls(plan, summaries=compile_summaries(plan.rules, plan.parts.chunk))

    def finish(self, start: int, done: Callable[[int], None] = lambda points: None) -> Part:
        """Result of the part that begins at a point, which depends on no other part; `done` is called
        with the points of every chunk.
        """
        with jax.enable_x64(True):
            return Part(self._summary(start, done)) if self.rows is None else self._of_rows(start, done)

    def _summary(self, start: int, done: Callable[[int], None]) -> Summary:
        """The summary of a part, chunk by chunk."""
        assert self.summaries is not None
        rules = self.plan.rules
        summary = rules.empty()
        together = False
        for begin, end in self.plan.parts.chunks(start):
            chunk = self.summaries.summarize(begin, end, summary, together)
            together = chunk.fitting > MOST_FITTING * (end - begin)
            summary = rules.merge([summary, chunk])
            done(end - begin)
        return summary

    def _of_rows(self, start: int, done: Callable[[int], None]) -> Part:
        """The summary of the rows of a part, and the rows themselves where a table is asked for."""
        assert self.rows is not None
        rules, table = self.plan.rules, TableBytes(self.plan.space) if self.plan.table else None
        summary = rules.empty()
        for begin, end in self.plan.parts.chunks(start):
            rows = self.rows(begin, end)
            summary = rules.merge([summary, table_summary(rules, rows, begin)])
            if table is not None:
                table.add(rows)
            done(end - begin)
        return Part(summary, None if table is None else table.finish())
