"""`vmap_last`: functions mapped over a batch that stays the last axis of all arrays, for speed on processors.

`jax.vmap` puts the batch first. Of an array of 512 configurations by 5 memory levels by 21 kernels, the
innermost loop of a compiled program then runs over 21 kernels: vectors of eight or sixteen numbers leave a
rest, and small axes are not vectorized at all. With the batch last, the innermost loop runs over the
configurations, whatever the other axes are: estimates take 60 to 75 % of the time, gradients for hundreds of
inputs two fifths, and operations on constants alone are not compiled. Values with several uses are computed
once (`diffperf.shared_values`).
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from diffperf.flat_program import FlatProgram, traced_flat
from diffperf.numpy_operations import ELEMENTWISE
from diffperf.shared_values import shared_values
from diffperf.tracing import without_garbage_collection


class Value(NamedTuple):
    """An array of a mapped function, and whether its last axis is the batch.

    What does not depend on the batch has no such axis. Constants are arrays of NumPy, others of JAX.
    """

    array: Any
    batched: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape without the batch."""
        shape = np.shape(self.array)
        return shape[:-1] if self.batched else shape


# Reductions of so few members along each axis are written out as operations on whole arrays: of memory
# levels, and of tables of kernels.
_MOST_WRITTEN_OUT = 32
# Numbers of further axes of one member, before and behind the others.
_FURTHER_AXES = [(before, behind) for before in range(5) for behind in range(5) if before + behind]
_COMBINATIONS = {"reduce_max": lax.max, "reduce_min": lax.min, "reduce_prod": lax.mul, "reduce_sum": lax.add}


class Batch(NamedTuple):
    """What all operations with a batch need to know.

    - `size`: how many configurations it has.
    - `further_axes`: numbers of axes of one member to put before and behind the others, different ones each
      time.
    """

    size: int
    further_axes: Iterator[tuple[int, int]]

    @classmethod
    def of(cls, size: int) -> "Batch":
        """A batch of so many configurations."""
        return cls(size, itertools.cycle(_FURTHER_AXES))

    def computed_once(self, array: Any) -> Any:
        """An array that XLA computes once, however many others use it (`diffperf.shared_values`), on CPUs.

        Further axes of one member give the array a shape that few others have. Over an operand of the same
        shape that nothing else needs, XLA writes the result of a loop. LLVM then cannot tell what the loop
        reads from what it writes, and vectorizes nothing: such loops took up to fifteen times as long.
        """
        if jax.default_backend() != "cpu":
            return array
        before, behind = next(self.further_axes)
        own = (1,) * before + array.shape[:-1] + (1,) * behind + array.shape[-1:]
        return lax.reshape(lax.optimization_barrier(lax.reshape(array, own)), array.shape)


# From an operation, its operands and the batch to its results, with the batch last.
Rule = Callable[[JaxprEqn, Sequence[Value], Batch], list[Any]]


def vmap_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function mapped over the last axis of every array of its arguments.

    The results have the batch as their last axis: as `jax.vmap(function, in_axes=-1, out_axes=-1)`, but with
    the batch last in between, too. The function may close over traced values, and be a gradient. Compile it
    with `dp.throughput_options()`: gradients take three to five times as long without.
    """

    def mapped(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        size = np.shape(leaves[0])[-1]
        one = [jax.ShapeDtypeStruct(np.shape(leaf)[:-1], jnp.result_type(leaf)) for leaf in leaves]
        # Without the barriers of `compute_once`: with a batch, others are the values to compute once.
        program, _, structure_of_results = traced_flat(function, structure.unflatten(one), keeps=())
        with without_garbage_collection():
            results = _mapped(program, [Value(leaf, True) for leaf in leaves], Batch.of(size))
        arrays = [_with_batch(result, result.shape, size) for result in results]
        return structure_of_results.unflatten(arrays)

    return mapped


def _mapped(program: FlatProgram, inputs: Sequence[Value], batch: Batch) -> list[Value]:
    """The results of a program for inputs of which some have a batch of that size."""
    values = {number: Value(constant, False) for number, constant in program.constants.items()}
    values |= _pairs(program.inputs, inputs)
    shared = shared_values(program)
    for equation, used, made in program.steps:
        name, operands = equation.primitive.name, [values[number] for number in used]
        if any(operand.batched for operand in operands):
            arrays = zip(made, _RULES.get(name, _by_vmap)(equation, operands, batch), strict=True)
            once = (batch.computed_once(array) if number in shared else array for number, array in arrays)
            results = [Value(array, True) for array in once]
        else:
            arrays = [jnp.asarray(operand.array) for operand in operands]
            result = equation.primitive.bind(*arrays, **equation.params)
            several = equation.primitive.multiple_results
            results = [Value(one, False) for one in (result if several else [result])]
        values |= _pairs(made, results)
    return [values[number] for number in program.outputs]


def _pairs(names: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """The values by their names."""
    return dict(zip(names, values, strict=True))


def _with_batch(value: Value, shape: Sequence[int], size: int) -> Any:
    """The array of a value in a shape, and with a batch of that size, repeated where it lacks them."""
    whole = (*shape, size)
    if value.batched and value.array.shape == whole:
        return value.array
    first = len(shape) - len(value.shape)
    axes = range(first, first + np.ndim(value.array))
    return lax.broadcast_in_dim(value.array, whole, tuple(axes))


def _shape_of_result(equation: JaxprEqn) -> tuple[int, ...]:
    """The shape of an operation's (first) result without a batch."""
    kind: Any = equation.outvars[0].aval
    return kind.shape


