"""A comparison as files: a CSV table, and a page of HTML."""

import csv
import html
import io
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console, RenderableType

from diffperf.api.answer import print_lines

_WIDTH = 190  # columns of the page's table
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem; color: #1f2933; background: white; }}
pre {{ overflow-x: auto; line-height: 1.3; }}
svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{table}
{figure}
</body>
</html>
"""


def csv_text(rows: list[dict[str, Any]]) -> str:
    """Rows of the same keys as a CSV table with a header; None becomes an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def html_page(lines: list[RenderableType], figure: Figure, title: str) -> str:
    """A page with the printed lines and the figure in it."""
    console = Console(file=io.StringIO(), width=_WIDTH, record=True, highlight=False)
    print_lines(console, lines)
    table = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    picture = io.StringIO()
    figure.savefig(picture, format="svg", bbox_inches="tight")
    svg = picture.getvalue()
    return _PAGE.format(title=html.escape(title), table=table, figure=svg[svg.index("<svg") :])
