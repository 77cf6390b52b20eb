"""One package a scheduler sees as a device: compute, memory levels, energy, and the package it is built as."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.package import Package
from diffperf.quantity import Label, Scalar, Weights, label, quantity

# Where silicon lacks a format, its operands are converted and computed in the next one it has.
_FALLBACKS = {
    "tf32": "fp32", "fp16": "bf16", "fp8": "fp16", "mxfp8": "fp8", "int8": "fp8", "fp4": "fp8", "nvfp4": "fp4", "int4": "int8",
    "ternary": "int8",
}  # fmt: skip


class MatrixFormat(eqx.Module):
    """How fast the whole device multiplies matrices with operands of one format, and what the kernels for it cost."""

    rate: Scalar = quantity("FLOP/s", "peak dense matrix rate", bounds=(1e9, 1e18))
    efficiency: Scalar = quantity(
        "", "reachable fraction of the rate in large GEMMs", bounds=(0.05, 1.0), calibratable=True
    )
    k_latency: Scalar = quantity(
        "s",
        "least time a tile takes per element of the K dimension, however small the tile: the pipeline of its main loop",
        bounds=(1e-12, 1e-8),
        default=7e-10,
        calibratable=True,
    )
    split_k: Scalar = quantity(
        "", "parts that the kernels may split the K dimension in", bounds=(1, 64), default=4, integer=True
    )
    conversion_latency: Scalar = quantity(
        "s",
        "time the kernels that convert 16-bit activations to this format take whatever their size (formats under 16 bits)",
        bounds=(1e-9, 1e-3),
        default=5e-6,
        calibratable=True,
    )
    conversion_passes: Scalar = quantity(
        "",
        "times those kernels move the activations, at 16 bits and in this format, through device memory",
        bounds=(0.1, 100),
        default=2.3,  # calibrated on fp8 GEMMs of H100, H200, B200 and GB200 (ai-dynamo/aiconfigurator): 2.1 to 2.6
    )


class MatrixFormats(eqx.Module):
    """The matrix units by operand format."""

    bf16: MatrixFormat  # first, because the others take from it what they do not say
    fp32: MatrixFormat
    tf32: MatrixFormat
    fp16: MatrixFormat
    fp8: MatrixFormat
    mxfp8: MatrixFormat
    int8: MatrixFormat
    fp4: MatrixFormat
    nvfp4: MatrixFormat
    int4: MatrixFormat
    ternary: MatrixFormat

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The table with every format: a rate alone stands for a format that is otherwise as bf16; an absent one is the format its
        operands are converted to."""
        given = {name: value if isinstance(value, dict) else {"rate": value} for name, value in table.items()}
        common = {key: value for key, value in given.get("bf16", {}).items() if key != "rate"}
        complete = {name: {**common, **value} for name, value in given.items()}
        for name, fallback in _FALLBACKS.items():
            if name not in complete and fallback in complete:
                complete[name] = complete[fallback]
        return complete

    def of(self, precision: Weights) -> MatrixFormat:
        """The mixture of formats that weights over `PRECISIONS` describe."""
        formats = [getattr(self, name) for name in PRECISIONS]
        return jax.tree.map(lambda *leaves: jnp.sum(precision.array * jnp.stack(leaves)), *formats)


class MemoryLevel(eqx.Module):
    """One level of the memory hierarchy: on-chip SRAM, a cache, HBM."""

    name: Label = label("what paths call the level: smem, l2, hbm …")
    capacity: Scalar = quantity("byte", "capacity over the whole device", bounds=(1e4, 1e14))
    bandwidth: Scalar = quantity(
        "byte/s", "peak sequential bandwidth over the whole device", bounds=(1e9, 1e16)
    )
    latency: Scalar = quantity("s", "time to the first byte", bounds=(1e-9, 1e-4))
    energy: Scalar = quantity("J/byte", "energy to move one byte to the level inside", bounds=(1e-14, 1e-9))
    efficiency: Scalar = quantity(
        "", "reachable fraction of the bandwidth", bounds=(0.05, 1.0), default=0.85, calibratable=True
    )


class Accelerator(eqx.Module):
    """One device. `memory` runs from the innermost level to device memory; capacities and bandwidths are whole-device totals."""

    name: Label = label("identifier, such as a100-sxm4-80gb")
    compute_units: Scalar = quantity(
        "", "compute units (SM, CU, core) that share the peak rate", bounds=(1, 1e4), integer=True
    )
    matrix: MatrixFormats
    vector: Scalar = quantity("FLOP/s", "peak rate outside the matrix units, fp32", bounds=(1e9, 1e17))
    memory: tuple[MemoryLevel, ...]
    compute_energy: Scalar = quantity(
        "J/FLOP", "energy of one FLOP with 16-bit operands", bounds=(1e-14, 1e-10)
    )
    static_power: Scalar = quantity("W", "power drawn whatever the device does", bounds=(0.1, 1e4))
    power_limit: Scalar = quantity("W", "thermal design power", bounds=(1, 1e5))
    kernel_latency: Scalar = quantity(
        "s",
        "time of the shortest kernel among others: ramp, drain, dependency",
        bounds=(1e-8, 1e-3),
        calibratable=True,
    )
    attention: AttentionKernels
    package: Package
    cluster: Scalar = quantity(
        "",
        "compute units that fetch operands they share once (multicast in a cluster)",
        bounds=(1, 64),
        default=1,
        integer=True,
    )

    @property
    def reuse_capacities(self) -> list[Scalar]:
        """Bytes within which operands are reused, level by level but the last: in a cluster of compute units, in each cache."""
        innermost, *caches = self.memory[:-1]
        return [innermost.capacity / self.compute_units * self.cluster, *(level.capacity for level in caches)]

    @property
    def device_memory(self) -> MemoryLevel:
        return self.memory[-1]

    def matrix_rate(self, precision: Weights) -> Scalar:
        """Peak FLOP/s for weights over `PRECISIONS`."""
        return jnp.sum(precision.array * jnp.stack([getattr(self.matrix, name).rate for name in PRECISIONS]))

    def matrix_energy(self, precision: Weights) -> Scalar:
        """J/FLOP for weights over `PRECISIONS`: at a fixed power a format that runs twice as fast spends half (an estimate)."""
        return self.compute_energy * self.matrix.bf16.rate / self.matrix_rate(precision)
