"""Rates, widths and overheads of a device, as kernels see it, for one configuration."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.served_shares import ServedShares
from diffperf.hardware.accelerator import Accelerator, MatrixFormat
from diffperf.hardware.attention_kernels import AttentionFormat
from diffperf.hardware.clocked_accelerator import at_allowed_clock
from diffperf.hardware.formats import (
    PRECISIONS,
    attention_format,
    converted,
    fp8_share,
    in_fp8,
    output_width,
    same_width,
    sixteen_bits,
    width,
)
from diffperf.hardware.memory_level import MemoryLevel
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Relaxation, inverse
from diffperf.workload.operators import ROLES
from diffperf.workload.residency import Residency, in_device_memory
from diffperf.workload.strategy import Strategy

PerProduct = Float[Array, "*products"]  # one number for all matrix products, or one for each


class MatrixUnits(eqx.Module):
    """The matrix units, for one format of operands and one in which weights are stored, or for the formats of
    each of several products.
    """

    format: MatrixFormat  # the efficiency is the accelerator's times the stack's share of it
    flop_time: PerProduct  # s per FLOP at the peak rate
    flop_energy: PerProduct  # J per FLOP
    width: PerProduct  # bytes of an operand's element
    output_width: PerProduct  # bytes of an element of a product
    # Share of activations that kernels of their own convert to the format of the operands.
    converted: PerProduct
    # In inference, of weights as they are stored; None where weights are stored as they are multiplied.
    stored_width: PerProduct | None = None  # bytes of a weight
    unpacking_time: PerProduct | None = None  # s per weight that the whole device converts to an operand
    unpacking_energy: PerProduct | None = None  # J per weight that is converted
    matrix_vector: PerProduct | None = None  # weight of kernels that multiply few rows on the vector units

    @classmethod
    def of(cls, system: System, precision: Weights) -> "MatrixUnits":
        """The matrix units for operands of some formats, which are weights over `PRECISIONS`."""
        accelerator, stack = system.accelerator, system.stack
        matrix, narrow = accelerator.matrix.mean(precision), converted(precision)
        share = stack.matrix_efficiency * (1 + narrow * (stack.narrow_efficiency - 1))
        reached = (matrix.efficiency * share, matrix.k_latency * stack.product_latency)
        return cls(
            format=eqx.tree_at(lambda m: (m.efficiency, m.k_latency), matrix, reached),
            flop_time=inverse(matrix.rate),
            flop_energy=accelerator.matrix_energy(precision),
            width=width(precision),
            output_width=output_width(precision),
            converted=narrow * stack.separate_conversion,
        )

    def reading(self, stored_width: Scalar, system: System, as_stored: Scalar | float = 0.0) -> "MatrixUnits":
        """These units with weights of `stored_width` bytes, which kernels convert as they read them.

        `as_stored` is the share of the weights that the matrix units read as they are stored.
        """
        differs = jnp.where(same_width(stored_width, self.width), 0.0, 1.0) * (1 - as_stored)
        time = system.stack.unpacking_operations * inverse(system.accelerator.vector)
        efficiency = self.format.efficiency * (1 + differs * (system.stack.unpacking_efficiency - 1))
        return dataclasses.replace(
            self,
            format=eqx.tree_at(lambda matrix: matrix.efficiency, self.format, efficiency),
            stored_width=stored_width,
            unpacking_time=differs * time,
            unpacking_energy=differs * system.stack.unpacking_operations * system.accelerator.vector_energy,
            matrix_vector=system.stack.matrix_vector.on,
        )


def matrix_units_by_role(system: System, strategy: Strategy) -> dict[str, MatrixUnits]:
    """The matrix units of inference by the `ROLES` of weights that may differ in
    their formats."""
    narrowed = system.stack.narrows_expert_operands.on * strategy.expert_operands_wider_than_weights
    formats = {
        "linear": (strategy.precision, strategy.served_weight_width),
        "expert": (in_fp8(strategy.expert_format, narrowed), strategy.served_expert_width),
        "head": (sixteen_bits(strategy.precision), strategy.served_head_width),
        "cache": (sixteen_bits(strategy.precision), width(strategy.kv_precision)),
        "activations": (sixteen_bits(strategy.precision), output_width(strategy.precision)),
    }
    units = {
        role: MatrixUnits.of(system, precision).reading(
            stored, system, as_stored=narrowed if role == "expert" else 0.0
        )
        for role, (precision, stored) in formats.items()
    }
    # The kernels that sort tokens by experts narrow their activations on the way.
    own = converted(strategy.expert_format) * system.stack.separate_conversion
    return units | {"expert": dataclasses.replace(units["expert"], converted=own)}


def trained_units_by_role(system: System, strategy: Strategy) -> dict[str, MatrixUnits] | None:
    """The matrix units of training by the roles of weights; None where all products have operands of one
    format, as no vocabulary projection is left in 16 bits, and the same efficiency.
    """
    if not strategy.unquantized_head.possible["on"] and system.stack.unpadded_logits is None:
        return None
    linear = strategy.precision
    kept = strategy.unquantized_head.on * (sixteen_bits(linear).array - linear.array)
    head = MatrixUnits.of(system, Weights(linear.array + kept, PRECISIONS))
    roles = dict.fromkeys(_FORMATS_OF.values(), MatrixUnits.of(system, linear))
    if (logits := system.stack.unpadded_logits) is not None:
        reached = head.format.efficiency * logits.efficiency
        roles["unaligned head"] = eqx.tree_at(lambda units: units.format.efficiency, head, reached)
    return roles | {"head": head}


# The role of `matrix_units_by_role` whose number formats the weights of a role have.
_FORMATS_OF = {role: "linear" if role == "attention" else role for role in ROLES}


class AttentionUnits(eqx.Module):
    """Rates and overheads of fused attention kernels, for the formats of a strategy's activations and KV
    cache.
    """

    format: AttentionFormat
    width: Scalar  # bytes of an element of queries, and of what the kernels multiply
    kv_width: Scalar  # bytes of an element of the KV cache
    flop_time: Scalar  # s per FLOP that the kernels reach in their products
    softmax_time: Scalar  # s per score of the softmax on the vector units
    flop_energy: Scalar  # J per FLOP of the products
    softmax_energy: Scalar  # J per score of the softmax
    launch: Scalar  # s, of one kernel whatever it computes
    grouped_heads: Scalar  # query heads of a KV head that a generation kernel processes together at most

    @classmethod
    def of(cls, system: System, strategy: Strategy, kernel_overhead: Scalar) -> "AttentionUnits":
        """Rates and overheads of a system's accelerator and software stack, in the formats of a strategy."""
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
            flop_energy=accelerator.matrix_energy(multiplied),
            softmax_energy=accelerator.attention.softmax_flops * accelerator.vector_energy,
            launch=stack.exposed_start * accelerator.attention.latency + kernel_overhead,
            grouped_heads=stack.grouped_heads,
        )


