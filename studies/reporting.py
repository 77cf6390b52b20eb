"""What the studies share: options, estimates of many cases in one program, published tables and figures."""

import argparse
import contextlib
import csv
import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.console import Console
from rich.table import Table as PrintedTable

import diffperf as dp
from diffperf.quantity import Choice, declaration
from diffperf.report import plots

LINE_WIDTH = 150  # characters of a printed line

# --- options and cases


def parse_options(
    description: str | None, study: str, quick: str, *, float64: bool = True, **more: dict[str, Any]
) -> argparse.Namespace:
    """Reads the command line of a study and prepares JAX for it.

    Every study has `--quick`, whose effect the text `quick` describes, and `--out`. Each keyword of `more`
    is an option of the study's own: its name and the arguments of `add_argument`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--out", type=Path, default=Path("out") / study, help="folder for tables, figures and the report"
    )
    for name, arguments in more.items():
        parser.add_argument("--" + name.replace("_", "-"), **arguments)
    dp.compile_quickly()
    jax.config.update("jax_enable_x64", float64)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def read_rows(path: Path) -> list[dict[str, str]]:
    """Reads a CSV file: one dictionary a row, the text of each cell by the name of its column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def choice_weights(module: eqx.Module | type[eqx.Module], field: str, name: str) -> np.ndarray:
    """Returns the weights that choose the alternative `name` of a module's field, 0 for all others."""
    fields = {declared.name: declared for declared in dataclasses.fields(module)}
    choice = declaration(fields[field])
    assert isinstance(choice, Choice), f"{field} is not a choice"
    return choice.one_hot(name)


def stack_cases(cases: Sequence[Any]) -> Any:
    """Joins trees of equal structure into one tree whose arrays have a leading axis of cases."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *cases)


def evaluate_cases(function: Callable, *inputs: Any) -> list[Any]:
    """Evaluates a function of one case for all cases in one compiled program.

    The arrays of `inputs` have a leading axis of cases. Returns one result a case, in NumPy arrays.
    """
    results = jax.device_get(jax.jit(jax.vmap(function))(*inputs))
    count = jax.tree.leaves(results)[0].shape[0]
    return [jax.tree.map(lambda leaf, case=case: leaf[case], results) for case in range(count)]


# --- tables


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of results, which is printed, written as CSV and shown in the report.

    `columns` gives the heading and the number format of each column by its key; a row gives its cells by
    the same keys. A column that a row lacks, or that is None there, is an empty cell. The CSV file has the
    keys as its header and holds numbers unrounded.
    """

    name: str
    title: str
    columns: Mapping[str, tuple[str, str]]
    rows: Sequence[Mapping[str, Any]]

    def texts(self) -> list[list[str]]:
        """Returns the cells as they are shown."""
        return [
            [_cell_text(row.get(key), form) for key, (_, form) in self.columns.items()] for row in self.rows
        ]

    def printed(self) -> PrintedTable:
        """Returns the table for the terminal: numbers to the right, names to the left."""
        table = PrintedTable(title=self.title, box=None, title_justify="left", title_style="bold")
        for key, (heading, _) in self.columns.items():
            named = any(isinstance(row.get(key), str) for row in self.rows)
            table.add_column(heading, justify="left" if named else "right")
        for cells in self.texts():
            table.add_row(*cells)
        return table

    def markdown(self) -> str:
        """Returns the table for the report."""
        headings = [heading for heading, _ in self.columns.values()]
        lines = [headings, ["---"] * len(headings), *self.texts()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def write(self, path: Path) -> None:
        """Writes the table as CSV."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            for row in self.rows:
                cells = [row.get(key) for key in self.columns]
                writer.writerow("" if cell is None else cell for cell in cells)


def _cell_text(cell: Any, form: str) -> str:
    """Returns a cell as it is shown: a dash where there is none, numbers in their format."""
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else _with_minus_signs(format(float(cell), form))


def _with_minus_signs(text: str) -> str:
    """Returns the text with minus signs in place of the hyphens before numbers."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


# --- figures


@contextlib.contextmanager
def figure_style() -> Iterator[None]:
    """Within this context, figures are drawn in the style of `diffperf.report.plots`."""
    with matplotlib.rc_context(plots.STYLE):
        yield


def binary_axis(axes: Axes, ticks: Sequence[float], labels: Sequence[str], name: str) -> None:
    """Makes the horizontal axis logarithmic to base 2, with a label at every tick, and draws a faint grid."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(name)
    axes.grid(color=plots.FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def label_point(axes: Axes, text: str, x: float, y: float, **options: Any) -> None:
    """Writes a text a little above a point or a bar."""
    placed = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 9} | options
    axes.annotate(text, (x, y), **placed)


def capacity_line(axes: Axes, capacity: float) -> None:
    """Draws the memory capacity of a device as a dashed horizontal line."""
    axes.axhline(capacity, color=plots.INK, linewidth=1.2, linestyle=(0, (4, 2)))


def parts_of_measured(
    title: str,
    names: Sequence[str],
    parts: Sequence[tuple[str, str, np.ndarray]],
    others: tuple[str, Sequence[float]],
    remarks: Sequence[str],
    *,
    remarks_at: float,
    right: float,
    height: float,
) -> Figure:
    """Draws the parts of estimated times as stacked bars, one bar for each measured time, with other times as
    diamonds and a remark behind each bar. All times are shares of the measured ones.

    - `parts`: the name, the colour and the share of each part, from left to right.
    - `others`: the name of the other times, and their shares.
    - `remarks_at`, `right`: the shares where the remarks begin and where the axis ends; `height`: inches.
    """
    positions = range(len(names))
    with figure_style():
        figure = Figure(figsize=(11, height), layout="constrained")
        axes = figure.subplots()
        left = np.zeros(len(names))
        for name, colour, shares in parts:
            axes.barh(positions, shares, left=left, height=0.7, color=colour, label=name)
            left = left + shares
        label, marked = others
        axes.plot(marked, positions, "D", color="white", markeredgecolor=plots.INK, markersize=6, label=label)
        axes.axvline(1, color=plots.INK, linewidth=1.2)
        for place, text in zip(positions, remarks, strict=True):
            options = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
            axes.annotate(_with_minus_signs(text), (remarks_at, place), **options)
        axes.set_yticks(positions, names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, right)
        ticks = np.arange(0, 1.01, 0.2)
        axes.set_xticks(ticks, [f"{share:.0%}" for share in ticks])
        axes.set_title(title)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        plots.bare(axes, keep="bottom")
    return figure


# --- publishing


def publish(
    out: Path, tables: Sequence[Table], finding: str = "", figures: Mapping[str, Figure] | None = None
) -> None:
    """Prints the tables and the finding, and writes all results of a study.

    Writes every table as CSV, every figure as PNG, each under its name, and all of them as `report.md`.
    """
    console = Console(width=LINE_WIDTH)
    parts = []
    if finding := _with_minus_signs(finding):
        parts.append(finding)
    for name, figure in (figures or {}).items():
        plots.save(figure, out / f"{name}.png")
        parts.append(f"![{name}]({name}.png)")
    for table in tables:
        if table.rows:
            console.print(table.printed(), "")
        table.write(out / f"{table.name}.csv")
        parts.append(f"**{table.title}**\n\n{table.markdown()}")
    if finding:
        print(textwrap.fill(finding, LINE_WIDTH))
    (out / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
