"""An accelerator whose compute units run at another clock than that of its peak rates."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.system import System
from diffperf.quantity import Scalar


def at_clock(accelerator: Accelerator, clock: Scalar, energy: Scalar | float = 1.0) -> Accelerator:
    """The accelerator with its compute units at a clock, and at a supply voltage V at which an operation
    takes `energy` ∝ V², both over those of its peak rates.

    Arithmetic rates and the bandwidths of caches follow the clock, and so do latencies that are cycles: of
    caches, of the pipelines of GEMMs, and of compute units in attention. Device memory and storage have
    clocks of their own. The energy of a byte out of a cache is ∝ V², and the power of clock tree and
    instructions ∝ f·V².
    """
    changed = [
        *(rate * clock for rate in _rates(accelerator)),
        *(cycles / clock for cycles in _cycles(accelerator)),
        *(joules * energy for joules in _energies(accelerator)),
        accelerator.active_power * clock * energy,
    ]
    return eqx.tree_at(
        lambda a: [*_rates(a), *_cycles(a), *_energies(a), a.active_power], accelerator, changed
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
    return eqx.tree_at(lambda system: system.accelerator, system, allowed)


def _caches(accelerator: Accelerator) -> list:
    """The memory levels that run at the clock of the compute units."""
    levels = zip(accelerator.memory, accelerator.memory_kinds, strict=True)
    return [level for level, kind in levels if kind == "cache"]


def _rates(accelerator: Accelerator) -> list:
    """Operations and bytes per second that follow the clock."""
    formats = [getattr(accelerator.matrix, name).rate for name in PRECISIONS]
    return [*formats, accelerator.vector, *(cache.bandwidth for cache in _caches(accelerator))]


def _cycles(accelerator: Accelerator) -> list:
    """Seconds that are numbers of cycles. Fixed times of a whole call of an attention kernel, which wait for
    device memory, are not.
    """
    attention = accelerator.attention
    return [
        *(getattr(accelerator.matrix, name).k_latency for name in PRECISIONS),
        *(cache.latency for cache in _caches(accelerator)),
        *(attention.head_latency, attention.row_latency),
        *(attention.bf16.tile_latency, attention.bf16.group_latency),
        *(attention.fp8.tile_latency, attention.fp8.group_latency),
    ]


def _energies(accelerator: Accelerator) -> list:
    """Joules of an operation, or of a byte out of a cache."""
    caches = [cache.energy for cache in _caches(accelerator)]
    return [accelerator.compute_energy, accelerator.vector_energy, *caches]
