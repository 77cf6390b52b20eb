"""The published measurements in tests/data: verbatim rows, in the columns of their source tables."""

import csv
from pathlib import Path

from diffperf.explore.measured.predictions import inputs_of
from diffperf.explore.measured.table import Row, read_measurements

DATA = Path(__file__).parents[1] / "data"


def cells(file: str) -> list[dict[str, str]]:
    """The cells of a table, by column."""
    with (DATA / file).open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))


def runs(file: str) -> list[Row]:
    """The rows of a table of measured runs."""
    return read_measurements(DATA / file).rows


def training_inputs(row: Row) -> tuple:
    """Model, system and strategy of a training row."""
    return inputs_of("training", row)


def inference_inputs(row: Row) -> tuple:
    """Model, system and strategy of an inference row."""
    return inputs_of("inference", row)[:3]
