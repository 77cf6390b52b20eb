"""diffperf sensitivity: by how much each input moves an output."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE, Question, describe_strategy
from diffperf.cli.options import (
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
    smooth_option,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.sensitivity import GROUPS, Sensitivity, sensitivities
from diffperf.relax import Relaxation
from diffperf.report.tables import as_dict
from diffperf.workload.configuration import Configuration

_NO_EFFECT = 1e-6  # elasticities up to this are rounding: the input does not matter
_BAR = 20  # characters of the longest bar


@click.command()
@click.option(
    "--output",
    default="time",
    show_default=True,
    metavar="PATH",
    help="the output to explain, by its path in the report, such as cost.run",
)
@click.option(
    "--of",
    "groups",
    multiple=True,
    default=("system",),
    show_default=True,
    metavar="system|strategy|model",
    help="group of inputs to vary (repeatable)",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="how many of the inputs to print"
)
@options(phase_option, question_options(), smooth_option, json_option, plot_option)
def sensitivity(
    question: Question,
    output: str,
    groups: tuple[str, ...],
    top: int,
    phase: str,
    relax: Relaxation,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Rank the inputs by how much they move an output: the elasticity is the percentage that +1 % of the
    input adds to it."""
    for group in groups:
        if group not in GROUPS:
            expected, hint = "one of " + ", ".join(GROUPS), did_you_mean(group, GROUPS)
            raise ConfigError(COMMAND_LINE, "--of", f'"{group}"', expected, hint)
    with progress(f"compiling and estimating {phase}"):
        layout = question.layout(phase, relax)
    configuration = Configuration(question.model, question.system, layout.strategy, relax)
    with progress("compiling and differentiating"):
        ranked = sensitivities(configuration, phase, output, groups=groups, file=COMMAND_LINE)

    moving = [sensitivity for sensitivity in ranked if abs(sensitivity.elasticity) > _NO_EFFECT]
    title, terminal = f"What moves {output} of {question.summary(phase)}", console(json_file)
    summary = describe_strategy(layout.strategy, phase)
    terminal.print(f"[bold]{title}[/bold]", summary, sensitivity_table(moving[:top]), sep="\n")
    terminal.print(f"{len(ranked) - len(moving)} of {len(ranked)} inputs do not matter here")
    if any(sensitivity.declared.integer for sensitivity in moving[:top]):
        terminal.print(
            "* whole in reality: the slope between two whole numbers, with all other inputs unchanged"
        )
    write_json(sensitivity_json(ranked, layout, phase, output), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.tornado(ranked, f"{title}\nchange for +1 % of each input"), plot)


def sensitivity_table(ranked: list[Sensitivity]) -> Table:
    """The inputs that matter most, a row each; a star marks those that are whole numbers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("input")
    table.add_column("value", justify="right")
    table.add_column("elasticity", justify="right")
    table.add_column("")  # a bar
    largest = max((abs(sensitivity.elasticity) for sensitivity in ranked), default=1.0)
    for sensitivity in ranked:
        declared, elasticity = sensitivity.declared, sensitivity.elasticity
        bar = ("+" if elasticity > 0 else "−") * max(1, round(_BAR * abs(elasticity) / largest))
        path = sensitivity.path + " *" * declared.integer
        table.add_row(path, units.show(sensitivity.value, declared.unit), f"{elasticity:+.4f}", bar)
    return table


def sensitivity_json(ranked: list[Sensitivity], layout: Layout, phase: str, output: str) -> dict[str, Any]:
    """The answer for a program, in internal units."""
    rows = [
        {
            "path": sensitivity.path,
            "value": sensitivity.value,
            "unit": sensitivity.declared.unit,
            "elasticity": sensitivity.elasticity,
        }
        for sensitivity in ranked
    ]
    return {"phase": phase, "output": output, "strategy": as_dict(layout.strategy), "elasticities": rows}
