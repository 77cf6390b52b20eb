"""The operations of JAX (jax.lax) as functions of NumPy arrays, by the names of their primitives.

Those of `ELEMENTWISE` are functions at once; those of `IN_ITS_TYPE` and `MAKERS` are made from the parameters
of an operation, which are the keyword arguments of their makers. Programs among the parameters, as those of
loops and branches, are functions of arrays to lists of arrays, with the shapes and types of their `results`.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

_MOST_FILLED = 1024  # numbers of an array that is filled with those of a smaller one, instead of a view of it
# A function of NumPy arrays: to an array, or to a list of arrays for operations with several results.
ArrayFunction = Callable[..., Any]


def _broadcast_in_dim(*, shape: Any, broadcast_dimensions: Any) -> ArrayFunction:
    """The axes of an array become these axes of a larger shape."""

    def sizes(x: Any) -> list[int]:
        kept = [1] * len(shape)
        for axis, size in zip(broadcast_dimensions, np.shape(x), strict=True):
            kept[axis] = size
        return kept

    def filled(x: Any) -> Any:
        result = np.empty(shape, x.dtype)
        result[...] = x.reshape(sizes(x)) if broadcast_dimensions else x
        return result

    # NumPy takes longer to make a view than to fill a small array; a large one would fill the memory.
    if math.prod(shape) <= _MOST_FILLED:
        return filled
    return lambda x: np.broadcast_to(np.reshape(x, sizes(x)), shape)


def _select_n() -> ArrayFunction:
    """The operation that takes each element from the array which the first array says."""
    return lambda which, *cases: (
        np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)
    )


def _integer_pow(*, y: int) -> ArrayFunction:
    """x^y by repeated squaring."""

    def power(x: Any) -> Any:
        result, square, left = np.ones_like(x), x, abs(y)
        while left:
            result = result * square if left & 1 else result
            square, left = square * square, left >> 1
        return 1 / result if y < 0 else result

    return {2: np.square, -1: np.reciprocal}.get(y, power)


def _slice(*, start_indices: Any, limit_indices: Any, strides: Any) -> ArrayFunction:
    """The elements from a start to a limit along each axis."""
    part = tuple(map(slice, start_indices, limit_indices, strides or [1] * len(start_indices)))
    return lambda x: x[part]


def _split(*, sizes: Any, axis: int) -> ArrayFunction:
    """Parts of these sizes along an axis, one after the other."""
    ends = np.cumsum(sizes).tolist()
    parts = [(slice(None),) * axis + (slice(end - size, end),) for size, end in zip(sizes, ends, strict=True)]
    return lambda x: [x[part] for part in parts]


def _dynamic_slice(*, slice_sizes: Any) -> ArrayFunction:
    """The operation that takes `slice_sizes` elements along each axis, from a start that is kept inside
    the array.
    """

    def sliced(x: Any, *starts: Any) -> Any:
        sizes = zip(starts, x.shape, slice_sizes, strict=True)
        first = [int(np.clip(start, 0, length - size)) for start, length, size in sizes]
        return x[tuple(slice(start, start + size) for start, size in zip(first, slice_sizes, strict=True))]

    return sliced


def _dynamic_update_slice() -> ArrayFunction:
    """An array with a part replaced, from a start that is kept inside the array."""

    def updated(x: Any, part: Any, *starts: Any) -> Any:
        sizes = zip(starts, x.shape, part.shape, strict=True)
        first = [int(np.clip(start, 0, length - size)) for start, length, size in sizes]
        result = np.array(x)
        result[tuple(slice(start, start + size) for start, size in zip(first, part.shape, strict=True))] = (
            part
        )
        return result

    return updated


def _pad(*, padding_config: Any) -> ArrayFunction:
    """An array with a value before, after and between its elements; a negative count takes elements away."""

    def padded(x: Any, value: Any) -> Any:
        sizes = list(zip(x.shape, padding_config, strict=True))
        spread = [n + max(n - 1, 0) * between for n, (_, _, between) in sizes]
        before = [max(low, 0) for low, _, _ in padding_config]
        around = [max(low, 0) + max(high, 0) for low, high, _ in padding_config]
        result = np.full(np.add(spread, around), value, x.dtype)
        places = zip(before, spread, padding_config, strict=True)
        result[tuple(slice(start, start + n, between + 1) for start, n, (_, _, between) in places)] = x
        ends = zip(result.shape, padding_config, strict=True)
        return result[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in ends)]

    return padded


def _iota(*, dtype: Any, shape: Any, dimension: Any) -> ArrayFunction:
    """0, 1, 2, … along one axis."""
    numbers = _broadcast_in_dim(shape=shape, broadcast_dimensions=(dimension,))
    return lambda: numbers(np.arange(shape[dimension], dtype=dtype))


def _dot_general(*, dimension_numbers: Any) -> ArrayFunction:
    """Products summed over some axes and repeated over others."""
    (first_summed, second_summed), (first_batch, second_batch) = dimension_numbers

    def product(x: Any, y: Any) -> Any:
        of_x, of_y = list(range(x.ndim)), list(range(x.ndim, x.ndim + y.ndim))
        shared = [
            *zip(first_summed, second_summed, strict=True),
            *zip(first_batch, second_batch, strict=True),
        ]
        for i, j in shared:
            of_y[j] = of_x[i]
        gone = {of_x[i] for i, _ in shared}
        free = [axis for axis in (*of_x, *of_y) if axis not in gone]
        return np.einsum(x, of_x, y, of_y, [*(of_x[i] for i in first_batch), *free])

    return product


def _round(*, rounding_method: Any) -> ArrayFunction:
    """Whole numbers: halves to even ones, or away from zero."""
    to_even = rounding_method == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return np.rint if to_even else lambda x: np.trunc(x + np.copysign(0.5, x))


def _special(name: str) -> ArrayFunction:
    """A special function of SciPy, imported when it is used: few programs have one, and it takes 0.2 s."""
    return lambda x: getattr(importlib.import_module("scipy.special"), name)(x)


def _reduction(function: ArrayFunction) -> Callable[..., ArrayFunction]:
    """A maker of a reduction over some axes."""
    return lambda *, axes: lambda x: function(x, axis=tuple(axes))


def _cumulation(function: ArrayFunction) -> Callable[..., ArrayFunction]:
    """A maker of a running reduction along an axis, from its start or from its end."""
    return lambda *, axis, reverse: (
        lambda x: np.flip(function(np.flip(x, axis), axis=axis), axis) if reverse else function(x, axis=axis)
    )


class _Windows:
    """The windows of an array that a gather reads or a scatter writes.

    - `places`: an array of indices for each axis of the array, of the shape (windows..., window...).
    - `inside`: whether each window lies inside the array.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sizes: Sequence[Any],
        starts: Any,
        indexed: Sequence[Any],
        batching: tuple[Sequence[Any], Sequence[Any]],
        dropped: Sequence[Any],
    ):
        batch = starts.shape[:-1]
        kept = [axis for axis in range(len(shape)) if axis not in (*dropped, *batching[0])]
        self.inside, self.places = np.ones(batch, bool), []
        for axis, (length, size) in enumerate(zip(shape, sizes, strict=True)):
            start = np.zeros(batch, np.int64)
            if axis in indexed:
                start = starts[..., list(indexed).index(axis)].astype(np.int64)
            elif axis in batching[0]:
                along = batching[1][list(batching[0]).index(axis)]
                start = _iota(dtype=np.int64, shape=batch, dimension=along)()
            self.inside = self.inside & (start >= 0) & (start <= length - size)
            offsets = [size if other == axis else 1 for other in kept]
            window = np.arange(size if axis in kept else 1).reshape(offsets)
            self.places.append(np.clip(start, 0, length - size).reshape(batch + (1,) * len(kept)) + window)


