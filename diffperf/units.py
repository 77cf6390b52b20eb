"""Physical units, at the boundary only: parse "3.35 TB/s" on the way in, print "21.3 ms" on the way out.

Inside, everything is SI with bytes, FLOP, mm² and USD: byte, s, FLOP/s, W, J, mm, mm^2, nm, USD. A custom
pint registry has only the units of this field, so a byte is a dimension of its own and "80 Gb" is not
silently a gigabarn.
"""

import functools
import math
import re
from typing import SupportsFloat

import pint

HOUR, DAY, YEAR = 3600.0, 86400.0, 365.25 * 86400.0  # s

_DEFINITIONS = """
femto- = 1e-15 = f-
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = µ- = u-
milli- = 1e-3 = m-
centi- = 1e-2 = c-
kilo- = 1e3 = k- = K-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
exa- = 1e18 = E-
zetta- = 1e21 = Z-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
second = [time] = s
minute = 60 * second = min
hour = 60 * minute = h
day = 24 * hour
year = 365.25 * day
byte = [information] = B
bit = 0.125 * byte
FLOP = [operation] = flop
OP = FLOP
FLOPS = FLOP / second = flops
OPS = FLOP / second
meter = [length] = m
joule = [energy] = J
watt = joule / second = W
watt_hour = 3600 * joule = Wh
gram = [mass] = g
volt = [voltage] = V
ampere = watt / volt = A
hertz = 1 / second = Hz
USD = [currency] = dollar
percent = 0.01
"""

_PREFIXES = {
    -15: "f",
    -12: "p",
    -9: "n",
    -6: "µ",
    -3: "m",
    0: "",
    3: "k",
    6: "M",
    9: "G",
    12: "T",
    15: "P",
    18: "E",
    21: "Z",
}
# Units that are shown with a prefix, and the least and largest power of ten of the prefix: there are no
# thousandths of what is counted, and no thousands of seconds.
_COUNTED, _MEASURED = (0, 21), (-15, 21)
_PREFIXED = {
    "byte": _COUNTED,
    "byte/s": _COUNTED,
    "FLOP": _COUNTED,
    "FLOP/s": _COUNTED,
    "FLOP/s/mm^2": _COUNTED,
    "byte/s/mm": _COUNTED,
    "byte/s/mm^2": _COUNTED,
    "Hz": _COUNTED,
    "token/s": _COUNTED,
    "W": _MEASURED,
    "J": _MEASURED,
    "J/byte": _MEASURED,
    "J/FLOP": _MEASURED,
    "s": (-15, 0),
}
_SHORT = {
    "byte": "B",
    "byte/s": "B/s",
    "byte/s/mm": "B/s/mm",
    "byte/s/mm^2": "B/s/mm^2",
    "J/byte": "J/B",
}
# Units that people write as multiples of another unit: what one of the internal unit is in the other.
_WRITTEN_IN = {
    "USD/byte": (1e9, "USD/GB"),
    "USD/J": (3.6e6, "USD/kWh"),
    "USD/s": (3600.0, "USD/hour"),
    "kg/byte": (1e9, "kg/GB"),
    "kg/J": (3.6e6, "kg/kWh"),
    "kg/mm^2": (100.0, "kg/cm^2"),
    "USD/W/s": (YEAR, "USD/W/year"),
}
_SLOW = 1e-5  # 1/s; what happens more rarely than once a day is shown by the year


class UnitError(ValueError):
    """The error for a text that is not a quantity of the expected dimension; the message is the remedy."""


@functools.cache
def _registry() -> pint.UnitRegistry:
    """The units of `_DEFINITIONS`, without pint's own definitions (barns and parsecs among them)."""
    # None is no file of definitions, which pint's annotation leaves out.
    registry = pint.UnitRegistry(None, case_sensitive=True)  # pyright: ignore[reportArgumentType]
    for line in _DEFINITIONS.strip().splitlines():
        registry.define(line)
    return registry


# One number, then a unit: words with small powers, multiplied or divided ("GB", "USD/kWh", "1/cm^2").
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_UNIT = re.compile(r"((1\s*)?/\s*)?[A-Za-zµ_]+(\^-?\d)?(\s*[*/ ]\s*[A-Za-zµ_]+(\^-?\d)?)*")


