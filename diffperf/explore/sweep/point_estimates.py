"""Estimates of many points of a space by one compiled program, and the rows of the sweep's table that they
fill."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jaxtyping import Array, Int
from numpy.typing import DTypeLike

from diffperf.estimate.phases import estimate
from diffperf.explore.sweep.space import Axis, Space
from diffperf.report.tables import outputs
from diffperf.workload.rules import feasible

# Points evaluated together: few enough that their intermediates stay in a core's cache.
BLOCK = 512

# Outputs of every sweep, by their paths in the report; those that the phase does not report are left out.
RECORDED = (
    "time",
    "tokens_per_second",
    "mfu",
    "memory.peak",
    "power",
    "energy.total",
    "cost.run",
    "cost.capital",
)


def recorded_outputs(space: Space) -> tuple[str, ...]:
    """Paths of the outputs that a sweep records: those of `RECORDED` that the phase reports, and the
    output that ranks the points."""
    paths = dict.fromkeys((*RECORDED, space.rank_by))
    return tuple(path for path in paths if path in space.outputs)


def compile_chunk(space: Space, chunk: int, dtype: DTypeLike) -> Callable[[int], pa.Table]:
    """Compiles the function from the number of a chunk's first point to the table of the chunk's points."""
    digits = jax.ShapeDtypeStruct((len(space.axes),), jnp.int32)
    program = jax.jit(_chunk_evaluator(space, chunk, dtype)).lower(digits).compile()

    def evaluate(start: int) -> pa.Table:
        results = jax.device_get(program(jnp.asarray(space.digits(start), jnp.int32)))
        return _chunk_table(space, start, min(start + chunk, space.size), results)

    return evaluate


def _chunk_evaluator(space: Space, chunk: int, dtype: DTypeLike) -> Callable:
    """The function from a first point's position on every axis to the outputs of that point and the `chunk`
    − 1 after it.

    `chunk` is a multiple of `BLOCK`. Inputs that are not axes are constants of the program, so that of
    their choices only the chosen alternative is computed.
    """
    base = jax.tree.map(lambda leaf: leaf.astype(dtype), space.inputs)
    recorded = recorded_outputs(space)

    def evaluate_point(first: Int[Array, " axes"], offset: Int[Array, ""]) -> dict[str, Array]:
        inputs = space.point(space.advance(first, offset), base)
        reported = outputs(estimate(inputs, space.phase))
        possible = feasible(inputs, space.phase)
        fits = reported["memory.excess"][1] <= 0
        return {"feasible": possible, "fits": fits} | {path: reported[path][1] for path in recorded}

    def evaluate_chunk(first: Int[Array, " axes"]) -> dict[str, Array]:
        offsets = jnp.arange(chunk, dtype=jnp.int32).reshape(-1, BLOCK)
        blocks = jax.lax.map(jax.vmap(lambda offset: evaluate_point(first, offset)), offsets)
        return jax.tree.map(lambda leaf: leaf.reshape(chunk), blocks)

    return evaluate_chunk


def _chunk_table(space: Space, start: int, stop: int, results: dict[str, np.ndarray]) -> pa.Table:
    """The rows of the points from number `start` to before `stop`: the value on every axis, then the
    results."""
    # The last axis varies fastest: positions follow from it to the first, each axis carrying over to the
    # one before.
    positions, numbers = [], np.arange(stop - start, dtype=np.int64)
    for first, length in zip(reversed(space.digits(start)), reversed(space.shape), strict=True):
        numbers = numbers + first
        positions.append(numbers % length)
        numbers = numbers // length
    columns = {
        axis.path: _axis_column(axis, on_axis)
        for axis, on_axis in zip(space.axes, reversed(positions), strict=True)
    }
    for name in ("feasible", "fits", *recorded_outputs(space)):
        columns[name] = pa.array(results[name][: stop - start])
    return pa.table(columns)


def _axis_column(axis: Axis, positions: Int[np.ndarray, " points"]) -> pa.Array:
    """The values at these positions of an axis: numbers in internal units, or the names of alternatives."""
    if axis.labels is None:
        return pa.array(axis.values[positions])
    return pa.DictionaryArray.from_arrays(pa.array(positions, pa.int32()), list(axis.labels))
