"""diffperf validate: how far the estimator is from measurements."""

from pathlib import Path

import click
from rich.table import Table

from diffperf.cli.options import calibration_option, json_option, options, plot_option
from diffperf.cli.terminal import column_table, console, progress, write_json


@click.command()
@click.argument("file")
@click.option(
    "--by",
    default="group",
    show_default=True,
    metavar="COLUMN",
    help="column of the table whose values name the groups",
)
@options(calibration_option, json_option, plot_option)
@click.pass_context
def validate(ctx, file, by, calibration, json_file, plot):
    """Hold the estimator against the measurements in FILE, a CSV table of training or inference runs, GEMMs, attention kernels or
    collectives (recognized from its columns; SI units, empty cells for what is unknown).

    Prints the errors by group. What cannot be evaluated is counted with the reason; a row that cannot be read is named on stderr.
    """
    from diffperf.explore.measured.validate import validate as hold_against

    with progress("evaluating"):
        found = hold_against(file, calibration)
    for fault in found.faults:
        click.echo(fault.message, err=True)
    summaries, overall = found.summaries(by), found.summary()

    out = console(json_file)
    title = f"{Path(file).name} ({found.kind}): {_evaluated(overall):,} of {overall.rows:,} rows evaluated"
    out.print(f"[bold]{title}[/bold]", soft_wrap=True)
    if not _evaluated(overall):
        out.print("", "Nothing could be evaluated, for the reasons counted below.", sep="\n")
    if overall.metrics:
        out.print("", errors_table({**summaries, "overall": overall}, by), sep="\n", soft_wrap=True)
    if overall.metrics and by == "group":
        evaluated_on = {name: one for name, one in found.summaries("hardware").items() if one.metrics}
        out.print("", errors_table(evaluated_on, "hardware"), sep="\n")
    if overall.oom:
        out.print(
            "",
            "[bold]out of memory[/bold]",
            out_of_memory_table({**summaries, "overall": overall}, by),
            sep="\n",
        )
    if overall.skipped:
        out.print("", "[bold]skipped[/bold]", skipped_table(overall), sep="\n")
    write_json(found.as_dict(by), json_file)
    if plot:
        from diffperf.report import plots

        column = max(overall.metrics, key=lambda name: overall.metrics[name].n, default="")
        plots.save(plots.predicted_against_measured(found.points_by(by, column), column, title), plot)
    if len(found.faults) == overall.rows:
        ctx.exit(1)


def _evaluated(summary) -> int:
    """How many rows were neither bad nor skipped."""
    return summary.rows - sum(summary.skipped.values())


def errors_table(summaries, by: str) -> Table:
    """|predicted/measured − 1| by group and column, and the mean of the signed error."""
    rows = column_table(by, "column", "n", "mean", "median", "p90", "bias", left=2)
    for name, summary in summaries.items():
        for index, (column, errors) in enumerate(summary.metrics.items()):
            shares = (f"{value:.1%}" for value in (errors.mean_ape, errors.median_ape, errors.p90_ape))
            rows.add_row("" if index else name, column, f"{errors.n:,}", *shares, f"{errors.bias:+.1%}")
        if not summary.metrics:
            # Rows may tell of running out of memory alone, which has a table of its own.
            rows.add_row(name, "–" if _evaluated(summary) else "no row evaluated", "0")
    return rows


def out_of_memory_table(summaries, by: str) -> Table:
    rows = column_table(by, "n", "accuracy", "precision", "recall")
    for name, summary in summaries.items():
        if told := summary.oom:
            shares = (
                "–" if value is None else f"{value:.1%}"
                for value in (told.accuracy, told.precision, told.recall)
            )
            rows.add_row(name, f"{told.n:,}", *shares)
    return rows


def skipped_table(overall) -> Table:
    rows = column_table("reason", "rows")
    for reason, count in overall.skipped.items():
        rows.add_row(reason, f"{count:,}")
    return rows
