"""The answer of a sweep as files of its results folder: JSON to read, Parquet tables to work with."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from diffperf.explore.sweep.part_files import write_whole
from diffperf.explore.sweep.part_tables import with_units
from diffperf.explore.sweep.space import Space
from diffperf.explore.sweep.sweep_result import SweepResult

COUNTS = ("size", "points", "feasible", "fitting", "unsound")


def write_answer(folder: Path, space: Space, result: SweepResult) -> None:
    """Writes what is kept of a whole sweep: no times, so that every run writes the same bytes."""
    tables = {"best": result.best, "sample": result.sample}
    tables |= {f"best_by.{path}": rows for path, rows in result.best_by.items()}
    if result.front is not None:
        tables["front"] = result.front
    for name, rows in tables.items():
        _write_table(folder / f"{name}.parquet", rows.cast(with_units(rows.schema, space)))
    _write_table(folder / "histograms.parquet", _histograms(space, result))
    answer = {name: getattr(result, name) for name in COUNTS}
    answer |= {"rank_by": space.rank_by, "descending": space.descending}
    names = set(result.best.column_names)
    answer |= {"units": {path: quantity.unit for path, quantity in space.outputs.items() if path in names}}
    answer |= {"best": result.best.to_pylist(), "files": sorted([*tables, "histograms"])}
    text = json.dumps(answer, indent=1) + "\n"
    write_whole(folder / "answer.json", lambda stream: stream.write(text.encode()))


def _histograms(space: Space, result: SweepResult) -> pa.Table:
    """All histograms: a row for every bin that has values."""
    rows = [
        {"output": path, "unit": space.outputs[path].unit, **row}
        for path, histogram in result.histograms.items()
        for row in histogram.rows()
    ]
    names = {"output": pa.string(), "unit": pa.string(), "from": pa.float64(), "to": pa.float64()}
    return pa.Table.from_pylist(rows, pa.schema(list((names | {"points": pa.int64()}).items())))


def _write_table(path: Path, table: pa.Table) -> None:
    write_whole(path, lambda stream: pq.write_table(table, stream, compression="zstd"))
