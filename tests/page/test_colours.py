"""Texts of the page are legible in both themes: WCAG 2.2 asks for a contrast of 4.5."""

import re

import pytest

from diffperf.page.server import assets

TEXTS, GROUNDS = ("ink", "faint", "b", "good", "bad", "focus"), ("ground", "card")


def themes() -> dict[str, dict[str, str]]:
    """The colours of each theme by name, as the style sheet declares them."""
    style = (assets() / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root(\[data-theme=\"dark\"\])? \{(.*?)\}", style, flags=re.DOTALL)
    return {
        "dark" if dark else "light": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for dark, block in blocks
    }


def luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted([luminance(one), luminance(other)], reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_has_the_largest_contrast():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ground", GROUNDS)
def test_texts_are_legible(theme, text, ground):
    colours = themes()[theme]
    assert contrast(colours[text], colours[ground]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_and_points_stand_out(theme):
    """Graphics need a contrast of 3 against what they are drawn on."""
    colours = themes()[theme]
    for name in ("a", "b", *(f"c{index}" for index in range(10)), "edge"):
        assert contrast(colours[name], colours["card"]) >= 3, name
