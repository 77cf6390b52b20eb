"""Programs of JAX that NumPy evaluates, for what is computed once or a few times.

XLA compiles a training step in seconds and its gradient in tens of seconds, and then runs either in less than
a millisecond. NumPy runs their operations one by one, in some 20 and 60 milliseconds, without compiling
anything. Numbers are the same up to rounding: both compute the same operations in the same precision.
"""

from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from diffperf.flat_program import FlatProgram
from diffperf.operation import Operation, kind_of


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
    forgotten: tuple[int, ...]


class InterpretedProgram:
    """A traced program as a list of operations that NumPy runs one after the other. It can be pickled."""

    def __init__(self, traced: ClosedJaxpr):
        # Of the nine thousand operations of a training step, a flat program leaves out three thousand, as XLA
        # would.
        program = FlatProgram(traced, keeps=())
        self.count, self.constants, self.outputs = program.count, program.constants, program.outputs
        # The inputs that results depend on: the place among all inputs, the number of the value, its type.
        needed = {number for step in program.steps for number in step.used} | {*program.outputs}
        self.used_inputs: list[tuple[int, int, np.dtype]] = [
            (place, number, np.dtype(kind.dtype))
            for place, (number, kind) in enumerate(zip(program.inputs, traced.in_avals, strict=True))
            if number in needed
        ]
        self.results = [(one.shape, np.dtype(one.dtype)) for one in traced.out_avals]
        self.steps = _steps(program)

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


def _steps(program: FlatProgram) -> list[Step]:
    """The steps of a program, each with the values that are forgotten after it: all values of many
    configurations would fill the memory.
    """
    operations: dict[Any, Operation] = {}
    needed, steps = {*program.outputs, *program.constants}, []
    for equation, used, made in reversed(program.steps):
        numbers = {*used, *made}
        several = equation.primitive.multiple_results
        forgotten = tuple(numbers - needed)
        steps.append(
            Step(
                operation=_operation(equation, operations),
                used=tuple(used),
                made=tuple(made),
                several=several,
                forgotten=forgotten,
            )
        )
        needed |= numbers
    return steps[::-1]


def _operation(equation: JaxprEqn, operations: dict[Any, Operation]) -> Operation:
    """The operation of an equation: one object for equal operations, by what they have in common."""
    try:
        key = equation.primitive, kind_of(equation.outvars[0]), tuple(equation.params.items())
        if key not in operations:
            operations[key] = Operation.of(equation, InterpretedProgram)
        return operations[key]
    except TypeError:  # a parameter without a hash
        return Operation.of(equation, InterpretedProgram)
