"""An accelerator, which a scheduler sees as one device: matrix units, memory levels, energy, package."""

from typing import Any

import jax
import jax.numpy as jnp

from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.package import Package
from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity

# The format that operands are converted to and multiplied in, where silicon lacks their own.
_FALLBACKS = {
    "tf32": "fp32", "fp16": "bf16", "fp8": "fp16", "mxfp8": "fp8", "int8": "fp8", "fp4": "fp8",
    "nvfp4": "fp4", "mxfp4": "fp4", "int4": "int8", "ternary": "int8",
}  # fmt: skip


class MatrixFormat(Declared):
    """The matrix units of a whole device with operands of one format, and the kernels for that format."""

    rate: Scalar = quantity("FLOP/s", "peak dense matrix rate of the device", bounds=(1e9, 1e18))
    efficiency: Scalar = quantity(
        "", "fraction of the peak matrix rate that large GEMMs reach", bounds=(0.05, 1.0), calibratable=True
    )
    k_latency: Scalar = quantity(
        "s",
        "least time of a GEMM tile of any size per element of the K dimension: pipeline of the main loop",
        bounds=(1e-12, 1e-8),
        default=7e-10,
        calibratable=True,
    )
    split_k: Scalar = quantity(
        "", "parts that GEMM kernels may split the K dimension into", bounds=(1, 64), default=4, integer=True
    )
    conversion_latency: Scalar = quantity(
        "s",
        "fixed time of the kernels that convert 16-bit activations to a narrow format",
        bounds=(1e-9, 1e-3),
        default=5e-6,
        calibratable=True,
    )
    conversion_passes: Scalar = quantity(
        "",
        "passes of 16-bit and converted activations through device memory in a conversion to a narrow format",
        bounds=(0.1, 100),
        # Calibrated on fp8 GEMMs of H100, H200, B200 and GB200 (ai-dynamo/aiconfigurator): 2.1 to 2.6.
        default=2.3,
    )


class MatrixFormats(Declared):
    """The matrix units of a device by operand format."""

    bf16: MatrixFormat  # first, because the others take from bf16 what they do not give
    fp32: MatrixFormat
    tf32: MatrixFormat
    fp16: MatrixFormat
    fp8: MatrixFormat
    mxfp8: MatrixFormat
    int8: MatrixFormat
    fp4: MatrixFormat
    nvfp4: MatrixFormat
    mxfp4: MatrixFormat
    int4: MatrixFormat
    ternary: MatrixFormat

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """A configuration table with every format, completed from a shorter one.

        A format given as a rate alone takes the rest from bf16; an absent format is the one that its operands
        are converted to.
        """
        given = {name: value if isinstance(value, dict) else {"rate": value} for name, value in table.items()}
        common = {key: value for key, value in given.get("bf16", {}).items() if key != "rate"}
        complete = {name: {**common, **value} for name, value in given.items()}
        for name, fallback in _FALLBACKS.items():
            if name not in complete and fallback in complete:
                complete[name] = complete[fallback]
        return complete

    def mean(self, precision: Weights) -> MatrixFormat:
        """The mean of all formats by weights over `PRECISIONS`."""
        formats = [getattr(self, name) for name in PRECISIONS]
        return jax.tree.map(lambda *leaves: jnp.sum(precision.array * jnp.stack(leaves)), *formats)


class MemoryLevel(Declared):
    """One level of the memory hierarchy of a device: on-chip SRAM, a cache, HBM."""

    name: Label = label("name of the memory level, such as smem, l2 or hbm")
    capacity: Scalar = quantity(
        "byte", "capacity of the memory level over the whole device", bounds=(1e4, 1e14)
    )
    bandwidth: Scalar = quantity(
        "byte/s", "peak sequential bandwidth of the memory level over the whole device", bounds=(1e9, 1e16)
    )
    latency: Scalar = quantity(
        "s", "time from a request to the memory level to the first byte", bounds=(1e-9, 1e-4)
    )
    energy: Scalar = quantity(
        "J/byte",
        "energy to move one byte from the memory level to the next level inside",
        bounds=(1e-14, 1e-9),
    )
    efficiency: Scalar = quantity(
        "",
        "fraction of the peak bandwidth of the memory level that kernels reach",
        bounds=(0.05, 1.0),
        default=0.85,
        calibratable=True,
    )


class Accelerator(Declared):
    """One device. `memory` runs from the innermost level to device memory."""

    name: Label = label("identifier of the accelerator, such as a100-sxm4-80gb")
    compute_units: Scalar = quantity(
        "", "compute units (SM, CU, core) that share the peak matrix rate", bounds=(1, 1e4), integer=True
    )
    matrix: MatrixFormats
    vector: Scalar = quantity("FLOP/s", "peak fp32 rate of the vector units", bounds=(1e9, 1e17))
    memory: tuple[MemoryLevel, ...]
    compute_energy: Scalar = quantity(
        "J/FLOP", "energy of one FLOP with 16-bit operands", bounds=(1e-14, 1e-10)
    )
    static_power: Scalar = quantity("W", "static power of the device, drawn at any load", bounds=(0.1, 1e4))
    power_limit: Scalar = quantity("W", "thermal design power of the device", bounds=(1, 1e5))
    kernel_latency: Scalar = quantity(
        "s",
        "time of the shortest kernel in a sequence of kernels: ramp, drain, dependency",
        bounds=(1e-8, 1e-3),
        calibratable=True,
    )
    attention: AttentionKernels
    package: Package
    cluster: Scalar = quantity(
        "",
        "compute units of a cluster, whose common operands are fetched once (multicast)",
        bounds=(1, 64),
        default=1,
        integer=True,
    )

    @property
    def reuse_capacities(self) -> list[Scalar]:
        """Bytes in which operands are reused: private memory of a cluster of compute units, each cache."""
        innermost, *caches = self.memory[:-1]
        return [innermost.capacity / self.compute_units * self.cluster, *(level.capacity for level in caches)]

    @property
    def device_memory(self) -> MemoryLevel:
        """The outermost memory level, which holds parameters and activations."""
        return self.memory[-1]

    def matrix_rate(self, precision: Weights) -> Scalar:
        """Peak FLOP/s of the matrix units: the mean by weights over `PRECISIONS`."""
        return jnp.sum(precision.array * jnp.stack([getattr(self.matrix, name).rate for name in PRECISIONS]))

    def matrix_energy(self, precision: Weights) -> Scalar:
        """J/FLOP of the matrix units by weights over `PRECISIONS`.

        An estimate: at a fixed power, a format that runs twice as fast spends half the energy.
        """
        return self.compute_energy * self.matrix.bf16.rate / self.matrix_rate(precision)