class LevelTime(eqx.Module):
    """Time in which bytes leave a memory level: seconds per byte, and seconds of latency."""

    byte: Scalar  # s per byte
    latency: Scalar  # s

    @classmethod
    def of(cls, level: MemoryLevel, relax: Relaxation) -> "LevelTime":
        """Time in which bytes leave a memory level.

        Requests of a limited depth move at most depth · tile bytes in every latency (Little's law).
        """
        byte = inverse(level.bandwidth * level.efficiency)
        if level.prefetch is not None:
            byte = relax.maximum(byte, level.latency * inverse(level.prefetch.depth * level.prefetch.tile))
        return cls(byte=byte, latency=level.latency)


class Machine(eqx.Module):
    """One device as its kernels see it, for one configuration."""

    accelerator: Accelerator
    kernel_overhead: Scalar  # s that a kernel adds and no other kernel hides
    split_overhead: Scalar  # s that the kernel for partial products adds and no other kernel hides
    expert_launch: Scalar  # s of the host for the kernel of an expert, where every expert has one
    untuned_rows: Scalar  # of the smallest tile whose shape is not tuned
    untuned_efficiency: Scalar  # that products reach in such tiles, over that in tuned ones
    levels: tuple[LevelTime, ...]  # the memory levels outside the innermost, from the inside out
    reuse: tuple[Scalar, ...]  # bytes that the next cache inside each of these levels has for reuse
    matrix: MatrixUnits
    attention: AttentionUnits
    relax: Relaxation
    matrix_by_role: dict[str, MatrixUnits] | None = None  # where the roles of weights differ in their formats
    shares: ServedShares | None = None  # where tensors live, unless all of them live in device memory
    # Whether the kernels are those of inference, whose activations nothing reads after the next kernels.
    serving: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(
        cls,
        system: System,
        strategy: Strategy,
        relax: Relaxation,
        *,
        serving: bool = False,
        residency: Residency | None = None,
    ) -> "Machine":
        """The device of a system at the clock that software allows, driven by the system's stack, for the
        number formats of a strategy.

        `serving` says whether it is for inference, where weights may be stored in formats of their own.
        `residency` says where tensors live, if not all of them in device memory.
        """
        system = at_allowed_clock(system)
        accelerator = system.accelerator
        if residency is None and "storage" in accelerator.memory_kinds:
            residency = in_device_memory(accelerator)
        free = (
            [level.capacity for level in accelerator.memory]
            if residency is None
            else residency.free_capacities(accelerator, relax)
        )
        units_by_role = matrix_units_by_role if serving else trained_units_by_role
        overhead = system.stack.exposed_start * accelerator.kernel_latency + system.stack.kernel_overhead
        return cls(
            accelerator=accelerator,
            kernel_overhead=overhead,
            split_overhead=system.stack.exposed_start * accelerator.split_latency,
            expert_launch=system.stack.expert_launch,
            untuned_rows=system.stack.untuned_rows,
            untuned_efficiency=system.stack.untuned_efficiency,
            levels=tuple(LevelTime.of(level, relax) for level in accelerator.memory[1:]),
            reuse=accelerator.reuse_capacities(free),
            matrix=MatrixUnits.of(system, strategy.precision),
            attention=AttentionUnits.of(system, strategy, overhead),
            relax=relax,
            matrix_by_role=units_by_role(system, strategy),
            shares=None if residency is None else ServedShares.of(accelerator, residency),
            serving=serving,
        )

    @property
    def slots(self) -> Scalar:
        """Tiles that all compute units work on at a time."""
        return self.accelerator.compute_units * self.accelerator.tiles_at_once

    @property
    def cache(self) -> tuple[LevelTime, Scalar] | None:
        """The cache shared by all compute units inside device memory, and its bytes; None without one."""
        level = self.accelerator.inner_caches[self.accelerator.device_level - 1]
        return None if level == 0 else (self.levels[level - 1], self.reuse[self.accelerator.device_level - 1])

    @property
    def device(self) -> LevelTime:
        """Time in which bytes leave the device memory."""
        return self.levels[self.accelerator.device_level - 1]

    def for_roles(self, roles: Sequence[str]) -> "Machine":
        """This device with the matrix units for products whose right operands (B of A·B) have these roles,
        one for each product, and with the memory levels that serve those operands.
        """
        shares = None if self.shares is None else self.shares.for_roles(roles)
        if self.matrix_by_role is None:
            return dataclasses.replace(self, shares=shares)
        formats = [_FORMATS_OF[role] for role in roles]
        distinct = list(dict.fromkeys(formats))
        units = [self.matrix_by_role[name] for name in distinct]
        which = np.array([distinct.index(name) for name in formats])
        matrix = units[0] if len(units) == 1 else jax.tree.map(lambda *u: jnp.stack(u)[which], *units)
        return dataclasses.replace(self, matrix=matrix, shares=shares)
