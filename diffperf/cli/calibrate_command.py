"""diffperf calibrate: the values of efficiencies and overheads that explain measurements best."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE
from diffperf.cli.options import json_option, measured_system_option, options, plot_option, where_option
from diffperf.cli.terminal import console, progress, write_json
from diffperf.errors import ConfigError
from diffperf.report.output_files import check_writable
from diffperf.report.tables import column_table

if TYPE_CHECKING:  # the estimator takes a second to import, which `diffperf --help` need not wait for
    from diffperf.explore.calibrate.calibrated import Calibrated
    from diffperf.explore.measured.table import Measurements

EVERY = "all"  # as hardware: that of all rows which a stack drove
SURPRISING = 3.0  # prior standard deviations of a change that is pointed out


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
    help="whose rows to use, where the tables have several; all: those that --stack drove on any hardware",
)
@click.option(
    "--parameters",
    "paths",
    metavar="PATH,PATH",
    multiple=True,
    callback=_paths,
    help="what to fit, such as hbm.efficiency [all that are declared calibratable and matter]",
)
@click.option("--stack", metavar="NAME", help="whose software's values paths into stack mean [the system's]")
@click.option(
    "--prior-spread",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    callback=_finite,
    help="standard deviation of the logarithm of every configured value [as declared, mostly 0.35]",
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
@options(where_option, measured_system_option, json_option, plot_option)
@click.option("--out", metavar="CONFIG.toml", required=True, callback=_toml, help="the config to write")
def calibrate(files, hardware, paths, stack, where, systems, json_file, plot, out, **chosen):
    """Fit efficiencies and overheads of one accelerator's system to the measurements in FILEs.

    FILEs are CSV tables of GEMMs, attention kernels, collectives and runs (as for `diffperf validate`),
    fitted all together.

    With --hardware all, fits parameters of the stack that --stack names to all rows that it drove, on any
    hardware, and everything else keeps the values that it is shipped with.

    Prints the values with their uncertainty, and the errors before, after, and on configurations left out
    of the fit. Writes a config for --calibration, or for the `calibration` of a system's file; with
    --hardware all, a stack's config for --stack. A fit that explains nothing is not written.
    """
    from diffperf.explore.calibrate.calibrate import calibrate as fit_system
    from diffperf.explore.calibrate.calibrate import calibrate_stack
    from diffperf.explore.calibrate.calibration_file import write_calibration
    from diffperf.explore.calibrate.stack_file import write_stack

    if hardware == EVERY and stack is None:
        raise ConfigError(COMMAND_LINE, "--hardware", EVERY, "the hardware, or --stack", "name the stack")
    tables = _read(files, systems, where)
    with progress("fitting"):
        if hardware == EVERY:
            result = calibrate_stack(tables, stack, paths or (), **chosen)
        else:
            result = fit_system(tables, hardware, paths, stack=stack, **chosen)
    if hardware == EVERY:
        write_stack(result, stack, out)
    else:
        write_calibration(result, out)
    rows = sum(source.rows for source in result.sources)
    fitted = f"{len(result.parameters)} parameters fitted to {rows:,} rows"
    of = result.system.stack if hardware == EVERY else result.system
    title = f"{result.hardware} ({of.name}): {fitted}"
    terminal = console(json_file)
    for part in (f"[bold]{title}[/bold]", "", parameter_table(result), "", errors_table(result)):
        terminal.print(part, soft_wrap=True)
    if any(source.skipped for source in result.sources):
        terminal.print("", skipped_table(result), sep="\n")
    if result.without_effect:
        count = f"{len(result.without_effect)} calibratable values of the system"
        shown = ", ".join(result.without_effect) if paths else count
        terminal.print(f"\nWithout effect on these rows, so left as configured: {shown}", soft_wrap=True)
    terminal.print(f"\nWritten to {out}", soft_wrap=True)
    write_json(result.as_dict(), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.calibration(result, title), plot)


def _read(
    files: tuple[str, ...], systems: tuple[str, ...], conditions: tuple[str, ...]
) -> "list[Measurements]":
    """The rows of the tables that meet the conditions.

    The rows that cannot be read are named at once, also where no fit succeeds.
    """
    from diffperf.explore.measured.conditions import where
    from diffperf.explore.measured.platforms import platforms_with
    from diffperf.explore.measured.table import check_used, messages, read_measurements

    platforms, tables = platforms_with(systems, COMMAND_LINE), []
    for file in files:
        tables.append(where(read_measurements(file, platforms), conditions, COMMAND_LINE))
        for message in messages(tables[-1].faults):
            click.echo(message, err=True)
    check_used(systems, tables, COMMAND_LINE)
    return tables


def parameter_table(result: "Calibrated") -> Table:
    """Configured and fitted values; those far from their prior or at the end of their range are marked."""
    rows = column_table("parameter", "configured", "fitted", "±")
    rows.add_column("", justify="left")
    for parameter in result.parameters:
        unit, surprise = parameter.declared.unit, abs(parameter.surprise)
        remarks = ["at the end of its range"] if parameter.at_bound else []
        remarks += [f"{surprise:.1f} prior deviations away"] if surprise > SURPRISING else []
        rows.add_row(
            parameter.path,
            units.show(parameter.before, unit),
            units.show(parameter.after, unit),
            f"{parameter.spread:.1%}",
            ", ".join(remarks),
        )
    return rows


def errors_table(result: "Calibrated") -> Table:
    """The sizes of relative errors before the fit, after it, and on rows left out of it, by group.

    Of the rows left out also the mean error, and the share that lies in its 90 % interval.
    """
    columns = ("rows", "n", "median before", "after", "left out", "p90 before", "after", "left out")
    rows = column_table(*columns, "bias", "covered")
    for name, group in result.groups.items():
        fits = (group.before, group.after, group.cross_validated)
        medians = [f"{errors.median_ape:.1%}" for errors in fits]
        tails = [f"{errors.p90_ape:.1%}" for errors in fits]
        covered = "–" if group.coverage is None else f"{group.coverage:.1%}"
        bias = f"{group.cross_validated.bias:+.1%}"
        rows.add_row(name, f"{group.after.n:,}", *medians, *tails, bias, covered)
    return rows


def skipped_table(result: "Calibrated") -> Table:
    """How many rows of every table were skipped, by reason."""
    rows = column_table("skipped", "rows")
    for source in result.sources:
        for reason, count in source.skipped.items():
            rows.add_row(f"{source.name}: {reason}", f"{count:,}")
    return rows
