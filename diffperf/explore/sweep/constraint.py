"""Constraints between the inputs of a point, such as "strategy.tp * strategy.pp <= 64".

An expression is parsed by Python's own parser and compared with a short list of what may stand in it:
numbers, texts, paths of inputs, arithmetic, comparisons, and, or, not. Nothing of it is ever run as Python.
"""

import ast
import dataclasses
import operator
import re
from collections.abc import Callable, Collection
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from diffperf.errors import ConfigError
from diffperf.explore.inputs import full_path
from diffperf.explore.sweep.designed_points import Made
from diffperf.load import checked, declared_at
from diffperf.quantity import Choice, locate
from diffperf.workload.configuration import Configuration

_ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: jnp.mod,
}
_COMPARISONS: dict[type, Callable] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_EXAMPLE = 'write "strategy.tp * strategy.pp <= 64"'
_MOST_CHARACTERS = 300  # of a constraint: Python's parser fails on deeply nested ones

# A number with a unit outside of quotes, such as 700 W, 2.5e12 byte/s or $2,000; "and" and "or" are no units.
_QUANTITY = re.compile(
    r"(?<![\w.])(\$\s*[\d.,]*\d|\d[\d.]*(?:[eE][+-]?\d+)?\s*(?!(?:and|or|not|if)\b)[A-Za-zµ%°][\w/^·*%²]*)"
)

_SINGLE_EQUALS = r"(?<![<>=!])=(?!=)"

# From a configuration, or a design as it is made, whose numbers may be traced, to the value of a part of an
# expression.
Part = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A condition that points of a space have to satisfy.

    - `text`: how it is written.
    - `holds`: whether a configuration satisfies it, in pure JAX.
    """

    text: str
    holds: Callable[[Any], Bool[Array, ""]]


def parse_constraint(
    text: Any, inputs: Configuration | Made, file: str, key: str, outputs: Collection[str] = ()
) -> Constraint:
    """The constraint that a text states on the inputs of a configuration.

    `outputs` are paths that cannot be constrained, for the error about one.

    **Raises:** `ConfigError` in one line, with `file` and `key` as its origin.
    """
    if not isinstance(text, str):
        raise ConfigError(file, key, repr(text), "a constraint as a text", _EXAMPLE)
    if len(text) > _MOST_CHARACTERS:
        expected = f"at most {_MOST_CHARACTERS}"
        raise ConfigError(file, key, f"{len(text)} characters", expected, "write several constraints")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        parser = _Parser(text=text, inputs=inputs, file=file, key=key, outputs=outputs)
        return Constraint(text, parser.condition(tree))
    except ConfigError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        outside_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
        quantity = _QUANTITY.search(outside_quotes)
        remedy = f"write the quantity in quotes: '{quantity[0]}'" if quantity else _EXAMPLE
        if re.search(_SINGLE_EQUALS, outside_quotes):
            remedy = f"""write == for equal: '{re.sub(_SINGLE_EQUALS, "==", text)}'"""
        raise ConfigError(file, key, f'"{text}"', "a comparison of inputs", remedy) from None


@dataclasses.dataclass(frozen=True)
class _Parser:
    """Turns the syntax tree of one constraint into a function."""

    text: str
    inputs: Configuration | Made
    file: str
    key: str
    outputs: Collection[str] = ()

    def error(self, found: str, expected: str, remedy: str = _EXAMPLE) -> ConfigError:
        """An error about this constraint."""
        return ConfigError(self.file, self.key, f'{found} in "{self.text}"', expected, remedy)

    def condition(self, node: ast.AST) -> Part:
        """A comparison, or conditions joined by and, or, not."""
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            join = jnp.logical_and if isinstance(node.op, ast.And) else jnp.logical_or
            return lambda inputs: _joined(join, [part(inputs) for part in parts])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            part = self.condition(node.operand)
            return lambda inputs: jnp.logical_not(part(inputs))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = zip(sides[:-1], node.ops, sides[1:], strict=True)
            parts = [self.comparison(left, kind, right) for left, kind, right in pairs]
            return lambda inputs: _joined(jnp.logical_and, [part(inputs) for part in parts])
        raise self.error(self.shown(node), "a comparison of inputs")

    def comparison(self, left: ast.AST, kind: ast.cmpop, right: ast.AST) -> Part:
        """Two sides with a sign between them; a text is a name of a choice, or a number with its unit."""
        compare = _COMPARISONS.get(type(kind))
        if compare is None:
            raise self.error(f"{type(kind).__name__.lower()!r}", "one of < <= > >= == !=")
        for text, other, is_left in ((left, right, True), (right, left, False)):
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                path = self.path(other)
                declared = declared_at(self.inputs, path, self.file, self.key)
                value = checked(declared, text.value, self.file, self.key)
                if isinstance(declared, Choice):
                    return self.chosen(path, declared.alternatives.index(text.value), kind)
                side = self.value(other)
                if is_left:
                    return lambda inputs: compare(value, side(inputs))
                return lambda inputs: compare(side(inputs), value)
        first, second = self.value(left), self.value(right)
        return lambda inputs: compare(first(inputs), second(inputs))

    def chosen(self, path: str, alternative: int, kind: ast.cmpop) -> Part:
        """Whether a choice is, or is not, an alternative: has most weight on it."""
        if not isinstance(kind, ast.Eq | ast.NotEq):
            raise self.error(f"an order of {path}", "== or != beside a choice")

        def holds(inputs: Configuration | Made) -> Bool[Array, ""]:
            weights = jnp.asarray(locate(inputs, path)[0].array)
            return (jnp.argmax(weights, axis=-1) == alternative) == isinstance(kind, ast.Eq)

        return holds

    def value(self, node: ast.AST) -> Part:
        """A number, an input, or arithmetic with them."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            number = float(node.value)
            return lambda inputs: jnp.asarray(number, inputs.strategy.tp.dtype)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            apply = _ARITHMETIC[type(node.op)]
            if isinstance(node.op, ast.Div | ast.Mod) and getattr(node.right, "value", None) == 0:
                raise self.error("a division by 0", "a divisor other than 0", "correct the divisor")
            left, right = self.value(node.left), self.value(node.right)
            return lambda inputs: apply(left(inputs), right(inputs))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            part = self.value(node.operand)
            return lambda inputs: -part(inputs)
        path = self.path(node)
        if isinstance(declared_at(self.inputs, path, self.file, self.key), Choice):
            remedy = f'write {path} == "…"'
            raise self.error(f"the choice {path}", "a number", remedy)
        return lambda inputs: jnp.asarray(locate(inputs, path)[0])

    def path(self, node: ast.AST) -> str:
        """The full path of the input that a dotted name means."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise self.error(self.shown(node), "inputs, numbers, + - * / % and comparisons")
        written = ".".join([node.id, *reversed(names)])
        try:
            return full_path(self.inputs, written, self.file, self.key)
        except ConfigError:
            if written not in self.outputs:
                raise
            remedy = "leave it out: rank_by and pareto choose by outputs"
            raise self.error(f"the output {written}", "inputs, which are known before", remedy) from None

    def shown(self, node: ast.AST) -> str:
        """A part of the text."""
        return f'"{ast.get_source_segment(self.text.strip(), node) or self.text}"'


def _joined(join: Callable, values: list[Any]) -> Any:
    """Conditions joined from the first to the last."""
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result