def _gather(*, dimension_numbers: Any, slice_sizes: Any, mode: Any, fill_value: Any) -> ArrayFunction:
    """Windows of an array at computed places; those outside are moved inside, or filled."""
    n = dimension_numbers

    def gathered(x: Any, starts: Any) -> Any:
        batching = n.operand_batching_dims, n.start_indices_batching_dims
        windows = _Windows(
            shape=x.shape,
            sizes=slice_sizes,
            starts=starts,
            indexed=n.start_index_map,
            batching=batching,
            dropped=n.collapsed_slice_dims,
        )
        result, inside = x[tuple(windows.places)], windows.inside
        if mode == jax.lax.GatherScatterMode.FILL_OR_DROP and not np.all(inside):
            inside = inside.reshape(inside.shape + (1,) * (result.ndim - inside.ndim))
            result = np.where(inside, result, np.nan if fill_value is None else fill_value)
        return np.moveaxis(result, range(windows.inside.ndim, result.ndim), list(n.offset_dims))

    return gathered


def _sort(*, dimension: int, num_keys: int) -> ArrayFunction:
    """Arrays sorted along an axis by the first of them, ties by the next keys, else as they stand."""

    def sorted_by_keys(*arrays: Any) -> list[Any]:
        order = np.lexsort(arrays[num_keys - 1 :: -1], axis=dimension)
        return [np.take_along_axis(one, order, dimension) for one in arrays]

    return sorted_by_keys


def _scatter(accumulate: ArrayFunction | None) -> Callable[..., ArrayFunction]:
    """A maker of functions that write windows at computed places, or accumulate them with what is there, as
    their sum, product, maximum or minimum. What lies outside is not written.
    """

    def make(*, dimension_numbers: Any, mode: Any) -> ArrayFunction:
        n = dimension_numbers

        def scattered(x: Any, starts: Any, updates: Any) -> Any:
            kept = iter(n.update_window_dims)
            hidden = *n.inserted_window_dims, *n.operand_batching_dims
            sizes = [1 if axis in hidden else updates.shape[next(kept)] for axis in range(x.ndim)]
            batching = n.operand_batching_dims, n.scatter_indices_batching_dims
            indexed = n.scatter_dims_to_operand_dims
            windows = _Windows(
                shape=x.shape,
                sizes=sizes,
                starts=starts,
                indexed=indexed,
                batching=batching,
                dropped=n.inserted_window_dims,
            )
            inside = (
                np.ones_like(windows.inside) if mode == jax.lax.GatherScatterMode.CLIP else windows.inside
            )
            updates = np.moveaxis(updates, list(n.update_window_dims), range(inside.ndim, updates.ndim))
            places = tuple(np.broadcast_to(place, updates.shape)[inside] for place in windows.places)
            result = np.array(x)
            if accumulate is None:
                result[places] = updates[inside]
            else:
                accumulate.at(result, places, updates[inside])  # pyright: ignore[reportFunctionMemberAccess]
            return result

        return scattered

    return make


