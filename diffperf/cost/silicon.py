"""Dies: how many fit on a wafer, the share that works, the price of one."""

import math

import jax.numpy as jnp

from diffperf.hardware.package import Process
from diffperf.quantity import Scalar

WAFER_DIAMETER = 300.0  # mm
SCRIBE_LANE = 0.2  # mm; Chiplet Actuary (Feng and Ma, DAC 2022), parameter.ini
EDGE_LOSS = 5.0  # mm; Chiplet Actuary, parameter.ini
RETICLE = 858.0  # mm², 26 mm × 33 mm: the largest field a scanner exposes

# A die that does not fit on a wafer, or never works, costs a finite fortune, so that a search can leave it
# (estimates).
_FEWEST_DIES = 1e-2  # on a wafer
_LEAST_YIELD = 1e-6


def dies_per_wafer(area: Scalar) -> Scalar:
    """Dies of `area` A mm² on a wafer: N = π·(d/2 − e)²/A' − π·(d − 2e)/√(2·A') with A' = A + 2·s·√A + s².

    d is the diameter of the wafer, s the scribe lane, e the edge loss (all mm). The second term is what the
    rim cuts off.

    Source: Chiplet Actuary (Feng and Ma, DAC 2022), after de Vries (IEEE Trans. Semicond. Manuf. 2005).
    """
    outer = area + 2 * SCRIBE_LANE * jnp.sqrt(area) + SCRIBE_LANE**2
    gross = math.pi * (WAFER_DIAMETER / 2 - EDGE_LOSS) ** 2 / outer
    lost = math.pi * (WAFER_DIAMETER - 2 * EDGE_LOSS) / jnp.sqrt(2 * outer)
    return jnp.maximum(gross - lost, _FEWEST_DIES)


def at_least(yield_: Scalar) -> Scalar:
    """`yield_`, not less than a floor that is safe to divide by."""
    return jnp.maximum(yield_, _LEAST_YIELD)


def die_yield(area: Scalar, process: Process) -> Scalar:
    """Share of dies of `area` A mm² that work: (1 + D·A/c)^(−c) with defect density D and clustering c.

    Source: the negative binomial yield of Stapper (IBM J. Research and Development 27, 1983).
    """
    defects = process.defect_density * area / process.clustering
    return at_least(jnp.exp(-process.clustering * jnp.log1p(defects)))


def raw_die_price(area: Scalar, process: Process) -> Scalar:
    """USD per die of `area` mm², working or not."""
    return process.wafer_price / dies_per_wafer(area)
