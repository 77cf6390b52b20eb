"""Checks of a sweep's output file: it is no other kind of file, and one sweep at a time writes it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from diffperf.errors import ConfigError

# The first four bytes of every Parquet file (Apache Parquet format specification, "File format").
_PARQUET_MAGIC = b"PAR1"
_ENDINGS = (".parquet", ".pq")
_REMEDY = "name another output (--out, --results)"


def check_output_file(path: Path) -> None:
    """Refuses a file that a sweep cannot write, or should not: a folder, a file that is no table, a folder
    that is missing, a name that promises another kind of file.

    **Raises:** `ConfigError`.
    """
    if path.is_dir():
        raise ConfigError(
            path, "", "a folder", "the name of a Parquet file", f"write {path / 'sweep.parquet'}"
        )
    check_parent(path)
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
    if path.suffix.lower() not in _ENDINGS:
        expected = f"the name of a Parquet file, which ends in {' or '.join(_ENDINGS)}"
        found = f'"{path.name}"'
        raise ConfigError(path, "", found, expected, f"write {path.with_suffix('.parquet')} (--out)")


def check_parent(path: Path) -> None:
    """Refuses a path in a folder that is missing. **Raises:** `ConfigError`."""
    if not path.parent.is_dir():
        expected = "a place in a folder that exists"
        raise ConfigError(path, "", f"no folder {path.parent}", expected, "create the folder first")


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keeps every other sweep from writing to `path` meanwhile, by a lock on a file beside it.

    The lock is the operating system's, which releases it when the process ends in any way: the lock file
    that a killed sweep leaves behind blocks nobody.

    **Raises:** `ConfigError` where another sweep holds the lock, and where the folder takes no files.
    """
    _check_folder_takes_files(path)
    place = path.resolve()  # "." has no name
    lock = FileLock(place.with_name(place.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            path,
            "",
            "another sweep that is writing there",
            "one sweep at a time",
            f"wait until it has finished, or {_REMEDY}",
        ) from None
    try:
        yield
    finally:
        # Removed while still locked, so that no other sweep can be holding this file; Windows keeps it
        # until the release.
        with contextlib.suppress(OSError):
            os.remove(lock.lock_file)
        lock.release()


def _check_folder_takes_files(path: Path) -> None:
    """Refuses a path in a folder where no file can be made: a lock that cannot be made looks like a lock that
    somebody else holds.
    """
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        found = f"a folder that takes no files, {path.parent} ({error.strerror})"
        raise ConfigError(path, "", found, "a folder that can be written", _REMEDY) from None
