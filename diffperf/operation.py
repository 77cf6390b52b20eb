"""Single operations of traced programs, as NumPy runs them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from diffperf.numpy_operations import ELEMENTWISE, IN_ITS_TYPE, MAKERS, ArrayFunction

# From a program among the parameters of an operation, as that of a loop, to a function of arrays.
Interpreter = Callable[[ClosedJaxpr], ArrayFunction]


class Operation:
    """An operation of JAX: its name, the parameters that NumPy needs, and the type of its (first) result."""

    __slots__ = ("function", "kind", "name", "parameters")

    def __init__(self, name: str, parameters: dict[str, Any], kind: np.dtype):
        self.name, self.parameters, self.kind = name, parameters, kind
        self.function = self._function()

    @classmethod
    def of(cls, equation: JaxprEqn, interpreter: Interpreter | None = None) -> "Operation":
        """The operation of an equation. One whose parameters are programs, as that of a loop, is left to JAX
        unless there is an interpreter for them.
        """
        name, kind = equation.primitive.name, kind_of(equation.outvars[0])
        if name in ELEMENTWISE:
            return cls(name, {}, kind)
        maker = IN_ITS_TYPE.get(name) or MAKERS.get(name)
        parameters = equation.params
        if maker is not None:
            parameters = {key: parameters[key] for key in _parameters_of(maker) if key in parameters}
        if interpreter is not None:
            parameters = {key: _interpreted(value, interpreter) for key, value in parameters.items()}
        if maker is None or any(map(_has_program, parameters.values())):
            return cls(name, {"primitive": equation.primitive, **equation.params}, kind)
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
        """The function that NumPy runs, in the type that JAX gives the result."""
        if self.only_jax:
            parameters = dict(self.parameters)
            primitive = parameters.pop("primitive")

            def computed(*inputs: Any) -> Any:
                # Who calls may be tracing a program of its own, to which the operation does not belong.
                with jax.ensure_compile_time_eval():
                    return jax.device_get(primitive.bind(*map(jnp.asarray, inputs), **parameters))

            return computed
        if self.name in ELEMENTWISE:
            return ELEMENTWISE[self.name]
        if self.name in IN_ITS_TYPE:
            function, kind = IN_ITS_TYPE[self.name](**self.parameters), self.kind
            return lambda *inputs: np.asarray(function(*inputs), kind)
        return MAKERS[self.name](**self.parameters)


def kind_of(variable: Any) -> np.dtype:
    """The type of the numbers of a variable or a literal."""
    return np.dtype(variable.aval.dtype)


@functools.cache
def _parameters_of(maker: Callable[..., ArrayFunction]) -> tuple[str, ...]:
    """The names of the parameters that a maker of a function needs."""
    return tuple(inspect.signature(maker).parameters)


def _is_branches(parameter: Any) -> bool:
    """Whether a parameter is several programs, of which the operation runs one."""
    return isinstance(parameter, tuple) and any(isinstance(one, ClosedJaxpr) for one in parameter)


def _has_program(parameter: Any) -> bool:
    """Whether a parameter of an operation is a program, or several."""
    return isinstance(parameter, ClosedJaxpr) or _is_branches(parameter)


def _interpreted(parameter: Any, interpreter: Interpreter) -> Any:
    """A parameter of an operation, with its programs interpreted."""
    if isinstance(parameter, ClosedJaxpr):
        return interpreter(parameter)
    return tuple(map(interpreter, parameter)) if _is_branches(parameter) else parameter
