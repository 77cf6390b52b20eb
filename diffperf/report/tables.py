"""Any module of declared quantities as a table people can read."""

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import numpy as np

from diffperf import units
from diffperf.quantity import Choice, Label, Quantity, declaration, segment


class Readable(eqx.Module):
    """A result that prints as a table."""

    def __str__(self):
        return render(self)


def _share_bar(share: float, width: int = 20) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def show(value: Any, declared: Quantity | Choice) -> str:
    """One leaf as text: with its unit, or as the name of the chosen alternative."""
    array = np.asarray(value)
    if isinstance(declared, Choice):
        if array.max() == 1.0 and array.sum() == 1.0:
            return declared.alternatives[int(array.argmax())]
        return " + ".join(
            f"{w:.3g} {name}" for name, w in zip(declared.alternatives, array, strict=True) if w
        )
    if array.ndim:
        low, high = units.show(array.min(), declared.unit), units.show(array.max(), declared.unit)
        return f"[{' '.join(map(str, array.shape))} values, {low} to {high}]"
    return units.show(float(array), declared.unit)


def table(module: eqx.Module, title: str = ""):
    """A rich table of a module: one row a quantity, nested modules as sections; parts of a whole get their share and a bar."""
    from rich.table import Table

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


def has_total(module: eqx.Module) -> bool:
    """Whether the module's numbers are parts of a whole."""
    return isinstance(type(module).__dict__.get("total"), property)


def _declared(module: eqx.Module) -> Iterator[tuple[str, Quantity | Choice, Any]]:
    """A module's own declared fields, and its total in the unit of its parts."""
    for field in dataclasses.fields(module):
        if (declared := declaration(field)) is not None:
            yield field.name, declared, getattr(module, field.name)
    if has_total(module):
        unit = declaration(dataclasses.fields(module)[0]).unit
        yield "total", Quantity(unit, "total", (-np.inf, np.inf), False, False, "output"), module.total


def outputs(module: eqx.Module, prefix: str = "") -> dict[str, tuple[Quantity | Choice, Any]]:
    """Every number of a report by dotted path, totals included: "time", "memory.peak", "energy.total"."""
    result = {prefix + name: (declared, value) for name, declared, value in _declared(module)}
    for field in dataclasses.fields(module):
        if isinstance(value := getattr(module, field.name), eqx.Module):
            result |= outputs(value, f"{prefix}{field.name}.")
    return result


def _add_rows(result, module: eqx.Module, indent: str) -> None:
    whole = float(module.total) if has_total(module) else 0.0
    for name, declared, value in _declared(module):
        share = float(value) / whole if whole and np.ndim(value) == 0 and name != "total" else None
        bar = "" if share is None else f"{share:6.1%} {_share_bar(share)}"
        result.add_row(indent + declared.doc, show(value, declared), bar)
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if isinstance(value, eqx.Module):
            result.add_row(f"[bold]{indent}{field.name.replace('_', ' ')}[/bold]", "", "")
            _add_rows(result, value, indent + "  ")


def render(module: eqx.Module, title: str = "", width: int = 110) -> str:
    """The table as plain text."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=width, force_terminal=False).print(table(module, title))
    return buffer.getvalue().rstrip()


def as_dict(module: eqx.Module) -> dict[str, Any]:
    """Nested plain values for JSON: numbers in internal units, choices by name, totals included."""
    result: dict[str, Any] = {name: _plain(value, declared) for name, declared, value in _declared(module)}
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if isinstance(value, eqx.Module):
            result[field.name] = as_dict(value)
        elif isinstance(value, tuple):
            members = [
                (segment(member, index), member)
                for index, member in enumerate(value)
                if isinstance(member, eqx.Module)
            ]
            result[field.name] = {name: as_dict(member) for name, member in members}
        elif isinstance(value, Label):
            result[field.name] = str(value)
    return result


def _plain(value: Any, declared: Quantity | Choice) -> Any:
    array = np.asarray(value)
    if not isinstance(declared, Choice):
        return array.tolist()
    if array.max() == 1.0 and array.sum() == 1.0:
        return declared.alternatives[int(array.argmax())]
    return dict(zip(declared.alternatives, array.tolist(), strict=True))
