"""Classes of the package with more than four fields are made by keywords, and none from a star-argument.

The exception is `ConfigError`: its five arguments (file, key, what was found, what is expected, the remedy)
are positional everywhere, in this order.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "diffperf"
MOST_POSITIONAL = 4
ALWAYS_POSITIONAL = ("ConfigError",)

MODULES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
CLASSES = {
    node.name for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
} - {*ALWAYS_POSITIONAL}


def positional(tree: ast.Module, classes: set[str]) -> Iterator[ast.Call]:
    """The calls in a module that make one of some classes, or `cls`, from too many positional arguments."""
    foreign = set(imported_from_elsewhere(tree))
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or root_of(call.func) in foreign:
            continue
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if name_of(call.func) in {*classes, "cls"} and (starred or len(call.args) > MOST_POSITIONAL):
            yield call


def imported_from_elsewhere(tree: ast.Module) -> Iterator[str]:
    """The names that a module imports from other packages, which may be those of classes here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_here = [alias.name.split(".")[0] == PACKAGE.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            of_here = [(node.module or "").split(".")[0] == PACKAGE.name] * len(node.names)
        else:
            continue
        for alias, here in zip(node.names, of_here, strict=True):
            if not here:
                yield alias.asname or alias.name.split(".")[0]


def name_of(function: ast.expr) -> str:
    """The last part of the name that is called: `Point` of `space.Point`; empty for what has no name."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def root_of(function: ast.expr) -> str:
    """The first part of the name that is called: `space` of `space.Point`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return name_of(function)


def test_many_fields_are_given_by_keywords():
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{call.lineno}: {ast.unparse(call)}"
        for file, tree in MODULES.items()
        for call in positional(tree, CLASSES)
    ]
    assert not found, "give the fields by keywords:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Point(a, b, c, d, e)",
        "Point(*values)",
        "space.Point(a, *values)",
        "cls(a, b, c, d, e)",
    ],
)
def test_positional_fields_are_found(text):
    assert len(list(positional(ast.parse(text), {"Point"}))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Point(a, b, c, d)",
        "Point(a=a, b=b, c=c, d=d, e=e)",
        "Point(**values)",
        "from rich import Point\nPoint(*values)",
        "function(*values)",
    ],
)
def test_other_calls_are_not_found(text):
    assert not list(positional(ast.parse(text), {"Point"}))


def test_fields_of_errors_are_always_positional():
    calls = [
        call
        for tree in MODULES.values()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and name_of(call.func) in ALWAYS_POSITIONAL
    ]
    by_keyword = [ast.unparse(call) for call in calls if call.keywords]
    assert len(calls) > 100
    assert not by_keyword
