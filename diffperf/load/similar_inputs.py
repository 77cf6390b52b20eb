"""Where an input is that a path or a key misses: the inputs that the words of its name describe.

An input that has moved (`prices.processors_idle`), or that became several (`prices.host_power`), is found
wherever it is now.
"""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator

import equinox as eqx

from diffperf.quantity import declaration, walk

LISTED = 6  # paths that an error lists, at most


def input_elsewhere(name: str, module: eqx.Module, prefix: str = "") -> str:
    """A hint at the inputs of a module that a name describes; empty where there are none, or too many.

    `prefix` is the path of the module, with a dot at its end.
    """
    return _hint(name, ((path, declared.doc) for path, declared, _ in walk(module, prefix)))


def key_elsewhere(name: str, *roots: type[eqx.Module]) -> str:
    """A hint at the keys that a name describes of the configs of some classes, such as `System`, and of all
    configs that these name; empty where there are none, or too many.
    """
    return _hint(name, (key for cls in roots for key in _keys(cls, f"{cls.__name__.lower()}.")))


def module_class(annotation: typing.Any) -> typing.Any:
    """The class of module in an annotation `Module`, `Module | None` or `tuple[Module, ...]`."""
    return next(iter(typing.get_args(annotation)), annotation)


def _keys(cls: type[eqx.Module], prefix: str) -> Iterator[tuple[str, str]]:
    """Path and meaning of every number and choice that a class and its parts declare."""
    for field in dataclasses.fields(cls):
        inner = module_class(field.type)
        if (declared := declaration(field)) is not None:
            yield prefix + field.name, declared.doc
        elif isinstance(inner, type) and issubclass(inner, eqx.Module):
            yield from _keys(inner, f"{prefix}{field.name}.")


def _hint(name: str, inputs: Iterable[tuple[str, str]]) -> str:
    """The described inputs as a question; where they are many, the group that has them all."""
    found = _described(name, inputs)
    if len(found) == 1:
        return f'did you mean "{found[0]}"?'
    if len(found) <= LISTED:
        return f"did you mean one of {', '.join(found)}?" if found else ""
    group = _common_group(found)
    if group.count(".") == 0:  # the whole system, or the whole model
        return ""
    parts = dict.fromkeys(path.removeprefix(f"{group}.").partition(".")[0] for path in found)
    return f"did you mean an input of {group}: {', '.join(parts)}?"


def _described(name: str, inputs: Iterable[tuple[str, str]]) -> list[str]:
    """Paths of the inputs that have all words of a name in their path or in what they are said to be.

    Of several, only those of the same name, or else those with most of the words in their path.
    """
    words = _words(name)
    ranked: dict[tuple[bool, int], list[str]] = {}
    for path, doc in dict(inputs).items():
        in_path = _words(path)
        if words and words <= in_path | _words(doc):
            rank = path.rpartition(".")[2] == name, len(words & in_path)
            ranked.setdefault(rank, []).append(path)
    best = max(ranked, default=(False, 0))
    found = ranked.get(best, [])
    by_path, described = best > (False, 0), len(found) == 1 and len(words) > 1
    return found if by_path or described else []  # one word alone stands in descriptions of other things too


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def _common_group(paths: list[str]) -> str:
    """The innermost group that has all paths."""
    shared = []
    for names in zip(*(path.split(".")[:-1] for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
