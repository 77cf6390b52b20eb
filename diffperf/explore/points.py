"""The outputs of a phase at many points around a configuration, by one compiled program.

Sensitivities, indices, maps and break-even curves all ask for estimates with other numbers here and there.
The program takes every number of the configuration for each point, so that whichever of them change, and at
how many points, nothing is compiled again.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import stored
from diffperf.estimate.phases import estimate
from diffperf.quantity import numeric, replace
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration

BLOCK = 128  # points that one run of the program evaluates


class _Outputs(eqx.Module):
    """The outputs of a phase by path, at a block of points."""

    paths: tuple[str, ...] = eqx.field(static=True)
    values: Float[Array, "points outputs"]


def number_of_points(changes: Mapping[str, Float[np.ndarray, " points"]]) -> int:
    """Number of points that the values of changed inputs are for; one where nothing changes."""
    return max((len(values) for values in changes.values()), default=1)


def point_blocks(
    configuration: Configuration, changes: Mapping[str, Float[np.ndarray, " points"]], block: int
) -> Float[np.ndarray, "blocks block inputs"]:
    """The values of all inputs, in the order of `numeric`, at every point; in blocks of points, the last of
    which is filled up with its last point.

    **Raises:** `KeyError` for a path that leads to no number.
    """
    inputs = {path: float(value) for path, (_, value) in numeric(configuration).items()}
    columns = {path: place for place, path in enumerate(inputs)}
    points = number_of_points(changes)
    matrix = np.tile(np.fromiter(inputs.values(), float), (-(-points // block) * block, 1))
    for path, values in changes.items():
        matrix[:points, columns[path]] = values
        matrix[points:, columns[path]] = np.asarray(values)[-1]
    return matrix.reshape(-1, block, len(inputs))


def outputs_at(
    configuration: Configuration, changes: Mapping[str, Float[np.ndarray, " points"]], phase: str
) -> dict[str, Float[np.ndarray, " points"]]:
    """Every output of a phase, by path, at each of some points.

    `changes` has the values of the inputs that change, by full path, at all points in internal units.
    **Raises:** `KeyError` for a path that leads to no number.
    """
    blocks = [
        jax.device_get(_evaluate(configuration, jnp.asarray(block), phase))
        for block in point_blocks(configuration, changes, BLOCK)
    ]
    points = number_of_points(changes)
    table = np.concatenate([block.values for block in blocks])[:points]
    return dict(zip(blocks[0].paths, table.T, strict=True))


@stored("phase")
def _evaluate(configuration: Configuration, values: Float[Array, "points inputs"], phase: str) -> _Outputs:
    """The outputs of a phase at a block of points, whose values are in the order of `numeric`."""
    names = list(numeric(configuration))
    paths: list[str] = []

    def at(point: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        changed = replace(configuration, dict(zip(names, jnp.unstack(point), strict=True)))
        report = outputs(estimate(changed, phase))
        paths[:] = report
        return jnp.stack([value for _, value in report.values()])

    table = jax.vmap(at)(values)
    return _Outputs(tuple(paths), table)
