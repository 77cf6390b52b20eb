"""The resource that limits a phase, cell by cell over ranges of two inputs.

As in `diffperf.explore.bottlenecks`, what limits is read off derivatives: one per cent more of a resource
saves some share of a per cent of the time. Here the time is that of the whole phase, and network tiers are
resources too: their bandwidth and their latencies.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import stored
from diffperf.estimate.phases import estimate
from diffperf.explore.bottlenecks import OVERHEAD, resources, scaled
from diffperf.explore.points import point_blocks
from diffperf.explore.ranges import Range, with_tied
from diffperf.flat_program import flattened_calls
from diffperf.hardware.system import System
from diffperf.quantity import locate, numeric, replace
from diffperf.workload.configuration import Configuration

CELLS = 32  # of each axis, by default
_BLOCK = 64


@dataclasses.dataclass(frozen=True)
class BottleneckMap:
    """The resources that limit a phase in every cell of a grid.

    - `x`, `y`: values of the two inputs.
    - `resources`: names; the last is what no resource changes (latency of kernels, launches, waiting).
    - `shares`: per cent of the time that 1 % more of each resource saves, (y, x, resources).
    - `time`: seconds, (y, x).
    - `excess`: peak over capacity − 1 of memory, above 0 where the phase does not fit, (y, x).
    """

    x: Float[np.ndarray, " columns"]
    y: Float[np.ndarray, " rows"]
    resources: tuple[str, ...]
    shares: Float[np.ndarray, "rows columns resources"]
    time: Float[np.ndarray, "rows columns"]
    excess: Float[np.ndarray, "rows columns"]

    @property
    def binding(self) -> np.ndarray:
        """The place among the resources of the one that limits each cell most, (y, x)."""
        return np.argmax(self.shares, axis=-1)


def bottleneck_map(
    configuration: Configuration, x: Range, y: Range, phase: str, cells: int = CELLS
) -> BottleneckMap:
    """Map of the resources that limit a phase over the ranges of two inputs, with all other inputs
    unchanged.
    """
    columns, rows = x.grid(cells), y.grid(cells)
    across, down = (grid.ravel() for grid in np.meshgrid(columns, rows))
    changes = with_tied(configuration, {x.path: across, y.path: down})
    evaluated = [
        jax.device_get(_evaluate(configuration, jnp.asarray(block), phase))
        for block in point_blocks(configuration, changes, _BLOCK)
    ]
    time, excess, slopes = (np.concatenate(parts)[: len(across)] for parts in zip(*evaluated, strict=True))
    saved = np.maximum(-slopes / time[:, None], 0.0)
    shares = np.concatenate([saved, np.maximum(1 - saved.sum(axis=1, keepdims=True), 0.0)], axis=1)
    shape = len(rows), len(columns)
    return BottleneckMap(
        x=columns,
        y=rows,
        resources=(*_named(configuration.system), OVERHEAD),
        shares=shares.reshape(*shape, -1),
        time=time.reshape(shape),
        excess=excess.reshape(shape),
    )


def _named(system: System) -> list[str]:
    return [*resources(system), *(f"{tier.name} network" for tier in system.network)]


def _grown(system: System, growth: Float[Array, " resources"]) -> System:
    """The system with each of its resources grown by a logarithm; latencies of a network shrink with it."""
    inside = len(resources(system))
    system = scaled(system, growth[:inside])
    factors = jnp.exp(growth[inside:])
    tiers = tuple(
        dataclasses.replace(
            tier,
            bandwidth=tier.bandwidth * factor,
            uplink=tier.uplink * factor,
            latency=tier.latency / factor,
            startup=tier.startup / factor,
            ramp=tier.ramp / factor,
        )
        for tier, factor in zip(system.network, factors, strict=True)
    )
    return eqx.tree_at(lambda s: s.network, system, tiers)


@stored("phase")
def _evaluate(configuration: Configuration, values: Float[Array, "points inputs"], phase: str):
    """Time, excess of memory, and derivatives of time by the growth of resources, at a block of points."""
    names = list(numeric(configuration))
    still = jnp.zeros(len(_named(configuration.system)))

    def at(point: Float[Array, " inputs"]):
        c = replace(configuration, dict(zip(names, jnp.unstack(point), strict=True)))

        def time(growth: Float[Array, " resources"]):
            report = estimate(dataclasses.replace(c, system=_grown(c.system, growth)), phase)
            seconds, excess = (locate(report, path)[0] for path in ("time", "memory.excess"))
            return seconds, (seconds, excess)

        slopes, (seconds, excess) = jax.jacfwd(flattened_calls(time), has_aux=True)(still)
        return seconds, excess, slopes

    return jax.vmap(at)(values)
