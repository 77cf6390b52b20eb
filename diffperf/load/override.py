"""Inputs replaced by path: the declaration at a dotted path, and a module with other values there."""

import dataclasses
import re
from typing import Any

import equinox as eqx

from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean, spelled_alike
from diffperf.load.checks import checked, inconsistency_of
from diffperf.load.similar_inputs import input_elsewhere
from diffperf.quantity import AnyModule, Choice, Label, Quantity, is_traced, locate, replace, segment, walk


def override(module: AnyModule, assignments: dict[str, Any], file: str = ARGUMENTS) -> AnyModule:
    """The module with other values at dotted paths, such as {"memory.hbm.bandwidth": "4 TB/s"}.

    Values are checked like those of a file; those that JAX traces have no numbers to check.
    **Raises:** `ConfigError` that names `file` and the path.
    """
    if not assignments:
        return module
    values = {path: _checked_value(module, path, value, file) for path, value in assignments.items()}
    changed = replace(module, values)
    _refuse_inconsistent(changed, list(values), file)
    return changed


def _checked_value(module: eqx.Module, path: str, value: Any, file: str) -> Any:
    """A value in internal units, checked where it has a number."""
    declared = declared_at(module, path, file)
    return value if is_traced(value) else checked(declared, literal(value), file, path)


def _refuse_inconsistent(module: eqx.Module, paths: list[str], file: str) -> None:
    """Raises `ConfigError` where changed values do not fit the others of the modules on their paths."""
    names_of = [path.split(".")[:-1] for path in paths]
    prefixes = [".".join(names[:depth]) for names in names_of for depth in range(len(names) + 1)]
    for prefix in dict.fromkeys(prefixes):
        node = locate(module, prefix)[0] if prefix else module
        problem = inconsistency_of(node)
        if problem is not None:
            raise ConfigError(file, f"{prefix}.{problem[0]}" if prefix else problem[0], *problem[1:])


def literal(text: Any) -> Any:
    """A text as TOML would read a bare word: a boolean, a number, or else the text itself.

    Values that are no texts stay as they are.
    """
    if not isinstance(text, str):
        return text
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d{1,15}", text.strip()):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip()) else text


def declared_at(module: eqx.Module, path: str, file: str, key: str | None = None) -> Quantity | Choice:
    """The declaration of the input at a dotted path.

    **Raises:** `ConfigError` that names `file` and `key` (by default the path), where the path leads to
    nothing, to a name, or to a group of inputs.
    """
    key = path if key is None else key
    try:
        node, declared = locate(module, path)
    except KeyError as problem:
        known, missing = problem.args[0]
        hint = _remedy_for_unknown_name(module, path, missing, known)
        raise ConfigError(file, key, f'unknown name "{missing}"', "a path into the inputs", hint) from None
    if declared is not None:
        return declared
    if node is None:
        remedy = "give the part in its file first"
        raise ConfigError(file, key, "a part that is not there", "one input", remedy)
    if isinstance(node, Label):
        raise ConfigError(file, key, "a name", "a number or a choice", "names are not inputs")
    if isinstance(node, str):
        remedy = "change it in its file: it decides what is compiled"
        raise ConfigError(file, key, "a variant", "a number or a choice", remedy)
    remedy = f"go on with one of: {', '.join(_parts(node))}"
    if isinstance(node, tuple):
        first = next(inner for inner, _, _ in walk(node[0]))
        remedy = f"name a member and an input of it, such as {path}.{_parts(node)[0]}.{first}"
        remedy += f" (members: {', '.join(_parts(node))})" if len(node) > 1 else ""
    raise ConfigError(file, key, "a group of inputs", "one input", remedy)


def _remedy_for_unknown_name(module: eqx.Module, path: str, missing: str, known: list[str]) -> str:
    """The name that a path should have instead of a missing one, or the input that it describes elsewhere.

    What a path into a part of a part misses, such as `system.prices.host_power`, is looked for in the part.
    """
    if not known:
        return f"{path.rpartition('.')[0]} has no parts"
    if near := spelled_alike(missing, known):
        return near
    first, last = path.partition(".")[0], path.rpartition(".")[2]
    part = getattr(module, first, None) if path.count(".") > 1 else None
    inside = (part, f"{first}.") if isinstance(part, eqx.Module) else (module, "")
    return input_elsewhere(last, *inside) or did_you_mean(missing, known)


def _parts(node: Any) -> list[str]:
    """Possible next parts of a path in a group of inputs: members of a tuple, or fields of a module."""
    if isinstance(node, tuple):
        return [segment(child, index) for index, child in enumerate(node)]
    return [field.name for field in dataclasses.fields(node)]
