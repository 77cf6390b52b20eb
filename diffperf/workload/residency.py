"""Residency of tensors: the share of each class of tensors that each memory level of a device holds."""

import operator
from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.memory_level import TENSOR_CLASSES
from diffperf.hardware.system import System
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, cumulative, larger

PerClass = Float[Array, " classes"]  # a number for each of `TENSOR_CLASSES`

# Share of a cache's capacity that is left for reuse however many tensors the cache holds (an estimate): a
# kernel needs room for the operands that it works on.
_LEAST_REUSE = 0.05

# 1 for the classes that filling by heat takes: all but activations.
_BY_HEAT = np.array([float(name != "activations") for name in TENSOR_CLASSES])


class Residency(eqx.Module):
    """Shares of the tensors of a device that each of its memory levels holds, by class of tensors."""

    shares: Float[Array, "levels classes"]  # of each class of tensors, by the memory level that holds it
    stored: Float[Array, "levels classes"]  # bytes

    def free_capacities(self, accelerator: Accelerator, relax: Relaxation) -> list[Scalar]:
        """Bytes of each memory level that are left for reuse beside the tensors that the level holds."""
        held = jnp.sum(self.stored, axis=-1)
        return [
            level.capacity
            if level.holds is None
            else relax.maximum(relax.excess(level.capacity, bytes_), _LEAST_REUSE * level.capacity)
            for level, bytes_ in zip(accelerator.memory, held, strict=True)
        ]


def holds_tensors(accelerator: Accelerator) -> bool:
    """Whether any memory level but device memory may hold tensors."""
    return any(level.holds is not None for level in accelerator.memory)


def in_device_memory(accelerator: Accelerator) -> Residency:
    """All tensors in device memory, of as many bytes as they may be: what training does."""
    shares = np.zeros((len(accelerator.memory), len(TENSOR_CLASSES)))
    shares[accelerator.device_level] = 1.0
    precision = accelerator.vector.dtype
    return Residency(shares=jnp.asarray(shares, precision), stored=jnp.zeros(shares.shape, precision))


def residency(system: System, tensor_bytes: Mapping[str, Scalar], relax: Relaxation) -> Residency:
    """Residency of tensors of some bytes by class on a device.

    Given shares come first. The levels that are filled by heat take of the rest what they have room for,
    the hottest class first, one level after another from the inside out; they leave out activations, whose
    room is that of a prompt and nearly idle in generation. Levels that take the overflow take what device
    memory then has no room for, the coldest class first, activations last.
    """
    accelerator = system.accelerator
    bytes_ = jnp.stack([tensor_bytes[name] for name in TENSOR_CLASSES])
    levels = enumerate(accelerator.memory)
    holders = {index: level.holds for index, level in levels if level.holds is not None}
    given = {index: holds.fill["shares"] * holds.shares for index, holds in holders.items()}
    claimed = sum(given.values(), jnp.zeros_like(bytes_))
    shares = {index: share / larger(1.0, claimed) for index, share in given.items()}
    left = 1 - claimed / larger(1.0, claimed)
    for index, holds in holders.items():
        if holds.fill.possible["heat"]:
            room = holds.room * accelerator.memory[index].capacity
            candidates = jnp.asarray(_BY_HEAT, bytes_.dtype) * left
            taken = holds.fill["heat"] * candidates * _fitting_share(bytes_ * candidates, room, relax)
            shares[index], left = shares[index] + taken, left - taken
    room = relax.excess(accelerator.device_memory.capacity, system.stack.memory_reserve)
    for index, holds in holders.items():
        if holds.fill.possible["overflow"]:
            fitting = _fitting_share(bytes_ * left, room / system.stack.fragmentation, relax)
            taken = holds.fill["overflow"] * left * (1 - fitting)
            shares[index], left = shares[index] + taken, left - taken
    shares[accelerator.device_level] = left
    nothing = jnp.zeros_like(bytes_)
    table = jnp.stack([shares.get(index, nothing) for index in range(len(accelerator.memory))])
    return Residency(shares=table, stored=table * bytes_)


def _fitting_share(bytes_: PerClass, room: Scalar, relax: Relaxation) -> PerClass:
    """The share of each class that fits into `room` bytes, where the hottest classes come first.

    That is clip((room − bytes of hotter classes) / own bytes, 0, 1).
    """
    hotter = cumulative(bytes_, operator.add) - bytes_
    # At least one byte, so that a class without bytes is divided by a number.
    return relax.minimum(relax.excess(room, hotter), bytes_) / larger(bytes_, 1.0)
