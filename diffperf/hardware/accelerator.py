"""An accelerator, which a scheduler sees as one device: matrix units, memory levels, energy, package."""

import math
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from diffperf.hardware.attention_kernels import AttentionKernels
from diffperf.hardware.formats import PRECISION_BYTES, PRECISIONS
from diffperf.hardware.memory_level import MemoryLevel, kinds_of
from diffperf.hardware.package import Package
from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity
from diffperf.relax import larger, smaller

# The format that operands are converted to and multiplied in, where silicon lacks their own.
_FALLBACKS = {
    "tf32": "fp32", "fp16": "bf16", "fp8": "fp16", "mxfp8": "fp8", "int8": "fp8", "fp4": "fp8",
    "nvfp4": "fp4", "mxfp4": "fp4", "int4": "int8", "ternary": "int8",
}  # fmt: skip


class MatrixFormat(Declared):
    """The matrix units of a whole device with operands of one format, and the kernels for that format."""

    EXPECTED: ClassVar = 'a rate, such as "312 TFLOP/s", or a table of MatrixFormat keys'

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
    wave_balance: Scalar = quantity(
        "",
        "share of the idle time in the last wave of GEMM tiles that kernels avoid, by tiles of other shapes "
        "and by units that take their next tile as soon as they are free",
        bounds=(0, 1),
        default=0.0,
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

    @classmethod
    def follows(cls, key: str, missing: Collection[str]) -> bool:
        """Whether a missing key, such as "fp8.efficiency", follows from others that are missing too: a format
        or its rate from the one that its operands are converted to, its other figures from bf16's.
        """
        name, _, figure = key.partition(".")
        wider = _FALLBACKS.get(name)
        if not figure:
            return wider in missing
        if figure == "rate":
            return f"{wider}.rate" in missing
        return name != "bf16" and ("bf16" in missing or f"bf16.{figure}" in missing)

    def mean(self, precision: Weights) -> MatrixFormat:
        """The mean of all formats by weights over `PRECISIONS`."""
        formats = [getattr(self, name) for name in PRECISIONS]
        return jax.tree.map(lambda *leaves: jnp.sum(precision.array * jnp.stack(leaves)), *formats)


class Accelerator(Declared):
    """One device. `memory` runs from the innermost level outwards; one of its levels is device memory."""

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
    static_power: Scalar = quantity("W", "power of the idle device, drawn at any load", bounds=(0.1, 1e4))
    active_power: Scalar = quantity(
        "W",
        "power that a working device draws beside arithmetic and data movement: clock tree, instructions, "
        "leakage of units that are on",
        bounds=(0.1, 1e4),
    )
    power_limit: Scalar = quantity("W", "thermal design power of the device", bounds=(1, 1e5))
    kernel_latency: Scalar = quantity(
        "s",
        "time of the shortest kernel in a sequence of kernels: ramp, drain, dependency",
        bounds=(1e-8, 1e-3),
        calibratable=True,
    )
    attention: AttentionKernels
    package: Package
    split_latency: Scalar = quantity(
        "s",
        "time that a GEMM takes longer where kernels split its K dimension: start of the kernel that adds up "
        "the partial products",
        # So short as a default that nothing changes where nobody has measured it.
        bounds=(1e-15, 1e-3),
        default=1e-15,
        calibratable=True,
    )
    unit_bandwidth: Scalar = quantity(
        "byte/s",
        "rate at which a single compute unit can draw bytes from device memory: its requests in flight over "
        "their latency",
        # So high as a default that a few units draw all that device memory serves.
        bounds=(1e8, 1e15),
        default=1e15,
    )
    cluster: Scalar = quantity(
        "",
        "compute units of a cluster, whose common operands are fetched once (multicast)",
        bounds=(1, 64),
        default=1,
        integer=True,
    )
    tiles_at_once: Scalar = quantity(
        "",
        "tiles of a product or of attention that a compute unit works on at a time, each at its share of the "
        "unit's rate: 1 for a streaming multiprocessor; more for a large matrix unit that pipelines tiles",
        # Latencies of tiles are those of a streaming multiprocessor unless a file gives others: a unit with
        # the rate of ten hides them as ten would.
        bounds=(1, 1e4),
        default=1,
    )
    vector_energy: Scalar = quantity(
        "J/FLOP",
        "energy of one fp32 FLOP of the vector units",
        bounds=(1e-14, 1e-10),
        # An estimate: an fp32 multiply-add with its registers takes about 3 pJ at 5 nm.
        default=1.5e-12,
    )
    waiting_share: Scalar = quantity(
        "",
        "share of the active power that a device draws while its compute units wait, for other devices or "
        "for the start of their next kernel",
        bounds=(0.01, 1),
        # Calibrated on The ML.ENERGY Benchmark's tensor-parallel runs on H100 and B200.
        default=0.55,
    )
    power_exponent: Scalar = quantity(
        "",
        "exponent x of the power of the compute units at a clock f under the power limit: P ∝ f^x",
        bounds=(1, 4),
        # An estimate: 3 where the voltage falls with the clock, 1 where it has reached its floor.
        default=2.0,
    )
    power_window: Scalar = quantity(
        "s",
        "time over which the device averages the power that it limits",
        bounds=(1e-4, 10),
        # An estimate: power sensors of data-centre GPUs average over 25 to 100 ms (Yang et al., SC'24). Long
        # products on H100, H200, B200 and GB200 give 30 to 72 ms.
        default=0.05,
        calibratable=True,
    )
    clock_limit: Scalar = quantity(
        "",
        "highest clock that software allows the compute units (nvidia-smi --lock-gpu-clocks), over the clock "
        "of the peak rates",
        bounds=(0.1, 1),
        default=1.0,
    )
    boost_clock: Scalar = quantity(
        "Hz",
        "clock of the compute units at which the peak matrix rates hold; 0 where it is not published",
        bounds=(0, 1e12),
        default=0.0,
    )
    base_clock: Scalar = quantity(
        "Hz",
        "clock of the compute units that its maker guarantees at the power limit; 0 where not published",
        bounds=(0, 1e12),
        default=0.0,
    )
    purchase_price: Scalar = quantity(
        "USD",
        "published purchase price of the accelerator; 0 for its manufacturing cost times the markup of the "
        "price list",
        bounds=(0, 1e6),
        default=0.0,
        kind="price",
    )
    priced_manufacturing: Scalar = quantity(
        "USD",
        "manufacturing cost of the package that the purchase price is for; 0 for a price that stays as it is",
        bounds=(0, 1e6),
        default=0.0,
        kind="price",
    )
    rent: Scalar = quantity(
        "USD/s",
        "rent of the accelerator in a cloud, with its host, network and power; 0 where none is published",
        bounds=(0, 1),
        default=0.0,
        kind="price",
    )
    extends: Label = label("configs that the accelerator's file extends, the nearest first", default="")

    @property
    def lineage(self) -> tuple[str, ...]:
        """The name of the accelerator, and those of the configs that its file extends, the nearest first."""
        return (str(self.name), *filter(None, str(self.extends).split(", ")))

    @property
    def memory_kinds(self) -> tuple[str, ...]:
        """The kind of each memory level: "cache", "memory" or "storage"."""
        return kinds_of(self.memory)

    @property
    def device_level(self) -> int:
        """The position of device memory among the memory levels."""
        return self.memory_kinds.index("memory")

    @property
    def device_memory(self) -> MemoryLevel:
        """The memory level in which all tensors live that no other level holds."""
        return self.memory[self.device_level]

    @property
    def storage_capacity(self) -> Scalar:
        """Bytes of all storage beside device memory, 0 where there is none."""
        levels = zip(self.memory, self.memory_kinds, strict=True)
        capacities = [level.capacity for level, kind in levels if kind == "storage"]
        return sum(capacities, jnp.zeros_like(self.device_memory.capacity))

    @property
    def last_cache(self) -> int:
        """The position of the outermost cache among the memory levels."""
        return max(index for index, kind in enumerate(self.memory_kinds) if kind == "cache")

    @property
    def inner_caches(self) -> tuple[int, ...]:
        """For each memory level outside the innermost, the position of the next cache inside it."""
        caches = [index for index, kind in enumerate(self.memory_kinds) if kind == "cache"]
        return tuple(max(i for i in caches if i < level) for level in range(1, len(self.memory)))

    def reuse_capacities(self, capacities: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """Bytes in which operands are reused on their way from each memory level outside the innermost.

        That is the next cache inside the level: private memory of a cluster of compute units, or a shared
        cache. `capacities` are the bytes of every memory level that tensors leave free for reuse.
        """
        private = capacities[0] / self.compute_units * self.cluster
        return tuple(private if cache == 0 else capacities[cache] for cache in self.inner_caches)

    @classmethod
    def inconsistency(cls, values: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """The inconsistency of the clocks, or of the memory levels, with each other: (key, found, expected,
        remedy), None for none.
        """
        base, boost = (float(values.get(name, 0.0)) for name in ("base_clock", "boost_clock"))
        if base > boost:
            found = f"{base / 1e9:.4g} GHz beside a boost clock of {boost / 1e9:.4g} GHz"
            return "base_clock", found, "at most the boost clock", "give both clocks, or neither"
        kinds = kinds_of(values["memory"])
        held = [level for level, kind in zip(values["memory"], kinds, strict=True) if level.holds is not None]
        if kinds.count("memory") != 1:
            found = f'{kinds.count("memory")} levels of the kind "memory"'
            return "memory", found, "one: device memory", 'name the others "cache" or "storage"'
        if kinds[0] != "cache":
            return "memory[0].kind", f'"{kinds[0]}"', "cache", "list private memory of compute units first"
        if any(level is values["memory"][kinds.index("memory")] for level in held):
            key = f"memory[{kinds.index('memory')}].holds"
            return key, "a table", "no such key", "give the shares of the other levels: it holds the rest"
        return None

    @property
    def multiplied_formats(self) -> dict[str, str]:
        """The format that the matrix units multiply operands of each format in.

        That is the format itself, or a wider one where the units are not faster for this one.
        """
        rates = {name: float(getattr(self.matrix, name).rate) for name in PRECISIONS}
        return {name: _multiplied_in(name, rates) for name in PRECISIONS}

    def multiplied_in(self, name: str) -> str:
        """The format that the matrix units multiply operands of a format in."""
        return self.multiplied_formats[name]

    def matrix_rate(self, precision: Weights) -> Scalar:
        """Peak FLOP/s of the matrix units: the mean by weights over `PRECISIONS`."""
        return jnp.sum(precision.array * jnp.stack([getattr(self.matrix, name).rate for name in PRECISIONS]))

    def matrix_energy(self, precision: Weights) -> Scalar:
        """J/FLOP of products by weights over `PRECISIONS`.

        An estimate: at a fixed power, a format that runs twice as fast on the matrix units spends half the
        energy. A format in which they would spend more than the vector units is multiplied on those, as
        fp32 is where there are no matrix units for it.
        """
        of_matrix_units = self.compute_energy * self.matrix.bf16.rate / self.matrix_rate(precision)
        return smaller(of_matrix_units, larger(self.vector_energy, self.compute_energy))


def _multiplied_in(name: str, rates: dict[str, float]) -> str:
    """The format that operands of a format are multiplied in, by the rates of the matrix units."""
    wider = name
    while _size(wider) == _size(name) and wider in _FALLBACKS:
        wider = _FALLBACKS[wider]
    if _size(name) >= _size("bf16") or rates[name] != rates[wider]:
        return name
    return _multiplied_in(wider, rates)


def _size(name: str) -> int:
    """The power of two of the bytes of an element, without the scales of blocks."""
    return round(math.log2(PRECISION_BYTES[name]))
