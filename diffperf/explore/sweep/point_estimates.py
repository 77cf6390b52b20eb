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
from diffperf.explore.sweep.space import Axis, Digits, Space
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
    program = compile_chunk_program(space, chunk, dtype)

    def evaluate(start: int) -> pa.Table:
        results = jax.device_get(program(jnp.asarray(space.digits(start), jnp.int32)))
        return _table(space, np.arange(start, min(start + chunk, space.size)), results)

    return evaluate


def compile_chunk_program(space: Space, chunk: int, dtype: DTypeLike) -> Callable[..., dict[str, Array]]:
    """Compiles the function from the digits of a chunk's first point to the outputs of the chunk's points."""
    digits = jax.ShapeDtypeStruct((len(space.shape),), jnp.int32)
    return jax.jit(_chunk_evaluator(space, chunk, dtype)).lower(digits).compile()


def compile_points(space: Space, dtype: DTypeLike) -> Callable[[Int[np.ndarray, " points"]], pa.Table]:
    """Compiles the function from the numbers of any points to the table of these points."""
    digits = jax.ShapeDtypeStruct((BLOCK, len(space.shape)), jnp.int32)
    program = jax.jit(jax.vmap(_point_evaluator(space, dtype))).lower(digits).compile()

    def evaluate(numbers: Int[np.ndarray, " points"]) -> pa.Table:
        digits = np.stack(space.positions(numbers), axis=1).astype(np.int32)
        tables = []
        for start in range(0, max(len(numbers), 1), BLOCK):
            block = digits[start : start + BLOCK]
            padded = np.pad(block, ((0, BLOCK - len(block)), (0, 0)))
            results = jax.device_get(program(jnp.asarray(padded)))
            tables.append(_table(space, numbers[start : start + BLOCK], results))
        return pa.concat_tables(tables)

    return evaluate


def _point_evaluator(space: Space, dtype: DTypeLike) -> Callable[[Digits], dict[str, Array]]:
    """The function from the digits of a point to its recorded outputs, and whether it is possible and fits.

    Inputs that are not axes are constants of the program, so that of their choices only the chosen
    alternative is computed.
    """
    base = jax.tree.map(lambda leaf: leaf.astype(dtype), space.inputs)
    recorded = recorded_outputs(space)

    def evaluate_point(digits: Digits) -> dict[str, Array]:
        inputs = space.point(digits, base)
        reported = outputs(estimate(inputs, space.phase))
        possible = feasible(inputs, space.phase)
        fits = reported["memory.excess"][1] <= 0
        return {"feasible": possible, "fits": fits} | {path: reported[path][1] for path in recorded}

    return evaluate_point


def _chunk_evaluator(space: Space, chunk: int, dtype: DTypeLike) -> Callable:
    """The function from the digits of a first point to the outputs of that point and the `chunk` − 1 after
    it; `chunk` is a multiple of `BLOCK`."""
    evaluate_point = _point_evaluator(space, dtype)

    def evaluate_chunk(first: Int[Array, " dimensions"]) -> dict[str, Array]:
        offsets = jnp.arange(chunk, dtype=jnp.int32).reshape(-1, BLOCK)
        evaluate_block = jax.vmap(lambda offset: evaluate_point(space.advance(first, offset)))
        return jax.tree.map(lambda leaf: leaf.reshape(chunk), jax.lax.map(evaluate_block, offsets))

    return evaluate_chunk


def _table(space: Space, numbers: Int[np.ndarray, " points"], results: dict[str, np.ndarray]) -> pa.Table:
    """The rows of points, the first results of a longer chunk or block."""
    columns = axis_columns(space, numbers)
    for name in ("feasible", "fits", *recorded_outputs(space)):
        columns[name] = pa.array(results[name][: len(numbers)])
    return pa.table(columns)


def axis_columns(space: Space, numbers: Int[np.ndarray, " points"]) -> dict[str, pa.Array]:
    """The values on every axis of the points with these numbers, by the path of the axis."""
    positions = space.positions(numbers)
    return {axis.path: _axis_column(axis, positions[axis.dimension]) for axis in space.axes}


def _axis_column(axis: Axis, positions: Int[np.ndarray, " points"]) -> pa.Array:
    """The values at these positions of an axis: numbers in internal units, or the names of alternatives."""
    if axis.labels is None:
        return pa.array(axis.values[positions])
    return pa.DictionaryArray.from_arrays(pa.array(positions, pa.int32()), list(axis.labels))
