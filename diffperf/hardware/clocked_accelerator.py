"""An accelerator whose compute units run at another clock than that of its peak rates."""

import dataclasses

import jax.numpy as jnp

from diffperf.hardware.accelerator import Accelerator, MatrixFormats
from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.memory_level import MemoryLevel
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, locate, replace

# Times of attention kernels that compute units spend on their own work.
_UNIT_TIMES = (
    "head_latency", "row_latency", "bf16.tile_latency", "bf16.group_latency", "fp8.tile_latency",
    "fp8.group_latency",
)  # fmt: skip


def at_clock(accelerator: Accelerator, clock: Scalar, energy: Scalar | float = 1.0) -> Accelerator:
    """The accelerator with its compute units at a clock, and at a supply voltage V at which an operation
    takes `energy` ∝ V², both over those of its peak rates.

    Arithmetic rates and the bandwidths of caches follow the clock, and so do latencies that are cycles: of
    caches, of the pipelines of GEMMs, and of compute units in attention. Device memory and storage have
    clocks of their own. The energy of a byte out of a cache is ∝ V², and the power of clock tree and
    instructions ∝ f·V².
    """
    return dataclasses.replace(
        accelerator,
        matrix=_matrix_at(accelerator.matrix, clock),
        vector=accelerator.vector * clock,
        memory=tuple(
            _cache_at(level, clock, energy) if kind == "cache" else level
            for level, kind in zip(accelerator.memory, accelerator.memory_kinds, strict=True)
        ),
        attention=_attention_at(accelerator.attention, clock),
        compute_energy=accelerator.compute_energy * energy,
        vector_energy=accelerator.vector_energy * energy,
        active_power=accelerator.active_power * clock * energy,
    )


def allowed_energy(accelerator: Accelerator) -> Scalar:
    """The energy of an operation at the clock that software allows, over that at the clock of the peak rates:
    where P ∝ f·V² goes as f^x, V² goes as f^(x − 1).
    """
    return jnp.exp((accelerator.power_exponent - 1) * jnp.log(accelerator.clock_limit))


def at_allowed_clock(system: System) -> System:
    """The system with its accelerators at the clock that software allows."""
    accelerator = system.accelerator
    allowed = at_clock(accelerator, accelerator.clock_limit, allowed_energy(accelerator))
    return dataclasses.replace(system, accelerator=allowed)


def _matrix_at(formats: MatrixFormats, clock: Scalar) -> MatrixFormats:
    """Matrix formats whose rates and pipelines follow a clock."""
    values = {}
    for name in PRECISIONS:
        own = getattr(formats, name)
        values |= {f"{name}.rate": own.rate * clock, f"{name}.k_latency": own.k_latency / clock}
    return replace(formats, values)


def _cache_at(level: MemoryLevel, clock: Scalar, energy: Scalar | float) -> MemoryLevel:
    """A cache at a clock, whose energy of a byte is multiplied by `energy`."""
    return dataclasses.replace(
        level,
        bandwidth=level.bandwidth * clock,
        latency=level.latency / clock,
        energy=level.energy * energy,
    )


def _attention_at(attention: AttentionKernels, clock: Scalar) -> AttentionKernels:
    """Attention kernels whose compute units run at a clock.

    Fixed times of a whole call, which wait for device memory, stay.
    """
    return replace(attention, {path: locate(attention, path)[0] / clock for path in _UNIT_TIMES})
