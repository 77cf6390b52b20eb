"""Questions from the arguments of Python functions: names, tables and modules, numbers and texts."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from diffperf.api.boundary import asker_of
from diffperf.api.input_values import plain
from diffperf.api.question import Question
from diffperf.errors import ConfigError, did_you_mean
from diffperf.estimate.phases import PHASES
from diffperf.explore.inputs import check_phase
from diffperf.quantity import is_traced
from diffperf.relax import Exact, Relaxation, Smooth
from diffperf.trees import as_float64
from diffperf.workload.strategy import Strategy

_FIELDS = tuple(field.name for field in dataclasses.fields(Strategy))


def asked(
    name: str,
    model: Any,
    system: Any,
    *,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    strategy: Mapping[str, Any] | None = None,
    others: Iterable[str] = (),
) -> Question:
    """The question that a call of `dp.NAME` asks, in the precision that JAX has.

    `strategy` has the keywords that are fields of a strategy, `others` the names of the function's own, for
    hints.

    **Raises:** `ConfigError` that names the function and the argument.
    """
    asker, given = asker_of(name), dict(strategy or {})
    settings = read_settings(set, asker)
    arguments = {"model": model, "system": system, "devices": devices, "set": settings}
    refuse_traced(asker, arguments | given)
    for keyword in given:
        if keyword not in _FIELDS:
            hint = did_you_mean(keyword, [*_FIELDS, *others], listing=f"help({asker})")
            found = f'unknown argument "{keyword}"'
            raise ConfigError(asker, keyword, found, "an argument or a field of a strategy", hint)
    return Question.read(
        model=in_float64(model),
        system=in_float64(system),
        devices=None if devices is None else _text(devices),
        stack=stack,
        calibration=calibration,
        settings=settings,
        strategy={field: plain(value) for field, value in given.items()},
        asker=asker,
    )


def refuse_traced(asker: str, arguments: dict[str, Any]) -> None:
    """Raises `ConfigError` for the first argument that JAX traces: such answers are searched for."""
    for name, value in arguments.items():
        if any(map(is_traced, jax.tree.leaves(value))):
            remedy = f"inside jit, grad and vmap, call dp.{', dp.'.join(_pure_names())}"
            raise ConfigError(asker, name, "a traced value", "numbers", remedy)


def _pure_names() -> list[str]:
    """The pure functions of the phases."""
    return ["training_step" if phase == "training" else phase for phase in PHASES]


def in_float64(source: Any) -> Any:
    """A module that is loaded already in double precision; anything else as it is."""
    return as_float64(source) if isinstance(source, eqx.Module) else source


def _text(devices: Any) -> str:
    """A number of devices as the command line gives it."""
    devices = plain(devices)
    return str(int(devices)) if isinstance(devices, float) and devices.is_integer() else str(devices)


def relaxation(asker: str, smooth: float | None, band: float | None = None) -> Relaxation:
    """The exact estimate, or the smooth one of a sharpness and a band (see `Smooth`).

    **Raises:** `ConfigError` for numbers outside their ranges, and for a band of an exact estimate.
    """
    if band is not None and smooth is None:
        raise ConfigError(asker, "band", repr(band), "a smooth estimate", "give a sharpness too (smooth)")
    if smooth is None:
        return Exact()
    if isinstance(smooth, bool) or not isinstance(smooth, int | float) or not 1 <= smooth < float("inf"):
        remedy = "leave it out for the exact estimate"
        raise ConfigError(asker, "smooth", repr(smooth), "a sharpness of at least 1", remedy)
    if band is not None and (isinstance(band, bool) or not isinstance(band, int | float) or not 0 < band < 1):
        raise ConfigError(asker, "band", repr(band), "a share between 0 and 1", "write 0.1")
    return Smooth(float(smooth), band)


def whole_number(asker: str, name: str, value: object, least: int, most: int | None) -> None:
    """Raises `ConfigError` for an argument that is no whole number from `least` to `most`, or of at least
    `least` where `most` is None.
    """
    largest = float("inf") if most is None else most
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        allowed = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        expected = f"a whole number {allowed}"
        raise ConfigError(asker, name, repr(value), expected, "correct it")


def file_name(asker: str, name: str, value: object) -> Path | None:
    """The path of a file or a folder, None for none. Raises `ConfigError` for what is no path."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(asker, name, repr(value)[:80], "a path", f'write {name}="…"')
    return Path(value)


def phase_of(asker: str, phase: object) -> str:
    """The phase itself, where it is the name of one."""
    return check_phase(phase, asker, "phase")


def read_settings(given: Any, asker: str) -> dict[str, Any]:
    """The values by path of an argument `set`. **Raises:** `ConfigError` for anything else."""
    if given is not None and not isinstance(given, Mapping):
        remedy = 'write set={"hbm.bandwidth": "4 TB/s"}'
        raise ConfigError(asker, "set", repr(given)[:80], "values of inputs by their paths", remedy)
    return dict(given or {})
