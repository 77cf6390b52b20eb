"""Texts and units of figures of made-up answers: a long title and a declared quantity."""

from diffperf.quantity import Quantity

LONG = "some-organisation/a-model-with-a-name-of-more-than-sixty-characters-480B-A35B"
SYSTEM = "a-system-with-a-long-name-of-2048-accelerators-with-co-packaged-optics"
TITLE = f"{LONG} trained on 2048 × {SYSTEM}\ntp 8 · pp 16 · dp 16 · sequence-parallel · recompute full"


def quantity(unit: str, *, log: bool = True, integer: bool = False) -> Quantity:
    return Quantity(unit, "an input", (0, 1e30), log, integer, "input")
