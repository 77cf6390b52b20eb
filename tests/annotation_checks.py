"""How the tests check annotations: beartype's checks, made once for each function of the source."""

from collections.abc import Callable

from beartype import BeartypeConf, beartype

_CONFIGURATION = BeartypeConf(is_pep484_tower=True)  # an int passes for a float, as in PEP 484
_checks_of_nested: dict[tuple, Callable] = {}


def checked(signature: Callable) -> Callable:
    """The function with its arguments and result checked against its annotations.

    jaxtyping hands over a function that has nothing but the signature of the function that it checks. So the
    checks of a function inside a function, which is defined at every call of the outer one, serve all of its
    definitions with these annotations: to make them takes a millisecond.
    """
    if "<locals>" not in signature.__qualname__:
        return beartype(signature, conf=_CONFIGURATION)
    key = _key(signature)
    try:
        hash(key)
    except TypeError:  # annotations such as P.args of a ParamSpec have no hash
        return beartype(signature, conf=_CONFIGURATION)
    if key not in _checks_of_nested:
        _checks_of_nested[key] = beartype(signature, conf=_CONFIGURATION)
    return _checks_of_nested[key]


def _key(signature: Callable) -> tuple:
    """All that the checks of a signature depend on. The values of defaults are not checked."""
    code = signature.__code__
    return (
        signature.__module__,
        signature.__qualname__,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames, code.co_flags),
        len(signature.__defaults__ or ()),
        tuple(signature.__kwdefaults__ or ()),
        tuple(signature.__annotations__.items()),
    )
