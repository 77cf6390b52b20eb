"""diffperf validate: how far the estimator is from measurements."""

import click

from diffperf.api.question import COMMAND_LINE
from diffperf.cli.answer_output import Output, show
from diffperf.cli.options import (
    calibration_option,
    figure_option,
    json_option,
    measured_system_option,
    options,
    plot_option,
    where_option,
)
from diffperf.cli.terminal import progress


def _print_template(ctx: click.Context, parameter: click.Parameter, kind: str | None) -> None:
    """Prints a table of that kind with one row, and ends the command."""
    if kind is not None:
        from diffperf.api.templates import measurements

        click.echo(measurements(kind, "--template"), nl=False)
        ctx.exit()


@click.command()
@click.argument("file")
@click.option(
    "--template",
    metavar="KIND",
    is_eager=True,
    expose_value=False,
    callback=_print_template,
    help="print a table with one published row to begin with: of training, inference, gemm, …",
)
@click.option(
    "--by",
    default="group",
    show_default=True,
    metavar="COLUMN",
    help="column of the table whose values name the groups",
)
@options(where_option, measured_system_option, calibration_option, json_option, plot_option)
@options(figure_option("--residuals", "draw the errors against every column, largest share first"))
@click.option(
    "--of",
    metavar="COLUMN",
    help="measured column that --residuals draws (by default the one with the most rows)",
)
@click.pass_context
def validate(ctx, file, by, where, systems, calibration, json_file, plot, residuals, of):
    """Compare the estimator with the measurements in FILE, a CSV table.

    Its rows are training or inference runs, servers under load, servers' power, GEMMs, attention kernels or
    collectives, recognized from the columns, in SI units, with empty cells for what is unknown. The column
    `hardware` has names of accelerators or systems, or paths of their files. Columns that the config of the
    `model` knows may be left out; diffperf init measurements lists all columns.

    Prints the errors by group; --residuals draws them against every column of the table, and says which share
    of their spread each explains: where to look for what the estimator lacks. What cannot be evaluated is
    counted with the reason; a row that cannot be read is named on stderr. Where no row can be evaluated, the
    exit code is 1.
    """
    from diffperf.api.validation_answer import ValidationAnswer
    from diffperf.explore.measured.table import messages
    from diffperf.explore.measured.validate import validate as compare

    with progress("evaluating"):
        result = compare(file, calibration, systems=systems, where=where, file=COMMAND_LINE)
    for message in messages(result.faults):
        click.echo(message, err=True)
    answer = ValidationAnswer(file, result, by)
    drawn = Output(residuals, lambda file: answer.plot_residuals(file, of))
    show(answer, drawn, json_file=json_file, plot=plot)
    if not answer.evaluated:
        ctx.exit(1)
