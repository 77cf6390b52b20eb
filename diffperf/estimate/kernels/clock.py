"""The clock that limits of power and of the clock itself leave to kernels, and what they take at that clock.

A device draws P = idle + active + arithmetic + data movement. Where this is more than its power limit, clock
and voltage of the compute units fall, and with the clock f the power of all that shares their supply:
P ∝ f·V², which goes as f^x over the range of voltages (alpha-power law: Sakurai and Newton, IEEE J.
Solid-State Circuits 25, 1990, 584), so that V ∝ f^((x − 1)/2). Device memory keeps its own clock. The limit
holds for an average over many kernels, so that all kernels of a pass run at one clock.

Software may hold the clock lower than that of the peak rates. Kernels are timed at the clock that software
allows (`at_allowed_clock`), and the power limit slows them from there: their times grow by the shares of them
that followed the clock at the allowed one.
"""

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.kernels.evaluation import ClockedTime, TimedOperators
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.clocked_accelerator import allowed_energy
from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, positive, smaller

# The lowest clock to which the power limit may force a device, over the clock of its peak rates: 210 MHz of
# 1,410 on A100 (nvidia-smi -q -d CLOCK), rounded down.
_SLOWEST_CLOCK = 0.1
# A design that draws its power limit without any work is unbuildable; this share of the limit is left to it,
# so that its estimate stays finite.
_LEAST_POWER = 0.02
# Where power hardly falls with the clock, and where the limit is far away, the steps to the clock are bounded
# so that they and their derivatives stay finite in float32.
_LEAST_SLOPE = 1e-2  # of log(power) by log(slowdown)
_FASTEST = -3.0  # log(slowdown) at which the limit has no effect, smooth or not

# Clocks that follow each other to that of work with waits, each from the waits at the one before.
_CLOCKS = 4
# The least slowdown between two clocks for a line through the waits at both: rounding in float32 has no part
# in its steepness.
_LEAST_SLOWDOWN = 1e-3


class Clock(eqx.Module):
    """A clock of the compute units of a device.

    - `slowdown`: the clock that software allows over this one, at least 1.
    - `energy`: the energy of an operation at this clock, and its voltage, over that at the allowed clock.
    - `allowed`: the clock that software allows over that of the peak rates, and `allowed_energy` the energy
      of an operation there.
    """

    slowdown: Scalar
    energy: Scalar
    allowed: Scalar
    allowed_energy: Scalar

    @classmethod
    def at(cls, slowdown: Scalar, accelerator: Accelerator) -> "Clock":
        """The clock of an accelerator at a slowdown."""
        return cls(
            slowdown=slowdown,
            energy=jnp.exp((1 - accelerator.power_exponent) * jnp.log(slowdown)),
            allowed=accelerator.clock_limit,
            allowed_energy=allowed_energy(accelerator),
        )

    @property
    def of_peak(self) -> Scalar:
        """This clock over that of the peak rates."""
        return self.allowed * inverse(self.slowdown)

    @property
    def energy_of_peak(self) -> Scalar:
        """The energy of an operation at this clock over that at the clock of the peak rates."""
        return self.allowed_energy * self.energy

    @property
    def power_of_peak(self) -> Scalar:
        """The power of clock tree and instructions over that at the clock of the peak rates."""
        return self.energy_of_peak * self.of_peak

    @property
    def voltage(self) -> Scalar:
        """The supply voltage over that at the clock of the peak rates: the energy of an operation is ∝ V²."""
        return jnp.sqrt(self.energy_of_peak)

    def slow(self, work: Work) -> Work:
        """Time and energy of some work at this clock, from those at the allowed clock."""
        longer = (self.slowdown - 1) * work.clocked
        return dataclasses.replace(
            work,
            time=work.time + longer,
            clocked=work.clocked + longer,
            arithmetic=work.arithmetic * self.energy,
        )

    def slow_time(self, timed: ClockedTime) -> ClockedTime:
        """Seconds at this clock, from those at the allowed clock."""
        longer = (self.slowdown - 1) * timed.clocked
        return ClockedTime(time=timed.time + longer, clocked=timed.clocked + longer)

    def slow_all(self, operators: TimedOperators) -> TimedOperators:
        """Time and energy of some operators at this clock, from those at the allowed clock."""
        return TimedOperators(
            tuple(
                dataclasses.replace(kernel, work=self.slow(kernel.work)) if kernel.follows_clock else kernel
                for kernel in operators.kernels
            )
        )


class OutsideKernels(eqx.Module):
    """What a device does beside the kernels of some work each time that it runs the work.

    - `waiting`: seconds for which its compute units wait for other devices.
    - `active`: seconds at active power without any of those kernels.
    - `energy`: joules of what it sends.

    All of them are short beside the time over which the power limit averages.
    """

    waiting: Scalar
    active: Scalar
    energy: Scalar

    @classmethod
    def nothing(cls, work: Work) -> "OutsideKernels":
        """Nothing beside some work: its kernels follow each other, and nothing is sent."""
        zero = jnp.zeros_like(work.time)
        return cls(waiting=zero, active=zero, energy=zero)


