"""diffperf compare: systems × models × phases in one table, the best layout of each."""

from pathlib import Path
from typing import Any

import click

from diffperf.api.compare_answer import CompareAnswer, calibrations
from diffperf.api.question import COMMAND_LINE, Question
from diffperf.cli.answer_output import show, text_output
from diffperf.cli.completion import names_of
from diffperf.cli.estimate_command import DOES_NOT_FIT
from diffperf.cli.options import (
    STRATEGY_FIELDS,
    calibration_option,
    json_option,
    names_of_list,
    options,
    output_file,
    page_file,
    plot_option,
    set_option,
    strategy_options,
)
from diffperf.cli.terminal import progress
from diffperf.errors import counted
from diffperf.explore.inputs import check_phase
from diffperf.explore.plan.candidates import FIELDS, LAYOUT


def _phases(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """The names of phases of a list with commas."""
    return [check_phase(name, COMMAND_LINE, "--phase") for name in names_of_list(ctx, parameter, value)]


@click.command()
@click.option(
    "--models",
    required=True,
    shell_complete=names_of("models"),
    metavar="NAME|FILE,…",
    callback=names_of_list,
    help="models to compare on",
)
@click.option(
    "--systems",
    required=True,
    shell_complete=names_of("systems"),
    metavar="NAME|FILE,…",
    callback=names_of_list,
    help="systems to compare",
)
@click.option(
    "--phase",
    "phases",
    default="training",
    show_default=True,
    metavar="NAME,…",
    callback=_phases,
    help="phases to compare in: training, prefill, decode, generate",
)
@click.option(
    "--stack",
    "stacks",
    metavar="NAME,…",
    shell_complete=names_of("stacks"),
    callback=names_of_list,
    help="software stacks in place of the systems' own, all of them on every system",
)
@click.option("--devices", metavar="N", help="devices in every system [as configured]")
@click.option(
    "--against",
    metavar="SYSTEM",
    shell_complete=names_of("systems"),
    help="add the ratios to this system of the comparison",
)
@options(calibration_option, set_option, strategy_options(FIELDS, in_inference=LAYOUT), json_option)
@click.option("--csv", "csv_file", metavar="FILE", callback=output_file, help="write the rows as CSV")
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    callback=page_file,
    help="write a page with the table and the figure",
)
@options(plot_option)
def compare(
    models: tuple[str, ...],
    systems: tuple[str, ...],
    phases: list[str],
    stacks: tuple[str, ...],
    devices: str | None,
    calibration: str | None,
    against: str | None,
    settings: dict[str, str],
    json_file: str | None,
    csv_file: str | None,
    html_file: str | None,
    plot: Path | None,
    **strategy: Any,
) -> None:
    """Compare systems on models and in phases: the best layout of each, and what it is worth.

    Throughput is given per device, per dollar of an owned and of a rented system, and per joule, with what
    the figures rest on. In training the layout is searched as by `diffperf plan`, in the other phases as by
    `diffperf estimate`. A configuration that does not fit memory says so; where none fits, the exit code
    is 3. A calibration counts for the systems with its accelerator, and "none" for all of them.
    """
    fields = {name: strategy[name] for name in STRATEGY_FIELDS}
    fitted = dict(zip(systems, calibrations(systems, calibration, COMMAND_LINE), strict=True))

    def question(model: str, system: str, stack: str | None) -> Question:
        return Question.read(
            model=model,
            system=system,
            devices=devices,
            stack=stack,
            calibration=fitted[system],
            settings=settings,
            strategy=fields,
        )

    cells = len(models) * len(systems) * len(phases) * max(len(stacks), 1)
    with progress(f"comparing {counted(cells, 'configuration')}", cells) as advance:
        answer = CompareAnswer.of(
            question,
            models=models,
            systems=systems,
            phases=phases,
            stacks=stacks or [None],
            against=against,
            asker=COMMAND_LINE,
            advance=advance,
        )
    tables = text_output(csv_file, answer.to_csv), text_output(html_file, answer.to_html)
    show(answer, *tables, json_file=json_file, plot=plot)
    if not answer.fits:
        click.get_current_context().exit(DOES_NOT_FIT)
