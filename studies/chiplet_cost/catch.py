"""CATCH's cost of dies (Graening et al., arXiv 2503.15753), computed with diffperf's yields.

CATCH (github.com/nanocad-lab/CATCH) prices a die layer by layer: cost per area of a layer, scaled by the part
of the wafer that whole dies cover, its lithography also by the part of the exposure field that they fill;
yields are negative binomial with the critical share of the area. diffperf's formulas give the yield and the
price of a wafer; CATCH counts whole dies row by row instead of by a smooth formula, and that count is made
here.

A file of layers (in the form of CATCH's layer_definitions.xml) holds parameters alone. With the columns
`area_mm2` and any of `layer_yield`, `dies_per_wafer`, `layer_cost`, its rows are compared as well.
`published_catch.csv` has values that CATCH's own tests assert.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from diffperf.cost.wafers import dies_per_wafer
from diffperf.cost.yields import die_yield
from diffperf.hardware.process import Process
from diffperf.quantity import real

sys.path.append(str(Path(__file__).parents[1]))
from reporting import read_rows

PUBLISHED = Path(__file__).parent / "published_catch.csv"
AREAS = (50.0, 100.0, 200.0, 400.0, 800.0)  # mm²
RESULTS = ("layer_yield", "dies_per_wafer", "layer_cost")


@dataclasses.dataclass(frozen=True)
class Wafer:
    """A wafer of CATCH, by default `process_1` of its wafer_process_definitions.xml; lengths in mm."""

    diameter: float = 300.0
    edge_exclusion: float = 0.1
    dicing_distance: float = 0.13
    reticle_x: float = 26.0
    reticle_y: float = 33.0
    in_grid: bool = True  # dies of neighbouring rows are aligned

    @classmethod
    def of(cls, row: Mapping[str, str]) -> "Wafer":
        """The wafer of a row, whose columns are the fields' names; columns that it lacks are CATCH's."""
        given = {f.name: row[f.name] for f in dataclasses.fields(cls) if row.get(f.name)}
        numbers = {name: float(text) for name, text in given.items() if name != "in_grid"}
        return cls(**numbers, in_grid=given.get("in_grid", "True") == "True")


def layer_process(row: Mapping[str, str], wafer: Wafer) -> Process:
    """A layer as a process of diffperf, whose wafer costs what the layer costs over the whole wafer."""
    return Process(
        name=row["name"],
        wafer_price=float(row["cost_per_mm2"]) * math.pi * (wafer.diameter / 2) ** 2,
        defect_density=float(row["defect_density"]),
        clustering=float(row["clustering_factor"]),
        critical_share=float(row["critical_area_ratio"]),
        wafer_diameter=wafer.diameter,
        scribe_lane=wafer.dicing_distance,
        edge_loss=wafer.edge_exclusion,
        reticle=wafer.reticle_x * wafer.reticle_y,
    )


def die_results(row: Mapping[str, str], area: float, aspect: float = 1.0) -> dict[str, float]:
    """Yield, whole dies per wafer and USD of a die of a layer, under CATCH's names, and diffperf's count."""
    wafer = Wafer.of(row)
    process = layer_process(row, wafer)
    width, height = math.sqrt(area * aspect), math.sqrt(area / aspect)
    whole = dies_in_grid(width, height, wafer) if wafer.in_grid else dies_in_rows(width, height, wafer)
    litho = float(row["litho_percent"])
    price = float(process.wafer_price) / whole
    works = float(die_yield(real(area), process))
    cost = price * (1 - litho + litho / reticle_utilization(area, wafer))
    return {
        "layer_yield": works,
        "dies_per_wafer": whole,
        "smooth_dies": float(dies_per_wafer(real(area), process, real(aspect))),
        "layer_cost": cost,
        "good_die_cost": cost / works,
    }


def reticle_utilization(area: float, wafer: Wafer) -> float:
    """Share of the exposure fields that whole dies fill; a die larger than one field takes several."""
    field = wafer.reticle_x * wafer.reticle_y
    fields = field * max(1, math.ceil(area / field))
    return fields // area * area / fields


def dies_in_rows(width: float, height: float, wafer: Wafer) -> int:
    """Whole dies where each row is filled by itself: a row on the diameter, or rows above and below it."""
    gap, radius = wafer.dicing_distance, wafer.diameter / 2 - wafer.edge_exclusion
    x_step, y_step = width + gap, height + gap

    def in_row(top: float) -> int:
        return math.floor((2 * math.sqrt(radius**2 - (top - gap / 2) ** 2) + gap) / x_step)

    centred = in_row(y_step / 2) + 2 * sum(map(in_row, np.arange(1.5 * y_step, radius, y_step)))
    # The first row is counted wherever it ends, the others inside the wafer.
    split = 2 * in_row(y_step) + 2 * sum(map(in_row, np.arange(2 * y_step, radius, y_step)))
    return max(centred, split)


def dies_in_grid(width: float, height: float, wafer: Wafer) -> int:
    """Whole dies in aligned columns: the best of the grids whose left column has 1, 2, ... dies."""
    gap, radius = wafer.dicing_distance, wafer.diameter / 2 - wafer.edge_exclusion
    x_step, y_step = width + gap, height + gap
    first_column = radius - math.sqrt(radius**2 - (y_step / 2) ** 2)
    crossover = math.sqrt(max(radius**2 - (radius - first_column - x_step) ** 2, 0.0))
    best, column = 0, 1
    while column * y_step / 2 < crossover:
        best = max(best, _grid_with_column(column, x_step, y_step, gap, radius))
        column += 1
    return best


def _grid_with_column(column: int, x_step: float, y_step: float, gap: float, radius: float) -> int:
    """Whole dies of a grid whose left column has `column` dies, flush with the rim."""
    top = column * y_step / 2 - gap / 2
    chord = 2 * math.sqrt(radius**2 - top**2)
    in_row = math.floor((chord + gap) / x_step)
    count = in_row * column
    right = (in_row + 1) * x_step - chord / 2  # the far side of one more die
    for row in range(column):
        low = y_step * row - top
        count += right**2 + low**2 <= radius**2 and right**2 + (low + y_step) ** 2 <= radius**2
    left = radius - chord / 2
    for edge in np.arange(top + y_step, radius, y_step):
        chord = 2 * math.sqrt(radius**2 - edge**2)
        start = radius - chord / 2
        aligned = math.ceil((start - left) / x_step) * x_step + left
        count += 2 * math.floor((chord - (aligned - start)) / x_step)
    return count


def compared(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Largest relative difference of each result from the rows that state it."""
    worst: dict[str, float] = {}
    for row in rows:
        if not row.get("area_mm2"):
            continue
        ours = die_results(row, float(row["area_mm2"]), float(row.get("aspect") or 1.0))
        for name in RESULTS:
            if row.get(name):
                difference = abs(ours[name] / float(row[name]) - 1)
                worst[name] = max(worst.get(name, 0.0), difference)
    return worst


def table_rows(layers: Sequence[Mapping[str, str]]) -> list[dict[str, str | float]]:
    """Rows of the table of layers: every layer at every area."""
    stated = [layer for layer in layers if layer["defect_density"] and layer["cost_per_mm2"]]
    return [
        {"layer": layer["name"], "area": area} | die_results(layer, area)
        for layer in stated
        for area in AREAS
    ]


def published_rows() -> list[dict[str, str]]:
    """The values that CATCH's own tests assert, with the layer and the wafer of each."""
    return read_rows(PUBLISHED)
