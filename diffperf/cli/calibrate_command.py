"""diffperf calibrate: the values of efficiencies and overheads that measurements tell."""

import math
from pathlib import Path

import click
from rich.table import Table

from diffperf import units
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import column_table, console, progress, write_json
from diffperf.errors import ConfigError


def _paths(ctx, parameter, values: tuple[str, ...]) -> list[str] | None:
    paths = [path.strip() for value in values for path in value.split(",") if path.strip()]
    if values and not paths:
        raise ConfigError(
            "command line",
            "--parameters",
            "no path",
            "PATH,PATH",
            "name one, or leave the option out to fit all",
        )
    return paths or None


def _finite(ctx, parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("a standard deviation is a finite number")
    return value


def _toml(ctx, parameter, value: str) -> Path:
    path = Path(value)
    if path.suffix != ".toml":
        raise ConfigError("command line", "--out", f'"{value}"', "a file name ending in .toml", "rename it")
    if not path.parent.is_dir():
        raise ConfigError(
            "command line", "--out", f'"{value}"', "a file in a folder that exists", "create the folder"
        )
    if path.is_dir():
        raise ConfigError("command line", "--out", f'"{value}", a folder', "a file", "name a file in it")
    return path


def _once(ctx, parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Every table once: its rows would count as often as it is given."""
    seen = set()
    for value in values:
        if Path(value).resolve() in seen:
            raise ConfigError("command line", "FILE", f'"{value}" again', "every table once", "leave one out")
        seen.add(Path(value).resolve())
    return values


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", callback=_once)
@click.option("--hardware", metavar="ID", help="whose rows to use, where the tables have several")
@click.option(
    "--parameters", "paths", metavar="PATH,PATH", multiple=True, callback=_paths,
    help="what to fit, such as hbm.efficiency [all that are declared calibratable and matter]",
)  # fmt: skip
@click.option("--stack", metavar="NAME", help="whose software's values paths into stack mean [the system's]")
@click.option(
    "--prior-spread", type=click.FloatRange(min=0, min_open=True), metavar="X", callback=_finite,
    help="how uncertain configured values are: standard deviation of their logarithm [as declared, mostly 0.35]",
)  # fmt: skip
@click.option(
    "--folds", type=click.IntRange(min=2), default=5, show_default=True, help="of the cross-validation"
)
@options(json_option, plot_option)
@click.option("--out", metavar="CONFIG.toml", required=True, callback=_toml, help="the config to write")
def calibrate(files, hardware, paths, stack, prior_spread, folds, json_file, plot, out):
    """Fit efficiencies and overheads of one accelerator's system to the measurements in FILEs: CSV tables of GEMMs, attention
    kernels, collectives, training or inference runs (as for diffperf validate), all together.

    Prints the values with their uncertainty, and the errors before, after, and on configurations left out of the fit. Writes a
    config for --calibration, or for the `calibration` of a system's file.
    """
    from diffperf.explore.calibrate.calibrate import calibrate as fit_to
    from diffperf.explore.calibrate.calibration_file import write_calibration
    from diffperf.explore.measured.table import read_measurements

    tables = []
    for file in files:
        tables.append(read_measurements(file))
        # At once, so that bad rows are named also where no fit comes of the others.
        for fault in tables[-1].faults:
            click.echo(fault.message, err=True)
    with progress("fitting"):
        found = fit_to(tables, hardware, paths, stack=stack, prior_spread=prior_spread, folds=folds)
    write_calibration(found, out)

    rows, terminal = sum(source.rows for source in found.sources), console(json_file)
    title = (
        f"{found.hardware} ({found.system.name}): {len(found.parameters)} parameters fitted to {rows:,} rows"
    )
    terminal.print(
        f"[bold]{title}[/bold]", "", parameter_table(found), "", errors_table(found), sep="\n", soft_wrap=True
    )
    if any(source.skipped for source in found.sources):
        terminal.print("", skipped_table(found), sep="\n")
    if found.without_effect:
        shown = (
            ", ".join(found.without_effect)
            if paths
            else f"{len(found.without_effect)} calibratable values of the system"
        )
        terminal.print(f"\nWithout effect on these rows, so left as configured: {shown}", soft_wrap=True)
    terminal.print(f"\nWritten to {out}", soft_wrap=True)
    write_json(found.as_dict(), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.calibration(found, title), plot)


def parameter_table(found) -> Table:
    """Configured and fitted values; those that the data moved far against the prior, or to the end of their range, are marked."""
    rows = column_table("parameter", "configured", "fitted", "±")
    rows.add_column("", justify="left")
    for one in found.parameters:
        unit = one.declared.unit
        remarks = ["at the end of its range"] if one.at_bound else []
        remarks += [f"{abs(one.surprise):.1f} prior deviations away"] if abs(one.surprise) > 3 else []
        rows.add_row(
            one.path,
            units.show(one.before, unit),
            units.show(one.after, unit),
            f"{one.spread:.1%}",
            ", ".join(remarks),
        )
    return rows


def errors_table(found) -> Table:
    """|predicted/measured − 1| before and after the fit, and of rows left out of one, their bias, and how many their 90 % intervals
    cover."""
    rows = column_table(
        "rows",
        "n",
        "median before",
        "after",
        "left out",
        "p90 before",
        "after",
        "left out",
        "bias",
        "covered",
    )
    for name, group in found.groups.items():
        three = (group.before, group.after, group.cross_validated)
        covered = "–" if group.coverage is None else f"{group.coverage:.1%}"
        medians, tails = ([f"{getattr(one, key):.1%}" for one in three] for key in ("median_ape", "p90_ape"))
        rows.add_row(
            name, f"{group.after.n:,}", *medians, *tails, f"{group.cross_validated.bias:+.1%}", covered
        )
    return rows


def skipped_table(found) -> Table:
    rows = column_table("skipped", "rows")
    for source in found.sources:
        for reason, count in source.skipped.items():
            rows.add_row(f"{source.name}: {reason}", f"{count:,}")
    return rows
