"""Tables of all points as Parquet: one file a part, and all of them as one file, units in the metadata."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from diffperf.explore.sweep.point_estimates import ALLOWED
from diffperf.explore.sweep.space import Space


def with_units(schema: pa.Schema, space: Space) -> pa.Schema:
    """The schema of a table with the unit of every column of numbers in the metadata of its field."""
    declared = {axis.path: axis.declared for axis in space.axes} | space.outputs
    units = {path: getattr(quantity, "unit", "") for path, quantity in declared.items()}
    fields = [
        field.with_metadata({"unit": units[field.name]}) if units.get(field.name) else field
        for field in schema
    ]
    return pa.schema(fields)


class TableBytes:
    """The rows of a part as the bytes of a Parquet file, of one row group a chunk."""

    def __init__(self, space: Space):
        self.space, self.buffer = space, pa.BufferOutputStream()
        self.writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Writes the rows of a chunk, without points that do not satisfy the constraints of the space."""
        if self.space.where:
            rows = rows.filter(rows[ALLOWED]).drop_columns([ALLOWED])
        self.writer = self.writer or _parquet_writer(self.buffer, rows.schema, self.space)
        self.writer.write_table(rows.cast(self.writer.schema))

    def finish(self) -> bytes:
        """The whole file."""
        assert self.writer is not None
        self.writer.close()
        return self.buffer.getvalue().to_pybytes()


class MergedTable:
    """One Parquet file of the tables of all parts, which are taken in their order as soon as they are there.

    `table_of` leads from the number of a part's first point to the file of its rows.
    """

    def __init__(self, path: Path, space: Space, starts: range, table_of: Callable[[int], Path]):
        self.path, self.space, self.table_of = path, space, table_of
        self.waiting = list(reversed(starts))
        self.ready: set[int] = set()
        self.writer: pq.ParquetWriter | None = None

    def add(self, start: int) -> None:
        """Takes in a finished part, once all parts before it are there."""
        self.ready.add(start)
        while self.waiting and self.waiting[-1] in self.ready:
            file = pq.ParquetFile(self.table_of(self.waiting.pop()))
            self.writer = self.writer or _parquet_writer(self.path, file.schema_arrow, self.space)
            for group in range(file.num_row_groups):
                self.writer.write_table(file.read_row_group(group))

    def close(self) -> None:
        """Ends the file."""
        if self.writer is not None:
            self.writer.close()


@contextlib.contextmanager
def merged_table(
    path: Path, space: Space, starts: range, table_of: Callable[[int], Path]
) -> Iterator[MergedTable]:
    """A merged table, which is at `path` once all parts are in it."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with contextlib.closing(MergedTable(unfinished, space, starts, table_of)) as merged:
            yield merged
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _parquet_writer(where: Any, schema: pa.Schema, space: Space) -> pq.ParquetWriter:
    """A writer of tables of this schema. Dictionaries pay off for axes, whose values repeat, and only cost
    time for outputs."""
    axes = [axis.path for axis in space.axes]
    return pq.ParquetWriter(
        where,
        with_units(schema, space),
        compression="zstd",
        # The stubs do not know that a list of columns is allowed.
        use_dictionary=axes,  # pyright: ignore[reportArgumentType]
    )
