"""diffperf estimate: one configuration, and where its time and memory go."""

from typing import Any

import click

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
from diffperf.cli.terminal import console, write_json
from diffperf.explore.inputs import Inputs
from diffperf.explore.interval import Interval, interval
from diffperf.explore.layout import DEGREES, Layout
from diffperf.relax import Relaxation
from diffperf.report.tables import as_dict, table


@click.command()
@click.argument("model")
@click.argument("system")
@options(phase_option, system_options, strategy_options, smooth_option, json_option, plot_option)
def estimate(model, system, phase, devices, stack, calibration, settings, relax, json_file, plot, **strategy):
    """Estimate MODEL on SYSTEM: time, memory, energy and cost, and where they go.

    MODEL and SYSTEM are names (see diffperf list), TOML files, or for MODEL a Hugging Face config.json. Degrees of parallelism that
    are not given are set to the layout that fits memory and is fastest.
    """
    question = Question.read(model, system, devices, stack, calibration, settings, strategy)
    layout = question.layout(phase, relax)
    title = question.summary(phase)
    fit, chosen = describe_fit(layout), describe_choice(layout)
    sure = time_interval(question, layout, phase, relax)
    console(json_file).print(
        f"[bold]{title}[/bold]",
        describe_strategy(layout.strategy, phase),
        *chosen,
        fit,
        *([describe_interval(sure)] if sure else []),
        "",
        table(layout.report),
        sep="\n",
        soft_wrap=True,
    )
    write_json(estimate_json(question, layout, phase, sure), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.breakdown(layout.report, f"{title}\n{describe_strategy(layout.strategy, phase)}"), plot)


def time_interval(question: Question, layout: Layout, phase: str, relax: Relaxation) -> Interval | None:
    """How sure the time is, where the system is calibrated."""
    if question.calibration is None:
        return None
    return interval(question.calibration, Inputs(question.model, question.system, layout.strategy), phase, relax)


def describe_interval(sure: Interval) -> str:
    low, high = (units.show(end, "s") for end in sure.ends)
    return f"Time {units.show(sure.time, 's')} ± {sure.relative:.1%} (90 %: {low} to {high})"


def estimate_json(question: Question, layout: Layout, phase: str, sure: Interval | None) -> dict[str, Any]:
    inputs = Inputs(question.model, question.system, layout.strategy)
    return {
        "phase": phase,
        "fits": layout.fits,
        "chosen": layout.chosen,
        **({"time_interval": sure.as_dict()} if sure else {}),
        "report": as_dict(layout.report),
        "inputs": as_dict(inputs),
    }


def describe_choice(layout: Layout) -> list[str]:
    """What was chosen for the user, and why."""
    degrees = [f"{name} {value:g}" for name, value in layout.chosen.items() if name in DEGREES]
    if layout.candidates == 1:
        why = "the only layout possible" if len(degrees) > 1 else "what the other degrees leave"
    else:
        why = ("the fastest that fits memory" if layout.fits else "the least too large") + f" of {layout.candidates} layouts"
    lines = [f"Chosen: {', '.join(degrees)} ({why})"] if degrees else []
    if "global_batch" in layout.chosen:
        lines.append(f"Chosen: global batch {layout.chosen['global_batch']:g} (one micro-batch per device)")
    return lines


def describe_fit(layout: Layout) -> str:
    memory = layout.report.memory
    peak, capacity = float(memory.peak), float(memory.capacity)
    if layout.fits:
        return f"Fits memory: {units.show(peak, 'byte')} of {units.show(capacity, 'byte')} per device"
    needs = f"needs {units.show(peak, 'byte')} of the {units.show(capacity, 'byte')} of a device"
    over = f"{units.show(peak - capacity, 'byte')} ({peak / capacity - 1:.1%}) too much"
    return f"[bold red]Does not fit memory[/bold red]: {needs}, {over}"
