"""What every kernel's time is made of: the hierarchical roofline.

A kernel's time is the relaxed maximum of its compute time and, for every memory level outside the innermost, of bytes / bandwidth +
latency; plus the overhead that no other kernel hides (Williams et al., CACM 2009; hierarchical form: arXiv 2407.14645 §III).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator, width
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation
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
    """What the rooflines need to know: the device, its peak for the operands' format, and the relaxation."""

    accelerator: Accelerator
    kernel_overhead: Scalar
    rate: Scalar  # peak FLOP/s of the matrix units for the operands' format
    width: Scalar  # bytes of an operand element
    kv_width: Scalar  # bytes of a KV-cache element
    relax: Relaxation

    @classmethod
    def of(cls, system, strategy: Strategy, relax: Relaxation) -> "Machine":
        accelerator = system.accelerator
        return cls(
            accelerator,
            system.stack.kernel_overhead,
            accelerator.matrix_rate(strategy.precision),
            width(strategy.precision),
            width(strategy.kv_precision),
            relax,
        )


def memory_times(machine: Machine, traffic: list[Array]) -> list[Array]:
    """Time each level outside the innermost needs for its bytes."""
    levels = machine.accelerator.memory[1:]
    return [bytes_ / (level.bandwidth * level.efficiency) + level.latency for bytes_, level in zip(traffic, levels, strict=True)]
