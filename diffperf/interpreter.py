"""Programs of JAX that NumPy evaluates, for what is computed once or a few times.

XLA compiles a training step in seconds and its gradient in tens of seconds, and then runs either in less than
a millisecond. NumPy runs their operations one by one, in some 20 and 60 milliseconds, without compiling
anything. Numbers are the same up to rounding: both compute the same operations in the same precision.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

_MOST_FOLDED = 4096  # numbers that an operation on constants alone may have as its result, which is stored
_MOST_FILLED = 1024  # numbers of an array that is filled with those of a smaller one, instead of a view of it
# A function of NumPy arrays: to an array, or to a list of arrays for operations with several results.
ArrayFunction = Callable[..., Any]


class Operation:
    """An operation of JAX: its name, the parameters that NumPy needs, and the type of its (first) result."""

    __slots__ = ("function", "kind", "name", "parameters")

    def __init__(self, name: str, parameters: dict[str, Any], kind: np.dtype):
        self.name, self.parameters, self.kind = name, parameters, kind
        self.function = self._function()

    @classmethod
    def of(cls, equation: JaxprEqn) -> "Operation":
        name = equation.primitive.name
        kind = _kind(equation.outvars[0])
        if name in ELEMENTWISE:
            return cls(name, {}, kind)
        maker = _IN_ITS_TYPE.get(name) or _MAKERS.get(name)
        if maker is None:
            return cls(name, {"primitive": equation.primitive, **equation.params}, kind)
        needed = inspect.signature(maker).parameters
        parameters = {key: _interpreted(value) for key, value in equation.params.items() if key in needed}
        return cls(name, parameters, kind)

    @property
    def only_jax(self) -> bool:
        """Whether NumPy has no such operation, and JAX runs it."""
        return "primitive" in self.parameters

    def __reduce__(self) -> tuple:
        """Operations are made again from their names: functions cannot be pickled."""
        if self.only_jax:
            raise TypeError(f"an operation that only JAX knows cannot be stored: {self.name}")
        return Operation, (self.name, self.parameters, self.kind)

    def _function(self) -> ArrayFunction:
        """What NumPy runs, in the type that JAX gives the result."""
        if self.name in ELEMENTWISE:
            return ELEMENTWISE[self.name]
        if self.name in _IN_ITS_TYPE:
            function, kind = _IN_ITS_TYPE[self.name](**self.parameters), self.kind
            return lambda *inputs: np.asarray(function(*inputs), kind)
        if self.name in _MAKERS:
            return _MAKERS[self.name](**self.parameters)
        parameters = dict(self.parameters)
        primitive = parameters.pop("primitive")
        return lambda *inputs: jax.device_get(primitive.bind(*map(jnp.asarray, inputs), **parameters))


def _kind(variable: Any) -> np.dtype:
    """The type of the numbers of a variable or a literal."""
    return np.dtype(variable.aval.dtype)


def _size(variable: Any) -> int:
    """How many numbers a variable holds."""
    return math.prod(variable.aval.shape)


def _interpreted(parameter: Any) -> Any:
    """A parameter of an operation; programs in it are interpreted too."""
    if isinstance(parameter, ClosedJaxpr):
        return InterpretedProgram(parameter)
    is_branches = isinstance(parameter, tuple) and any(isinstance(one, ClosedJaxpr) for one in parameter)
    return tuple(map(InterpretedProgram, parameter)) if is_branches else parameter


def called_program(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program that an operation calls; None for an operation of its own."""
    parameter = _CALLS.get(equation.primitive.name)
    if parameter is None:
        return None
    called = equation.params[parameter]
    return called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, ())


class Step(NamedTuple):
    """One operation of a program whose values are numbered.

    - `used`, `made`: the numbers of its inputs and of its results.
    - `several`: whether the operation has a list of results.
    - `forgotten`: the numbers of the values that no later step needs.
    """

    operation: Operation
    used: tuple[int, ...]
    made: tuple[int, ...]
    several: bool
    forgotten: tuple[int, ...] = ()


