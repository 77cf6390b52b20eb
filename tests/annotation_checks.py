"""How the tests check annotations: beartype checks arguments and results, and shapes as jaxtyping names them.

The decorator of jaxtyping binds the arguments of every call to their names and checks them twice, before the
call and with its result. The tests make millions of such calls, and took twice as long. Here a call is
checked once, and a dictionary of shapes is made only where an annotation names an axis. Of a function that
a process has called often, one call of several is checked: checks of every call took a third of the tests.
"""

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import re
import threading
import typing
from collections.abc import Callable, Collection
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

# An int passes for a float, as in PEP 484.
_CONFIGURATION = BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
_ALL_CHECKED = 200  # first calls of a function in a process, each of which is checked
_ONE_OF = 16  # of later calls, one is checked
_of_one_call = jaxtyping.jaxtyped("context")  # what names of axes stand for, until the call returns
_checks_of_nested: dict[tuple | None, Callable[[Callable], Callable]] = {}


def check_annotations_of(package: str) -> None:
    """Has every function of a package checked that is imported from now on."""
    # The hook of jaxtyping puts jaxtyping.jaxtyped above every definition, and has no way to name another.
    jaxtyping.jaxtyped = lambda typechecker: checked
    jaxtyping.install_import_hook(package, None)


def checked(definition: Any) -> Any:
    """The function with its arguments and result checked, or the data class with those of its `__init__`."""
    if not inspect.isclass(definition):
        return _checked_function(definition)
    if dataclasses.is_dataclass(definition) and not hasattr(definition.__init__, "is_checked"):
        definition.__init__ = _checked_function(definition.__init__)
    return definition


def _checked_function(function: Callable) -> Callable:
    """The function with its checks.

    A function inside another one is defined at every call of that. Its checks, which take a millisecond to
    make, serve all of its definitions with the same annotations.
    """
    key = _key(function) if "<locals>" in function.__qualname__ else None
    try:
        checks = _checks_of_nested.get(key)
    except TypeError:  # annotations such as P.args of a ParamSpec have no hash
        key = checks = None
    if checks is not None:
        return checks(function)
    names = {*vars(builtins), *function.__globals__, *function.__qualname__.split(".")}
    function.__annotations__ = {
        name: each if _is_known(each, names) else Any for name, each in function.__annotations__.items()
    }
    if key is None:
        return _with_own_shapes(function, beartype(function, conf=_CONFIGURATION))
    _checks_of_nested[key] = _shared_checks(function)
    return _checks_of_nested[key](function)


def _with_own_shapes(function: Callable, checks: Callable) -> Callable:
    """The function, of which calls are checked: all at first, later some. In each the names of axes stand for
    sizes of their own.
    """
    names_an_axis, calls = _names_an_axis(function), itertools.count()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (number := next(calls)) >= _ALL_CHECKED and number % _ONE_OF:
            return function(*args, **kwargs)
        if not names_an_axis:
            return checks(*args, **kwargs)
        with _of_one_call:
            return checks(*args, **kwargs)

    call.is_checked = True
    return call


def _shared_checks(function: Callable) -> Callable[[Callable], Callable]:
    """From a definition with the annotations of `function` to the definition with its checks."""
    under_way = threading.local()  # what is called, the innermost call last

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return under_way.calls.pop()(*args, **kwargs)

    checks = _with_own_shapes(called, beartype(called, conf=_CONFIGURATION))

    def with_checks(definition: Callable) -> Callable:
        @functools.wraps(definition)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls = under_way.__dict__.setdefault("calls", [])
            outer = len(calls)
            calls.append(definition)
            try:
                return checks(*args, **kwargs)
            finally:
                del calls[outer:]  # an argument that is refused leaves its call there

        return call

    return with_checks


def _is_known(annotation: Any, names: Collection[str]) -> bool:
    """Whether all that an annotation names as text has one of these names: others are names for type checkers
    alone, or of classes that follow."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
    parts = ast.walk(ast.parse(text or "None", mode="eval"))
    if not all(part.id in names for part in parts if isinstance(part, ast.Name)):
        return False
    inner = annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
    return typing.get_origin(annotation) is typing.Literal or all(_is_known(each, names) for each in inner)


def _names_an_axis(function: Callable) -> bool:
    """Whether an annotation names an axis, which then has the same size in all of a call."""
    try:
        annotations = typing.get_type_hints(function, include_extras=True).values()
    except (NameError, TypeError):  # the class that is being defined
        return True
    parts = list(annotations)
    while parts:
        part = parts.pop()
        if inspect.isclass(part) and issubclass(part, AbstractArray) and re.search("[a-z]", part.dim_str):
            return True
        parts += part if isinstance(part, list | tuple) else typing.get_args(part)
    return False


def _key(function: Callable) -> tuple:
    """All that the checks of a function depend on. The values of defaults are not checked."""
    code = function.__code__
    return (
        function.__module__,
        function.__qualname__,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames, code.co_flags),
        len(function.__defaults__ or ()),
        tuple(function.__kwdefaults__ or ()),
        tuple(function.__annotations__.items()),
    )
