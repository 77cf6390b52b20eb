"""What studies share: their options, estimates of many cases in one program, and how tables, figure and finding are published."""

import argparse
import contextlib
import csv
import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as Printed

import diffperf as dp
from diffperf.report import plots

WIDTH = 132  # characters of a line


def options(description: str, study: str, quick: str, **more: dict[str, Any]) -> argparse.Namespace:
    """The command line of a study: `--quick`, which does what `quick` says, `--out`, and `more` of its own, each a name and the
    arguments of `add_argument`. Studies compute in float64."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--out", type=Path, default=Path("out") / study, help="folder for tables, figure and finding"
    )
    for name, arguments in more.items():
        parser.add_argument("--" + name.replace("_", "-"), **arguments)
    dp.compile_quickly()
    jax.config.update("jax_enable_x64", True)
    return parser.parse_args()


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stacked(cases: Sequence[Any]) -> Any:
    """Modules of one structure, as one with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)


def each(function: Callable, *inputs: Any) -> Any:
    """The function's answers to inputs with a leading axis, from one compiled program, as NumPy arrays."""
    return jax.device_get(jax.jit(jax.vmap(function))(*inputs))


def at(tree: Any, index: int) -> Any:
    """One of many answers."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@dataclasses.dataclass(frozen=True)
class Table:
    """`columns` are names and the formats that cells are shown in; the CSV file holds cells as they are. None is a cell without
    a value."""

    name: str
    title: str
    columns: dict[str, str]
    rows: list[tuple]

    @property
    def texts(self) -> list[list[str]]:
        return [
            [_text(cell, form) for cell, form in zip(row, self.columns.values(), strict=True)]
            for row in self.rows
        ]

    def printed(self) -> Printed:
        table = Printed(title=self.title, box=None, title_justify="left", title_style="bold")
        for index, name in enumerate(self.columns):
            numeric = all(not isinstance(row[index], str) for row in self.rows)
            table.add_column(name, justify="right" if numeric else "left")
        for row in self.texts:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [list(self.columns), ["---"] * len(self.columns), *self.texts]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)


def _text(cell: Any, form: str) -> str:
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else _minus(format(float(cell), form))


def _minus(text: str) -> str:
    """With minus signs before numbers in place of hyphens."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Within it, figures are drawn in the look of `diffperf.report.plots`."""
    with matplotlib.rc_context(plots.STYLE):
        yield


def publish(out: Path, tables: Sequence[Table], figure: Figure, finding: str) -> None:
    """Prints the tables and the finding; writes tables as CSV, the figure, and all of it as report.md."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console(width=WIDTH)
    for table in tables:
        console.print(table.printed(), "")
        table.write(out / f"{table.name}.csv")
    finding = _minus(finding)
    print(textwrap.fill(finding, WIDTH))
    plots.save(figure, out / "figure.png")
    parts = [
        finding,
        "![figure](figure.png)",
        *(f"**{table.title}**\n\n{table.markdown()}" for table in tables),
    ]
    (out / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
