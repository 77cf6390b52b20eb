"""Ranges of inputs as a user gives them: "2..5 TB/s", "±20%", or two values in Python."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from diffperf import units
from diffperf.api.input_values import plain
from diffperf.api.question import Question
from diffperf.errors import ConfigError
from diffperf.explore.inputs import full_path
from diffperf.explore.ranges import Range
from diffperf.explore.whole_steps import DEGREES
from diffperf.load import checked, declared_at, literal
from diffperf.quantity import Quantity, locate, real, replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import first_violation
from diffperf.workload.strategy import Strategy

# An input and its range: ("hbm.bandwidth", "2..5 TB/s"), {"hbm.bandwidth": "2..5 TB/s"}, or the text of the
# command line, "hbm.bandwidth=2..5 TB/s".
InputRange = tuple[str, Any] | Mapping[str, Any] | str

_EXPECTED = 'two ends such as "2..5 TB/s", or a share such as "±20%"'
_STRATEGY = tuple(field.name for field in dataclasses.fields(Strategy))
_NUMBER = re.compile(r"[\d.,eE+-]+")
_UNIT = re.compile(r"^[\s$\d.,eE+-]+(?=\s*[A-Za-zµ%/])")  # the number before a unit
_SHARE = re.compile(r"(±|\+-|\+/-)\s*(?P<percent>\d+\.?\d*|\.\d+)\s*%")


def read_ranges(
    configuration: Configuration, given: Mapping[str, Any], question: Question, phase: str
) -> list[Range]:
    """Ranges by the paths of `--set`, around the numbers of a configuration in a phase.

    **Raises:** `ConfigError` that names the question's asker, for a path that leads to no number, a value
    outside its bounds, a range without length, and an end at which the input itself breaks a rule.
    """
    key = "--range"
    ranges = [read_range(configuration, path, ends, question, phase, key) for path, ends in given.items()]
    if len({each.path for each in ranges}) < len(ranges):
        paths = ", ".join(each.path for each in ranges)
        raise ConfigError(question.asker, key, paths, "every input once", "leave one of them out")
    return ranges


def read_input_range(
    configuration: Configuration, given: InputRange, question: Question, phase: str, key: str
) -> Range:
    """One range, with the path of its input; see `read_ranges`."""
    path, ends = None, None
    if isinstance(given, str):
        path, _, ends = (part.strip() for part in given.partition("="))
    elif isinstance(given, Mapping) and len(given) == 1:
        ((path, ends),) = given.items()
    elif isinstance(given, tuple | list) and len(given) == 2:
        path, ends = given
    if not isinstance(path, str) or not ends:
        expected, remedy = "one input and its range", 'write ("hbm.bandwidth", "2..5 TB/s")'
        raise ConfigError(question.asker, key, repr(given)[:80], expected, remedy)
    return read_range(configuration, path, ends, question, phase, key)


def read_range(
    configuration: Configuration, path: str, given: Any, question: Question, phase: str, key: str
) -> Range:
    """One range; see `read_ranges`. Fields of the strategy also go by their own name, as options do.

    - `key`: the option that gives the range, for errors.
    """
    asker, key = question.asker, f"{key} {path}"
    named = f"strategy.{path}" if path in _STRATEGY else path
    whole = full_path(configuration, named, asker, key)
    declared = declared_at(configuration, whole, asker, key)
    if not isinstance(declared, Quantity):
        raise ConfigError(asker, key, "a choice", "a number", "give a number a range")
    value = float(locate(configuration, whole)[0])
    around = _around(value, given, asker, key)
    if around is None:
        low, high = (_end(declared, end, asker, key) for end in _ends(declared, given, asker, key))
    else:
        low, high = max(around[0], declared.bounds[0]), min(around[1], declared.bounds[1])
        low, high = (float(round(low)), float(round(high))) if declared.integer else (low, high)
    if not low < high:
        raise ConfigError(asker, key, f"{given!r}", "a low end below the high end", "exchange or change them")
    for end in (low, high):
        _refuse_impossible(configuration, whole, end, phase, asker, key)
    return Range(path=whole, declared=declared, low=low, high=high, asked=around)


def _refuse_impossible(
    configuration: Configuration, path: str, value: float, phase: str, asker: str, key: str
) -> None:
    """Raises `ConfigError` where an input of this value breaks a rule of the phase by itself. Degrees of
    parallelism may: a range of them is about estimates beyond the layouts that are possible.
    """
    if path in DEGREES:
        return
    violation = first_violation(replace(configuration, {path: real(value)}), phase)
    if violation is not None and violation.key == path:
        raise ConfigError(asker, key, violation.found, violation.expected, violation.remedy)


def described_cuts(ranges: Iterable[Range]) -> list[str]:
    """A line for each end of a range that would be beyond a bound of the input, and is cut there."""
    lines = []
    for each in ranges:
        bounds, asked, unit = each.declared.bounds, each.asked, each.declared.unit
        if asked is not None and asked[0] < bounds[0]:
            lines.append(
                _cut(each.path, "low", "least", units.show(bounds[0], unit), units.show(asked[0], unit))
            )
        if asked is not None and asked[1] > bounds[1]:
            lines.append(
                _cut(each.path, "high", "most", units.show(bounds[1], unit), units.show(asked[1], unit))
            )
    return lines


def _cut(path: str, end: str, extreme: str, bound: str, asked: str) -> str:
    """A line about one end of a range that is cut at a bound."""
    return f"The {end} end of {path} is {bound}, the {extreme} that it can be, in place of {asked}"


def _around(value: float, given: Any, asker: str, key: str) -> tuple[float, float] | None:
    """The ends of a range that is written as a share such as "±20%"; None for one written otherwise.

    **Raises:** `ConfigError` for a share that leaves nothing at the low end.
    """
    share = _SHARE.fullmatch(given.strip()) if isinstance(given, str) else None
    if share is None:
        return None
    part = float(share["percent"]) / 100
    if part >= 1:
        remedy = 'write both ends, such as "2..5 TB/s"'
        raise ConfigError(asker, key, f'"{given}"', "a share below 100 %", remedy)
    return (1 - part) * value, (1 + part) * value


def _ends(declared: Quantity, given: Any, asker: str, key: str) -> tuple[Any, Any]:
    """Both ends as the user writes them: texts with units, or numbers in internal units."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return plain(given[0]), plain(given[1])
    text = str(given).strip()
    ends = two_ends(text) if isinstance(given, str) else None
    if ends is None:
        raise ConfigError(asker, key, f'"{given}"', _EXPECTED, "correct the range")
    if declared.unit and all(map(_NUMBER.fullmatch, ends)):
        expected = f"a range in {declared.unit}"
        remedy = f"a range without its unit: write {units.with_unit_of_example(text, declared.unit)}"
        raise ConfigError(asker, key, f'"{given}"', expected, remedy)
    return ends


def two_ends(text: str) -> tuple[str, str] | None:
    """Both ends of LOW..HIGH as texts, None for a text of another form.

    The unit that the high end has ("2..5 TB/s", "$2..5", "0.6..1.4x") counts for a low end without one.
    """
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots or not low or not high:
        return None
    if _NUMBER.fullmatch(low) and (high.startswith("$") or not _NUMBER.fullmatch(high)):
        low = f"${low}" if high.startswith("$") else f"{low} {_UNIT.sub('', high)}"
    return low, high


def _end(declared: Quantity, end: Any, asker: str, key: str) -> float:
    number = literal(end) if isinstance(end, str) else end
    if isinstance(end, int | float) and not isinstance(end, bool) and declared.unit:
        number = f"{float(end)!r} {declared.unit}"
    return float(checked(declared, number, asker, key))
