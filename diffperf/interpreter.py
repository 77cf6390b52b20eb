"""Programs of JAX that NumPy evaluates, for what is computed once or a few times.

XLA compiles a training step in seconds and its gradient in tens of seconds, and then runs either in less than
a millisecond. NumPy runs their operations one by one, in some 20 and 60 milliseconds, without compiling
anything. Numbers are the same up to rounding: both compute the same operations in the same precision.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from diffperf.numpy_operations import ELEMENTWISE, IN_ITS_TYPE, MAKERS, ArrayFunction

_MOST_FOLDED = 4096  # numbers that an operation on constants alone may have as its result, which is stored
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
        maker = IN_ITS_TYPE.get(name) or MAKERS.get(name)
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
        if self.name in IN_ITS_TYPE:
            function, kind = IN_ITS_TYPE[self.name](**self.parameters), self.kind
            return lambda *inputs: np.asarray(function(*inputs), kind)
        if self.name in MAKERS:
            return MAKERS[self.name](**self.parameters)
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
