"""diffperf calibrate: the values of efficiencies and overheads that explain measurements best."""

import math
from pathlib import Path

import click

from diffperf.api.question import COMMAND_LINE
from diffperf.cli.answer_output import show
from diffperf.cli.completion import names_of
from diffperf.cli.options import json_option, measured_system_option, options, plot_option, where_option
from diffperf.cli.terminal import progress
from diffperf.errors import ConfigError
from diffperf.report.output_files import check_writable


def _paths(ctx, parameter, values: tuple[str, ...]) -> list[str] | None:
    """The paths of parameters, separated by commas in one option or several; None without the option."""
    paths = [path.strip() for value in values for path in value.split(",") if path.strip()]
    if values and not paths:
        remedy = "name one, or leave the option out to fit all"
        raise ConfigError(COMMAND_LINE, "--parameters", "no path", "PATH,PATH", remedy)
    return paths or None


def _finite(ctx, parameter, value: float | None) -> float | None:
    """The number itself, if it is finite."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("a standard deviation is a finite number")
    return value


def _toml(ctx, parameter, value: str) -> Path:
    """The path of a config that can be written, checked before the fit takes its time."""
    path = Path(value)
    if path.suffix != ".toml":
        raise ConfigError(COMMAND_LINE, "--out", f'"{value}"', "a file name ending in .toml", "rename it")
    return check_writable(path, "--out")


def _once(ctx, parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The tables, each given once: the rows of a table given twice would count twice."""
    seen = set()
    for value in values:
        if Path(value).resolve() in seen:
            raise ConfigError(COMMAND_LINE, "FILE", f'"{value}" again', "every table once", "leave one out")
        seen.add(Path(value).resolve())
    return values


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", callback=_once)
@click.option(
    "--hardware",
    metavar="ID|all",
    help="hardware whose rows to use, where the tables have several; all: rows of --stack on any hardware",
)
@click.option(
    "--parameters",
    "paths",
    metavar="PATH,PATH",
    multiple=True,
    callback=_paths,
    help="parameters to fit, such as hbm.efficiency [all that are declared calibratable and matter]",
)
@click.option(
    "--stack",
    metavar="NAME",
    shell_complete=names_of("stacks"),
    help="software stack that paths into stack are about [the system's]",
)
@click.option(
    "--prior-spread",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    callback=_finite,
    help="standard deviation of the logarithm of every value before the fit [as declared, mostly 0.35; as"
    " well as known, and 0.15, for values of a calibration]",
)
@click.option(
    "--folds", type=click.IntRange(min=2), default=5, show_default=True, help="folds of the cross-validation"
)
@click.option(
    "--leave-out",
    metavar="COLUMN",
    help="column whose rows of one text are left out together in cross-validation, such as model or hardware"
    " [rows of nearly the same configuration]",
)
@click.option(
    "--column",
    metavar="COLUMN",
    help="measured column to fit, such as power_per_device_w [the times and rates of the rows]",
)
@click.option(
    "--calibration",
    metavar="NAME|FILE|none",
    shell_complete=names_of("calibrations"),
    help="calibration to begin from, whose other values stay [the system's]; none: the values of configs",
)
@options(where_option, measured_system_option, json_option, plot_option)
@click.option("--out", metavar="CONFIG.toml", required=True, callback=_toml, help="the config to write")
def calibrate(files, hardware, paths, stack, where, systems, calibration, json_file, plot, out, **chosen):
    """Fit efficiencies and overheads of one accelerator's system to the measurements in FILEs.

    FILEs are CSV tables of GEMMs, attention kernels, collectives and runs (as for `diffperf validate`),
    fitted all together.

    With --hardware all, fits parameters of the stack that --stack names to all rows that it drove, on any
    hardware, and everything else keeps the values that it is shipped with.

    The fit begins from the calibration that the system has, and the file holds its other values too.

    Prints the values with their uncertainty, and the errors before, after, and on configurations left out
    of the fit. Writes a config for --calibration, or for the `calibration` of a system's file; with
    --hardware all, a stack's config for --stack. A fit that explains nothing is not written.
    """
    from diffperf.api.calibration_answer import CalibrationAnswer

    tables = _read(files, systems, where)
    with progress("fitting"):
        answer = CalibrationAnswer.of(
            tables,
            hardware=hardware,
            parameters=paths,
            stack=stack,
            out=out,
            calibration=calibration,
            asker=COMMAND_LINE,
            settings=chosen,
        )
    show(answer, json_file=json_file, plot=plot)


def _read(files, systems, conditions):
    """The rows of the tables that meet the conditions.

    The rows that cannot be read are named at once, also where no fit succeeds.
    """
    from diffperf.api.calibration_answer import read_tables
    from diffperf.explore.measured.table import messages

    def show(table):
        for message in messages(table.faults):
            click.echo(message, err=True)

    return read_tables(files, systems, conditions, COMMAND_LINE, show)
