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
import jax
import jax.numpy as jnp

from diffperf.estimate.kernels.evaluation import ClockedTime, TimedOperators
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.clocked_accelerator import allowed_energy
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, inverse, larger, positive, smaller

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

_SLOWEST = -math.log(_SLOWEST_CLOCK)  # the greatest log(slowdown)
_STEPS = 3  # of Newton's method to a clock
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
    return _active_time(time, waiting + work.starts, accelerator.waiting_share)


def _active_time(time: Scalar, waits: Scalar, waiting_share: Scalar) -> Scalar:
    """Seconds at active power that stand for `time` seconds with waits in them, at a share of that power."""
    return time - (1 - waiting_share) * smaller(waits, time)


class _Waits(eqx.Module):
    """Seconds that a device waits, as a line over its slowdown: `waiting` at a `slowdown`, and how many more
    it waits for each unit of slowdown from there; never less than none.
    """

    waiting: Scalar
    lengthening: Scalar
    slowdown: Scalar

    def at(self, slowdown: Scalar) -> Scalar:
        """Seconds at a slowdown."""
        return larger(self.waiting + self.lengthening * (slowdown - self.slowdown), 0.0)

    def steepness(self, waiting: Scalar) -> Scalar:
        """The lengthening where the device waits for `waiting` seconds; 0 where it does not wait."""
        return jnp.where(waiting > 0, self.lengthening, 0.0)


class _Draw(eqx.Module):
    """What a device draws as it repeats some work, beside which it waits and sends, and what it may draw.

    - `time`, `starts`, `clocked`: seconds of the work at the allowed clock, those of them until a kernel
      starts, and those that follow the clock.
    - `operations`, `unclocked`: joules of arithmetic and caches at the allowed clock, and of device memory
      and links.
    - `waits`: seconds that the device waits: the same at all clocks, or a line.
    - `active`: further seconds at active power.
    - `limit`, `static_power`, `active_power`, `waiting_share`, `exponent`: numbers of the accelerator, the
      limit as it is over the duration of the work.
    """

    time: Scalar
    starts: Scalar
    clocked: Scalar
    operations: Scalar
    unclocked: Scalar
    waits: Scalar | _Waits
    active: Scalar
    limit: Scalar
    static_power: Scalar
    active_power: Scalar
    waiting_share: Scalar
    exponent: Scalar
    relax: Relaxation

    @classmethod
    def of(
        cls, work: Work, machine: Machine, beside: OutsideKernels, limit: Scalar, waits: Scalar | _Waits
    ) -> "_Draw":
        """What a device draws of a limit; `waits` take the place of those that are `beside` the work."""
        accelerator = machine.accelerator
        caches, memory = traffic_energy(work, accelerator)
        return cls(
            time=work.time,
            starts=work.starts,
            clocked=work.clocked,
            operations=work.arithmetic + caches,
            unclocked=memory + beside.energy,
            waits=waits,
            active=beside.active,
            limit=limit,
            static_power=accelerator.static_power,
            active_power=accelerator.active_power,
            waiting_share=accelerator.waiting_share,
            exponent=accelerator.power_exponent,
            relax=machine.relax,
        )

    def balance(self, wanted: Scalar) -> tuple[Scalar, Scalar]:
        """The logarithm of what the device draws over what it may draw where clocked work takes exp(`wanted`)
        times as long as at the allowed clock, and how fast that logarithm falls with `wanted`.

        At a slowdown s the clocked time is s times as long. Of the power that follows the clock, energy of
        arithmetic and caches falls as s^(1 − x) for a pass, and active power as s^(−x), of which waits take a
        share. A longer pass may take more joules.
        """
        relax, exponent = self.relax, self.exponent
        slowdown, falling = jnp.exp(wanted), jnp.exp(-exponent * wanted)
        waiting = self.waits.at(slowdown) if isinstance(self.waits, _Waits) else self.waits
        time = self.time + waiting + self.active
        rate = inverse(positive(time))
        at_work = _active_time(time, waiting + self.starts, self.waiting_share) * rate
        operations, clocked = self.operations * rate, self.clocked * rate
        least = _LEAST_POWER * self.limit
        left = relax.excess(self.limit, self.static_power + self.unclocked * rate)
        above_idle = larger(self.limit - self.static_power, 0.0)
        growth = clocked * above_idle
        of_operations = operations * slowdown * falling
        of_activity = self.active_power * falling
        active = of_activity * (at_work + clocked * (slowdown - 1))
        drawn = of_operations + active
        granted = larger(relax.maximum(left, least) + growth * (slowdown - 1), least)
        falls = (exponent - 1) * of_operations + exponent * active - of_activity * clocked * slowdown
        granted_more = growth * slowdown
        if isinstance(self.waits, _Waits):
            longer = self.waits.steepness(waiting) * slowdown * rate
            falls = falls - self.waiting_share * of_activity * longer
            granted_more = granted_more + above_idle * longer
        slope = falls * inverse(drawn) + granted_more * inverse(granted)
        return jnp.log(drawn * inverse(granted)), larger(slope, _LEAST_SLOPE)


