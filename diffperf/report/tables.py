"""Any module of declared quantities as a table people can read."""

import dataclasses
import io
from typing import Any

import equinox as eqx
import jax
import numpy as np

from diffperf import units
from diffperf.quantity import Choice, Quantity, declaration


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
        return " + ".join(f"{w:.3g} {name}" for name, w in zip(declared.alternatives, array, strict=True) if w)
    if array.ndim:
        return f"[{' '.join(map(str, array.shape))} values, {units.show(array.min(), declared.unit)} to {units.show(array.max(), declared.unit)}]"
    return units.show(float(array), declared.unit)


def table(module: eqx.Module, title: str = ""):
    """A rich table of a module: one row a quantity, nested modules as sections; parts of a whole get their share and a bar."""
    from rich.table import Table

    result = Table(
        title=title or None, show_header=False, box=None, pad_edge=False, title_justify="left", title_style="bold"
    )
    for _ in range(3):
        result.add_column()
    _add_rows(result, module, "")
    return result


def _add_rows(result, module: eqx.Module, indent: str) -> None:
    whole = getattr(module, "total", None) if isinstance(type(module).__dict__.get("total"), property) else None
    for field in dataclasses.fields(module):
        value, declared = getattr(module, field.name), declaration(field)
        if declared is not None:
            share = ""
            if whole is not None and np.ndim(value) == 0:
                fraction = float(value) / float(whole) if float(whole) else 0.0
                share = f"{fraction:6.1%} {_share_bar(fraction)}"
            result.add_row(f"{indent}{declared.doc}", show(value, declared), share)
        elif isinstance(value, eqx.Module):
            result.add_row(f"[bold]{indent}{field.name.replace('_', ' ')}[/bold]", "", "")
            _add_rows(result, value, indent + "  ")


def render(module: eqx.Module, title: str = "", width: int = 110) -> str:
    """The table as plain text."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=width, force_terminal=False).print(table(module, title))
    return buffer.getvalue().rstrip()


def as_dict(module: eqx.Module) -> dict[str, Any]:
    """Nested plain numbers in internal units, for JSON."""
    result = {}
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if isinstance(value, eqx.Module):
            result[field.name] = as_dict(value)
        elif isinstance(value, jax.Array | np.ndarray | float | int):
            result[field.name] = np.asarray(value).tolist()
    return result
