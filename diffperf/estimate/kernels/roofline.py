"""What every kernel's time is made of: the hierarchical roofline.

A kernel's parts run at the same time: compute, bytes / bandwidth + latency of every memory level outside the innermost, and what
the power limit asks for; then comes the overhead that no other kernel hides (Williams et al., CACM 2009; hierarchical form:
arXiv 2407.14645 §III).
"""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator, MatrixFormat
from diffperf.hardware.attention_kernels import AttentionFormat
from diffperf.hardware.formats import attention_format, converted, fp8_share, output_width, width
from diffperf.quantity import Scalar, split
from diffperf.relax import Relaxation, inverse, positive
from diffperf.workload.strategy import Strategy

Table = TypeVar("Table")  # of operators: arrays of one shape


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
        """The sum over all operators, which are the last axis."""
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=-1), self)


class LevelTime(eqx.Module):
    """What moving bytes out of a memory level takes."""

    byte: Scalar  # s per byte
    latency: Scalar  # s
    power: Scalar  # s per byte that the power limit asks for


class Machine(eqx.Module):
    """What the rooflines need to know: the device, its matrix units for the operands' format, and the relaxation."""

    accelerator: Accelerator
    kernel_overhead: Scalar
    matrix: MatrixFormat  # the operands' format
    width: Scalar  # bytes of an operand element
    activation: Scalar  # bytes of an element between products
    output_width: Scalar  # bytes of an element of a product
    kv_width: Scalar  # bytes of a KV-cache element
    converted: Scalar  # share of activations that kernels of their own convert to the format of the products
    elementwise_traffic: (
        Scalar  # bytes of a layer's element-wise kernels over those of the fusions that operators count
    )
    elementwise_kernels: Scalar  # and how many they are, likewise
    levels: tuple[LevelTime, ...]  # outside the innermost
    flop: Scalar  # s per FLOP at the peak rate of the operands' format
    flop_power: Scalar  # s per FLOP that the power limit asks for
    attention: AttentionFormat  # for the format of the KV cache
    attention_width: Scalar  # bytes of an element of queries, and of what fused attention multiplies
    attention_flop: Scalar  # s per FLOP that fused attention reaches in its products
    softmax: Scalar  # s per score of its softmax
    grouped_heads: Scalar  # query heads sharing a KV head that generation kernels process together at most
    relax: Relaxation

    @classmethod
    def of(cls, system, strategy: Strategy, relax: Relaxation) -> "Machine":
        accelerator, precision = system.accelerator, strategy.precision
        # A design whose leakage alone reaches its limit is unbuildable, but its estimate stays finite.
        limit = accelerator.power_limit
        per_joule = inverse(relax.excess(limit, accelerator.static_power) + _LEAST_POWER * limit)
        multiplied = attention_format(precision, strategy.kv_precision)
        fp8 = fp8_share(multiplied)
        attention = accelerator.attention.of(fp8)
        matrix = accelerator.matrix.of(precision)
        return cls(
            accelerator,
            accelerator.kernel_latency + system.stack.kernel_overhead,
            eqx.tree_at(lambda m: m.efficiency, matrix, matrix.efficiency * system.stack.matrix_efficiency),
            width(precision),
            strategy.activation_width,
            output_width(precision),
            width(strategy.kv_precision),
            converted(precision) * system.stack.separate_conversion,
            system.stack.elementwise_traffic,
            system.stack.elementwise_kernels,
            tuple(
                LevelTime(
                    inverse(level.bandwidth * level.efficiency), level.latency, level.energy * per_joule
                )
                for level in accelerator.memory[1:]
            ),
            inverse(matrix.rate),
            accelerator.matrix_energy(precision) * per_joule,
            attention,
            output_width(precision) + fp8 * (width(precision) - output_width(precision)),
            inverse(
                accelerator.matrix_rate(multiplied) * attention.efficiency * system.stack.attention_efficiency
            ),
            accelerator.attention.softmax_flops * inverse(accelerator.vector),
            system.stack.grouped_heads,
            relax,
        )


_LEAST_POWER = 0.05  # of the power limit
_SLOWEST_CLOCK = (
    0.1  # of the nominal one, to which power may lower it: 210 MHz of 1,410 on A100 (nvidia-smi -q -d CLOCK)
)


def together(
    work_of: Callable[[Table, Machine], Work], machine: Machine, tables: dict[str, Table]
) -> dict[str, Work]:
    """What `work_of` says of each of several tables of operators, of any shape: evaluated, compiled and differentiated once."""
    shapes = {name: jnp.shape(jax.tree.leaves(table)[0]) for name, table in tables.items()}
    work = work_of(
        jax.tree.map(lambda *columns: jnp.concatenate([jnp.ravel(c) for c in columns]), *tables.values()),
        machine,
    )
    parts = split(work, [math.prod(shape) for shape in shapes.values()], axis=-1)
    return {
        name: jax.tree.map(lambda leaf, shape=shape: jnp.reshape(leaf, leaf.shape[:-1] + shape), part)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def overlapped(*times: Array) -> Array:
    """How long the parts of one kernel take that run at the same time: their 4-norm.

    Near the ridge of a roofline neither part hides the other whole; two equal ones take 19 % longer than either.
    An estimate: exponents of 3 to 8 fit measured GEMMs of A100 to B200 equally well.
    """
    unit = longest(*times)
    return fourth_root(unit, overlapping(unit, *times))


def waiting(time: Array, other: Array) -> Array:
    """`overlapped` of two parts less the first, with all its digits where that is little."""
    unit = longest(time, other)
    own, others = time / unit, jnp.square(jnp.square(other / unit))
    both = jnp.sqrt(jnp.sqrt(jnp.square(jnp.square(own)) + others))
    return unit * others / ((both + own) * (jnp.square(both) + jnp.square(own)))


def longest(*times: Array) -> Array:
    """A unit of time, without a gradient, that keeps fourth powers of such times inside float32."""
    return positive(jax.lax.stop_gradient(functools.reduce(jnp.maximum, times)))


def overlapping(unit: Array, *times: Array) -> Array:
    """`overlapped` to the fourth power, in fourth powers of a unit: candidates are compared before the root is taken."""
    per_unit = 1 / unit
    return sum(jnp.square(jnp.square(time * per_unit)) for time in times)


def fourth_root(unit: Array, sum_of_powers: Array) -> Array:
    """The time that a sum of fourth powers of a unit stands for."""
    return unit * jnp.sqrt(jnp.sqrt(sum_of_powers))


def memory_times(machine: Machine, traffic: list[Array]) -> list[Array]:
    """Time each level outside the innermost needs for its bytes."""
    return [
        bytes_ * level.byte + level.latency for bytes_, level in zip(traffic, machine.levels, strict=True)
    ]


def stream_time(machine: Machine, bytes_: Array) -> Array:
    """Time to move bytes to or from device memory in a stream, its latency aside."""
    return bytes_ * machine.levels[-1].byte


def power_time(machine: Machine, flops: Array, traffic: list[Array]) -> Array:
    """Time to spend the energy of arithmetic and data movement within the power limit: clocks fall until it is kept, or to their
    floor."""
    limited = flops * machine.flop_power + sum(
        bytes_ * level.power for bytes_, level in zip(traffic, machine.levels, strict=True)
    )
    unlimited = flops * machine.flop + sum(memory_times(machine, traffic))
    return machine.relax.minimum(limited, unlimited * (1 / _SLOWEST_CLOCK))
