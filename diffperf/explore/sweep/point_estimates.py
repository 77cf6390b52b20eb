"""Estimates of many points of a space by one program, and the rows of the sweep's table that they fill."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jaxtyping import Array, Int
from numpy.typing import DTypeLike

from diffperf.batch_last import vmap_last
from diffperf.compiler import flattened, throughput_options
from diffperf.explore.sweep.axis import Axis, ConfigAxis, Digits
from diffperf.explore.sweep.designed_points import configuration_of, reported
from diffperf.explore.sweep.device_sizes import BLOCK, block_of
from diffperf.explore.sweep.space import Region, Space
from diffperf.interpreter import InterpretedProgram
from diffperf.workload.rules import feasible

# Up to so many points, NumPy estimates them in less time than XLA takes to compile the program.
FEW = 50_000
# Points that NumPy evaluates together: enough that an operation takes longer than its call.
_TOGETHER = 8 * BLOCK

# The column of a chunk that says which points satisfy the constraints of the space.
ALLOWED = "allowed"

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
    "chip.die_area",
    "chip.reticle",
    "chip.shoreline",
    "chip.power",
)


def recorded_outputs(space: Space) -> tuple[str, ...]:
    """Paths of the outputs that a sweep records: those of `RECORDED` that the phase reports, and those that
    points are compared by, or that are counted."""
    compared = (path for path, _ in space.objectives)
    paths = dict.fromkeys((*RECORDED, space.rank_by, *compared, *space.histograms))
    return tuple(path for path in paths if path in space.outputs)


def chunk_tables(space: Space, chunk: int, dtype: DTypeLike) -> Callable[[int, int], pa.Table]:
    """The function from the number of a chunk's first point and the number after its last to the table of the
    chunk's points, which are all in one region. NumPy evaluates a space of few points, a compiled program
    one of many.
    """
    few = space.size <= FEW
    make = interpreted_chunk_program if few else compile_chunk_program
    together = min(chunk, _TOGETHER) if few else chunk
    programs = {region: make(space, together, dtype, region) for region in space.regions}

    def evaluate(start: int, stop: int) -> pa.Table:
        region, tables = space.region_of(start), []
        for begin in range(start, stop, together):
            results = jax.device_get(programs[region](np.asarray(region.places(begin), np.int32)))
            tables.append(_table(space, np.arange(begin, min(begin + together, stop)), results))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()

    return evaluate


def compile_chunk_program(
    space: Space, chunk: int, dtype: DTypeLike, region: Region
) -> Callable[..., dict[str, Array]]:
    """Compiles the function from the places of a chunk's first point to the outputs of that point and the
    `chunk` − 1 after it; `chunk` is a multiple of `BLOCK`."""
    evaluate_point = _point_evaluator(space, dtype, region)

    def evaluate_chunk(first: Int[Array, " dimensions"]) -> dict[str, Array]:
        offsets = jnp.arange(chunk, dtype=jnp.int32).reshape(-1, block_of(chunk, space.phase))
        evaluate_block = vmap_last(lambda offset: evaluate_point(region.advance(first, offset)))
        return jax.tree.map(lambda leaf: leaf.reshape(chunk), jax.lax.map(evaluate_block, offsets))

    places = jax.ShapeDtypeStruct((len(space.shape),), jnp.int32)
    return jax.jit(evaluate_chunk).lower(places).compile(throughput_options())


def interpreted_chunk_program(
    space: Space, chunk: int, dtype: DTypeLike, region: Region
) -> Callable[..., dict[str, np.ndarray]]:
    """The program of `compile_chunk_program`, evaluated by NumPy: all points of the chunk at once."""
    evaluate_point = _point_evaluator(space, dtype, region)

    def evaluate_chunk(first: Int[Array, " dimensions"]) -> dict[str, Array]:
        offsets = jnp.arange(chunk, dtype=jnp.int32)
        return jax.vmap(lambda offset: evaluate_point(region.advance(first, offset)))(offsets)

    return _interpreted(evaluate_chunk, jax.ShapeDtypeStruct((len(space.shape),), jnp.int32))


def _interpreted(
    function: Callable[[Array], dict[str, Array]], argument: jax.ShapeDtypeStruct
) -> Callable[..., dict[str, np.ndarray]]:
    """A function of one array to named arrays, evaluated by NumPy."""
    flat, made = flattened(lambda argument: function(argument), jax.tree.structure({"argument": 0}))
    program = InterpretedProgram(jax.make_jaxpr(flat)(argument))
    return lambda argument: jax.tree.unflatten(made[0], program(argument))


def point_tables(space: Space, dtype: DTypeLike) -> Callable[[Int[np.ndarray, " points"]], pa.Table]:
    """The function from the ascending numbers of any points to the table of these points. NumPy evaluates few
    points, a compiled program many.
    """
    digits = jax.ShapeDtypeStruct((BLOCK, len(space.shape)), jnp.int32)

    def program(region: Region, points: int) -> Callable[..., dict[str, Any]]:
        evaluate_block = jax.vmap(_point_evaluator(space, dtype, region))
        if points <= FEW:
            return _interpreted(evaluate_block, digits)
        return jax.jit(evaluate_block).lower(digits).compile(throughput_options())

    def evaluate(numbers: Int[np.ndarray, " points"]) -> pa.Table:
        tables = []
        for region in space.regions:
            inside = numbers[(numbers >= region.start) & (numbers < region.stop)]
            estimated = program(region, len(inside)) if len(inside) else None
            for start in range(0, len(inside), BLOCK):
                block = inside[start : start + BLOCK]
                positions = np.stack(space.positions(block), axis=1).astype(np.int32)
                # The places behind the last point repeat it.
                padded = np.pad(positions, ((0, BLOCK - len(block)), (0, 0)), mode="edge")
                assert estimated is not None
                tables.append(_table(space, block, jax.device_get(estimated(padded))))
        return pa.concat_tables(tables)

    return evaluate


def _point_evaluator(space: Space, dtype: DTypeLike, region: Region) -> Callable[[Digits], dict[str, Array]]:
    """The function from the digits of a point to its recorded outputs, whether it satisfies the constraints,
    is a possible layout, and fits memory.

    Inputs that are not axes are constants of the program, so that of their choices only the chosen
    alternative is computed.
    """
    base, recorded = space.base(dtype), recorded_outputs(space)

    def evaluate_point(digits: Digits) -> dict[str, Array]:
        inputs = space.point(digits, base, region)
        report = reported(inputs, space.phase)
        possible = feasible(configuration_of(inputs), space.phase)
        facts = {"feasible": possible, "fits": report["memory.excess"][1] <= 0}
        if space.where:
            facts[ALLOWED] = space.allows(inputs)
        return facts | {path: report[path][1] for path in recorded}

    return evaluate_point


def _table(space: Space, numbers: Int[np.ndarray, " points"], results: dict[str, np.ndarray]) -> pa.Table:
    """The rows of points, the first results of a longer chunk or block."""
    columns = axis_columns(space, numbers)
    facts = ("feasible", "fits", *([ALLOWED] if space.where else []))
    for name in (*facts, *recorded_outputs(space)):
        columns[name] = pa.array(results[name][: len(numbers)])
    return pa.table(columns)


def axis_columns(space: Space, numbers: Int[np.ndarray, " points"]) -> dict[str, pa.Array]:
    """The values on every axis of the points with these numbers, by the path of the axis."""
    positions = space.positions(numbers)
    return {axis.path: _axis_column(axis, positions[axis.dimension]) for axis in space.axes}


def _axis_column(axis: Axis | ConfigAxis, positions: Int[np.ndarray, " points"]) -> pa.Array:
    """The values at these positions of an axis: numbers in internal units, or the names of alternatives."""
    if axis.labels is None:
        return pa.array(axis.values[positions])
    codes = axis.values[positions] if isinstance(axis, ConfigAxis) else positions
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), list(axis.labels))
