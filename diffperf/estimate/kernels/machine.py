"""What kernels need to know of the device that they run on, for one configuration: rates, widths and
overheads.
"""

import equinox as eqx

from diffperf.hardware.accelerator import Accelerator, MatrixFormat
from diffperf.hardware.attention_kernels import AttentionFormat
from diffperf.hardware.formats import attention_format, converted, fp8_share, output_width, width
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, inverse
from diffperf.workload.strategy import Strategy

# A design whose leakage alone reaches its power limit is unbuildable; this fraction of the limit is left to
# it, so that its estimate stays finite.
_LEAST_POWER = 0.05


class MatrixUnits(eqx.Module):
    """The matrix units, for the format of a strategy's operands."""

    format: MatrixFormat  # the efficiency is the accelerator's times the stack's share of it
    flop_time: Scalar  # s per FLOP at the peak rate
    flop_power_time: Scalar  # s per FLOP that the power limit asks for
    width: Scalar  # bytes of an operand's element
    output_width: Scalar  # bytes of an element of a product
    converted: Scalar  # share of activations that kernels of their own convert to the format of the operands

    @classmethod
    def of(cls, system: System, strategy: Strategy, joule_time: Scalar) -> "MatrixUnits":
        accelerator, precision, stack = system.accelerator, strategy.precision, system.stack
        matrix = accelerator.matrix.mean(precision)
        return cls(
            format=eqx.tree_at(lambda m: m.efficiency, matrix, matrix.efficiency * stack.matrix_efficiency),
            flop_time=inverse(matrix.rate),
            flop_power_time=accelerator.matrix_energy(precision) * joule_time,
            width=width(precision),
            output_width=output_width(precision),
            converted=converted(precision) * stack.separate_conversion,
        )


class AttentionUnits(eqx.Module):
    """What fused attention kernels reach, for the formats of a strategy's activations and KV cache."""

    format: AttentionFormat
    width: Scalar  # bytes of an element of queries, and of what the kernels multiply
    kv_width: Scalar  # bytes of an element of the KV cache
    flop_time: Scalar  # s per FLOP that the kernels reach in their products
    softmax_time: Scalar  # s per score of the softmax on the vector units
    launch: Scalar  # s, of one kernel whatever it computes
    grouped_heads: Scalar  # query heads of a KV head that a generation kernel processes together at most

    @classmethod
    def of(cls, system: System, strategy: Strategy, kernel_overhead: Scalar) -> "AttentionUnits":
        accelerator, precision, stack = system.accelerator, strategy.precision, system.stack
        multiplied = attention_format(precision, strategy.kv_precision)
        fp8 = fp8_share(multiplied)
        kernels = accelerator.attention.mean(fp8)
        rate = accelerator.matrix_rate(multiplied) * kernels.efficiency * stack.attention_efficiency
        return cls(
            format=kernels,
            width=output_width(precision) + fp8 * (width(precision) - output_width(precision)),
            kv_width=width(strategy.kv_precision),
            flop_time=inverse(rate),
            softmax_time=accelerator.attention.softmax_flops * inverse(accelerator.vector),
            launch=accelerator.attention.latency + kernel_overhead,
            grouped_heads=stack.grouped_heads,
        )


class LevelTime(eqx.Module):
    """What it takes to move bytes out of a memory level."""

    byte: Scalar  # s per byte
    latency: Scalar  # s
    power: Scalar  # s per byte that the power limit asks for


class Machine(eqx.Module):
    """One device as its kernels see it, for one configuration."""

    accelerator: Accelerator
    kernel_overhead: Scalar  # s that a kernel adds and no other kernel hides
    levels: tuple[LevelTime, ...]  # the memory levels outside the innermost, from the inside out
    matrix: MatrixUnits
    attention: AttentionUnits
    relax: Relaxation

    @classmethod
    def of(cls, system: System, strategy: Strategy, relax: Relaxation) -> "Machine":
        """The device of a system, driven by the system's stack, for the number formats of a strategy."""
        accelerator, limit = system.accelerator, system.accelerator.power_limit
        dynamic = relax.excess(limit, accelerator.static_power) + _LEAST_POWER * limit  # W
        joule_time = inverse(dynamic)
        overhead = accelerator.kernel_latency + system.stack.kernel_overhead
        return cls(
            accelerator=accelerator,
            kernel_overhead=overhead,
            levels=tuple(
                LevelTime(
                    byte=inverse(level.bandwidth * level.efficiency),
                    latency=level.latency,
                    power=level.energy * joule_time,
                )
                for level in accelerator.memory[1:]
            ),
            matrix=MatrixUnits.of(system, strategy, joule_time),
            attention=AttentionUnits.of(system, strategy, overhead),
            relax=relax,
        )
