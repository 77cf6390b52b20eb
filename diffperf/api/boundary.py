"""Entry of a user's Python into the library: how programs are computed there, and how errors name its
arguments.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import jax

from diffperf.api.question import COMMAND_LINE
from diffperf.api.text_arguments import with_texts
from diffperf.compiler import compile_quickly, storing_in, user_folder
from diffperf.errors import ARGUMENTS, ConfigError
from diffperf.quantity import is_traced
from diffperf.tracing import is_staged

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def asker_of(name: str) -> str:
    """The name of a public function in errors."""
    return f"dp.{name}"


def naming(
    name: str, **arguments: str
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A decorator: errors of the function speak of `dp.NAME` and of its arguments.

    `arguments` has those of the function that errors would call something else, by what they would call them.
    Arguments that are annotated as texts are checked, and one text stands for a list of one.
    Where no argument is traced, the function computes numbers, also within a function that JAX traces.
    Programs that are compiled from the first such call on are compiled quickly (see `compile_quickly`).
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def called(*args: Parameters.args, **settings: Parameters.kwargs) -> Result:
            _set_up()
            within_jit = is_staged() and not any(map(is_traced, jax.tree.leaves((args, settings))))
            try:
                args_of_call, settings_of_call = with_texts(asker_of(name), function, args, settings)
                with jax.ensure_compile_time_eval() if within_jit else contextlib.nullcontext():
                    return function(*args_of_call, **settings_of_call)
            except ConfigError as problem:
                raise in_python(problem, name, arguments) from None

        called.__name__ = called.__qualname__ = name
        return called

    return decorate


def answering(
    name: str, **arguments: str
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A decorator: the function computes as the command line does, and its errors speak of `dp.NAME`.

    `arguments` are as of `naming`.
    That is in double precision whatever the caller's precision is, which stays as it was, and with the
    compiled programs of the user's folder where JAX has none of its own.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def called(*args: Parameters.args, **settings: Parameters.kwargs) -> Result:
            with jax.enable_x64(True), storing_in(user_folder()):
                return function(*args, **settings)

        return naming(name, n_devices="devices", **arguments)(called)

    return decorate


@functools.cache
def _set_up() -> None:
    """Once in a process, before its first computation."""
    compile_quickly()


def in_python(problem: ConfigError, name: str, arguments: Mapping[str, str]) -> ConfigError:
    """The error as one of a call of `dp.NAME`: options of the command line become arguments."""
    asker = asker_of(name)
    file = problem.file
    for unnamed in (COMMAND_LINE, ARGUMENTS):
        file = asker + file.removeprefix(unnamed) if file.startswith(unnamed) else file
    found, expected, remedy = map(as_arguments, (problem.found, problem.expected, problem.remedy))
    spelled = as_arguments(problem.key)
    key = as_arguments(arguments.get(problem.key, arguments.get(spelled, spelled)))
    return ConfigError(file, key, found, expected, remedy)


def as_arguments(text: object) -> str:
    """A text in which options, such as `--global-batch 8`, are spelled as arguments of a function."""
    text = re.sub(r"""--set ([\w.]+)=(["']?)([^"']+)\2""", r'set={"\1": "\3"}', str(text))
    text = re.sub(r"""--([a-z][a-z-]*) ([\d.e+]+)\b""", lambda match: f"{_name(match[1])}={match[2]}", text)
    return re.sub(r"--([a-z][a-z-]*)", lambda match: _name(match[1]), text)


def _name(option: str) -> str:
    """The argument that an option corresponds to."""
    return option.replace("-", "_")
