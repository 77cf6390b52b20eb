"""A sweep: every point of a space, estimated chunk by chunk, streamed to a Parquet file, and resumable.

A finished chunk's file is a checkpoint. The same sweep to the same file, started again after an
interruption, goes on from the chunks that are there, and writes the same bytes as an uninterrupted run.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import DTypeLike

from diffperf.explore.sweep.chunk_files import (
    ChunkFiles,
    check_output_file,
    fingerprint,
    only_writer,
    parts_folder,
)
from diffperf.explore.sweep.point_estimates import BLOCK, compile_chunk
from diffperf.explore.sweep.space import Space
from diffperf.workload.rules import first_violation

CHUNK = 128 * BLOCK  # points per row group of the table, and per checkpoint

# Points whose broken rules are looked up where a whole space has no possible layout.
_EXPLAINED_POINTS = 64


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    - `path`: the Parquet table: one column per axis and per output (in internal units), and the columns
      `feasible` and `fits`.
    - `best`: the best rows by the space's rank, among the points that are possible layouts and fit memory.
    - `points`, `feasible`, `fitting`: how many points there are, how many are possible layouts, and how
      many of these fit memory.
    - `resumed`: how many points an interrupted run had already estimated.
    - `seconds`, `compile_seconds`: the time that estimating and writing the other points took, and
      compiling before that.
    """

    path: Path
    best: pa.Table
    points: int
    feasible: int
    fitting: int
    resumed: int
    seconds: float
    compile_seconds: float

    @property
    def points_per_second(self) -> float:
        """Points estimated per second, without the time to compile."""
        return (self.points - self.resumed) / max(self.seconds, 1e-9)


def sweep(
    space: Space,
    path: str | Path,
    *,
    dtype: DTypeLike = np.float32,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> SweepResult:
    """Estimates every point of a space and writes the table to `path`.

    **Arguments:**

    - `dtype`: the precision to compute and record in.
    - `chunk`: points per row group and checkpoint, rounded up to whole blocks.
    - `workers`: chunks evaluated at once; by default one core is left to write them.
    - `progress`: called with a number of points each time so many more are done.

    Interrupted by any exception, or killed, a sweep leaves its finished chunks in `parts_folder(path)`; the
    same call goes on from them.

    **Raises:** `ConfigError` where `path` cannot be written, or another sweep is writing it.
    """
    path = Path(path)
    check_output_file(path)
    chunk = BLOCK * math.ceil(min(chunk, space.size) / BLOCK)
    with only_writer(path):
        files = ChunkFiles(parts_folder(path), fingerprint(space, chunk, dtype), chunk, space.size)
        files.folder.mkdir(exist_ok=True)
        return _estimate_and_merge(space, path, files, dtype, workers, progress)


def _estimate_and_merge(
    space: Space,
    path: Path,
    files: ChunkFiles,
    dtype: DTypeLike,
    workers: int | None,
    progress: Callable[[int], None],
) -> SweepResult:
    """Estimates the missing chunks, and merges all chunks into the table."""
    missing, best = files.missing(), _BestRows(space)
    began = time.perf_counter()
    evaluate = compile_chunk(space, files.chunk, dtype) if missing else None
    compiled = time.perf_counter()
    merged = files.folder / "merged.unfinished"
    with contextlib.ExitStack() as stack:
        writer = None
        for table in _chunks(files, missing, evaluate, workers or max(1, (os.cpu_count() or 1) - 1)):
            writer = writer or stack.enter_context(_parquet_writer(merged, table, space))
            writer.write_table(table)
            best.add(table)
            progress(table.num_rows)
    os.replace(merged, path)
    shutil.rmtree(files.folder)
    return SweepResult(
        path=path,
        best=best.rows,
        points=space.size,
        feasible=best.feasible,
        fitting=best.fitting,
        resumed=space.size - sum(min(files.chunk, space.size - start) for start in missing),
        seconds=time.perf_counter() - compiled,
        compile_seconds=compiled - began,
    )


def _chunks(
    files: ChunkFiles, missing: list[int], evaluate: Callable[[int], pa.Table] | None, workers: int
) -> Iterator[pa.Table]:
    """The rows of every chunk in order: read where its file is there, else estimated and written."""

    def estimate_and_keep(start: int) -> pa.Table:
        assert evaluate is not None
        table = evaluate(start)
        files.write(start, table)
        return table

    estimated, to_estimate = _in_order(estimate_and_keep, missing, workers), frozenset(missing)
    for start in files.starts:
        table = next(estimated) if start in to_estimate else files.read(start)
        assert table is not None, "the lock keeps other sweeps from these files"
        yield table


def _in_order(work: Callable[[int], pa.Table], starts: list[int], workers: int) -> Iterator[pa.Table]:
    """The results of `work` on every item, in order, computed by several threads that never run far ahead
    of the reader."""
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque = deque()
        for start in starts:
            waiting.append(pool.submit(work, start))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _parquet_writer(path: Path, table: pa.Table, space: Space) -> pq.ParquetWriter:
    """A writer of tables like this one. Dictionaries pay off for axes, whose values repeat, and only cost
    time for outputs."""
    axes = [axis.path for axis in space.axes]
    return pq.ParquetWriter(
        path,
        table.schema,
        compression="zstd",
        # The stubs do not know that a list of columns is allowed.
        use_dictionary=axes,  # pyright: ignore[reportArgumentType]
    )


class _BestRows:
    """The best rows of the chunks added so far, and how many points were possible layouts and fitted
    memory."""

    def __init__(self, space: Space):
        self.space, self.rows, self.feasible, self.fitting = space, None, 0, 0

    def add(self, table: pa.Table) -> None:
        """Counts the rows of a chunk, and keeps those that are among the best."""
        possible = table["feasible"].to_numpy()
        fits = possible & table["fits"].to_numpy()
        self.feasible += int(possible.sum())
        self.fitting += int(fits.sum())
        candidates = self._top(table.take(np.flatnonzero(fits)))
        self.rows = candidates if self.rows is None else self._top(pa.concat_tables([self.rows, candidates]))

    def _top(self, table: pa.Table) -> pa.Table:
        """The best rows of a table by the space's rank, the best first; of equal rows the earlier first."""
        ranked = table[self.space.rank_by].to_numpy()
        order = np.argsort(-ranked if self.space.descending else ranked, kind="stable")
        return table.take(order[: self.space.top])


def commonest_violation(space: Space) -> str:
    """The rule that excludes the most points of a space without possible layouts, with an example, in one
    line.

    Points evenly spread over the space are examined, and of each the first rule that it breaks.
    """
    numbers = np.unique(np.linspace(0, space.size - 1, _EXPLAINED_POINTS).astype(np.int64))
    counts, examples = Counter(), {}
    for number in numbers.tolist():
        inputs = space.point(space.digits(number), space.inputs)
        violation = first_violation(inputs, space.phase)
        if violation is not None:
            key, value, expected, remedy = violation
            counts[key, expected] += 1
            examples.setdefault((key, expected), f"{key}: found {value}; expected {expected}; {remedy}")
    if not counts:
        return "no rule is broken by the points examined"
    rule, count = counts.most_common(1)[0]
    return f"{count} of {len(numbers)} points examined break the same rule, such as {examples[rule]}"
