"""Numbers and remedies in the explanations of violations."""

import math
from collections.abc import Iterable, Sequence

from diffperf import units
from diffperf.errors import counted
from diffperf.workload.whole_numbers import Number

_LARGEST_LISTED = 64  # possible values above are not listed one by one


def show(number: Number) -> str:
    """A number in its shortest form: 8 rather than 8.0."""
    return units.plain(number)


def several(number: Number, noun: str) -> str:
    """A number of things in the shortest form: "1 device", "8 devices"."""
    return counted(float(number), noun, show(number))


def nearest(value: Number, possible: Iterable[float]) -> str:
    """The possible values on either side of a value that is not possible, the nearer first: "8 or 6" for 7.

    Empty where there are none.
    """
    number, candidates = float(value), sorted(possible)
    above = [candidate for candidate in candidates if candidate > number][:1]
    below = [candidate for candidate in candidates if candidate < number][-1:]
    by_distance = sorted(above + below, key=lambda candidate: abs(candidate - number))
    return " or ".join(units.plain(candidate) for candidate in by_distance)


def use_one_of(value: Number, possible: Sequence[int]) -> str:
    """A remedy for a value that is not possible: all that are, up to a limit, and the nearest."""
    if len(possible) == 1:
        return f"use {possible[0]}"
    listed = ", ".join(str(candidate) for candidate in possible if candidate <= _LARGEST_LISTED)
    return f"use one of {listed} (nearest: {nearest(value, possible)})"


def use_nearest(name: str, value: Number, possible: Iterable[float], otherwise: str) -> str:
    """A remedy for the value of a field: the nearest possible values, if there are any, or another change."""
    values = nearest(value, possible)
    return f"use {name} {values}, or {otherwise}" if values else f"use {otherwise}"


def nearest_multiples(value: Number, unit: Number) -> str:
    """The multiples of a unit on either side of a value, the nearer first."""
    number, step = float(value), float(unit)
    if number <= step:
        return nearest(number, [step])
    times = max(1, math.floor(number / step))
    return nearest(number, [times * step, (times + 1) * step])
