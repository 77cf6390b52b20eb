"""One declaration for every number and every choice.

A config-born module declares each of its fields once:

    bandwidth: Scalar = quantity("byte/s", "peak sequential bandwidth", bounds=(1e6, 1e16))
    recompute: Weights = choice("none", "selective", "full", doc="which activations the backward pass computes again")

The loader (units, bounds, unknown keys), the command line (options and help), the tables, the sensitivities, co-design's
bijections and the random designs of the tests all read that declaration.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


PRIOR_SPREAD = float(np.log(2)) / 2  # two standard deviations are a factor of two


class Weights(eqx.Module):
    """Weights over named alternatives: one-hot for a definite choice, any point of the simplex for a mixed one.

    The weight of one alternative is read by its name: `strategy.zero["3"]`, or `strategy.recompute.full` where Python
    allows the name.
    """

    array: Float[Array, "*batch alternatives"]
    alternatives: tuple[str, ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> Array:
        """The weight of one alternative. Raises `KeyError` for a name that is not among them."""
        if name not in self.alternatives:
            raise KeyError(f"{name!r} is not one of {', '.join(self.alternatives)}")
        return self.array[..., self.alternatives.index(name)]

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_") or name in ("array", "alternatives") or name not in self.alternatives:
            raise AttributeError(f"{type(self).__name__} has no alternative {name!r}")
        return self[name]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """Concrete weights as a NumPy array, for tables and for code outside compiled programs."""
        return np.asarray(self.array, dtype)

    def by_name(self) -> dict[str, Array]:
        """All weights by name, taken apart in one operation, whose transpose is one operation too."""
        return dict(zip(self.alternatives, jnp.unstack(self.array, axis=-1), strict=True))

    def mean(self, values: Mapping[str, float]) -> Array:
        """The mean of a number that every alternative has, by weight."""
        numbers = [values[name] for name in self.alternatives]
        return jnp.sum(self.array * jnp.asarray(numbers, self.array.dtype), axis=-1)

    def possible(self, *names: str) -> bool:
        """Whether any of these alternatives may have weight: not where the weights are concrete and all of theirs are 0."""
        if isinstance(self.array, jax.core.Tracer):
            return True
        return any(bool(np.any(np.asarray(self[name]) != 0.0)) for name in names)


@dataclasses.dataclass(frozen=True)
class Quantity:
    """What is known of a numeric field. `bounds` is the documented range: inside it every estimate is finite."""

    unit: str
    doc: str
    bounds: tuple[float, float]
    log: bool  # spans decades: sampled, searched and plotted on a logarithmic scale
    integer: bool  # whole in the real world; real to the estimator
    kind: str  # "input", "price" (a cost input) or "output" (a field of a report)
    calibratable: bool = False  # an efficiency, overhead or latency that a calibration fits to measurements unless told otherwise
    prior_spread: float = PRIOR_SPREAD  # how uncertain a configured value is before any measurement: standard deviation of its log
    table: str = ""  # of a report's part of the time: the kind of table that measures it


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is known of a field that weighs alternatives."""

    alternatives: tuple[str, ...]
    doc: str

    def one_hot(self, name: object) -> np.ndarray:
        """Weights of a definite choice. Raises `ValueError` when `name` is not an alternative."""
        if isinstance(name, bool):
            name = "on" if name else "off"
        return np.eye(len(self.alternatives))[self.alternatives.index(str(name))]


class Label:
    """A name carried by a module without telling compiled programs apart: an A100 and an H100 share one trace."""

    def __init__(self, text: object = ""):
        self.text = str(text)

    def __eq__(self, other):
        return isinstance(other, Label)

    def __hash__(self):
        return hash(Label)

    def __str__(self):
        return self.text

    __repr__ = __str__


def real(value: Any) -> Array:
    """A strongly typed float array: a plain Python float would be static, a weakly typed one would retrace."""
    return jnp.asarray(value, dtype=float)


def quantity(
    unit: str,
    doc: str,
    *,
    bounds: tuple[float, float],
    default: Any = dataclasses.MISSING,
    log: bool | None = None,
    integer: bool = False,
    kind: str = "input",
    calibratable: bool = False,
    prior_spread: float = PRIOR_SPREAD,
) -> Any:
    """Declares a numeric field in internal units (SI, with byte, FLOP, mm² and USD)."""
    declared = Quantity(
        unit, doc, bounds, bounds[0] > 0 if log is None else log, integer, kind, calibratable, prior_spread
    )
    return eqx.field(default=default, converter=real, metadata={"quantity": declared})


def output(unit: str, doc: str, *, table: str = "") -> Any:
    """Declares a numeric field of a result; `table` is the kind of table of measurements that tells how well it is known."""
    declared = Quantity(unit, doc, (-np.inf, np.inf), False, False, "output", table=table)
    return eqx.field(metadata={"quantity": declared})


