"""The hierarchical roofline, which bounds the time of every kernel.

A kernel's parts run at the same time: compute, and bytes / bandwidth + latency of every memory level
outside the innermost. Then comes the overhead that no other kernel hides (Williams et al., CACM 2009;
hierarchical form: arXiv 2407.14645 §III). Times are those at the clock that software allows
(`at_allowed_clock`); `diffperf.estimate.kernels.clock` slows them down where the power limit asks for it.
"""

import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.machine import LevelTime, Machine
from diffperf.quantity import Scalar
from diffperf.relax import inverse, positive, smaller


class Work(eqx.Module):
    """Time, FLOPs, energy and memory traffic of kernels on one device. Works add up, and scale with a count.

    - `time`: seconds, and `starts`: those of them for which kernels start (launches, and latencies before the
      first data). For the others they compute or move data.
    - `clocked`: those of the time that grow as the clock of the compute units falls.
    - `flops`: FLOP on the matrix units.
    - `arithmetic`: joules of matrix and vector units.
    - `traffic`: bytes served by each memory level outside the innermost.
    """

    time: Float[Array, "..."]
    starts: Float[Array, "..."]
    clocked: Float[Array, "..."]
    flops: Float[Array, "..."]
    arithmetic: Float[Array, "..."]
    traffic: Float[Array, "levels ..."]

    def __add__(self, other: "Work") -> "Work":
        return jax.tree.map(jnp.add, self, other)

    def with_wait(self, seconds: Array) -> "Work":
        """The same work and a wait beside it that no clock changes: compute units rest as while kernels
        start.
        """
        return dataclasses.replace(self, time=self.time + seconds, starts=self.starts + seconds)

    def __mul__(self, count: Array | float) -> "Work":
        return jax.tree.map(lambda leaf: leaf * count, self)

    def stretched(self, factor: Array) -> "Work":
        """The same work where computation and movement of data take `factor` times as long, and starts as
        long as before.
        """
        time = self.starts + factor * (self.time - self.starts)
        return dataclasses.replace(self, time=time, clocked=factor * self.clocked)

    def unstacked(self) -> list["Work"]:
        """Works that stand side by side, one by one."""
        leaves, structure = jax.tree.flatten(self)
        columns = zip(*(jnp.unstack(leaf, axis=-1) for leaf in leaves), strict=True)
        return [structure.unflatten(column) for column in columns]


def idle_arithmetic(time: Array, starts: Array, traffic: Float[Array, "levels ..."]) -> Work:
    """The work of kernels that wait for memory all the time: their few FLOP are not counted, nor do they slow
    down with the clock.
    """
    nothing = jnp.zeros_like(time)
    return Work(time=time, starts=starts, clocked=nothing, flops=nothing, arithmetic=nothing, traffic=traffic)


def overlapped(*times: Array) -> Array:
    """Seconds that the parts of one kernel take if they run at the same time: the 4-norm of their times.

    Near the ridge of a roofline neither part hides the other whole; two equal parts take 19 % longer than
    either of them. An estimate: exponents of 3 to 8 fit measured GEMMs of A100 to B200 equally well.
    """
    unit = longest(*times)
    return fourth_root(unit, overlapping(unit, *times))


def waiting(time: Array, other: Array) -> Array:
    """`overlapped(time, other) − time`, with all its digits where `other` is little.

    A difference of two nearly equal numbers would lose them: ∜(a⁴ + b⁴) − a = b⁴ / ((c + a)·(c² + a²))
    with c = ∜(a⁴ + b⁴).
    """
    unit = longest(time, other)
    own, other_power = time / unit, jnp.square(jnp.square(other / unit))
    both = jnp.sqrt(jnp.sqrt(jnp.square(jnp.square(own)) + other_power))
    return unit * other_power / ((both + own) * (jnp.square(both) + jnp.square(own)))


def longest(*times: Array) -> Array:
    """The longest of some times, without a gradient: a unit that keeps their fourth powers inside float32."""
    return positive(jax.lax.stop_gradient(functools.reduce(jnp.maximum, times)))


def overlapping(unit: Array, *times: Array) -> Array:
    """`overlapped` to the fourth power, in fourth powers of a unit: candidates are compared before the root
    is taken.
    """
    per_unit = 1 / unit
    powers = [jnp.square(jnp.square(time * per_unit)) for time in times]
    return functools.reduce(jnp.add, powers)


