"""Dies: how many fit a wafer, how many work, what one costs."""

import math

import jax.numpy as jnp

from diffperf.hardware.package import Process
from diffperf.quantity import Scalar

WAFER_DIAMETER = 300.0  # mm
SCRIBE_LANE = 0.2  # mm; Chiplet Actuary (Feng and Ma, DAC 2022), parameter.ini
EDGE_LOSS = 5.0  # mm; likewise
RETICLE = 858.0  # mm², 26 mm × 33 mm: the largest field a scanner exposes

# A piece that no longer fits a wafer, or never works, costs a finite fortune: infeasible is a number.
_FEWEST_DIES = 1e-2
_LEAST_YIELD = 1e-6


def dies_per_wafer(area: Scalar) -> Scalar:
    """Gross dies of `area` mm²: N = π·(d/2 − e)²/A' − π·(d − 2e)/√(2·A'), A' = A + 2·s·√A + s² with scribe lane s and edge loss e.

    Source: Chiplet Actuary (Feng and Ma, DAC 2022), after de Vries (IEEE Trans. Semicond. Manuf. 2005).
    """
    outer = area + 2 * SCRIBE_LANE * jnp.sqrt(area) + SCRIBE_LANE**2
    gross = math.pi * (WAFER_DIAMETER / 2 - EDGE_LOSS) ** 2 / outer
    lost = math.pi * (WAFER_DIAMETER - 2 * EDGE_LOSS) / jnp.sqrt(2 * outer)
    return jnp.maximum(gross - lost, _FEWEST_DIES)


def at_least(yield_: Scalar) -> Scalar:
    """A yield that is safe to divide by."""
    return jnp.maximum(yield_, _LEAST_YIELD)


def die_yield(area: Scalar, process: Process) -> Scalar:
    """Negative binomial yield (1 + D·A/c)^(−c) with defect density D and clustering c (Stapper, IBM J. R&D 1983)."""
    defects = process.defect_density * area / process.clustering
    return at_least(jnp.exp(-process.clustering * jnp.log1p(defects)))


def raw_die_price(area: Scalar, process: Process) -> Scalar:
    """USD per die, working or not."""
    return process.wafer_price / dies_per_wafer(area)
