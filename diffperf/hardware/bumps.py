"""Bumps under a die: how many power and signals need, over how many fit."""

from diffperf.hardware.package import Package
from diffperf.quantity import Scalar, Weights


def bumps_of_die(power: Scalar, voltage: Scalar, area: Scalar, signals: Scalar, package: Package) -> Scalar:
    """Bumps that a die needs over those that fit under it.

    A die of `area` mm² that draws `power` W at `voltage` V and has `signals` bumps of signals needs as many
    bumps for its current, and as many again for the way back to ground. It stands on C4 bumps on an organic
    substrate, and on micro-bumps on a layer.
    """
    packaging, carrier = package.packaging, package.carrier
    pitch = _by_carrier(carrier, packaging.c4_pitch, packaging.micro_bump_pitch)
    current = _by_carrier(carrier, packaging.c4_current, packaging.micro_bump_current)
    supply = 2 * power / (voltage * current)
    return (supply + signals) * pitch * pitch / area


def _by_carrier(carrier: Weights, organic: Scalar, layer: Scalar) -> Scalar:
    """The value for dies on an organic substrate, or the one for dies on a layer above it."""
    return organic + (1 - carrier.organic) * (layer - organic)