def fourth_root(unit: Array, sum_of_powers: Array) -> Array:
    """The time that a sum of fourth powers of a unit stands for."""
    return unit * jnp.sqrt(jnp.sqrt(sum_of_powers))


def memory_times(machine: Machine, traffic: list[Array]) -> list[Array]:
    """Seconds that each memory level outside the innermost needs for the bytes that it serves.

    Of several levels in which tensors live, each counts its latency by its share of the bytes: a kernel
    does not wait for a level that it reads nothing from.
    """
    latencies = [level.latency for level in machine.levels]
    if machine.shares is not None:
        addressed = machine.shares.addressed
        columns = zip(traffic, addressed, strict=True)
        bytes_ = functools.reduce(jnp.add, [served for served, counts in columns if counts])
        per_byte = 1 / positive(bytes_)
        latencies = [
            latency * served * per_byte if counts else latency
            for latency, served, counts in zip(latencies, traffic, addressed, strict=True)
        ]
    columns = zip(traffic, machine.levels, latencies, strict=True)
    return [served * level.byte + latency for served, level, latency in columns]


def cached_stream(machine: Machine, bytes_: Array) -> tuple[LevelTime, Array] | None:
    """The shared cache, and the share of the bytes of a stream of activations that it serves; None where it
    serves none.

    In inference a kernel reads what the kernel before it wrote, and what it writes is read next: as far as
    the bytes of one kernel fit into the cache, they do not come from device memory. Training keeps
    activations for the backward pass, and its stacks are calibrated on streams from device memory.
    """
    if not machine.serving or machine.shares is not None or machine.cache is None:
        return None
    level, capacity = machine.cache
    return level, machine.relax.minimum(capacity / positive(bytes_), 1.0)


def _of_stream(machine: Machine, bytes_: Array, number: Callable[[LevelTime], Scalar]) -> Array:
    """A number of memory levels for a stream of activations: that of device memory, and of the shared cache
    for the share that comes from there.
    """
    device, cached = number(machine.device), cached_stream(machine, bytes_)
    if cached is None:
        return device
    level, share = cached
    return device + share * (number(level) - device)


def streamed(machine: Machine, bytes_: Array) -> Float[Array, "levels ..."]:
    """Bytes that each memory level outside the innermost serves of a stream of activations."""
    if machine.shares is not None:
        return jnp.stack([bytes_ * share for share in machine.shares.activations])
    cached = cached_stream(machine, bytes_)
    if cached is None:
        return jnp.stack([bytes_] * len(machine.levels))
    _, share = cached
    device = machine.accelerator.device_level - 1
    return jnp.stack(
        [bytes_ * (1 - share) if index >= device else bytes_ for index in range(len(machine.levels))]
    )


def clocked_time(machine: Machine, time: Array, times: list[Array]) -> Array:
    """Seconds of a kernel's `time` that grow as the clock of the compute units falls.

    `times` are those of its memory levels. Device memory and storage have clocks of their own, all else
    follows the compute units: of the 4-norm t of parts tᵢ, d ln t / d ln tᵢ = (tᵢ / t)⁴.
    """
    own = times[machine.accelerator.device_level - 1 :]
    unit = positive(jax.lax.stop_gradient(time))
    waits = overlapping(unit, *own) * inverse(jnp.square(jnp.square(time / unit)))
    return time * (1 - smaller(waits, 1.0))


def stream_time(machine: Machine, bytes_: Array) -> Array:
    """Seconds to move activations to or from where they live in a stream, without the latency of the first
    byte.
    """
    if machine.shares is not None:
        columns = zip(machine.shares.lives, machine.levels, strict=True)
        times = [share * level.byte for share, level in columns]
        unit = longest(*times)
        return bytes_ * fourth_root(unit, positive(overlapping(unit, *times)))
    return bytes_ * _of_stream(machine, bytes_, lambda level: level.byte)


def stream_latency(machine: Machine, bytes_: Array) -> Array:
    """Seconds from a request for activations of a stream to the first byte from where they live."""
    if machine.shares is not None:
        columns = zip(machine.shares.lives, machine.levels, strict=True)
        return functools.reduce(jnp.add, [share * level.latency for share, level in columns])
    return _of_stream(machine, bytes_, lambda level: level.latency)