def _normalize(text: str) -> str:
    """A quantity without spellings that pint does not know: %, ², mm2, $, Greek μ, "per", "1,000"."""
    text = text.strip().replace("%", " percent").replace("²", "^2").replace("μ", "µ").replace(" per ", "/")
    text = re.sub(r"^([+-]?)\$\s*([\d.,]+([eE][+-]?\d+)?)", r"\1\2 USD", text)
    text = re.sub(r"(?<![A-Za-zµ])([A-Za-zµ]?m)2\b", r"\1^2", text)
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)


def parse(text: object, unit: str) -> float:
    """The magnitude of `text` in `unit`; a bare number is accepted only where `unit` is "", a pure number.

    **Raises:** `UnitError` with a remedy in one line.
    """
    if isinstance(text, bool):
        raise UnitError(f"write {example(unit)}")
    if isinstance(text, int | float):
        if unit:
            raise UnitError(f"a bare number has no unit: write {example(unit)}")
        try:
            return float(text)
        except OverflowError:
            raise UnitError("a number too large to compute with: write a smaller one") from None
    if not isinstance(text, str):
        raise UnitError(f"write {example(unit)}")
    text = _normalize(text)
    number = _NUMBER.match(text)
    measured_in = text[number.end() :].strip() if number else ""
    if number is None or (measured_in and not _UNIT.fullmatch(measured_in)):
        raise UnitError(f"a quantity is one number and a unit: write {example(unit)}")
    if unit and not measured_in:
        raise UnitError(f"a number without its unit: write {example(unit)}")
    magnitude = float(number[0]) * _factor(measured_in, unit)
    if not math.isfinite(magnitude):
        raise UnitError(f"a number too large to compute with: write {example(unit)}")
    return magnitude


@functools.cache
def _factor(measured_in: str, unit: str) -> float:
    """The number of `unit` in one `measured_in`. Raises `UnitError` with a remedy."""
    registry = _registry()
    try:
        return float(registry.Quantity(f"1 {measured_in}").to(unit).magnitude)
    except pint.errors.UndefinedUnitError as problem:
        hint = "; write Gbit or GB, not Gb" if re.search(r"\b[kMGTP]b(/s|ps)?\b", measured_in) else ""
        hint = "; write GB/s, not GBps" if re.search(r"\b[kMGTP]i?Bps\b", measured_in) else hint
        raise UnitError(f"{problem}".splitlines()[0] + f"{hint}: write {example(unit)}") from None
    except pint.errors.DimensionalityError:
        raise UnitError(f"wrong dimension: write {example(unit)}") from None
    except Exception:  # pint raises a dozen types, errors of tokens and attributes among them
        raise UnitError(f"not a unit: write {example(unit)}") from None


_EXAMPLES = {
    "USD/W/s": '"1 USD/W/year"',
    "": "a plain number", "s": '"5 us"', "byte": '"80 GB"', "byte/s": '"3.35 TB/s"', "Hz": '"1.4 GHz"',
    "FLOP/s": '"312 TFLOP/s"', "W": '"400 W"', "J": '"3 kJ"', "J/byte": '"31 pJ/byte"', "V": '"0.8 V"',
    "J/FLOP": '"0.6 pJ/FLOP"', "mm": '"12 mm"', "mm^2": '"814 mm^2"', "nm": '"7 nm"', "USD": '"$9,346"',
    "USD/byte": '"15 USD/GB"', "USD/J": '"0.10 USD/kWh"', "1/mm^2": '"0.0009 1/mm^2"',
    "s/mm^2": '"0.5 s/mm^2"', "USD/s": '"3 USD/hour"', "USD/mm^2": '"0.005 USD/mm^2"',
    "byte/mm^2": '"2 MB/mm^2"', "USD/mm": '"5 USD/m"',
    "1/s": '"5/s" or "8 %/year"', "kg/J": '"0.4 kg/kWh"', "kg/byte": '"0.5 kg/GB"',
    "kg/mm^2": '"1.5 kg/cm^2"',
}  # fmt: skip


