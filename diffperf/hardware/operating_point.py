"""Voltage, clock and power of a chip: the alpha-power law, and the clock that a power limit leaves."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffperf.hardware.technology import Technology
from diffperf.quantity import Scalar, is_traced

# Volts above the threshold below which the alpha-power law is not followed: the clock stays positive (an
# estimate).
_LEAST_DRIVE = 1e-3
# V at which SRAM still works without assistance (an estimate of the range that N7 and N5 products run in):
# under a lower power limit the clock falls at this voltage.
LEAST_VOLTAGE = 0.55
# The least clock over that at the least voltage: where even that takes too much power, the power limit is
# exceeded, so that rates stay positive.
LEAST_THROTTLE = 1e-2
# Halvings of the range of settings that bracket the power limit; a step of Newton's method follows.
_HALVINGS = 40


class OperatingPoint(eqx.Module):
    """The supply voltage in V, the clock over that at nominal voltage, and the power of the package in W."""

    voltage: Scalar
    clock: Scalar
    power: Scalar


def clock(voltage: Scalar, technology: Technology) -> Scalar:
    """The clock at `voltage` over the clock at nominal voltage, by the alpha-power law f ∝ (V − Vt)^α / V.

    Source: Sakurai and Newton, IEEE J. Solid-State Circuits 25 (1990), 584.
    """
    drive = jnp.maximum(voltage - technology.threshold_voltage, _LEAST_DRIVE)
    nominal = technology.nominal_voltage - technology.threshold_voltage
    return (drive / nominal) ** technology.alpha * technology.nominal_voltage / voltage


def operating_point(
    voltage: Scalar,
    power_limit: Scalar,
    technology: Technology,
    power: Callable[[Scalar, Scalar], Scalar],
) -> OperatingPoint:
    """The operating point at `voltage`, or where that takes more than `power_limit`, at the fastest clock
    within the limit.

    `power` gives W at a voltage and a clock. Down to `LEAST_VOLTAGE` the voltage falls with the clock, below
    it the clock alone. A limit of 0 is none. The slopes are those of the implicit equation power = limit.
    """

    def point(setting: Scalar) -> OperatingPoint:
        """The operating point of one number. From `LEAST_VOLTAGE` on, the number is the supply voltage;
        below, the voltage stays there and the number lowers the clock in proportion.
        """
        least = jnp.minimum(LEAST_VOLTAGE, voltage)
        supplied = jnp.maximum(setting, least)
        at_clock = clock(supplied, technology) * jnp.minimum(setting / least, 1.0)
        return OperatingPoint(supplied, at_clock, power(supplied, at_clock))

    if not is_traced(power_limit) and not np.any(np.asarray(power_limit)):
        return point(voltage)
    limited = (power_limit > 0) & (point(voltage).power > power_limit)
    return point(jnp.where(limited, _limited_setting(voltage, power_limit, point), voltage))


def _limited_setting(
    voltage: Scalar, power_limit: Scalar, point: Callable[[Scalar], OperatingPoint]
) -> Scalar:
    """The setting at which the power is the limit, by bisection, or the least setting where that takes more.

    Bisection has no slope: one step of Newton's method at the root brings the implicit function's.
    """
    least = LEAST_THROTTLE * jnp.minimum(LEAST_VOLTAGE, voltage)

    def halve(_: Any, bracket: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        """The half of a bracket in which the power reaches the limit."""
        low, high = bracket
        middle = (low + high) / 2
        over = point(middle).power > power_limit
        return jnp.where(over, low, middle), jnp.where(over, middle, high)

    bracket = jax.lax.fori_loop(0, _HALVINGS, halve, jax.lax.stop_gradient((least, voltage)))
    root = jax.lax.stop_gradient(bracket[0])
    slope = jax.lax.stop_gradient(jax.grad(lambda setting: point(setting).power)(root))
    return jnp.where(
        point(least).power > power_limit, least, root - (point(root).power - power_limit) / slope
    )
