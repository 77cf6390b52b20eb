"""Texts in, texts out: what parses, to what, and what is refused with which advice."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffperf import units
from diffperf.units import UnitError, parse, show


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3.35 TB/s", "byte/s", 3.35e12),
        ("400 Gbit/s", "byte/s", 50e9),
        ("80 GB", "byte", 80e9),
        ("80 GiB", "byte", 80 * 2**30),
        ("80GB", "byte", 80e9),
        ("80 Gbit", "byte", 10e9),
        ("624 TOPS", "FLOP/s", 624e12),
        ("312 TFLOPS", "FLOP/s", 312e12),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("5 us", "s", 5e-6),
        ("5 µs", "s", 5e-6),  # the micro sign
        ("5 μs", "s", 5e-6),  # the Greek letter
        ("3 days", "s", 259200),
        ("1 year", "s", 365.25 * 86400),
        ("2 kWh", "J", 7.2e6),
        ("2 kWh/h", "W", 2000),
        ("400 W", "W", 400),
        ("31 pJ/byte", "J/byte", 31e-12),
        ("4 pJ/bit", "J/byte", 32e-12),
        ("$9,346", "USD", 9346),
        ("$ 9,346.50", "USD", 9346.5),
        ("$1.5e4", "USD", 15000),
        ("-$3", "USD", -3),
        ("9,346 USD", "USD", 9346),
        ("1,234,567 USD", "USD", 1234567),
        ("$15/GB", "USD/byte", 15e-9),
        ("15 USD/GB", "USD/byte", 15e-9),
        ("$0.10/kWh", "USD/J", 0.1 / 3.6e6),
        ("$3 per hour", "USD/s", 3 / 3600),
        ("0.09 1/cm^2", "1/mm^2", 0.0009),
        ("0.09 /cm²", "1/mm^2", 0.0009),
        ("814 mm^2", "mm^2", 814),
        ("8 cm^2", "mm^2", 800),
        ("814 mm2", "mm^2", 814),
        ("6.28cm2", "mm^2", 628),
        ("8 %/year", "1/s", 0.08 / (365.25 * 86400)),
        ("0.48 USD/W/year", "USD/W/s", 0.48 / (365.25 * 86400)),
        ("0.09 1/cm2", "1/mm^2", 0.0009),
        ("7 nm", "nm", 7),
        ("50 %", "", 0.5),
        ("50%", "", 0.5),
        ("1e5", "", 1e5),
        (".5", "", 0.5),
        (7, "", 7.0),
        (0.25, "", 0.25),
    ],
)
def test_texts_that_parse(text, unit, value):
    assert parse(text, unit) == pytest.approx(value, rel=1e-12)


BAD = [
    ("", "s"),
    ("   ", "s"),
    ("fast", "s"),
    ("s", "s"),
    ("5", "s"),
    ("5.0.0 s", "s"),
    ("5 parsecs", "s"),
    ("5 GB", "s"),
    ("5 GB", "byte/s"),
    ("5 GB/s", "byte"),
    ("312 TFLOP", "FLOP/s"),
    ("80 Gb", "byte"),
    ("80 gb", "byte"),
    ("400 Gbps", "byte/s"),
    ("400 Gb/s", "byte/s"),
    ("3 4 s", "s"),
    ("3 * 4 s", "s"),
    ("2**3 s", "s"),
    ("10^400 s", "s"),
    ("9**9**9**9 s", "s"),
    ("1/3 s", "s"),
    ("1 + 2 s", "s"),
    ("(5) s", "s"),
    ("5 s s", "s"),
    ("1 s/0", "s"),
    ("1 s//s", "s"),
    ("1,5 s", "s"),
    ("12,34 s", "s"),
    ("0x10 s", "s"),
    ("1_000 s", "s"),
    ("nan s", "s"),
    ("inf s", "s"),
    ("1e999 s", "s"),
    ("9" * 400 + " s", "s"),
    ("5 dB", "s"),
    ("5 EUR", "USD"),
    ("€5", "USD"),
    ("$5", "s"),
    ("5 s\x00", "s"),
    ("__import__('os')", "s"),
    (5, "s"),
    (5.0, "byte"),
    (True, ""),
    (False, "s"),
    (None, ""),
    ([5], ""),
    ({"value": 5}, "s"),
    (10**400, ""),
]


@pytest.mark.parametrize(("text", "unit"), BAD)
def test_texts_that_are_refused_with_a_remedy(text, unit):
    with pytest.raises(UnitError) as caught:
        parse(text, unit)
    message = str(caught.value)
    assert "write" in message
    assert "\n" not in message


def _parses_or_is_refused_in_one_line(text, unit):
    try:
        return math.isfinite(parse(text, unit))
    except UnitError as problem:
        return "\n" not in str(problem)


@given(st.text(max_size=30), st.sampled_from(sorted(units._EXAMPLES)))
def test_any_text_parses_or_is_a_unit_error(text, unit):
    assert _parses_or_is_refused_in_one_line(text, unit)


@given(
    st.text(alphabet="0123456789.,+-eE$%/*^ sBGbitTWJUSDmn²µ", max_size=12),
    st.sampled_from(sorted(units._EXAMPLES)),
)
def test_texts_of_the_right_letters_parse_or_are_unit_errors(text, unit):
    assert _parses_or_is_refused_in_one_line(text, unit)


def test_bits_are_not_bytes():
    assert parse("400 Gbit/s", "byte/s") * 8 == parse("400 GB/s", "byte/s")
    with pytest.raises(UnitError, match="write Gbit or GB, not Gb"):
        parse("400 Gb/s", "byte/s")
    with pytest.raises(UnitError, match="write GB/s, not GBps"):
        parse("400 GBps", "byte/s")


@pytest.mark.parametrize("unit", sorted(units._EXAMPLES))
def test_examples_parse(unit):
    texts = re.findall('"(.+?)"', units.example(unit))
    assert all(parse(text, unit) > 0 for text in texts)
    assert texts or (units.example(unit) == "a plain number" and parse(7, unit) == 7)


@given(st.sampled_from(sorted(units._EXAMPLES)), st.floats(1e-24, 1e24))
def test_what_is_shown_parses_to_what_it_was(unit, value):
    # Whole dollars are shown, and whole units of what has no prefix.
    whole = value >= 999.5 and (
        unit == "USD" or (unit not in units._PREFIXED and not unit.startswith("USD/"))
    )
    assert parse(show(value, unit, digits=12), unit) == pytest.approx(
        value, rel=1e-10, abs=0.5 if whole else 0
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0213, "s", "21.3 ms"),
        (0.0, "s", "0 s"),
        (0.99999999, "s", "1 s"),
        (999.99996, "byte", "1 kB"),
        (5000.0, "s", "5000 s"),
        (7200.0, "s", "2 h"),
        (100 * 86400.0, "s", "100 days"),
        (1234567 * 86400.0, "s", "1,234,567 days"),
        (3.35e12, "byte/s", "3.35 TB/s"),
        (-5e9, "byte/s", "-5 GB/s"),
        (0.004, "byte", "0.004 B"),  # there is no millibyte
        (0.5, "FLOP", "0.5 FLOP"),
        (312e12, "FLOP/s", "312 TFLOP/s"),
        (31e-12, "J/byte", "31 pJ/B"),
        (0.1, "W", "100 mW"),
        (0.1, "token/s", "0.1 token/s"),
        (12345.6, "USD", "$12,346"),
        (999.96, "USD", "$1,000"),
        (-3.0, "USD", "-$3"),
        (15e-9, "USD/byte", "15 USD/GB"),
        (0.1 / 3.6e6, "USD/J", "0.1 USD/kWh"),
        (826.0, "mm^2", "826 mm^2"),
        (6.36e11, "FLOP/s/mm^2", "636 GFLOP/s/mm^2"),
        (6.58e11, "byte/s/mm", "658 GB/s/mm"),
        (0.08 / (365.25 * 86400), "1/s", "0.08 1/year"),
        (3.0, "1/s", "3 1/s"),
        (0.42, "", "0.42"),
        (float("nan"), "s", "nan"),
        (float("inf"), "byte", "inf"),
    ],
)
def test_show(value, unit, text):
    assert show(value, unit) == text


def test_more_digits_before_the_point_than_asked_for_are_all_written():
    assert show(1000.0, "s", 3) == "1000 s"


@pytest.mark.parametrize(
    ("number", "text"), [(1000003, "1000003"), (1e6, "1000000"), (8.0, "8"), (2.5, "2.5")]
)
def test_whole_numbers_without_a_unit_have_all_their_digits(number, text):
    assert units.plain(number) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        ("1000", "USD", '"1000 USD"'),
        ("2..5", "byte/s", '"2..5 TB/s"'),
        ("3", "1/s", '"3 /s"'),
        ("3", "s", '"3 us"'),
    ],
)
def test_numbers_get_the_unit_of_the_example(number, unit, text):
    assert units.with_unit_of_example(number, unit) == text


@pytest.mark.parametrize(
    ("unit", "bounds", "text"),
    [
        ("s", (1e-9, 1.0), '"5 us"'),
        ("s", (1e7, 1e9), '"3 years"'),  # 5 us is no lifetime of a system
        ("s", (1.0, 1e6), '"1000 s"'),
        ("1/s", (0.0, 1e-8), '"8 %/year"'),  # 5/s is no rate of interest
        ("1/s", (0.0, 1e3), '"5/s" or "8 %/year"'),
        ("USD", (0.0, 1e3), '"$10"'),
        ("", (1.0, 8.0), "a plain number"),
    ],
)
def test_examples_lie_between_the_bounds(unit, bounds, text):
    assert units.example_between(unit, *bounds) == text
