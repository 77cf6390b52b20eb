"""Every point of a space, estimated in blocks that stay in cache, streamed to a Parquet file, and resumable.

A finished chunk file is the checkpoint: whoever runs the same space to the same file again goes on where it stopped, and the
result has the same bytes as an uninterrupted run.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from diffperf.estimate.phases import estimate
from diffperf.explore.sweep.space import Axis, Space
from diffperf.report.tables import outputs
from diffperf.workload.rules import feasible

BLOCK = 512  # points evaluated together: their intermediates stay in cache
CHUNK = 128 * BLOCK  # points per row group and checkpoint

COLUMNS = (
    "time",
    "tokens_per_second",
    "mfu",
    "memory.peak",
    "power",
    "energy.total",
    "cost.run",
    "cost.capital",
)


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """What a sweep leaves behind.

    - `path`: the Parquet table: one column per axis and output (internal units), `feasible` and `fits`.
    - `best`: the best rows by the space's rank, among the points that are feasible and fit memory.
    - `points`, `feasible`, `fitting`: how many points there are, how many are possible layouts, and how many of these fit memory.
    - `resumed`: points taken over from an interrupted run.
    - `seconds`, `compile_seconds`: evaluating and writing the others, and compiling before that.
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
        return (self.points - self.resumed) / max(self.seconds, 1e-9)


def columns(space: Space) -> tuple[str, ...]:
    """The outputs a sweep records: those of `COLUMNS` that the phase has, and the one it ranks by."""
    return tuple(path for path in dict.fromkeys((*COLUMNS, space.rank_by)) if path in space.outputs)


def evaluator(space: Space, points: int, dtype: np.dtype) -> Callable:
    """A function of the position of a first point, (axes,), to the outputs of it and the `points` − 1 after it.

    `points` is a multiple of `BLOCK`. What is not an axis is closed over: of its choices only the chosen
    alternative is computed.
    """
    base = jax.tree.map(lambda leaf: leaf.astype(dtype), space.inputs)
    recorded = columns(space)

    def point(digits, offset):
        inputs = space.point(space.advance(digits, offset), base)
        report = estimate(inputs, space.phase)
        found = outputs(report)
        possible = feasible(inputs.model, inputs.system, inputs.strategy, space.phase)
        fits = report.memory.excess <= 0
        return {"feasible": possible, "fits": fits} | {path: found[path][1] for path in recorded}

    def chunk(digits):
        offsets = jnp.arange(points, dtype=jnp.int32).reshape(-1, BLOCK)
        blocks = jax.lax.map(jax.vmap(lambda offset: point(digits, offset)), offsets)
        return jax.tree.map(lambda leaf: leaf.reshape(points), blocks)

    return chunk


def _axis_column(axis: Axis, positions: np.ndarray) -> pa.Array:
    if axis.labels is None:
        return pa.array(axis.values[positions])
    return pa.DictionaryArray.from_arrays(pa.array(positions, pa.int32()), list(axis.labels))


def _table(space: Space, start: int, stop: int, results: dict[str, np.ndarray]) -> pa.Table:
    """The rows of the points from `start` to before `stop`."""
    positions, numbers = [], np.arange(stop - start, dtype=np.int64)
    for first, length in zip(reversed(space.digits(start)), reversed(space.shape), strict=True):
        numbers = numbers + first
        positions.append(numbers % length)
        numbers = numbers // length
    rows = {
        axis.path: _axis_column(axis, at) for axis, at in zip(space.axes, reversed(positions), strict=True)
    }
    rows |= {name: pa.array(results[name][: stop - start]) for name in ("feasible", "fits", *columns(space))}
    return pa.table(rows)


def fingerprint(space: Space, chunk: int, dtype: np.dtype) -> str:
    """Tells one sweep's chunk files from another's: equal where every byte of the result is."""
    digest = hashlib.blake2b(digest_size=8)
    releases = [version(package) for package in ("diffperf", "jax", "pyarrow")]
    described = (
        *releases,
        jax.default_backend(),
        space.phase,
        columns(space),
        sorted(space.derived),
        chunk,
        np.dtype(dtype).name,
    )
    digest.update(repr(described).encode())
    for leaf in jax.tree.leaves(space.inputs):
        digest.update(np.asarray(leaf, dtype=float).tobytes())
    for axis in space.axes:
        digest.update(repr((axis.path, axis.labels, axis.values.shape)).encode() + axis.values.tobytes())
    return digest.hexdigest()


