"""The table of a comparison: a section for each model and phase, a row for each system."""

from collections.abc import Callable, Mapping

from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.compared import FIGURES, Compared
from diffperf.report.tables import column_table

Ratios = Callable[[Compared], dict[str, float | None]]
_NONE = "–"


def comparison_lines(
    groups: Mapping[tuple[str, str], list[Compared]],
    against: str | None,
    ratios: Ratios | None,
    several_stacks: bool,
) -> list[RenderableType]:
    """The table, and below it what its columns mean and why some rows have no figures."""
    lines: list[RenderableType] = []
    for (model, phase), cells in groups.items():
        title = f"{model} {phase}{_work(cells)}, the best layout of each system"
        lines += [f"[bold]{title}[/bold]", _section(cells, ratios, several_stacks), ""]
        lines += [f"{cell.system}: {cell.problem}" for cell in cells if not cell.fits and not cell.layout]
    lines += [
        "tok/J: tokens per joule that the devices draw. Mtok/$: of a system that is owned (all that "
        "`diffperf cost` counts in an hour) or rented, at published prices.",
        "Rests on: calibrated, with the 90 % interval of the time; datasheet: hardware that nobody fitted, "
        "under software fitted elsewhere; estimate: neither was fitted, with its least possible interval.",
    ]
    if against is not None:
        lines.append(f"×: over {against}, per device / dollar owned / dollar rented / joule")
    return lines


def _batches(cells: list[Compared]) -> set[float]:
    """The batches of the rows that have a layout."""
    return {cell.global_batch for cell in cells if cell.global_batch is not None}


def _work(cells: list[Compared]) -> str:
    """What all rows work on, as an addition to a title: the number format, the tokens of a sequence, and the
    batch where it is the same in all rows; nothing where no row has a layout.
    """
    possible = [cell for cell in cells if cell.layout]
    if not possible:
        return ""
    first = possible[0]
    answer = "" if first.output_length is None else f" + {first.output_length:,.0f}"
    text = f" in {first.precision}, sequences of {first.sequence_length:,.0f}{answer} tokens"
    return text if len(_batches(cells)) > 1 else f"{text}, batch {first.global_batch:,.0f}"


def _section(cells: list[Compared], ratios: Ratios | None, several_stacks: bool) -> Table:
    """The rows of one model in one phase."""
    several_batches = len(_batches(cells)) > 1
    headings = ["system", *(["stack"] if several_stacks else []), "layout", "devices"]
    headings += [*(["batch"] if several_batches else []), "time", "memory"]
    headings += [heading for heading, _, _ in FIGURES.values()]
    rows = column_table(*headings, *(["×"] * bool(ratios)), left=2 + several_stacks)
    rows.add_column("rests on", justify="left")
    for column in rows.columns:
        column.no_wrap = column.header != "layout"
    best = {name: max((getattr(cell, name) or 0.0 for cell in cells), default=0.0) for name in FIGURES}
    for cell in cells:
        start = [cell.system, *([cell.stack] if several_stacks else []), cell.layout, f"{cell.devices:,.0f}"]
        if several_batches:
            start.append(_NONE if cell.global_batch is None else f"{cell.global_batch:,.0f}")
        if not cell.fits:
            state = f"{_filled(cell)}: too large" if cell.layout else "no layout"
            rows.add_row(*start, _NONE, f"[red]{state}[/red]")
            continue
        shown = [_shown(name, getattr(cell, name), best[name]) for name in FIGURES]
        ratio = [] if ratios is None else [" / ".join(_ratio(value) for value in ratios(cell).values())]
        rows.add_row(
            *start,
            units.show(cell.time or 0.0, "s", 3),
            _filled(cell),
            *shown,
            *ratio,
            _rests(cell),
        )
    return rows


def _shown(name: str, value: float | None, best: float) -> str:
    """A figure as a text, bold where it is the best of its section."""
    if value is None:
        return _NONE
    number = value / 1e6 if "dollar" in name else value
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"[bold]{text}[/bold]" if value >= best * (1 - 1e-9) else text


def _filled(cell: Compared) -> str:
    """The share of the memory that is in use."""
    return f"{(cell.memory_peak or 0.0) / (cell.memory_capacity or 1.0):.0%}"


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _rests(cell: Compared) -> str:
    """Basis of the figures, with the interval of the time."""
    return cell.basis if cell.relative is None else f"{cell.basis} ± {cell.relative:.0%}"
