"""Answers as a page of HTML that needs no other file: texts, tables, figures; light, dark, and on paper.

A page has sections, and a section has parts: a text, a list of texts, a table of rich, or a figure.
"""

import dataclasses
import functools
import html
import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diffperf.report.plots.style import FAINT, GREY, INK, STYLE

Part = str | list[str] | Table | Figure | Markup

# Colours of figures that follow the page's from light to dark.
_COLOURS = {INK: "var(--ink)", FAINT: "var(--faint)", GREY: "var(--quiet)"}


@dataclasses.dataclass(frozen=True)
class Section:
    """Some parts of a page below a heading, which the first section may go without."""

    title: str
    parts: Sequence[Part]


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    shown = [
        {"title": section.title, "parts": [_shown(part) for part in section.parts]} for section in sections
    ]
    return _template().render(title=title, sections=shown)


def parts_of(lines: Sequence[RenderableType]) -> list[Part]:
    """Output of the terminal, as parts of a page: its texts and its tables."""
    return [line for line in lines if isinstance(line, Table) or (isinstance(line, str) and line)]


@functools.cache
def _template() -> Any:
    return Environment(loader=PackageLoader("diffperf", "report"), autoescape=True).get_template("page.html")


def _shown(part: Part) -> Markup:
    """One part as HTML; texts may hold rich's markup, of which weight is shown."""
    if isinstance(part, Markup):
        return part
    if isinstance(part, Figure):
        return Markup(figure_svg(part))
    if isinstance(part, Table):
        return Markup(table_html(part))
    if isinstance(part, list):
        items = "".join(f"<li>{_inline(text)}</li>" for text in part)
        return Markup(f"<ul>{items}</ul>")
    return Markup(f"<p>{_inline(part)}</p>")


def _inline(cell: Any) -> str:
    """A cell or a text with rich's markup as HTML: bold stays bold."""
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    plain, ends = text.plain, 0
    parts = []
    for span in text.spans:
        if "bold" in str(span.style) and span.start >= ends:
            parts += [html.escape(plain[ends : span.start])]
            parts += [f"<b>{html.escape(plain[span.start : span.end])}</b>"]
            ends = span.end
    return "".join(parts) + html.escape(plain[ends:])


def table_html(table: Table) -> str:
    """A table of rich as a table of HTML, numbers to the right where they are so on the terminal."""
    sides = [' class="right"' if column.justify == "right" else "" for column in table.columns]
    lines = [f"<caption>{_inline(table.title)}</caption>"] if table.title else []
    if table.show_header and any(str(column.header) for column in table.columns):
        cells = zip(sides, table.columns, strict=True)
        heads = "".join(f"<th{side}>{_inline(column.header)}</th>" for side, column in cells)
        lines.append(f"<thead><tr>{heads}</tr></thead>")
    rows = []
    for cells in zip(*(list(column.cells) for column in table.columns), strict=True):
        row = "".join(f"<td{side}>{_inline(cell)}</td>" for side, cell in zip(sides, cells, strict=True))
        rows.append(f"<tr>{row}</tr>")
    body = "<tbody>" + "\n".join(rows) + "</tbody>"
    return '<div class="wide"><table>' + "".join(lines) + body + "</table></div>"


def figure_svg(figure: Figure) -> str:
    """A figure as an element of SVG whose ink follows the colours of the page."""
    picture = io.StringIO()
    settings: Any = STYLE | {"svg.hashsalt": figure.get_suptitle() or "figure"}
    with matplotlib.rc_context(settings):
        figure.savefig(picture, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    svg = picture.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg
