"""The config of a calibration: values for the loader, and for people where they come from."""

import datetime
import importlib.metadata
import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from diffperf import units
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.observations import Source
from diffperf.explore.calibrate.parameters import Parameter
from diffperf.explore.measured.statistics import Errors
from diffperf.load.calibration import Calibration
from diffperf.quantity import Quantity

DIGITS = 4  # significant digits of values and errors; no fit knows more


def write_calibration(result: Calibrated, path: str | Path, date: datetime.date | None = None) -> Calibration:
    """Writes the config of a calibration, all of it or nothing, and returns what the loader reads from it.

    The same measurements give the same bytes on the same `date` (today's by default).
    **Raises:** `ConfigError` for a fit that explains nothing, of which nothing is written.
    """
    result.check_explains()
    path, text = Path(path), calibration_text(result, date or datetime.date.today())
    written = Calibration.from_table(tomllib.loads(text), str(path), path.stem)
    write_whole(path, text)
    return written


def write_whole(path: Path, text: str) -> None:
    """Writes a file, all of it or nothing: what was there stays until the new file is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # Temporary files are for their owner alone; the config has the permissions of any new file.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions that new files do not get; the system tells only while setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def calibration_text(result: Calibrated, date: datetime.date) -> str:
    """The config as TOML."""
    sections = (
        _header(result, date),
        _parts(result),
        _values(result),
        _uncertainty(result),
        _spread(result),
        _errors(result),
        _sources(result.sources),
    )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _header(result: Calibrated, date: datetime.date) -> list[str]:
    rows = sum(source.rows for source in result.sources)
    return [
        f"# {result.hardware}: efficiencies and overheads of {result.system.name}, calibrated on {rows:,}",
        "# measured rows by diffperf calibrate. Give its name as `calibration` in a system's file, or to",
        "# --calibration.",
        f"hardware = {_text(result.hardware)}",
        f"system = {_text(result.system.name)}",
        f"date = {date.isoformat()}",
        f"version = {_text(importlib.metadata.version('diffperf'))}  # of diffperf",
        *([] if result.begun_from is None else [f"begun_from = {_text(result.begun_from.name)}"]),
    ]


def _parts(result: Calibrated) -> list[str]:
    names = [f"{_key(path)} = {_text(name)}" for path, name in result.parts.items()]
    return [
        "# The parts that values lie in: a value holds for the part of that name alone.",
        "[parts]",
        *names,
    ]


def _values(result: Calibrated) -> list[str]:
    fitted = {
        f"{_text(one.path)} = {quantity_text(one.after, one.declared)}": (
            f"{units.show(one.before, one.declared.unit)} → {describe(one)}"
        )
        for one in result.parameters
    }
    before = result.begun_from
    name = "" if before is None else before.name
    staying = {
        f"{_text(path)} = {_text(value) if isinstance(value, str) else value}": f"of {name}"
        for path, value in result.staying.items()
    }
    width = max(map(len, fitted | staying))
    begin = "Configured" if before is None else f"Of {name}"
    return [
        f"# {begin} → calibrated on the files below, ± one standard deviation.",
        "[values]",
        *(f"{key:<{width}}  # {comment}" for key, comment in (fitted | staying).items()),
    ]


def _uncertainty(result: Calibrated) -> list[str]:
    all_paths = [*(parameter.path for parameter in result.parameters), *result.staying]
    paths = [f"  {_text(path)}," for path in all_paths]
    rows = [f"  [{', '.join(f'{value:.6g}' for value in row)}]," for row in result.all_covariance]
    comment = (
        "# Covariance of the logarithms of the values, derived from the curvature at the solution (Laplace)."
    )
    return [comment, "[uncertainty]", "parameters = [", *paths, "]", "covariance = [", *rows, "]"]


def _spread(result: Calibrated) -> list[str]:
    return [
        "# Standard deviation of log(predicted / measured) that no value explains, by kind of table; derived",
        "# from rows left out of the fit, so that 90 % of them lie within 1.645 of it.",
        "[spread]",
        *(f"{_key(kind)} = {_number(value)}" for kind, value in result.all_spread.items()),
    ]


def describe(parameter: Parameter) -> str:
    """The fitted value with its standard deviation, and whether the declared range stopped it."""
    value = f"{units.show(parameter.after, parameter.declared.unit)} ± {100 * parameter.spread:.2g} %"
    return value + (", at the end of its range" if parameter.at_bound else "")


def quantity_text(value: float, declared: Quantity) -> str:
    """A value as a config holds it, rounded, within its declared range."""
    low, high = declared.bounds
    rounded = min(max(float(f"{value:.{DIGITS}g}"), low), high)
    if not declared.unit:
        return f"{rounded:.{DIGITS}g}"
    readable = units.show(rounded, declared.unit, DIGITS)
    try:
        faithful = bool(np.isclose(units.parse(readable, declared.unit), rounded, rtol=1e-9))
    except units.UnitError:
        faithful = False
    return _text(readable if faithful else f"{rounded!r} {declared.unit}")


def _errors(result: Calibrated) -> list[str]:
    before = "as configured" if result.begun_from is None else f"by {result.begun_from.name}"
    lines = [
        f"# Of predicted / measured − 1 on the rows calibrated on: {before}, as fitted, and by fits that",
        "# had not seen the row's family of configurations; and how many of the latter lie in their 90 %",
        "# interval.",
    ]
    for name, errors in result.groups.items():
        lines += [f"[errors.{_key(name)}]", f"rows = {errors.after.n}"]
        lines += [
            f"{key} = {_statistics(getattr(errors, key))}" for key in ("before", "after", "cross_validated")
        ]
        lines += [] if errors.coverage is None else [f"coverage = {_number(errors.coverage)}"]
    return lines


def _statistics(errors: Errors) -> str:
    shown = {"mean": errors.mean_ape, "median": errors.median_ape, "p90": errors.p90_ape, "bias": errors.bias}
    return "{" + ", ".join(f"{key} = {_number(value)}" for key, value in shown.items()) + "}"


def _sources(sources: list[Source]) -> list[str]:
    lines = ["# What the values were calibrated on."]
    for source in sources:
        skipped = ", ".join(f"{_key(reason)} = {count}" for reason, count in source.skipped.items())
        lines += [
            "[[files]]",
            *(f"{key} = {_text(getattr(source, key))}" for key in ("name", "kind", "sha256")),
        ]
        lines += [f"rows = {source.rows}", f"skipped = {{{skipped}}}"]
    return lines


def _number(value: float) -> str:
    """A number as a TOML float."""
    text = f"{value:.{DIGITS}g}"
    return text if any(mark in text for mark in ".e") else text + ".0"


def _text(value: Any) -> str:
    """A text in quotes, as TOML and JSON write it alike."""
    return json.dumps(str(value), ensure_ascii=False)


def _key(name: str) -> str:
    """A key of TOML, in quotes where it needs them."""
    return name if name.replace("_", "").isalnum() and name.isascii() else _text(name)
