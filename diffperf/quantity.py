"""One declaration for every number and every choice.

A module that is read from a configuration file declares each of its fields once:

    bandwidth: Scalar = quantity("byte/s", "peak sequential bandwidth", bounds=(1e6, 1e16))
    recompute: Weights = choice("none", "full", doc="activations that the backward pass recomputes")

The loader (units, bounds, unknown keys), the command line (options and help), the tables, the sensitivities,
the bijections of a co-design and the random designs of the tests all read that declaration.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
# Numbers of a traced program, or concrete ones that NumPy holds.
AnyArray = Array | np.ndarray
AnyModule = TypeVar("AnyModule", bound=eqx.Module)

_FEW = 64  # numbers of an array that modules share where it is the same
with jax.ensure_compile_time_eval():
    _NOT_TRACING = get_opaque_trace_state()

PRIOR_SPREAD = float(np.log(2)) / 2  # two standard deviations are a factor of two


class Weights(eqx.Module):
    """Weights over named alternatives: one-hot for a definite choice, else any point of the simplex.

    The weight of an alternative is read by its name: `strategy.zero["3"]`, or `strategy.recompute.full` where
    Python allows the name. Leading axes of `array`, if there are any, are batch axes.
    """

    # Any kind of array: unlike JAX's, those of NumPy stay concrete inside traced programs.
    array: Float[Any, "*batch alternatives"]
    alternatives: tuple[str, ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> Float[Any, "*batch"]:
        """The weight of the alternative of that name. Raises `KeyError` for a name that is not among them."""
        return self.array[..., self._position(name)]

    def __getattr__(self, name: str) -> Float[Any, "*batch"]:
        # Python asks here for whatever the class does not define: for private names, which copying, pickling
        # and NumPy look up, and for the fields themselves as long as an instance is under construction.
        if name.startswith("_") or name in ("array", "alternatives"):
            raise AttributeError(name)
        if name not in self.alternatives:
            raise AttributeError(f"{name!r} is not one of {', '.join(self.alternatives)}")
        return self[name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Concrete weights as a NumPy array, for tables and for code outside compiled programs."""
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)

    @classmethod
    def only(cls, name: str, alternatives: tuple[str, ...], dtype: np.dtype | None = None) -> "Weights":
        """All weight on one alternative, in float64 or another precision. Raises `ValueError` for a name that
        is not among them.
        """
        return cls(np.eye(len(alternatives), dtype=dtype)[alternatives.index(name)], alternatives)

    def without(self, name: str) -> "Weights":
        """The weights of all alternatives but one, which need not add up to 1. Raises `KeyError` where that
        one is missing.
        """
        library: Any = jnp if isinstance(self.array, jax.Array) else np  # NumPy's arrays stay concrete
        others = tuple(other for other in self.alternatives if other != name)
        return Weights(library.delete(self.array, self._position(name), axis=-1), others)

    def by_name(self) -> dict[str, Float[Array, "*batch"]]:
        """All weights by name, unstacked in one operation, whose transpose is one operation too."""
        return dict(zip(self.alternatives, jnp.unstack(self.array, axis=-1), strict=True))

    def mean(self, values: Mapping[str, float]) -> Float[Array, "*batch"]:
        """The weighted mean of a number of every alternative. Raises `KeyError` where one is missing."""
        numbers = [values[name] for name in self.alternatives]
        return jnp.sum(self.array * jnp.asarray(numbers, self.array.dtype), axis=-1)

    def likeliest(self) -> str:
        """The name of the alternative with the most weight, for concrete weights without a batch axis."""
        return self.alternatives[int(np.argmax(np.asarray(self.array)))]

    @property
    def possible(self) -> dict[str, bool]:
        """Whether each alternative may have weight, by its name.

        Traced weights may have any value, so the answer is no only for a weight that is concrete and 0, in
        the whole of a batch.
        """
        if is_traced(self.array):
            return dict.fromkeys(self.alternatives, True)
        # NumPy reads concrete weights even while JAX traces a program around them.
        weighted = np.asarray(self.array) != 0.0
        return {name: bool(np.any(weighted[..., i])) for i, name in enumerate(self.alternatives)}

    def _position(self, name: str) -> int:
        if name not in self.alternatives:
            raise KeyError(f"{name!r} is not one of {', '.join(self.alternatives)}")
        return self.alternatives.index(name)


