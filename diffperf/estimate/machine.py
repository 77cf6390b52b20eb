"""What every kernel's time is made of: the hierarchical roofline.

A kernel's parts run at the same time: compute, bytes / bandwidth + latency of every memory level outside the innermost, and what
the power limit asks for; then comes the overhead that no other kernel hides (Williams et al., CACM 2009; hierarchical form:
arXiv 2407.14645 §III).
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import (
    Accelerator,
    MatrixFormat,
    attention_format,
    converted,
    fp8_share,
    output_width,
    width,
)
from diffperf.hardware.attention import AttentionFormat
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, positive
from diffperf.workload.strategy import Strategy


class Work(eqx.Module):
    """What a set of kernels takes of one device. Adds up, and scales with a count."""

    time: Float[Array, "..."]  # s
    flops: Float[Array, "..."]  # FLOP on the matrix units
    traffic: Float[Array, "levels ..."]  # bytes served by each memory level outside the innermost

    def __add__(self, other: "Work") -> "Work":
        return Work(self.time + other.time, self.flops + other.flops, self.traffic + other.traffic)

    def __mul__(self, count: Array) -> "Work":
        return Work(self.time * count, self.flops * count, self.traffic * count)

    def total(self) -> "Work":
        """The sum over all operators."""
        return Work(jnp.sum(self.time), jnp.sum(self.flops), jnp.sum(self.traffic, axis=tuple(range(1, self.traffic.ndim))))


class Machine(eqx.Module):
    """What the rooflines need to know: the device, its matrix units for the operands' format, and the relaxation."""

    accelerator: Accelerator
    kernel_overhead: Scalar
    matrix: MatrixFormat  # the operands' format
    width: Scalar  # bytes of an operand element
    output_width: Scalar  # bytes of an element of a product
    kv_width: Scalar  # bytes of a KV-cache element
    converted: Scalar  # share of activations that kernels of their own convert to the format of the products
    elementwise_traffic: Scalar  # bytes of a layer's element-wise kernels over those of the fusions that operators count
    elementwise_kernels: Scalar  # and how many they are, likewise
    flop_energy: Scalar  # J
    power: Scalar  # W that arithmetic and data movement may draw together
    attention: AttentionFormat  # for the format of the KV cache
    attention_rate: Scalar  # FLOP/s that fused attention reaches in its products
    grouped_heads: Scalar  # query heads sharing a KV head that generation kernels process together at most
    relax: Relaxation

    @classmethod
    def of(cls, system, strategy: Strategy, relax: Relaxation) -> "Machine":
        accelerator, precision = system.accelerator, strategy.precision
        limit = accelerator.power_limit
        multiplied = attention_format(precision, strategy.kv_precision)
        attention = accelerator.attention.of(fp8_share(multiplied))
        matrix = accelerator.matrix.of(precision)
        return cls(
            accelerator,
            accelerator.kernel_latency + system.stack.kernel_overhead,
            eqx.tree_at(lambda m: m.efficiency, matrix, matrix.efficiency * system.stack.matrix_efficiency),
            width(precision),
            output_width(precision),
            width(strategy.kv_precision),
            converted(precision) * system.stack.separate_conversion,
            system.stack.elementwise_traffic,
            system.stack.elementwise_kernels,
            accelerator.matrix_energy(precision),
            # A design whose leakage alone reaches its limit is unbuildable, but its estimate stays finite.
            relax.excess(limit, accelerator.static_power) + _LEAST_POWER * limit,
            attention,
            accelerator.matrix_rate(multiplied) * attention.efficiency * system.stack.attention_efficiency,
            system.stack.grouped_heads,
            relax,
        )


_LEAST_POWER = 0.05  # of the power limit
_SLOWEST_CLOCK = 0.1  # of the nominal one, to which power may lower it: 210 MHz of 1,410 on A100 (nvidia-smi -q -d CLOCK)


def overlapped(*times: Array) -> Array:
    """How long the parts of one kernel take that run at the same time: their 4-norm.

    Near the ridge of a roofline neither part hides the other whole; two equal ones take 19 % longer than either.
    An estimate: exponents of 3 to 8 fit measured GEMMs of A100 to B200 equally well.
    """
    unit = longest(*times)
    return fourth_root(unit, overlapping(unit, *times))


def longest(*times: Array) -> Array:
    """A unit of time, without a gradient, that keeps fourth powers of such times inside float32."""
    return positive(jax.lax.stop_gradient(functools.reduce(jnp.maximum, times)))


def overlapping(unit: Array, *times: Array) -> Array:
    """`overlapped` to the fourth power, in fourth powers of a unit: candidates are compared before the root is taken."""
    return sum(jnp.square(jnp.square(time / unit)) for time in times)


def fourth_root(unit: Array, sum_of_powers: Array) -> Array:
    """The time that a sum of fourth powers of a unit stands for."""
    return unit * jnp.sqrt(jnp.sqrt(sum_of_powers))


def memory_times(machine: Machine, traffic: list[Array]) -> list[Array]:
    """Time each level outside the innermost needs for its bytes."""
    levels = machine.accelerator.memory[1:]
    return [bytes_ / (level.bandwidth * level.efficiency) + level.latency for bytes_, level in zip(traffic, levels, strict=True)]


def power_time(machine: Machine, flops: Array, traffic: list[Array]) -> Array:
    """Time to spend the energy of arithmetic and data movement within the power limit: clocks fall until it is kept, or to their
    floor."""
    levels = machine.accelerator.memory[1:]
    joules = flops * machine.flop_energy + sum(bytes_ * level.energy for bytes_, level in zip(traffic, levels, strict=True))
    unlimited = flops / machine.matrix.rate + sum(memory_times(machine, traffic))
    return machine.relax.minimum(joules / machine.power, unlimited / _SLOWEST_CLOCK)