def _while(*, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int) -> ArrayFunction:
    """A loop for as long as a condition holds. Of several at once, those that have ended keep their state."""

    def loop(*inputs: Any) -> list[Any]:
        asked, used = inputs[:cond_nconsts], inputs[cond_nconsts:][:body_nconsts]
        state = list(inputs[cond_nconsts + body_nconsts :])
        while np.any(going := cond_jaxpr(*asked, *state)[0]):
            following = body_jaxpr(*used, *state)
            state = [
                np.where(np.reshape(going, going.shape + (1,) * (after.ndim - going.ndim)), after, before)
                for after, before in zip(following, state, strict=True)
            ]
        return state

    return loop


def _scan(*, jaxpr: Any, num_consts: int, num_carry: int, length: int, reverse: bool) -> ArrayFunction:
    """A loop over the leading axis."""
    order = range(length)[::-1] if reverse else range(length)

    def loop(*inputs: Any) -> list[Any]:
        used, state = inputs[:num_consts], list(inputs[num_consts:][:num_carry])
        columns = inputs[num_consts + num_carry :]
        stacked = [np.empty((length, *shape), kind) for shape, kind in jaxpr.results[num_carry:]]
        for place in order:
            results = jaxpr(*used, *state, *(column[place] for column in columns))
            state = results[:num_carry]
            for column, result in zip(stacked, results[num_carry:], strict=True):
                column[place] = result
        return [*state, *stacked]

    return loop


def _cond(*, branches: Any) -> ArrayFunction:
    """One of several programs."""
    return lambda which, *inputs: branches[int(np.clip(which, 0, len(branches) - 1))](*inputs)


# NumPy gives the results of these the type of their inputs, as JAX does, or makes them booleans.
ELEMENTWISE: dict[str, ArrayFunction] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "cos": np.cos,
    "eq": np.equal,
    "erf": _special("erf"),
    "erf_inv": _special("erfinv"),
    "erfc": _special("erfc"),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "lgamma": _special("gammaln"),
    "log": np.log,
    "log1p": np.log1p,
    "logistic": _special("expit"),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "nextafter": np.nextafter,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "rem": np.fmod,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}
# Makers of functions whose results NumPy may give another type.
IN_ITS_TYPE: dict[str, Callable[..., ArrayFunction]] = {
    "argmax": lambda *, axes: lambda x: np.argmax(x, axis=axes[0]),
    "argmin": lambda *, axes: lambda x: np.argmin(x, axis=axes[0]),
    "convert_element_type": lambda: lambda x: x,
    "cumprod": _cumulation(np.cumprod),
    "cumsum": _cumulation(np.cumsum),
    "div": lambda: lambda x, y: np.divide(x, y) if np.asarray(x).dtype.kind == "f" else np.trunc(x / y),
    "gather": _gather,
    "integer_pow": _integer_pow,
    "reduce_prod": _reduction(np.prod),
    "reduce_sum": _reduction(np.sum),
    "rsqrt": lambda: lambda x: 1 / np.sqrt(x),
}
MAKERS: dict[str, Callable[..., ArrayFunction]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *, dimension: lambda *parts: np.concatenate(parts, axis=dimension),
    "cond": _cond,
    "cummax": _cumulation(np.maximum.accumulate),
    "cummin": _cumulation(np.minimum.accumulate),
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "iota": _iota,
    "pad": _pad,
    "reduce_and": _reduction(np.all),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_or": _reduction(np.any),
    "reshape": lambda *, new_sizes, dimensions: (
        lambda x: np.reshape(x if dimensions is None else np.transpose(x, dimensions), new_sizes)
    ),
    "rev": lambda *, dimensions: lambda x: np.flip(x, tuple(dimensions)),
    "round": _round,
    "scan": _scan,
    "scatter": _scatter(None),
    "scatter-add": _scatter(np.add),
    "scatter-max": _scatter(np.maximum),
    "scatter-min": _scatter(np.minimum),
    "scatter-mul": _scatter(np.multiply),
    "select_n": _select_n,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "squeeze": lambda *, dimensions: lambda x: np.squeeze(x, tuple(dimensions)),
    "stack": lambda *, axis=0: lambda *parts: np.stack(parts, axis=axis),
    "transpose": lambda *, permutation: lambda x: np.transpose(x, permutation),
    "unstack": lambda *, axis=0: list if axis == 0 else lambda x: list(np.moveaxis(x, axis, 0)),
    "while": _while,
}