# Names that an alternative cannot have, because attributes of these names are something else.
_RESERVED = {name for name in (*dir(Weights), *Weights.__annotations__) if not name.startswith("_")}


def is_traced(value: Any) -> bool:
    """Whether `value` stands for an array in a program that JAX is tracing, and so has no numbers yet."""
    return isinstance(value, Tracer)


@dataclasses.dataclass(frozen=True)
class Quantity:
    """The declaration of a numeric field.

    - bounds: the documented range; inside it every estimate is finite.
    - log: the field spans decades, so it is sampled, searched and plotted on a logarithmic scale.
    - integer: the field is a whole number in the real world; the estimator takes it as real.
    - kind: "input", "price" (an input of the cost) or "output" (a field of a report).
    - calibratable: an efficiency, overhead or latency that a calibration fits by default.
    - prior_spread: standard deviation of the log of a configured value, before any measurement.
    - table: for a part of a report's time, the kind of table of measurements that shows how well it is known.
    - training_only: a field of a strategy that inference does not depend on.
    """

    unit: str
    doc: str
    bounds: tuple[float, float]
    log: bool
    integer: bool
    kind: str
    calibratable: bool = False
    prior_spread: float = PRIOR_SPREAD
    table: str = ""
    training_only: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """The declaration of a field that weighs alternatives.

    - training_only: a field of a strategy that inference does not depend on.
    """

    alternatives: tuple[str, ...]
    doc: str
    training_only: bool = False

    def one_hot(self, name: object) -> np.ndarray:
        """Weights of a definite choice. Raises `ValueError` when `name` is not an alternative."""
        if isinstance(name, bool):
            name = "on" if name else "off"
        return np.eye(len(self.alternatives))[self.alternatives.index(str(name))]

    def weights(self, value: Any) -> Weights:
        """`Weights` from the name of an alternative, from {name: weight}, or from an array of weights.

        **Raises:** `ValueError` for a name that is not an alternative, or for weights over other
        alternatives.
        """
        if isinstance(value, Weights):
            if value.alternatives != self.alternatives:
                raise ValueError(
                    f"weights over {value.alternatives}; expected weights over {self.alternatives}"
                )
            value = value.array
        elif isinstance(value, str | bool | int):
            value = self.one_hot(value)
        elif isinstance(value, dict):
            value = sum(weight * self.one_hot(name) for name, weight in value.items())
        return Weights(real(value), self.alternatives)


class Label:
    """A name that a module carries and compiled programs ignore: an A100 and an H100 share one trace."""

    def __init__(self, text: object = ""):
        self.text = str(text)

    # All labels are equal, so that modules which differ in their labels alone have one tree structure.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label)

    def __hash__(self) -> int:
        return hash(Label)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def real(value: Any) -> Array:
    """A strongly typed float array: a Python float would be static, a weakly typed array retraced.

    An array of floats keeps its precision, so that estimates of inputs in float32 are in float32 in the x64
    mode of JAX too.
    """
    kept = isinstance(value, AnyArray) and jnp.issubdtype(value.dtype, jnp.floating)
    dtype = jax.dtypes.canonicalize_dtype(value.dtype if kept else float)
    if isinstance(value, int | float | np.ndarray):
        value = np.asarray(value, dtype)  # by NumPy: JAX would load a compiled program for it
        if value.size <= _FEW and get_opaque_trace_state() == _NOT_TRACING:
            return _shared(value.tobytes(), value.shape, value.dtype)
    return jnp.asarray(value, dtype)


