"""Wafers: how many dies fit on one, and what one die costs before any test."""

import math

import jax.numpy as jnp
from jaxtyping import Float

from diffperf.hardware.process import Process
from diffperf.quantity import AnyArray
from diffperf.relax import larger

# A die that does not fit on a wafer costs a finite fortune, so that a search can leave it (an estimate).
_FEWEST_DIES = 1e-2  # on a wafer


def dies_per_wafer(
    area: Float[AnyArray, "*dies"], process: Process, aspect: Float[AnyArray, "*dies"] | float = 1.0
) -> Float[AnyArray, "*dies"]:
    """Dies of `area` mm² and `aspect` = width/height that fit on a wafer of a process.

    N = π·(d/2 − e)²/A' − π·(d − 2e)·(w' + h')/(2·√2·A') with A' = w'·h' = (w + s)·(h + s). d is the diameter
    of the wafer, s the scribe lane, e the edge loss, w and h the sides of the die (all in mm). The second
    term is what the rim cuts off.

    Source: for a square die, where the second term is π·(d − 2e)/√(2·A'), Chiplet Actuary (Feng and Ma, DAC
    2022), after de Vries (IEEE Trans. Semicond. Manuf. 2005). The rim crosses a grid of dies in proportion to
    the lines that it meets, d/w + d/h = d·(w + h)/A, which extends the formula to other aspects.
    """
    width = jnp.sqrt(area * aspect) + process.scribe_lane
    height = jnp.sqrt(area / aspect) + process.scribe_lane
    usable = process.wafer_diameter - 2 * process.edge_loss
    rim = usable * (width + height) * (1 / math.sqrt(8))
    return larger(math.pi * (usable * usable / 4 - rim) / (width * height), _FEWEST_DIES)


def raw_die_price(
    area: Float[AnyArray, "*dies"],
    process: Process,
    aspect: Float[AnyArray, "*dies"] | float = 1.0,
    whole_wafer: Float[AnyArray, "*dies"] | float = 0.0,
) -> Float[AnyArray, "*dies"]:
    """USD per die of `area` mm², working or not; `whole_wafer` is the weight of a die that is a wafer."""
    count = dies_per_wafer(area, process, aspect)
    count = count + whole_wafer * (1 - count)
    return process.wafer_price / (process.line_yield * count)
