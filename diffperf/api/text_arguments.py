"""Arguments of public functions that are texts or lists of texts, which Python itself does not check."""

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffperf.errors import ConfigError, type_of

_SEVERAL = Sequence[str]


def with_texts(
    asker: str, function: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, of which those that are annotated as lists of texts are tuples: one text by
    itself is a list of one. A call that Python refuses stays as it is.

    **Raises:** `ConfigError` that names `asker` and the argument, for another type than the annotation says.
    """
    if not (parameters := _text_parameters(function)):
        return args, settings
    try:
        call = inspect.signature(function).bind(*args, **settings)
    except TypeError:
        return args, settings
    for name, parameter in parameters.items():
        value, parts = call.arguments.get(name, parameter.default), _parts(parameter.annotation)
        if name not in call.arguments or (value is None and types.NoneType in parts):
            continue
        if _SEVERAL in parts:
            call.arguments[name] = _texts(asker, name, value)
        else:
            _check_text(asker, name, value, parameter.default)
    return call.args, call.kwargs


@functools.cache
def _text_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function whose annotation allows texts and lists of texts alone."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
        and _parts(parameter.annotation) - {types.NoneType} in ({str}, {_SEVERAL}, {str, _SEVERAL})
    }


def _parts(annotation: Any) -> set[Any]:
    """The types that an annotation allows."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return set(typing.get_args(annotation)) if is_union else {annotation}


def _check_text(asker: str, name: str, value: Any, default: Any) -> None:
    """Raises `ConfigError` for what is no text; `default` is an example of one, if it is one itself."""
    if isinstance(value, str):
        return
    is_example = isinstance(default, str) and default
    expected = f'a text such as "{default}"' if is_example else "a text"
    remedy = f'write {name}="{default}"' if is_example else "write it in quotes"
    raise ConfigError(asker, name, _shown(value), expected, remedy)


def _texts(asker: str, name: str, value: Any) -> tuple[str, ...]:
    """The texts of a list, or one text as a list of one. Raises `ConfigError` for anything else."""
    if isinstance(value, str):
        return (value,)
    texts = tuple(value) if isinstance(value, Iterable) else (value,)
    for text in texts:
        if not isinstance(text, str | os.PathLike):
            remedy = f'write {name}=["…"]'
            raise ConfigError(asker, name, _shown(text), "a text, or a list of texts", remedy)
    return tuple(str(text) for text in texts)


def _shown(value: Any) -> str:
    """A value of a wrong type: a number and None as they stand, anything else by its type."""
    return repr(value) if value is None or isinstance(value, int | float) else type_of(value)