class InterpretedProgram:
    """A traced program as a list of operations that NumPy runs one after the other. It can be pickled."""

    def __init__(self, traced: ClosedJaxpr):
        self.count = 0  # values so far
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        # The inputs that results depend on: the place among all inputs, the number of the value, its type.
        self.used_inputs: list[tuple[int, int, np.dtype]] = []
        self.results = [(one.shape, np.dtype(one.dtype)) for one in traced.out_avals]
        self.outputs: tuple[int, ...] = ()
        _Appender(self).finish(traced)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The results for these inputs, as NumPy arrays.

        Only those that results depend on are read: half of the numbers of a configuration for a report.
        """
        values: list[Any] = [None] * self.count
        for number, constant in self.constants.items():
            values[number] = constant
        for place, number, kind in self.used_inputs:
            values[number] = np.asarray(inputs[place], kind)
        with np.errstate(all="ignore"):
            for operation, used, made, several, forgotten in self.steps:
                result = operation.function(*[values[number] for number in used])
                if several:
                    for number, part in zip(made, result, strict=True):
                        values[number] = part
                else:
                    values[made[0]] = result
                for number in forgotten:
                    values[number] = None
        return [np.asarray(values[number]) for number in self.outputs]

    def new_numbers(self, count: int) -> tuple[int, ...]:
        """Numbers of new values."""
        self.count += count
        return tuple(range(self.count - count, self.count))


class _Appender:
    """Writes the steps of a program: none twice, none whose inputs are all known, none that changes nothing.

    Of the nine thousand operations of a training step, XLA would leave out the same three thousand.
    """

    def __init__(self, program: InterpretedProgram):
        self.program = program
        self.operations: dict[Any, Operation] = {}
        self.numbers_of_constants: dict[Any, int] = {}
        self.results: dict[tuple[Operation, tuple[int, ...]], tuple[int, ...]] = {}  # of steps so far

    def finish(self, traced: ClosedJaxpr) -> None:
        """Appends all of a traced program that its results depend on."""
        program = self.program
        inputs = program.new_numbers(len(traced.in_avals))
        program.outputs = self.append(traced, inputs)
        # Values are forgotten after their last use: those of many configurations would fill the memory.
        needed, kept = {*program.outputs, *program.constants}, []
        used = {*program.outputs}
        for step in reversed(program.steps):
            if needed.isdisjoint(step.made):
                continue
            numbers = {*step.used, *step.made}
            kept.append(step._replace(forgotten=tuple(numbers - needed)))
            needed |= numbers
            used |= numbers
        program.steps = kept[::-1]
        program.constants = {number: value for number, value in program.constants.items() if number in used}
        program.used_inputs = [
            (place, number, np.dtype(kind.dtype))
            for place, (number, kind) in enumerate(zip(inputs, traced.in_avals, strict=True))
            if number in used
        ]

    def append(self, traced: ClosedJaxpr, inputs: Sequence[int]) -> tuple[int, ...]:
        """Appends a program that is called with the values of these numbers; returns those of its results."""
        jaxpr = traced.jaxpr
        number: dict[Any, int] = dict(zip(jaxpr.constvars, map(self.constant, traced.consts), strict=True))
        number |= zip(jaxpr.invars, inputs, strict=True)

        def numbered(variables: Sequence[Any]) -> tuple[int, ...]:
            return tuple(
                self.constant(np.asarray(v.val, _kind(v))) if isinstance(v, Literal) else number[v]
                for v in variables
            )

        for equation in jaxpr.eqns:
            used = numbered(equation.invars)
            if (called := called_program(equation)) is not None:
                made = self.append(called, used)
            elif equation.primitive.name in UNCHANGED:
                made = used
            else:
                made = self.step(equation, used)
            number |= zip(equation.outvars, made, strict=True)
        return numbered(jaxpr.outvars)

    def step(self, equation: JaxprEqn, used: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of an operation's results; the operation is appended where nothing has them yet."""
        program, operation = self.program, self.operation(equation)
        key = operation, used
        if key not in self.results:
            several = equation.primitive.multiple_results
            small = sum(map(_size, equation.outvars)) <= _MOST_FOLDED
            if small and all(number in program.constants for number in used):
                with np.errstate(all="ignore"):
                    found = operation.function(*(program.constants[number] for number in used))
                self.results[key] = tuple(map(self.constant, found if several else [found]))
            else:
                self.results[key] = program.new_numbers(len(equation.outvars))
                program.steps.append(Step(operation, used, self.results[key], several))
        return self.results[key]

    def constant(self, value: Any) -> int:
        """The number of a constant."""
        value = np.asarray(value)
        key = value.tobytes(), value.dtype, value.shape
        if key not in self.numbers_of_constants:
            (number,) = self.program.new_numbers(1)
            self.numbers_of_constants[key], self.program.constants[number] = number, value[()]
        return self.numbers_of_constants[key]

    def operation(self, equation: JaxprEqn) -> Operation:
        """The operation of an equation: one object for equal operations."""
        kind = _kind(equation.outvars[0])
        try:
            key = equation.primitive.name, kind, tuple(equation.params.items())
            if key not in self.operations:
                self.operations[key] = Operation.of(equation)
            return self.operations[key]
        except TypeError:  # a parameter without a hash
            return Operation.of(equation)


