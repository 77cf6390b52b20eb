"""One package a scheduler sees as a device: compute, memory levels, energy, and the package it is built as."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from diffperf.hardware.package import Package
from diffperf.quantity import Label, Scalar, label, quantity

# Formats of matrix operands, and how many bytes an element of each takes (block scale factors not counted).
PRECISION_BYTES = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
PRECISIONS = tuple(PRECISION_BYTES)

_RATE = (1e9, 1e18)

# Where silicon lacks a format, its operands are converted and computed in the next one it has.
_FALLBACKS = {"tf32": "fp32", "fp16": "bf16", "fp8": "fp16", "int8": "fp8", "fp4": "fp8", "int4": "int8"}


class MatrixRates(eqx.Module):
    """Peak dense matrix throughput by operand format, over the whole device."""

    fp32: Scalar = quantity("FLOP/s", "peak matrix rate with fp32 operands", bounds=_RATE)
    tf32: Scalar = quantity("FLOP/s", "peak matrix rate with tf32 operands", bounds=_RATE)
    bf16: Scalar = quantity("FLOP/s", "peak matrix rate with bf16 operands", bounds=_RATE)
    fp16: Scalar = quantity("FLOP/s", "peak matrix rate with fp16 operands", bounds=_RATE)
    fp8: Scalar = quantity("FLOP/s", "peak matrix rate with fp8 operands", bounds=_RATE)
    int8: Scalar = quantity("FLOP/s", "peak matrix rate with int8 operands", bounds=_RATE)
    fp4: Scalar = quantity("FLOP/s", "peak matrix rate with fp4 operands", bounds=_RATE)
    int4: Scalar = quantity("FLOP/s", "peak matrix rate with int4 operands", bounds=_RATE)

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The table with each absent format given the rate of the format its operands are converted to."""
        table = dict(table)
        for name, fallback in _FALLBACKS.items():
            if name not in table and fallback in table:
                table[name] = table[fallback]
        return table


class MemoryLevel(eqx.Module):
    """One level of the memory hierarchy: on-chip SRAM, a cache, HBM."""

    name: Label = label("what paths call the level: smem, l2, hbm …")
    capacity: Scalar = quantity("byte", "capacity over the whole device", bounds=(1e4, 1e14))
    bandwidth: Scalar = quantity("byte/s", "peak sequential bandwidth over the whole device", bounds=(1e9, 1e16))
    latency: Scalar = quantity("s", "time to the first byte", bounds=(1e-9, 1e-4))
    energy: Scalar = quantity("J/byte", "energy to move one byte to the level inside", bounds=(1e-14, 1e-9))
    efficiency: Scalar = quantity("", "reachable fraction of the bandwidth", bounds=(0.05, 1.0), default=0.85)


class Accelerator(eqx.Module):
    """One device. `memory` runs from the innermost level to device memory; capacities and bandwidths are whole-device totals."""

    name: Label = label("identifier, such as a100-sxm4-80gb")
    compute_units: Scalar = quantity("", "compute units (SM, CU, core) that share the peak rate", bounds=(1, 1e4), integer=True)
    matrix: MatrixRates
    vector: Scalar = quantity("FLOP/s", "peak rate outside the matrix units, fp32", bounds=(1e9, 1e17))
    memory: tuple[MemoryLevel, ...]
    compute_energy: Scalar = quantity("J/FLOP", "energy of one FLOP with 16-bit operands", bounds=(1e-15, 1e-10))
    static_power: Scalar = quantity("W", "power drawn whatever the device does", bounds=(0.1, 1e4))
    power_limit: Scalar = quantity("W", "thermal design power", bounds=(1, 1e5))
    matrix_efficiency: Scalar = quantity("", "reachable fraction of the matrix peak in large GEMMs", bounds=(0.05, 1.0))
    attention_efficiency: Scalar = quantity("", "reachable fraction of the matrix peak in fused attention", bounds=(0.05, 1.0))
    package: Package
    cluster: Scalar = quantity(
        "", "compute units that fetch operands they share once (multicast in a cluster)", bounds=(1, 64), default=1, integer=True
    )

    @property
    def reuse_capacities(self) -> list[Scalar]:
        """Bytes within which operands are reused, level by level but the last: in a cluster of compute units, in each cache."""
        innermost, *caches = self.memory[:-1]
        return [innermost.capacity / self.compute_units * self.cluster, *(level.capacity for level in caches)]

    @property
    def device_memory(self) -> MemoryLevel:
        return self.memory[-1]

    def matrix_rate(self, precision: Float[Array, " precisions"]) -> Scalar:
        """Peak FLOP/s for weights over `PRECISIONS`."""
        return sum(precision[i] * getattr(self.matrix, name) for i, name in enumerate(PRECISIONS))

    def matrix_energy(self, precision: Float[Array, " precisions"]) -> Scalar:
        """J/FLOP for weights over `PRECISIONS`: at a fixed power a format that runs twice as fast spends half (an estimate)."""
        return self.compute_energy * self.matrix.bf16 / self.matrix_rate(precision)


def width(precision: Float[Array, " precisions"]) -> Scalar:
    """Bytes of one element for weights over `PRECISIONS`."""
    return sum(precision[i] * size for i, size in enumerate(PRECISION_BYTES.values()))