_GROUPED = 1e4  # from which all digits of a number are in groups of three
_LEAST_OF_EXAMPLES = 1e-4  # over the upper bound, of a quantity that may be 0
_LONGEST = 1e9  # from which a number is written with a power of ten


def example(unit: str) -> str:
    """A text that `parse` accepts for `unit`, or two, to show in an error."""
    return _EXAMPLES.get(unit, f'"1 {unit}"')


def example_between(unit: str, low: float, high: float) -> str:
    """The example for `unit`, or those of two, that lie between two bounds (in `unit`); where none does, a
    number about the middle of the bounds on a logarithmic scale.
    """
    texts = re.findall(r'"[^"]+"', example(unit))
    inside = [text for text in texts if low <= parse(text.strip('"'), unit) <= high]
    if inside or not texts:
        return " or ".join(inside) or example(unit)
    least = low if low > 0 else high * _LEAST_OF_EXAMPLES
    middle = math.sqrt(least * high)
    if unit == "s" and middle >= YEAR:
        return f'"{middle / YEAR:.0f} years"'
    return f'"{show(float(f"{middle:.1e}"), unit)}"'


def with_unit_of_example(number: str, unit: str) -> str:
    """A number, or a range of numbers, with the unit that the example for `unit` has: "1000 USD"."""
    written = re.match(r'"[\d.,]+\s*([^"]+)"', example(unit))
    return f'"{number} {written[1] if written else unit}"'


def plain(number: SupportsFloat) -> str:
    """A number without a unit: a whole one with all its digits, as options take it, another with six."""
    value = float(number)
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def show(value: SupportsFloat, unit: str, digits: int = 4) -> str:
    """`value` (in `unit`) as people write it: `show(0.0213, "s")` is "21.3 ms"."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if unit == "USD":
        text = f"{abs(value):,.0f}" if abs(value) >= 999.5 else f"{abs(value):.{digits}g}"
        return f"{'-' if value < 0 else ''}${text}"
    other = _written_in(value, unit)
    if other is not None:
        scale, written = other
        return f"{_digits(value / scale, digits, grouped=written == 'days')} {written}"
    if unit in _PREFIXED and value != 0:
        return _show_with_prefix(value, unit, digits)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
    return f"{text} {_SHORT.get(unit, unit)}".rstrip()


def scale_of(value: float, unit: str) -> float:
    """Number of `unit` in one of the unit that `show` writes `value` in, decimal prefixes aside: 3600 for
    some hours in seconds.
    """
    other = _written_in(value, unit)
    return 1.0 if other is None else other[0]


def _written_in(value: float, unit: str) -> tuple[float, str] | None:
    """The unit that a value is written in instead of its own: how many of its own that is, and its name."""
    if unit in _WRITTEN_IN:
        factor, written = _WRITTEN_IN[unit]
        return 1 / factor, written
    if unit == "1/s" and 0 < abs(value) < _SLOW:
        return 1 / YEAR, "1/year"
    if unit == "s" and abs(value) >= 2 * DAY:
        return DAY, "days"
    if unit == "s" and abs(value) >= 2 * HOUR:
        return HOUR, "h"
    return None


def _digits(value: float, digits: int, *, grouped: bool = False) -> str:
    """A number of so many significant digits; one with more digits before the point has them all. They are
    in groups of three if `grouped`, and from five of them.
    """
    text = f"{value:,.{digits}g}" if grouped else f"{value:.{digits}g}"
    if "e+" not in text or abs(value) >= _LONGEST:
        return text
    return f"{value:,.0f}" if grouped or abs(value) >= _GROUPED else f"{value:.0f}"


def _show_with_prefix(value: float, unit: str, digits: int) -> str:
    """`value` ≠ 0 with the prefix of those of the unit that leaves one to three digits before the point."""
    least, most = _PREFIXED[unit]
    rounded = float(f"{abs(value):.{digits - 1}e}")  # 999.99 ms is 1 s, not 1000 ms
    power = min(max(3 * math.floor(math.log10(rounded) / 3 + 1e-12), least), most)
    return f"{_digits(value / 10.0**power, digits)} {_PREFIXES[power]}{_SHORT.get(unit, unit)}"
