"""How far step times are off for a framework that nobody has measured.

Each framework in turn is treated as unmeasured. Its stack loses the numbers that were fitted to its own runs,
and takes the typical numbers of the other frameworks with the same features (`diffperf.load.features`), as
every shipped stack without measured runs does; what its documentation says (overlaps, fusions, collectives)
stays. An interval for such a stack comes from the errors of the other frameworks alone, every framework
counting as much as any other.
"""

import csv
import dataclasses
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tomlkit
from reporting import Table

from diffperf.explore.calibrate.calibration_file import quantity_text
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.statistics import Evaluation
from diffperf.explore.measured.validate import Validation, validate
from diffperf.load import find
from diffperf.load.features import measured_stacks, typical_numbers
from diffperf.quantity import declaration
from diffperf.software.stack import Stack

# Measured columns, and whether they grow with the time of a step (1) or fall with it (-1).
TIMES = {"step_time_s": 1, "tokens_per_s_per_device": -1, "model_tflops_per_device": -1, "mfu": -1}


@dataclasses.dataclass
class Errors:
    """log(predicted ÷ measured) of the step times of a framework, as shipped and as if it were unmeasured."""

    shipped: list[float] = dataclasses.field(default_factory=list)
    unmeasured: list[float] = dataclasses.field(default_factory=list)


def framework_of(row: dict[str, str]) -> tuple[str, str] | None:
    """Returns the framework and the shipped stack that drove a row, None where nobody fitted that stack."""
    platforms = Platforms()
    accelerator = platforms[platforms.name_in("training", row["hardware"])].accelerator
    software = platforms.software("framework", row["framework"], accelerator, trained=True)
    for stack in measured_stacks():
        if software is not None and stack.name == str(software.stack.name):
            return stack.features.software, stack.name
    return None


def write_unmeasured(framework: str, stack: str, folder: Path) -> Path:
    """Writes a stack's file as if its framework were unmeasured, and returns the file's path."""
    own = [each for each in measured_stacks() if each.features.software == framework]
    # A stack that extends another leaves the features to that one's file.
    features = next(each.features for each in own if each.features.how)
    typical = typical_numbers(features, without=framework)
    fields = {field.name: field for field in dataclasses.fields(Stack)}
    defaults = {key: fields[key].default for each in own for key in each.numbers}
    config = tomlkit.parse(find(stack, "stacks").read_text(encoding="utf-8"))
    for key in ("measured", "features"):
        config.pop(key, None)
    for key, value in {**defaults, **typical}.items():
        config[key] = tomlkit.value(quantity_text(value, declaration(fields[key])))
    path = folder / f"{stack}.toml"
    path.write_text(tomlkit.dumps(config), encoding="utf-8")
    return path


def validate_unmeasured(table: Path, folder: Path) -> Validation:
    """Evaluates the rows of a table with the stacks of unmeasured frameworks."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if driven := framework_of(row):
            row["framework"] = str(write_unmeasured(*driven, folder))
    copy = folder / table.name
    with copy.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return validate(copy)


def log_error(run: Evaluation) -> float | None:
    """Returns log(predicted ÷ measured) of the step time of a row, None where no time was measured."""
    for column, sign in TIMES.items():
        if run.measured.get(column) and column in run.predicted:
            return sign * math.log(run.predicted[column] / run.measured[column])
    return None


def errors_by_framework(
    tables: Iterable[Path], validations: dict[str, Validation], standstill: float
) -> dict[str, Errors]:
    """Returns the errors of every framework on the rows of some tables.

    `validations` has the rows of the tables with the shipped stacks, by the stem of the table's file. Runs at
    an MFU up to `standstill` mostly wait, and are left out.
    """
    result: dict[str, Errors] = defaultdict(Errors)
    with tempfile.TemporaryDirectory() as folder:
        for table in tables:
            unmeasured = validate_unmeasured(table, Path(folder))
            pairs = zip(validations[table.stem].evaluations, unmeasured.evaluations, strict=True)
            for shipped, left_out in pairs:
                if left_out.skipped != shipped.skipped:
                    raise ValueError(f"{table}: a row of {shipped.cells['framework']}: {left_out.skipped}")
                before, after = log_error(shipped), log_error(left_out)
                driven = framework_of(shipped.cells)
                if before is None or after is None or driven is None:
                    continue
                if shipped.measured.get("mfu", 1.0) > standstill:
                    result[driven[0]].shipped.append(before)
                    result[driven[0]].unmeasured.append(after)
    return result


def spread(errors: Iterable[list[float]]) -> float:
    """Returns the standard deviation of which `Z90` reach 90 % of the errors, all frameworks alike."""
    sizes = [np.abs(np.asarray(of_framework)) for of_framework in errors]
    values = np.concatenate(sizes)
    weights = np.concatenate([np.full(len(size), 1 / len(size)) for size in sizes])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / len(sizes)
    return float(values[order][np.searchsorted(reached, 0.9)]) / Z90


def table_of(errors: dict[str, Errors]) -> Table:
    """Tabulates errors with the shipped stack and with that of an unmeasured framework."""
    rows = []
    for framework, own in errors.items():
        others = [other.unmeasured for name, other in errors.items() if name != framework]
        width = spread(others) if others else math.nan
        sizes = np.abs(np.asarray(own.unmeasured))
        rows.append(
            {
                "framework": framework,
                "count": len(sizes),
                "shipped": float(np.median(np.abs(np.expm1(own.shipped)))),
                "median": float(np.median(np.abs(np.expm1(own.unmeasured)))),
                "bias": float(np.expm1(np.median(own.unmeasured))),
                "p90": float(np.expm1(np.quantile(sizes, 0.9))),
                "spread": width,
                "inside": float(np.mean(sizes <= Z90 * width)),
            }
        )
    everywhere = spread(own.unmeasured for own in errors.values())
    columns = {
        "framework": ("framework", ""),
        "count": ("runs", ",.0f"),
        "shipped": ("median, as shipped", ".1%"),
        "median": ("median, unmeasured", ".1%"),
        "bias": ("bias", "+.1%"),
        "p90": ("p90", ".1%"),
        "spread": ("spread of the others", ".3f"),
        "inside": ("inside their 90 % interval", ".0%"),
    }
    inside = statistics.mean(row["inside"] for row in rows)
    middle = statistics.median(row["median"] for row in rows)
    title = (
        f"Step times of frameworks as if nobody had measured them: a median error of {middle:.1%} in the "
        f"middle of the frameworks, spread of log errors {everywhere:.3f}, {inside:.0%} of runs inside the "
        "intervals of others, all frameworks alike"
    )
    return Table("frameworks_left_out", title, columns, rows)