def choice(*alternatives: str, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares weights over named alternatives: a name, {name: weight}, or an array of weights."""
    declared = Choice(alternatives, doc)

    def weights(value):
        if isinstance(value, Weights):
            value = value.array
        elif isinstance(value, str | bool | int):
            value = declared.one_hot(value)
        elif isinstance(value, dict):
            value = sum(weight * declared.one_hot(name) for name, weight in value.items())
        return Weights(real(value), alternatives)

    return eqx.field(default=default, converter=weights, metadata={"choice": declared})


def switch(doc: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declares a yes/no choice, as weights over ("off", "on")."""
    return choice("off", "on", doc=doc, default=default)


def label(doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares a name that is shown to people and ignored by compiled programs."""
    return eqx.field(static=True, converter=Label, default=default, metadata={"label": doc})


def declaration(field: dataclasses.Field) -> Quantity | Choice | None:
    return field.metadata.get("quantity") or field.metadata.get("choice")


def segment(child: Any, index: int) -> str:
    """How a member of a tuple of modules is named in a path: by its label, else by its position."""
    return str(child.name) if hasattr(child, "name") else str(index)


def walk(module: eqx.Module, prefix: str = "") -> Iterator[tuple[str, Quantity | Choice, Any]]:
    """Every declared leaf of a module, depth first: (dotted path, declaration, value)."""
    for field in dataclasses.fields(module):
        value, path = getattr(module, field.name), f"{prefix}{field.name}"
        if (declared := declaration(field)) is not None:
            yield path, declared, value
        elif isinstance(value, eqx.Module):
            yield from walk(value, path + ".")
        elif isinstance(value, tuple):
            for index, child in enumerate(value):
                if isinstance(child, eqx.Module):
                    yield from walk(child, f"{path}.{segment(child, index)}.")


def locate(module: eqx.Module, path: str) -> tuple[Any, Quantity | Choice | None]:
    """The value at a dotted path and its declaration; a module of parts that add up also has its `total`.

    **Raises:** `KeyError((known names, missing name))` for a path that is not there.
    """
    declared, node = None, module
    for name in path.split("."):
        if isinstance(node, tuple):
            known = [segment(child, index) for index, child in enumerate(node)]
            if name not in known:
                raise KeyError((known, name))
            node, declared = node[known.index(name)], None
        elif isinstance(node, eqx.Module):
            fields = {field.name: field for field in dataclasses.fields(node)}
            if name == "total" and isinstance(getattr(type(node), "total", None), property):
                part = next(d for d in map(declaration, fields.values()) if d is not None)
                node, declared = node.total, dataclasses.replace(part, doc="total")
                continue
            if name not in fields:
                raise KeyError((list(fields), name))
            node, declared = getattr(node, name), declaration(fields[name])
        else:
            raise KeyError(([], name))
    return node, declared


def replace(module: eqx.Module, values: dict[str, Any]) -> eqx.Module:
    """The module with the leaves at the given dotted paths replaced; values may be traced.

    **Raises:** `KeyError((known names, missing name))` for a path that is not there.
    """
    paths = list(values)
    for path in paths:
        locate(module, path)

    def like(leaf: Any, value: Any) -> Any:
        if isinstance(leaf, Weights):
            return Weights(real(value.array if isinstance(value, Weights) else value), leaf.alternatives)
        return real(value)

    return eqx.tree_at(
        lambda tree: [locate(tree, path)[0] for path in paths],
        module,
        [like(locate(module, path)[0], values[path]) for path in paths],
    )


def numeric(module: eqx.Module, kind: str | None = None) -> dict[str, tuple[Quantity, Any]]:
    """The numeric inputs of a module by path, those of one kind if asked."""
    return {
        path: (declared, value)
        for path, declared, value in walk(module)
        if isinstance(declared, Quantity) and (kind is None or declared.kind == kind)
    }


def as_float64(tree: Any) -> Any:
    """The same tree with float64 leaves (needs jax's x64 mode)."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=jnp.float64), tree)


def split(tree: Any, sizes: Iterable[int], axis: int = 0) -> list[Any]:
    """A tree of arrays as trees of consecutive parts of an axis. One operation a leaf, whose transpose is one too: slices would
    each leave a padding and an addition in a gradient."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum(list(sizes))[:-1]
    return [
        structure.unflatten(parts)
        for parts in zip(*(jnp.split(leaf, ends, axis) for leaf in leaves), strict=True)
    ]


def unstack(tree: Any) -> list[Any]:
    """A tree of arrays as trees of the entries of their leading axis."""
    leaves, structure = jax.tree.flatten(tree)
    return [structure.unflatten(entries) for entries in zip(*map(jnp.unstack, leaves), strict=True)]
