"""diffperf validate: how far the estimator is from measurements."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from diffperf.api.question import COMMAND_LINE
from diffperf.cli.options import (
    calibration_option,
    json_option,
    measured_system_option,
    options,
    plot_option,
    where_option,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.report.tables import column_table

if TYPE_CHECKING:  # the estimator takes a second to import, which `diffperf --help` need not wait for
    from diffperf.explore.measured.statistics import Summary
    from diffperf.explore.measured.validate import Validation


@click.command()
@click.argument("file")
@click.option(
    "--by",
    default="group",
    show_default=True,
    metavar="COLUMN",
    help="column of the table whose values name the groups",
)
@options(where_option, measured_system_option, calibration_option, json_option, plot_option)
@click.pass_context
def validate(ctx, file, by, where, systems, calibration, json_file, plot):
    """Compare the estimator with the measurements in FILE, a CSV table.

    Its rows are training or inference runs, servers under load, servers' power, GEMMs, attention kernels or
    collectives, recognized from the columns, in SI units, with empty cells for what is unknown. The column
    `hardware` has names of accelerators or systems, or paths of their files.

    Prints the errors by group. What cannot be evaluated is counted with the reason; a row that cannot be
    read is named on stderr.
    """
    from diffperf.explore.measured.table import messages
    from diffperf.explore.measured.validate import validate as compare

    with progress("evaluating"):
        result = compare(file, calibration, systems=systems, where=where, file=COMMAND_LINE)
    for message in messages(result.faults):
        click.echo(message, err=True)
    overall = result.summary()
    title = f"{Path(file).name} ({result.kind}): {_evaluated(overall):,} of {overall.rows:,} rows evaluated"
    _show(result, by, title, console(json_file))
    write_json(result.as_dict(by), json_file)
    if plot:
        from diffperf.report import plots

        column = max(overall.metrics, key=lambda name: overall.metrics[name].n, default="")
        plots.save(plots.predicted_against_measured(result.points_by(by, column), column, title), plot)
    if len(result.faults) == overall.rows:
        ctx.exit(1)


def _show(result: "Validation", by: str, title: str, out: Console) -> None:
    """Prints the errors by group and by hardware, who ran out of memory, and what was skipped."""
    summaries, overall = result.summaries(by), result.summary()
    groups = {**summaries, "overall": overall}
    out.print(f"[bold]{title}[/bold]", soft_wrap=True)
    if not _evaluated(overall):
        out.print("", "Nothing could be evaluated, for the reasons counted below.", sep="\n")
    if overall.metrics:
        out.print("", errors_table(groups, by), sep="\n", soft_wrap=True)
    if overall.metrics and by == "group":
        by_hardware = result.summaries("hardware").items()
        evaluated_on = {name: summary for name, summary in by_hardware if summary.metrics}
        out.print("", errors_table(evaluated_on, "hardware"), sep="\n")
    if overall.oom:
        out.print("", "[bold]out of memory[/bold]", out_of_memory_table(groups, by), sep="\n")
    if overall.skipped:
        out.print("", "[bold]skipped[/bold]", skipped_table(overall), sep="\n")


def _evaluated(summary: "Summary") -> int:
    """How many rows were neither bad nor skipped."""
    return summary.rows - sum(summary.skipped.values())


def errors_table(summaries: "dict[str, Summary]", by: str) -> Table:
    """The relative errors of predictions by group and column: statistics of their size, and their mean."""
    rows = column_table(by, "column", "n", "mean", "median", "p90", "bias", left=2)
    for name, summary in summaries.items():
        for index, (column, errors) in enumerate(summary.metrics.items()):
            shares = (f"{value:.1%}" for value in (errors.mean_ape, errors.median_ape, errors.p90_ape))
            rows.add_row("" if index else name, column, f"{errors.n:,}", *shares, f"{errors.bias:+.1%}")
        if not summary.metrics:
            # Rows may say no more than that they ran out of memory, which has a table of its own.
            rows.add_row(name, "–" if _evaluated(summary) else "no row evaluated", "0")
    return rows


def out_of_memory_table(summaries: "dict[str, Summary]", by: str) -> Table:
    """How well running out of memory is foretold, by group."""
    rows = column_table(by, "n", "accuracy", "precision", "recall")
    for name, summary in summaries.items():
        if oom := summary.oom:
            ratios = (oom.accuracy, oom.precision, oom.recall)
            shown = ("–" if ratio is None else f"{ratio:.1%}" for ratio in ratios)
            rows.add_row(name, f"{oom.n:,}", *shown)
    return rows


def skipped_table(overall: "Summary") -> Table:
    """How many rows were skipped, by reason."""
    rows = column_table("reason", "rows")
    for reason, count in overall.skipped.items():
        rows.add_row(reason, f"{count:,}")
    return rows
