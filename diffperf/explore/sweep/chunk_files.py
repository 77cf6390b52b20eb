"""The files of a running sweep: its finished chunks, from which an interrupted sweep goes on, and the lock
on its output."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike
from pyarrow import feather

from diffperf.errors import ConfigError
from diffperf.explore.sweep.axis import ConfigAxis
from diffperf.explore.sweep.point_estimates import recorded_outputs
from diffperf.explore.sweep.space import Space

# The first four bytes of every Parquet file (Apache Parquet format specification, "File format").
_PARQUET_MAGIC = b"PAR1"


def parts_folder(path: Path) -> Path:
    """The folder where a sweep that writes to `path` keeps its finished chunks until all are there."""
    return path.with_name(path.name + ".parts")


def check_output_file(path: Path) -> None:
    """Refuses a file that a sweep cannot write, or should not: a folder, a file that is no table, a folder
    that is missing.

    **Raises:** `ConfigError`.
    """
    if path.is_dir():
        raise ConfigError(
            path, "", "a folder", "the name of a Parquet file", f"write {path / 'sweep.parquet'}"
        )
    if not path.parent.is_dir():
        raise ConfigError(
            path, "", f"no folder {path.parent}", "a file in a folder that exists", "create the folder first"
        )
    if path.is_file():
        with path.open("rb") as stream:
            magic = stream.read(len(_PARQUET_MAGIC))
        # An empty file, such as `mktemp` makes, holds nothing that could be lost.
        if magic not in (b"", _PARQUET_MAGIC):
            raise ConfigError(
                path,
                "",
                "a file that is not a Parquet table",
                "a new file or an earlier table",
                "name another output file (--out)",
            )


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keeps every other sweep from writing to `path` meanwhile, by a lock on a file beside it.

    The lock is the operating system's, which releases it when the process ends in any way: the lock file
    that a killed sweep leaves behind blocks nobody.

    **Raises:** `ConfigError` where another sweep holds the lock.
    """
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            path,
            "",
            "another sweep that is writing this file",
            "one sweep per file",
            "wait until it has finished, or name another output file (--out)",
        ) from None
    try:
        yield
    finally:
        # Removed while still locked, so that no other sweep can be holding this file; Windows keeps it
        # until the release.
        with contextlib.suppress(OSError):
            os.remove(lock.lock_file)
        lock.release()


@dataclasses.dataclass(frozen=True)
class ChunkFiles:
    """The files of a sweep's finished chunks, one for each.

    - `folder`: where they are.
    - `fingerprint`: the beginning of their names, which tells them from chunks of any other sweep.
    - `stops`: the number of every chunk's first point, ascending, with the number after its last.
    """

    folder: Path
    fingerprint: str
    stops: dict[int, int]

    def file(self, start: int) -> Path:
        """The file of the chunk whose first point has this number."""
        return self.folder / f"{self.fingerprint}-{start:018d}.arrow"

    def read(self, start: int) -> pa.Table | None:
        """The rows of a chunk; none where the file is missing, or damaged, as by a full disk or a crash of
        the machine."""
        try:
            table = feather.read_table(self.file(start))
        except (OSError, pa.ArrowException):
            return None
        return table if table.num_rows == self.stops[start] - start else None

    def write(self, start: int, table: pa.Table) -> None:
        """Writes the rows of a chunk to a file that is either complete or not there."""
        unfinished = self.file(start).with_suffix(".unfinished")
        feather.write_feather(table, unfinished, compression="lz4")
        os.replace(unfinished, self.file(start))

    def missing(self) -> list[int]:
        """The first points of the chunks that are still to be estimated."""
        return [start for start in self.stops if self.read(start) is None]


def fingerprint(space: Space, chunk: int, dtype: DTypeLike) -> str:
    """A hash of everything that the bytes of a sweep's chunks depend on, so that chunks are reused only
    where all of it is equal."""
    digest = hashlib.blake2b(digest_size=8)
    releases = [version(package) for package in ("diffperf", "jax", "pyarrow")]
    described = (
        *releases,
        jax.default_backend(),
        space.phase,
        recorded_outputs(space),
        sorted(space.derived),
        [constraint.text for constraint in space.where],
        chunk,
        np.dtype(dtype).name,
    )
    digest.update(repr(described).encode())
    configs = [axis.configs for axis in space.axes if isinstance(axis, ConfigAxis)]
    for leaf in jax.tree.leaves((space.inputs, configs)):
        digest.update(np.asarray(leaf, dtype=float).tobytes())
    for axis in space.axes:
        identity = axis.path, axis.labels, axis.values.shape, axis.dimension
        digest.update(repr(identity).encode() + axis.values.tobytes())
    return digest.hexdigest()
