"""A sweep without a table: parts of a space are summarized side by side, in memory that does not grow.

A part is a range of points whose summary does not depend on any other part. It is the checkpoint of a sweep,
and the task of a worker.
"""

import concurrent.futures
import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from numpy.typing import DTypeLike

from diffperf.explore.sweep.chunk_summaries import ChunkSummaries, compile_summaries
from diffperf.explore.sweep.point_estimates import BLOCK, compile_points
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.summary import COUNTS, Summary, SummaryRules
from diffperf.explore.sweep.summary_files import SummaryFiles
from diffperf.explore.sweep.sweep_result import SweepResult, result_of, table_rows

CHUNK = 128 * BLOCK  # points that one call of a compiled program summarizes
_PARTS = 32  # of a sweep, about, as long as parts have chunks within these limits
# Chunks of a part: the first of them is slow, because no earlier points leave others out; all together are
# some ten seconds of work, which an interrupted sweep loses.
_CHUNKS = (4, 256)

# Spaces of at most so many points are estimated in double precision at once, which takes less time than to
# compile another program for the rows that are kept.
_DOUBLE_UP_TO = 10_000_000
# How many times as many of the best rows are kept in single precision as remain in double precision.
_SPARE = 3


def usual_dtype(space: Space) -> DTypeLike:
    """The precision of a sweep without a table, where nobody chooses one."""
    return np.float64 if space.size <= _DOUBLE_UP_TO else np.float32


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a space.

    - `chunk`: points of a chunk, a multiple of `BLOCK`.
    - `part`: points of a part, a multiple of `chunk`; the last part has what is left of the space.
    - `borders`: the numbers of the first points of regions, which no chunk crosses, and the number of all
      points.
    """

    chunk: int
    part: int
    borders: tuple[int, ...]

    @classmethod
    def of(cls, space: Space, chunk: int = CHUNK) -> "Parts":
        """The parts of a space; they depend on nothing else, so that a sweep can be resumed on another
        machine."""
        chunk = BLOCK * math.ceil(min(chunk, max(region.size for region in space.regions)) / BLOCK)
        chunks = math.ceil(space.size / chunk)
        borders = (*(region.start for region in space.regions), space.size)
        return cls(chunk, chunk * min(max(math.ceil(chunks / _PARTS), _CHUNKS[0]), _CHUNKS[1]), borders)

    @property
    def starts(self) -> range:
        """The number of every part's first point."""
        return range(0, self.borders[-1], self.part)

    def stop(self, start: int) -> int:
        """The number of the point after a part."""
        return min(start + self.part, self.borders[-1])

    def chunks(self, start: int) -> Iterator[tuple[int, int]]:
        """The first number of every chunk of a part, and the number after it."""
        inside = [border for border in self.borders if start < border < self.stop(start)]
        for begin, end in itertools.pairwise([start, *inside, self.stop(start)]):
            for first in range(begin, end, self.chunk):
                yield first, min(first + self.chunk, end)


def summarize_part(
    program: ChunkSummaries, parts: Parts, start: int, done: Callable[[int], None] = lambda points: None
) -> Summary:
    """The summary of the part that begins at a point; `done` is called with the points of every chunk."""
    summary = program.rules.empty()
    for begin, end in parts.chunks(start):
        summary = program.rules.merge([summary, program.summarize(begin, end, summary)])
        done(end - begin)
    return summary


def summary_sweep(
    space: Space,
    *,
    dtype: DTypeLike,
    files: Callable[[SummaryRules, Parts], SummaryFiles] | None = None,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> SweepResult:
    """What a space asks to keep of its points, without a table of them.

    - `files`: where the summaries of finished parts are kept; nowhere without it.
    - `workers`: parts summarized at once, by default one a core.

    Rows that are kept in single precision are estimated in double precision at the end, and ranked again.
    Where single precision overflows, so that an estimate is no number, all points are estimated in double
    precision.
    """
    double = np.dtype(dtype) == np.float64
    rules = SummaryRules(space, np.dtype(dtype), 1 if double else _SPARE)
    parts = Parts.of(space, chunk)
    store = files and files(rules, parts)
    total, missing, resumed = rules.empty(), [], 0
    for start in parts.starts:
        found = store and store.read(start)
        if found is None:
            missing.append(start)
        else:
            total, resumed = rules.merge([total, found]), resumed + parts.stop(start) - start
    progress(resumed)
    began = time.perf_counter()
    program = compile_summaries(rules, parts.chunk) if missing else None
    compiled = time.perf_counter()
    for start, summary in summaries_of(program, parts, missing, workers or os.cpu_count() or 1, progress):
        if summary.unsound and not double:
            # Some product overflows single precision in this space.
            return summary_sweep(
                space, dtype=np.float64, files=files, chunk=chunk, workers=workers, progress=progress
            )
        if store:
            store.write(start, summary)
        total = rules.merge([total, summary])
    ended = time.perf_counter()
    if not double:
        rules, total = _in_double_precision(rules, total)
    return result_of(
        rules,
        total,
        None,
        resumed=resumed,
        seconds=ended - compiled,
        compile_seconds=compiled - began + (time.perf_counter() - ended),
    )


def summaries_of(
    program: ChunkSummaries | None,
    parts: Parts,
    missing: list[int],
    workers: int,
    progress: Callable[[int], None],
) -> Iterator[tuple[int, Summary]]:
    """The summaries of parts with the numbers of their first points, as threads finish them."""
    stopped, x64 = threading.Event(), bool(getattr(jax.config, "jax_enable_x64"))  # noqa: B009

    def done(points: int) -> None:
        if stopped.is_set():
            raise concurrent.futures.CancelledError
        progress(points)

    def summarize(start: int) -> tuple[int, Summary]:
        assert program is not None
        with jax.enable_x64(x64):  # a setting of the caller's thread may not hold in this one
            return start, summarize_part(program, parts, start, done)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: set[concurrent.futures.Future[tuple[int, Summary]]] = set()
        try:
            for start in missing:
                waiting.add(pool.submit(summarize, start))
                if len(waiting) > workers:
                    finished, waiting = concurrent.futures.wait(
                        waiting, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    yield from (future.result() for future in finished)
            yield from (future.result() for future in concurrent.futures.as_completed(waiting))
        finally:
            stopped.set()  # threads end with their chunk
            for future in waiting:
                future.cancel()


def _in_double_precision(rules: SummaryRules, summary: Summary) -> tuple[SummaryRules, Summary]:
    """The same summary with its best rows and its front estimated in double precision and compared again."""
    double = SummaryRules(rules.space, np.dtype(np.float64))
    kept = np.unique(np.concatenate([rows["number"] for rows in (*summary.best, summary.front)]))
    rows = np.empty(0, double.row_type)
    if len(kept):
        table = compile_points(rules.space, np.float64)(kept)
        rows = table_rows(double, table, kept, table["fits"].to_numpy())
    totals = {name: getattr(summary, name) for name in COUNTS}
    sample = summary.sample.astype(double.row_type)
    return double, double.of_candidates(rows, totals, sample, summary.counts)
