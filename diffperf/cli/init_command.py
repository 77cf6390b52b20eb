"""diffperf init: commented files to begin with."""

from pathlib import Path

import click

from diffperf.api.question import COMMAND_LINE
from diffperf.api.templates import LIKE, describe_columns, file_name, how_to_run, template
from diffperf.cli.terminal import console, write_output
from diffperf.errors import ConfigError
from diffperf.report.output_files import STDOUT, check_writable
from diffperf.report.tables import column_table


@click.command()
@click.argument("kind", metavar="|".join(LIKE))
@click.argument("file", required=False)
@click.option(
    "--like",
    metavar="NAME",
    help="the shipped config that the file begins with; of measurements the kind of table, such as gemm",
)
@click.option("--force", is_flag=True, help="replace a file that exists")
def init(kind: str, file: str | None, like: str | None, force: bool) -> None:
    """Write a commented file of your own that runs as it is.

    Accelerators, systems, stacks and models extend a shipped config, and list every number that you can
    change. Problems (codesign) and spaces (sweep) begin as shipped ones, tables of measurements with one
    published row. FILE is my-KIND in the working directory by default, and without an ending gets that of its
    kind; - stands for stdout.
    """
    own = file_name(kind) if kind in LIKE else ""
    target = file or own
    if target != STDOUT and not Path(target).suffix:
        target += Path(own).suffix
    text = template(kind, like, target)
    if kind == "study" and target != STDOUT and Path(target).suffix != ".py":
        expected = "a file name ending in .py, as of every Python program"
        raise ConfigError(COMMAND_LINE, "FILE", f'"{target}"', expected, "rename it")
    if target == STDOUT:
        write_output(text, STDOUT)
        return
    if check_writable(target, "FILE").exists() and not force:
        raise ConfigError(COMMAND_LINE, "FILE", f'"{target}"', "a new file", "name another, or add --force")
    write_output(text, target)
    screen = console()
    if kind == "measurements":
        rows = column_table("column", "a cell holds", "", left=3)
        for row in describe_columns(like or LIKE[kind]):
            rows.add_row(*row)
        screen.print(rows)
    screen.print(f"{Path(target)}: next, {how_to_run(kind, target)}", soft_wrap=True)