class _Best:
    """The best rows of what has been seen, and how many points qualified."""

    def __init__(self, space: Space):
        self.space, self.rows, self.feasible, self.fitting = space, None, 0, 0

    def see(self, table: pa.Table) -> None:
        possible = table["feasible"].to_numpy()
        fits = possible & table["fits"].to_numpy()
        self.feasible += int(possible.sum())
        self.fitting += int(fits.sum())
        candidates = self._top(table.take(np.flatnonzero(fits)))
        self.rows = candidates if self.rows is None else self._top(pa.concat_tables([self.rows, candidates]))

    def _top(self, table: pa.Table) -> pa.Table:
        ranked = table[self.space.rank_by].to_numpy()
        order = np.argsort(-ranked if self.space.descending else ranked, kind="stable")
        return table.take(order[: self.space.top])


def _in_order(work: Callable, items: list, workers: int) -> Iterator:
    """`work(item)` of every item, in order, a few at once."""
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _write_part(table: pa.Table, path: Path) -> None:
    """Writes a chunk file that is either complete or not there."""
    unfinished = path.with_suffix(".unfinished")
    feather.write_feather(table, unfinished, compression="lz4")
    os.replace(unfinished, path)


def _writer(path: Path, table: pa.Table, space: Space) -> pq.ParquetWriter:
    """Dictionaries pay off for axes, whose values repeat, and only cost time for outputs."""
    return pq.ParquetWriter(
        path, table.schema, compression="zstd", use_dictionary=[axis.path for axis in space.axes]
    )


def parts_folder(path: Path) -> Path:
    """Where a sweep to `path` keeps its chunks until it is finished."""
    return path.with_name(path.name + ".parts")


def sweep(
    space: Space,
    path: str | Path,
    *,
    dtype: np.dtype = np.float32,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda points: None,
) -> SweepResult:
    """Estimates every point of a space and writes the table to `path`.

    **Arguments:**

    - `dtype`: the precision to compute and record in.
    - `chunk`: points per row group and checkpoint, rounded up to whole blocks.
    - `workers`: chunks evaluated at once; by default one core is left to write them.
    - `progress`: called with the number of points each time some are done.

    Interrupted (by any exception, or killed), it leaves its chunks in `parts_folder(path)`; the same call goes on from them.
    """
    path = Path(path)
    chunk = BLOCK * math.ceil(min(chunk, space.size) / BLOCK)
    starts = range(0, space.size, chunk)
    folder, key = parts_folder(path), fingerprint(space, chunk, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {start: folder / f"{key}-{start // chunk:09d}.arrow" for start in starts}
    missing = [start for start in starts if not parts[start].is_file()]

    best, resumed = _Best(space), 0
    began = time.perf_counter()
    digits = jax.ShapeDtypeStruct((len(space.axes),), jnp.int32)
    compiled = jax.jit(evaluator(space, chunk, dtype)).lower(digits).compile() if missing else None
    compiled_at = time.perf_counter()

    def evaluate(start: int) -> pa.Table:
        results = jax.device_get(compiled(jnp.asarray(space.digits(start), jnp.int32)))
        table = _table(space, start, min(start + chunk, space.size), results)
        _write_part(table, parts[start])
        return table

    def tables() -> Iterator[tuple[pa.Table, bool]]:
        """The chunks in order, and whether an earlier run had finished them."""
        evaluated, to_evaluate = (
            _in_order(evaluate, missing, workers or max(1, (os.cpu_count() or 1) - 1)),
            frozenset(missing),
        )
        for start in starts:
            done = start not in to_evaluate
            yield (feather.read_table(parts[start]) if done else next(evaluated)), done

    merged = folder / "merged.unfinished"
    with contextlib.ExitStack() as stack:
        writer = None
        for table, done in tables():
            writer = writer or stack.enter_context(_writer(merged, table, space))
            writer.write_table(table)
            best.see(table)
            resumed += table.num_rows if done else 0
            progress(table.num_rows)
    os.replace(merged, path)
    shutil.rmtree(folder)
    finished = time.perf_counter()
    return SweepResult(
        path,
        best.rows,
        space.size,
        best.feasible,
        best.fitting,
        resumed,
        finished - compiled_at,
        compiled_at - began,
    )
