"""A `jax.jit` for tests, which run most of their programs once: NumPy evaluates them while that pays.

A program is compiled once NumPy has evaluated it for as long as compiling takes, as in `diffperf.compiler`;
it is traced only once. What has to be compiled at once, because a test is about XLA, takes `compiled_jit`.
"""

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core

from diffperf.compiler import flattened
from diffperf.interpreter import InterpretedProgram

compiled_jit = jax.jit

# Seconds of evaluation by NumPy, for each operation of a program, after which it is compiled: as long as XLA
# takes for it on the machines of the tests. They are those of the thread: other processes keep machines busy.
PATIENCE = 1e-3


@dataclasses.dataclass
class Program:
    """A traced function of flat arguments.

    - `results`: the structure of its result.
    - `compiled`: the function compiled by XLA, once NumPy has taken `seconds` enough.
    """

    traced: Any
    interpreted: InterpretedProgram
    results: Any
    seconds: float = 0.0
    compiled: Callable[..., list[Any]] | None = None


class InterpretedJit:
    """What `jax.jit` returns once it is replaced."""

    def __init__(self, function: Callable[..., Any], **options: Any):
        functools.update_wrapper(self, function)
        self.function, self.jitted = function, compiled_jit(function, **options)
        self.signature = inspect.signature(function)
        names, places = options.get("static_argnames") or (), options.get("static_argnums") or ()
        self.static = {names} if isinstance(names, str) else set(names)
        places = {places} if isinstance(places, int) else set(places)
        self.static |= {name for place, name in enumerate(self.signature.parameters) if place in places}
        self.compiler_options = options.get("compiler_options")
        self.programs: dict[Any, Program] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["jitted"], name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self.jitted(*args, **kwargs)
        arguments = self.signature.bind(*args, **kwargs).arguments
        static = {name: arguments.pop(name) for name in list(arguments) if name in self.static}
        leaves, structure = jax.tree.flatten(arguments)
        types = tuple(map(jax.typeof, leaves))
        key = tuple(static.items()), structure, types, jax.config.jax_enable_x64
        if key not in self.programs:
            self.programs[key] = self._program(static, structure, leaves)
        program = self.programs[key]
        if program.seconds > PATIENCE * len(program.interpreted.steps) and program.compiled is None:
            function = jax.extend.core.jaxpr_as_fun(program.traced)
            program.compiled = compiled_jit(function, compiler_options=self.compiler_options)
        if program.compiled is not None:
            return jax.tree.unflatten(program.results, program.compiled(*leaves))
        start = time.thread_time()
        made = program.interpreted(*jax.device_get(leaves))
        program.seconds += time.thread_time() - start
        return jax.tree.unflatten(program.results, jax.device_put(made))

    def _program(self, static: dict[str, Any], structure: Any, leaves: list[Any]) -> Program:
        """The program for arguments of a structure."""

        def called(**arguments: Any) -> Any:
            arguments |= static
            ordered = {name: arguments[name] for name in self.signature.parameters if name in arguments}
            call = inspect.BoundArguments(self.signature, ordered)
            return self.function(*call.args, **call.kwargs)

        flat, made = flattened(called, structure)
        traced = jax.make_jaxpr(flat)(*leaves)
        return Program(traced, InterpretedProgram(traced), made[0])


def interpreted_jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The replacement of `jax.jit`, also as a decorator with options."""
    if function is None:
        return functools.partial(interpreted_jit, **options)
    return InterpretedJit(function, **options)