@jax.custom_jvp
def _log_slowdown(draw: _Draw, near: Scalar) -> Scalar:
    """The logarithm of the slowdown at which a device draws what it may, from steps of Newton's method that
    start at `near`.
    """
    wanted = near
    for _ in range(_STEPS):
        excess, slope = draw.balance(wanted)
        wanted = larger(smaller(wanted + excess * inverse(slope), _SLOWEST), _FASTEST)
    return wanted


@_log_slowdown.defjvp
def _log_slowdown_jvp(primals: tuple[_Draw, Scalar], tangents: tuple[_Draw, Scalar]) -> tuple[Scalar, Scalar]:
    """The derivative by the implicit function theorem: of the balance at the solution, whatever the steps.

    To differentiate each of the steps would take a twentieth of the gradient of a training step.
    """
    draw, wanted = primals[0], _log_slowdown(*primals)
    _, grows = jax.jvp(lambda draw: draw.balance(wanted)[0], (draw,), (tangents[0],))
    _, rises = jax.jvp(lambda wanted: draw.balance(wanted)[0], (wanted,), (jnp.ones_like(wanted),))
    within = (wanted > _FASTEST) & (wanted < _SLOWEST)
    return wanted, jnp.where(within, grows * inverse(larger(-rises, _LEAST_SLOPE)), 0.0)


def _clock_of(draw: _Draw, accelerator: Accelerator, near: Scalar) -> Clock:
    """The clock at which a device draws what it may, within those that it has."""
    wanted = _log_slowdown(draw, near)
    slowest = accelerator.clock_limit / _SLOWEST_CLOCK
    relax = draw.relax
    return Clock.at(relax.minimum(relax.maximum(jnp.exp(wanted), 1.0), slowest), accelerator)


def clock_under_limit(
    work: Work, machine: Machine, duration: Scalar | None = None, beside: OutsideKernels | None = None
) -> Clock:
    """The clock at which a device that repeats `work`, and what is beside it, keeps its power limit.

    The slowdown at which it draws what the limit leaves beside idle power, device memory and links comes
    from three steps of Newton's method on logarithms.

    The limit holds for averages over the device's window τ. Kernels that run for a `duration` d after a pause
    have drawn, on an average that forgets exponentially, their power for a share 1 − exp(−d/τ) of it, and
    idle power before; without a duration they run on.
    """
    accelerator = machine.accelerator
    limit = accelerator.power_limit
    if duration is not None:
        before = jnp.exp(-duration / accelerator.power_window)
        limit = (limit - before * accelerator.static_power) * inverse(positive(1 - before))
    beside = OutsideKernels.nothing(work) if beside is None else beside
    draw = _Draw.of(work, machine, beside, limit, beside.waiting)
    return _clock_of(draw, accelerator, jnp.zeros_like(limit))


def clock_beside_waits(
    work: Work, machine: Machine, beside: Callable[[Clock | None], OutsideKernels]
) -> Clock:
    """The clock that the limits leave work, given at the clock that software allows, whose waits depend on
    the clock: `beside` says what a device does beside it at a clock, or at the allowed one if None.

    Kernels that slow down hide more of the communication and of the launches, so that the device waits less
    and draws more. Waits are evaluated at the allowed clock and at the one that these leave, and taken to
    follow the line through both, down to none. The device draws its limit to 0.3 %.
    """
    accelerator = machine.accelerator
    at_allowed = beside(None)
    first = clock_under_limit(work, machine, beside=at_allowed)
    at_first = beside(first)
    step = larger(first.slowdown - 1, _LEAST_SLOWDOWN)
    waits = _Waits(
        waiting=at_first.waiting,
        lengthening=(at_first.waiting - at_allowed.waiting) * inverse(step),
        slowdown=first.slowdown,
    )
    draw = _Draw.of(work, machine, at_first, accelerator.power_limit, waits)
    return _clock_of(draw, accelerator, jnp.log(first.slowdown))


def traffic_energy(work: Work, accelerator: Accelerator) -> tuple[Scalar, Scalar]:
    """Joules at the clock of the accelerator to move data out of the caches, which share the supply of the
    compute units, and out of device memory and storage.
    """
    energies = [level.energy for level in accelerator.memory[1:]]
    joules = [energy * served for energy, served in zip(energies, work.traffic, strict=True)]
    device, nothing = accelerator.device_level - 1, jnp.zeros_like(work.time)
    return sum(joules[:device], start=nothing), sum(joules[device:], start=nothing)