# --- rules for operations of which some operands have a batch


def _elementwise(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    """An operation on each element: all operands in the shape of the result."""
    shape = _shape_of_result(equation)
    arrays = [_with_batch(operand, shape, batch.size) for operand in operands]
    return [equation.primitive.bind(*arrays, **equation.params)]


def _on_axes(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    """An operation along axes that its parameters count from the first: the batch behind them changes
    nothing."""
    arrays = [_with_batch(operand, operand.shape, batch.size) for operand in operands]
    results = equation.primitive.bind(*arrays, **equation.params)
    return list(results) if equation.primitive.multiple_results else [results]


def _reduction(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    """A reduction to a number for each place on the other axes; one of few members is written out.

    XLA's loop over what is reduced is the innermost one, so that its processor code is not vectorized. The
    written-out result is computed once, as XLA does with a reduction.
    """
    (operand,), axes = operands, equation.params["axes"]
    longest = max((operand.shape[axis] for axis in axes), default=0)
    is_real = jnp.issubdtype(jnp.result_type(operand.array), jnp.floating)
    if not is_real or not 1 < longest <= _MOST_WRITTEN_OUT or jax.default_backend() != "cpu":
        return _on_axes(equation, operands, batch)
    combined, combine = operand.array, _COMBINATIONS[equation.primitive.name]
    for axis in sorted(axes, reverse=True):
        members = [lax.index_in_dim(combined, at, axis, keepdims=False) for at in range(operand.shape[axis])]
        combined = functools.reduce(combine, members)
    return [batch.computed_once(combined)]


def _broadcast_in_dim(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    return [lax.broadcast_in_dim(operands[0].array, (*shape, batch.size), (*axes, len(shape)))]


def _reshape(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    if equation.params["dimensions"] is not None:
        return _by_vmap(equation, operands, batch)
    return [lax.reshape(operands[0].array, (*equation.params["new_sizes"], batch.size))]


def _transpose(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    axes = equation.params["permutation"]
    return [lax.transpose(operands[0].array, (*axes, len(axes)))]


def _slice(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return [lax.slice(operands[0].array, (*starts, 0), (*limits, batch.size), (*strides, 1))]


def _pad(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    array, value = operands
    if value.batched:
        return _by_vmap(equation, operands, batch)
    padding = (*equation.params["padding_config"], (0, 0, 0))
    return [lax.pad(_with_batch(array, array.shape, batch.size), jnp.asarray(value.array), padding)]


def _gather(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    """Rows at known places are slices, of which XLA knows the bounds. Others are those of `jax.vmap`."""
    table, places = operands
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    axes = numbers.start_index_map
    takes_rows = len(axes) == 1 and numbers.collapsed_slice_dims == axes and len(places.shape) == 2
    is_known = table.batched and not places.batched and isinstance(places.array, np.ndarray)
    if not (takes_rows and is_known) or numbers.operand_batching_dims:
        return _by_vmap(equation, operands, batch)
    (axis,) = axes
    length = table.shape[axis]
    whole = all(size == (1 if at == axis else table.shape[at]) for at, size in enumerate(sizes))
    if not whole or np.any(places.array < 0) or np.any(places.array >= length):
        return _by_vmap(equation, operands, batch)
    (to,) = set(range(len(_shape_of_result(equation)))) - set(numbers.offset_dims)
    rows = [lax.index_in_dim(table.array, int(place), axis, keepdims=False) for place in places.array[:, 0]]
    return [jnp.stack(rows, axis=to)]


def _by_vmap(equation: JaxprEqn, operands: Sequence[Value], batch: Batch) -> list[Any]:
    """Any other operation, as `jax.vmap` maps it."""
    bind = functools.partial(equation.primitive.bind, **equation.params)
    axes = tuple(-1 if operand.batched else None for operand in operands)
    arrays = [jnp.asarray(operand.array) for operand in operands]
    results = jax.vmap(bind, in_axes=axes, out_axes=-1)(*arrays)
    return list(results) if equation.primitive.multiple_results else [results]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("convert_element_type", "div", "integer_pow", "round", "rsqrt"), _elementwise),
    "select_n": _elementwise,
    **dict.fromkeys(("argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum"), _on_axes),
    **dict.fromkeys(("reduce_and", "reduce_or"), _on_axes),
    **dict.fromkeys(_COMBINATIONS, _reduction),
    **dict.fromkeys(("concatenate", "rev", "split", "squeeze", "stack", "unstack"), _on_axes),
    "broadcast_in_dim": _broadcast_in_dim,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
}
