"""The files of finished parts: a summary each, and beside it, where asked for, a table of the part's rows.

The summary is written last and holds the hash of the table, so that it says that a part is finished.
"""

import contextlib
import dataclasses
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from diffperf.explore.sweep.part_program import Part
from diffperf.explore.sweep.summary import COUNTS, Summary
from diffperf.explore.sweep.sweep_plan import SweepPlan

_UNFINISHED = ".unfinished"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file that is either complete or not there, whenever the process is killed."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    with unfinished.open("wb") as stream:
        write(stream)
    os.replace(unfinished, path)


@dataclasses.dataclass(frozen=True)
class PartFiles:
    """The files of a sweep's parts, in `parts/` and `table/` of a folder."""

    folder: Path
    plan: SweepPlan

    @property
    def tables(self) -> Path:
        """The folder of the tables, which readers of Parquet take as one table."""
        return self.folder / "table"

    def summary_file(self, start: int) -> Path:
        """The summary of the part whose first point has this number."""
        return self.folder / "parts" / f"part-{start // self.plan.parts.part:06d}.npz"

    def table_file(self, start: int) -> Path:
        """The rows of the same part."""
        return self.tables / f"part-{start // self.plan.parts.part:06d}.parquet"

    def prepare(self) -> None:
        """Makes the folders, and removes what killed sweeps have left half written."""
        for folder in ("parts", "table") if self.plan.table else ("parts",):
            (self.folder / folder).mkdir(exist_ok=True)
        for file in self._unfinished():
            file.unlink()

    def remove_others(self) -> None:
        """Removes the files of parts of other sweeps."""
        own = {self.summary_file(start).stem for start in self.plan.parts.starts if self.read(start)}
        for file in self._all():
            if file.stem not in own:
                file.unlink()

    def delete(self) -> None:
        """Deletes all parts, and their folders unless these hold other files."""
        for file in (*self._all(), *self._unfinished()):
            file.unlink()
        for folder in (self.folder / "parts", self.tables):
            with contextlib.suppress(OSError):  # the folder is missing, or not empty
                folder.rmdir()

    def _all(self) -> list[Path]:
        """The files of parts, of whichever sweep they are."""
        return [*self.folder.glob("parts/part-*.npz"), *self.tables.glob("part-*.parquet")]

    def _unfinished(self) -> list[Path]:
        """The files that killed sweeps have left half written."""
        folders = (self.folder, self.folder / "parts", self.tables)
        files = (file for folder in folders for file in folder.glob("*" + _UNFINISHED))
        return [file for file in files if file.is_file()]

    def write(self, start: int, part: Part) -> None:
        """Writes what is kept of a part."""
        summary, table = part.summary, part.table
        if table is not None:
            write_whole(self.table_file(start), lambda stream: stream.write(table))
        rows = {f"best{index}": rows for index, rows in enumerate(summary.best)}
        arrays = {
            "plan": np.array(self.plan.digest),
            "table": np.array(_hash(table or b"")),
            "totals": np.array([getattr(summary, name) for name in COUNTS], np.int64),
            "front": summary.front,
            "sample": summary.sample,
            "counts": summary.counts,
            **rows,
        }
        write_whole(self.summary_file(start), lambda stream: np.savez(stream, **arrays))

    def read(self, start: int) -> Summary | None:
        """The summary of a part; None where a file is missing, damaged (archives have checksums), or of
        another sweep."""
        try:
            with np.load(self.summary_file(start)) as found:
                if found["plan"] != self.plan.digest:
                    return None
                if self.plan.table and found["table"] != _hash(self.table_file(start).read_bytes()):
                    return None
                rankings = range(len(self.plan.rules.rankings))
                return Summary(
                    **dict(zip(COUNTS, found["totals"].tolist(), strict=True)),
                    best=tuple(found[f"best{index}"] for index in rankings),
                    front=found["front"],
                    sample=found["sample"],
                    counts=found["counts"],
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
