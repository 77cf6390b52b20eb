"""diffperf sensitivity: what an output hangs on."""

from typing import Any

import click
from rich.table import Table

from diffperf import units
from diffperf.cli.options import (
    Question,
    describe_strategy,
    json_option,
    options,
    phase_option,
    plot_option,
    smooth_option,
    strategy_options,
    system_options,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.candidates import Layout
from diffperf.explore.sensitivity import GROUPS, sensitivities
from diffperf.report.tables import as_dict


@click.command()
@click.argument("model")
@click.argument("system")
@click.option(
    "--output",
    default="time",
    show_default=True,
    metavar="PATH",
    help="what of the report to explain, such as cost.run",
)
@click.option(
    "--of",
    "groups",
    multiple=True,
    default=("system",),
    show_default=True,
    metavar="system|strategy|model",
    help="whose inputs (repeatable)",
)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="rows to print")
@options(phase_option, system_options, strategy_options(), smooth_option, json_option, plot_option)
def sensitivity(
    model,
    system,
    output,
    groups,
    top,
    phase,
    devices,
    stack,
    calibration,
    settings,
    relax,
    json_file,
    plot,
    **strategy,
):
    """Rank the inputs by how much they move an output: the elasticity is the percentage that +1 % of the input adds to it."""
    for group in groups:
        if group not in GROUPS:
            raise ConfigError(
                "command line",
                "--of",
                f'"{group}"',
                "one of " + ", ".join(GROUPS),
                did_you_mean(group, GROUPS),
            )
    question = Question.read(model, system, devices, stack, calibration, settings, strategy)
    layout = question.layout(phase, relax)
    with progress("compiling and differentiating"):
        found = sensitivities(
            question.model, question.system, layout.strategy, phase, output, relax=relax, groups=groups
        )

    title = f"What moves {output} of {question.summary(phase)}"
    moving = [one for one in found if abs(one.elasticity) > 1e-6]
    console(json_file).print(
        f"[bold]{title}[/bold]",
        describe_strategy(layout.strategy, phase),
        sensitivity_table(moving[:top]),
        sep="\n",
    )
    console(json_file).print(f"{len(found) - len(moving)} of {len(found)} inputs do not matter here")
    if any(one.declared.integer for one in moving[:top]):
        console(json_file).print(
            "* whole in reality: the slope between two steps of a staircase, everything else held"
        )
    write_json(sensitivity_json(found, layout, phase, output), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.tornado(found, f"{title}\nchange for +1 % of each input"), plot)


def sensitivity_table(found) -> Table:
    rows = Table(box=None, pad_edge=False)
    for name, justify in (("input", "left"), ("value", "right"), ("elasticity", "right"), ("", "left")):
        rows.add_column(name, justify=justify)
    largest = max((abs(one.elasticity) for one in found), default=1.0)
    for one in found:
        bar = ("+" if one.elasticity > 0 else "−") * max(1, round(20 * abs(one.elasticity) / largest))
        rows.add_row(
            one.path + " *" * one.declared.integer,
            units.show(one.value, one.declared.unit),
            f"{one.elasticity:+.4f}",
            bar,
        )
    return rows


def sensitivity_json(found, layout: Layout, phase: str, output: str) -> dict[str, Any]:
    rows = [
        {"path": one.path, "value": one.value, "unit": one.declared.unit, "elasticity": one.elasticity}
        for one in found
    ]
    return {"phase": phase, "output": output, "strategy": as_dict(layout.strategy), "elasticities": rows}