def active_time(work: Work, accelerator: Accelerator, time: Scalar, waiting: Scalar | float) -> Scalar:
    """Seconds at active power that stand for `time` seconds with some work in them.

    While compute units wait, for other devices (`waiting` seconds) or for the start of their next kernel,
    they draw a share of the active power.
    """
    waits = smaller(waiting + work.starts, time)
    return time - (1 - accelerator.waiting_share) * waits


def clock_under_limit(
    work: Work,
    machine: Machine,
    duration: Scalar | None = None,
    beside: OutsideKernels | None = None,
    near: Clock | None = None,
) -> Clock:
    """The clock at which a device that repeats `work`, and what is beside it, keeps its power limit.

    At a slowdown s the clocked time is s times as long. Of the power that follows the clock, energy of
    arithmetic and caches falls as s^(1 − x) for a pass, and active power as s^(−x); waits, which take a
    share of it, do not grow. The slowdown at which these joules are what the limit leaves beside idle power,
    device memory and links comes from three steps of Newton's method on logarithms.

    The limit holds for averages over the device's window τ. Kernels that run for a `duration` d after a pause
    have drawn, on an average that forgets exponentially, their power for a share 1 − exp(−d/τ) of it, and
    idle power before; without a duration they run on.

    One step is enough from a clock `near` the one that is looked for.
    """
    accelerator, relax = machine.accelerator, machine.relax
    beside = OutsideKernels.nothing(work) if beside is None else beside
    time = work.time + beside.waiting + beside.active
    rate = inverse(positive(time))
    at_work = active_time(work, accelerator, time, beside.waiting) * rate
    caches, memory = traffic_energy(work, accelerator)
    operations = (work.arithmetic + caches) * rate  # W
    limit = accelerator.power_limit
    if duration is not None:
        before = jnp.exp(-duration / accelerator.power_window)
        share = 1 - before
        limit = (limit - before * accelerator.static_power) * inverse(positive(share))
    left = relax.excess(limit, accelerator.static_power + (memory + beside.energy) * rate)
    budget = relax.maximum(left, _LEAST_POWER * limit)
    # A longer pass may take more joules: so many by a unit of slowdown, over the time at the allowed clock.
    clocked = work.clocked * rate
    growth = clocked * larger(limit - accelerator.static_power, 0.0)
    wanted = jnp.zeros_like(budget) if near is None else jnp.log(near.slowdown)  # log(slowdown)
    exponent = accelerator.power_exponent
    for _ in range(3 if near is None else 1):
        slowdown, falling = jnp.exp(wanted), jnp.exp(-exponent * wanted)
        of_operations = operations * slowdown * falling
        of_activity = accelerator.active_power * falling
        active = of_activity * (at_work + clocked * (slowdown - 1))
        drawn = of_operations + active
        granted = larger(budget + growth * (slowdown - 1), _LEAST_POWER * limit)
        falls = (exponent - 1) * of_operations + exponent * active - of_activity * clocked * slowdown
        slope = falls * inverse(drawn) + growth * slowdown * inverse(granted)
        step = jnp.log(drawn * inverse(granted)) * inverse(larger(slope, _LEAST_SLOPE))
        wanted = larger(smaller(wanted + step, -math.log(_SLOWEST_CLOCK)), _FASTEST)
    slowest = accelerator.clock_limit / _SLOWEST_CLOCK
    return Clock.at(relax.minimum(relax.maximum(jnp.exp(wanted), 1.0), slowest), accelerator)


def clock_beside_waits(
    work: Work, machine: Machine, beside: Callable[[Clock | None], OutsideKernels]
) -> Clock:
    """The clock that the limits leave work, given at the clock that software allows, whose waits depend on
    the clock: `beside` says what a device does beside it at a clock, or at the allowed one if None.

    Kernels that slow down hide more of the communication and of the launches, so that the device waits less
    and draws more. Waits are evaluated at the allowed clock and at the one that these leave, and taken to
    follow the line through both, down to none. The device draws its limit to 0.3 %.
    """
    at_allowed = beside(None)
    first = clock_under_limit(work, machine, beside=at_allowed)
    at_first = beside(first)
    step = larger(first.slowdown - 1, _LEAST_SLOWDOWN)
    steepness = (at_first.waiting - at_allowed.waiting) * inverse(step)
    clock = first
    for _ in range(_CLOCKS):
        waiting = larger(at_first.waiting + steepness * (clock.slowdown - first.slowdown), 0.0)
        clock = clock_under_limit(
            work, machine, beside=dataclasses.replace(at_first, waiting=waiting), near=clock
        )
    return clock


def traffic_energy(work: Work, accelerator: Accelerator) -> tuple[Scalar, Scalar]:
    """Joules at the clock of the accelerator to move data out of the caches, which share the supply of the
    compute units, and out of device memory and storage.
    """
    energies = [level.energy for level in accelerator.memory[1:]]
    joules = [energy * served for energy, served in zip(energies, work.traffic, strict=True)]
    device, nothing = accelerator.device_level - 1, jnp.zeros_like(work.time)
    return sum(joules[:device], start=nothing), sum(joules[device:], start=nothing)