@functools.lru_cache(maxsize=4096)
def _shared(content: bytes, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The array of these bytes. Of 16,000 numbers of 120 configurations, 650 differ, and JAX takes as long to
    make an array of each as everything else takes that reads the files.
    """
    return jnp.asarray(np.frombuffer(content, dtype).reshape(shape))


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
    training_only: bool = False,
) -> Any:
    """Declares a numeric field in internal units (SI, with byte, FLOP, mm² and USD).

    `doc` is a noun phrase that is clear without its neighbours: help, tables and errors show it alone. The
    scale is logarithmic unless `log` says otherwise or `bounds` include 0.
    """
    declared = Quantity(
        unit=unit,
        doc=doc,
        bounds=bounds,
        log=bounds[0] > 0 if log is None else log,
        integer=integer,
        kind=kind,
        calibratable=calibratable,
        prior_spread=prior_spread,
        training_only=training_only,
    )
    return eqx.field(default=default, converter=real, metadata={"quantity": declared})


def output(unit: str, doc: str, *, table: str = "") -> Any:
    """Declares a numeric field of a report; `table` names the measurements that show how well it is known."""
    declared = Quantity(
        unit=unit, doc=doc, bounds=(-np.inf, np.inf), log=False, integer=False, kind="output", table=table
    )
    return eqx.field(metadata={"quantity": declared})


def choice(
    *alternatives: str, doc: str, default: Any = dataclasses.MISSING, training_only: bool = False
) -> Any:
    """Declares weights over named alternatives: a name, {name: weight}, or an array of weights."""
    if reserved := _RESERVED.intersection(alternatives):
        raise ValueError(f"an alternative cannot be called {', '.join(sorted(reserved))}")
    declared = Choice(alternatives, doc, training_only)
    return eqx.field(default=default, converter=declared.weights, metadata={"choice": declared})


def switch(doc: str, *, default: Any = dataclasses.MISSING, training_only: bool = False) -> Any:
    """Declares a yes/no choice, as weights over ("off", "on")."""
    return choice("off", "on", doc=doc, default=default, training_only=training_only)


def label(doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares a name that is shown to people and ignored by compiled programs."""
    return eqx.field(static=True, converter=Label, default=default, metadata={"label": doc})


def variant(*alternatives: str, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares the name of an alternative that programs are compiled for: it is static, unlike a choice."""
    return eqx.field(static=True, default=default, metadata={"variant": alternatives, "doc": doc})


@dataclass_transform(field_specifiers=(quantity, output, choice, switch, label, variant, eqx.field))
class _DeclaredType(type(eqx.Module)):
    """The type of `Declared`: from it type checkers know which fields have a default."""


class Declared(eqx.Module, metaclass=_DeclaredType):
    """A module whose fields are declared with `quantity`, `output`, `choice`, `switch`, `label` and
    `variant`.
    """


def declaration(field: dataclasses.Field) -> Quantity | Choice | None:
    """The declaration of a field of numbers or weights, `None` for a label or a nested module."""
    return field.metadata.get("quantity") or field.metadata.get("choice")


def segment(child: Any, index: int) -> str:
    """The name of a member of a tuple of modules in a path: its label, else its position."""
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

    **Raises:** `KeyError((known names, missing name))` for a path that does not exist.
    """
    declared: Quantity | Choice | None = None
    node: Any = module
    for name in path.split("."):
        if isinstance(node, tuple):
            known = [segment(child, index) for index, child in enumerate(node)]
            if name not in known:
                raise KeyError((known, name))
            node, declared = node[known.index(name)], None
        elif isinstance(node, eqx.Module):
            fields = {field.name: field for field in dataclasses.fields(node)}
            total = getattr(type(node), "total", None)
            if name == "total" and isinstance(total, property):
                # A total is of the unit and kind of its parts.
                part = next(part for part in map(declaration, fields.values()) if part is not None)
                node, declared = total.__get__(node), dataclasses.replace(part, doc="total")
                continue
            if name not in fields:
                raise KeyError((list(fields), name))
            node, declared = getattr(node, name), declaration(fields[name])
        else:
            raise KeyError(([], name))
    return node, declared


def replace(module: AnyModule, values: Mapping[str, Any]) -> AnyModule:
    """The module with other numbers, arrays or weights at the given dotted paths; all of them may be traced.

    **Raises:** `KeyError((known names, missing name))` for a path that does not exist.
    """
    replacements = []
    for path, value in values.items():
        _, declared = locate(module, path)
        replacements.append(declared.weights(value) if isinstance(declared, Choice) else real(value))
    return eqx.tree_at(lambda tree: [locate(tree, path)[0] for path in values], module, replacements)


def numeric(module: eqx.Module, kind: str | None = None) -> dict[str, tuple[Quantity, Any]]:
    """The declaration and value of every numeric field of a module by path, or of those of one kind."""
    return {
        path: (declared, value)
        for path, declared, value in walk(module)
        if isinstance(declared, Quantity) and (kind is None or declared.kind == kind)
    }