# --- the operations of JAX (jax.lax) as functions of NumPy arrays. Those with parameters are made from them.


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
    """Of several arrays the one that the first says, element by element."""
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
    """So many elements along each axis, from a start that is kept inside the array."""

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
        windows = _Windows(x.shape, slice_sizes, starts, n.start_index_map, batching, n.collapsed_slice_dims)
        result, inside = x[tuple(windows.places)], windows.inside
        if mode == jax.lax.GatherScatterMode.FILL_OR_DROP and not np.all(inside):
            inside = inside.reshape(inside.shape + (1,) * (result.ndim - inside.ndim))
            result = np.where(inside, result, np.nan if fill_value is None else fill_value)
        return np.moveaxis(result, range(windows.inside.ndim, result.ndim), list(n.offset_dims))

    return gathered


def _scatter(accumulate: ArrayFunction | None) -> Callable[..., ArrayFunction]:
    """A maker of functions that write windows at computed places, or add them to what is there. What lies
    outside is not written.
    """

    def make(*, dimension_numbers: Any, mode: Any) -> ArrayFunction:
        n = dimension_numbers

        def scattered(x: Any, starts: Any, updates: Any) -> Any:
            kept = iter(n.update_window_dims)
            hidden = *n.inserted_window_dims, *n.operand_batching_dims
            sizes = [1 if axis in hidden else updates.shape[next(kept)] for axis in range(x.ndim)]
            batching = n.operand_batching_dims, n.scatter_indices_batching_dims
            indexed = n.scatter_dims_to_operand_dims
            windows = _Windows(x.shape, sizes, starts, indexed, batching, n.inserted_window_dims)
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


# Primitives that call a program, and the parameter that it is in.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
}
# Primitives whose results are their inputs.
UNCHANGED = {"copy", "copy_p", "optimization_barrier", "stop_gradient"}
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
_IN_ITS_TYPE: dict[str, Callable[..., ArrayFunction]] = {
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
_MAKERS: dict[str, Callable[..., ArrayFunction]] = {
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
    "select_n": _select_n,
    "slice": _slice,
    "split": _split,
    "squeeze": lambda *, dimensions: lambda x: np.squeeze(x, tuple(dimensions)),
    "stack": lambda *, axis=0: lambda *parts: np.stack(parts, axis=axis),
    "transpose": lambda *, permutation: lambda x: np.transpose(x, permutation),
    "unstack": lambda *, axis=0: list if axis == 0 else lambda x: list(np.moveaxis(x, axis, 0)),
    "while": _while,
}
