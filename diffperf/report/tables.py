"""Modules of declared quantities as tables for people and as plain values for JSON."""

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from diffperf import units
from diffperf.quantity import Choice, Declared, Label, Quantity, declaration, is_traced, locate, segment

_NEGLIGIBLE = 1e-6  # share of a whole up to which a part is left out of a table
# Fields of a memory report that are no part of what fills the memory.
_MEMORY_SUMMARY = ("peak", "capacity", "excess")


class Readable(Declared):
    """A result that prints as a table."""

    def __str__(self) -> str:
        # JAX's errors print the values that a traced function returns, which have no numbers yet.
        if any(map(is_traced, jax.tree.leaves(self))):
            return repr(self)
        return render(self)


def _share_bar(share: float, width: int = 20) -> str:
    """A bar for a share from 0 to 1, at most `width` characters long and exact to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def show(value: Any, declared: Quantity | Choice) -> str:
    """The text of a number with its unit, or of weights: the name of a definite choice, else each weight."""
    if isinstance(declared, Choice):
        plain = _plain(value, declared)
        if isinstance(plain, str):
            return plain
        return " + ".join(f"{weight:.3g} {name}" for name, weight in plain.items() if weight)
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        return units.show(float(numbers), declared.unit)
    low, high = units.show(numbers.min(), declared.unit), units.show(numbers.max(), declared.unit)
    return f"[{' '.join(map(str, numbers.shape))} values, {low} to {high}]"


def ratio(value: float, base: float, form: str = ".3f") -> str:
    """The text of a value over another one; of no ratio, that to zero, a dash."""
    return format(value / base, form) if base else "–"


def change(value: float, before: float, form: str) -> str:
    """The text of the relative change from one value to another; a dash where it was zero before."""
    return format(value / before - 1, form) if before else "–"


def table(module: eqx.Module, title: str = "") -> Table:
    """A table of a module: a row for each quantity, and a section for each module inside it.

    Parts of a whole get their share of it and a bar. Outputs that are zero are left out.
    """
    result = Table(
        title=title or None,
        show_header=False,
        box=None,
        pad_edge=False,
        title_justify="left",
        title_style="bold",
    )
    for _ in range(3):
        result.add_column()
    _add_rows(result, module, "")
    return result


def column_table(*columns: str, left: int = 1, title: str = "") -> Table:
    """An empty table without a frame: the first `left` columns align left, the numbers after them right."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=not index)
    return table


def has_total(module: eqx.Module) -> bool:
    """Whether the module's numbers are parts of a whole."""
    return isinstance(type(module).__dict__.get("total"), property)


def _declared(module: eqx.Module) -> Iterator[tuple[str, Quantity | Choice, Any]]:
    """(name, declaration, value) of a module's own fields, and of the total of parts of a whole."""
    for field in dataclasses.fields(module):
        if (declared := declaration(field)) is not None:
            yield field.name, declared, getattr(module, field.name)
    if has_total(module):
        value, declared = locate(module, "total")
        assert declared is not None  # a total has the declaration of its parts
        yield "total", declared, value


def outputs(module: eqx.Module, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """(declaration, value) of every number of a report by dotted path: "time", "memory.peak"."""
    result = {prefix + name: (declared, value) for name, declared, value in _declared(module)}
    for name, part in _parts(module):
        result |= outputs(part, f"{prefix}{name}.")
    return result


def _parts(module: eqx.Module) -> Iterator[tuple[str, eqx.Module]]:
    """The modules inside a module by dotted path, those of a tuple each by its name."""
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if declaration(field) is None and isinstance(value, eqx.Module):
            yield field.name, value
        elif isinstance(value, tuple):
            for index, member in enumerate(value):
                if isinstance(member, eqx.Module):
                    yield f"{field.name}.{segment(member, index)}", member


def memory_parts(memory: eqx.Module) -> dict[str, float]:
    """Parts of a device's memory: bytes by the description of each part."""
    return {
        declared.doc: float(value)
        for name, declared, value in _declared(memory)
        if name not in _MEMORY_SUMMARY
    }


def _add_rows(result: Table, module: eqx.Module, indent: str) -> None:
    whole = float(locate(module, "total")[0]) if has_total(module) else 0.0
    for name, declared, value in _declared(module):
        if is_nothing(name, declared, value, whole):
            continue
        share = float(value) / whole if whole and np.ndim(value) == 0 and name != "total" else None
        bar = "" if share is None else f"{share:6.1%} {_share_bar(share)}"
        result.add_row(indent + declared.doc, show(value, declared), bar)
    for name, part in _parts(module):
        result.add_row(f"[bold]{indent}{name.replace('_', ' ').replace('.', ': ')}[/bold]", "", "")
        _add_rows(result, part, indent + "  ")


def is_nothing(name: str, declared: Quantity | Choice, value: Any, whole: float) -> bool:
    """Whether a row would say that an output is zero, or a negligible part of a whole: it is left out.

    `whole` is 0 where the output is no part of any.
    """
    if not isinstance(declared, Quantity) or declared.kind != "output" or np.ndim(value) != 0:
        return False
    return name not in ("total", *_MEMORY_SUMMARY) and abs(float(value)) <= _NEGLIGIBLE * whole


def render(module: eqx.Module, title: str = "", width: int = 110) -> str:
    """The table of a module as plain text."""
    buffer = io.StringIO()
    Console(file=buffer, width=width, force_terminal=False).print(table(module, title))
    return buffer.getvalue().rstrip()


def as_dict(module: eqx.Module) -> dict[str, Any]:
    """Nested plain values for JSON: numbers in internal units, choices by name, totals included."""
    result: dict[str, Any] = {name: _plain(value, declared) for name, declared, value in _declared(module)}
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if declaration(field) is not None:
            continue
        if isinstance(value, eqx.Module):
            result[field.name] = as_dict(value)
        elif isinstance(value, tuple):
            members = [member for member in value if isinstance(member, eqx.Module)]
            result[field.name] = {
                segment(member, index): as_dict(member) for index, member in enumerate(members)
            }
        elif isinstance(value, Label):
            result[field.name] = str(value)
    return result


def _plain(value: Any, declared: Quantity | Choice) -> Any:
    """A number or nested list of numbers; of weights, the name of a definite choice, else {name: weight}."""
    array = np.asarray(value)
    if isinstance(declared, Quantity):
        return array.tolist()
    if array.max() == 1.0 and array.sum() == 1.0:
        return declared.alternatives[int(array.argmax())]
    return dict(zip(declared.alternatives, array.tolist(), strict=True))
