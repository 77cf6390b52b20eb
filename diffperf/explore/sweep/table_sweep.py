"""A sweep with a table: every point of a space, estimated chunk by chunk and streamed to a Parquet file.

A finished chunk's file is a checkpoint. The same sweep to the same file, started again after an
interruption, goes on from the chunks that are there, and writes the same bytes as an uninterrupted run.
"""

import contextlib
import math
import os
import shutil
import time
from collections import deque
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
from diffperf.explore.sweep.point_estimates import ALLOWED, BLOCK, compile_chunk
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.summary import SummaryRules
from diffperf.explore.sweep.sweep_result import SweepResult, result_of, table_summary

CHUNK = 128 * BLOCK  # points per row group of the table, and per checkpoint


def table_sweep(
    space: Space,
    path: Path,
    *,
    dtype: DTypeLike,
    chunk: int,
    workers: int | None,
    progress: Callable[[int], None],
) -> SweepResult:
    """Estimates every point of a space and writes the table to `path`; arguments as of `sweep`."""
    check_output_file(path)
    chunk = BLOCK * math.ceil(min(chunk, max(region.size for region in space.regions)) / BLOCK)
    with only_writer(path):
        stops = {
            start: min(start + chunk, region.stop)
            for region in space.regions
            for start in range(region.start, region.stop, chunk)
        }
        files = ChunkFiles(parts_folder(path), fingerprint(space, chunk, dtype), stops)
        files.folder.mkdir(exist_ok=True)
        return _estimate_and_merge(space, path, files, chunk, dtype, workers, progress)


def _estimate_and_merge(
    space: Space,
    path: Path,
    files: ChunkFiles,
    chunk: int,
    dtype: DTypeLike,
    workers: int | None,
    progress: Callable[[int], None],
) -> SweepResult:
    """Estimates the missing chunks, and merges all chunks into the table, and their summaries into one."""
    missing, rules = files.missing(), SummaryRules(space, np.dtype(dtype))
    summary, start = rules.empty(), 0
    began = time.perf_counter()
    evaluate = compile_chunk(space, chunk, dtype) if missing else None
    compiled = time.perf_counter()
    merged = files.folder / "merged.unfinished"
    with contextlib.ExitStack() as stack:
        writer = None
        for table in _chunks(files, missing, evaluate, workers or max(1, (os.cpu_count() or 1) - 1)):
            summary = rules.merge([summary, table_summary(rules, table, start)])
            written = table
            if space.where:
                written = table.filter(table[ALLOWED]).drop_columns([ALLOWED])
            writer = writer or stack.enter_context(_parquet_writer(merged, written, space))
            writer.write_table(written.cast(with_units(written.schema, space)))
            start += table.num_rows
            progress(table.num_rows)
    os.replace(merged, path)
    shutil.rmtree(files.folder)
    resumed = space.size - sum(files.stops[start] - start for start in missing)
    times = {"seconds": time.perf_counter() - compiled, "compile_seconds": compiled - began}
    return result_of(rules, summary, path, resumed=resumed, **times)


def _chunks(
    files: ChunkFiles, missing: list[int], evaluate: Callable[[int, int], pa.Table] | None, workers: int
) -> Iterator[pa.Table]:
    """The rows of every chunk in order: read where its file is there, else estimated and written."""

    def estimate_and_keep(start: int) -> pa.Table:
        assert evaluate is not None
        table = evaluate(start, files.stops[start])
        files.write(start, table)
        return table

    estimated, to_estimate = _in_order(estimate_and_keep, missing, workers), frozenset(missing)
    for start in files.stops:
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


def with_units(schema: pa.Schema, space: Space) -> pa.Schema:
    """The schema of a table with the unit of every column of numbers in the metadata of its field."""
    declared = {axis.path: axis.declared for axis in space.axes} | space.outputs
    units = {path: getattr(quantity, "unit", "") for path, quantity in declared.items()}
    fields = [
        field.with_metadata({"unit": units[field.name]}) if units.get(field.name) else field
        for field in schema
    ]
    return pa.schema(fields)


def _parquet_writer(path: Path, table: pa.Table, space: Space) -> pq.ParquetWriter:
    """A writer of tables like this one. Dictionaries pay off for axes, whose values repeat, and only cost
    time for outputs."""
    axes = [axis.path for axis in space.axes]
    return pq.ParquetWriter(
        path,
        with_units(table.schema, space),
        compression="zstd",
        # The stubs do not know that a list of columns is allowed.
        use_dictionary=axes,  # pyright: ignore[reportArgumentType]
    )
