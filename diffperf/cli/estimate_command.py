"""diffperf estimate: one configuration, and where its time and memory go."""

import dataclasses
import math
from typing import Any

import click
import equinox as eqx
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
from diffperf.cli.terminal import console, write_json
from diffperf.errors import ConfigError
from diffperf.explore.bottlenecks import Operator, memory_bound_share, operators
from diffperf.explore.calibrate.interval import Interval, interval
from diffperf.explore.plan.candidates import DEGREES, Layout
from diffperf.relax import Relaxation
from diffperf.report.tables import as_dict, table
from diffperf.workload.configuration import Configuration


def _tokens(ctx, parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        tokens = float(text)
    except ValueError:
        tokens = math.nan
    if not (1 <= tokens < math.inf):
        raise ConfigError(
            "command line",
            "--tokens",
            f'"{text}"',
            "a number of tokens, at least one",
            "write one such as 15e12",
        )
    return tokens


@click.command()
@click.argument("model")
@click.argument("system")
@click.option(
    "--operators",
    "each",
    is_flag=True,
    help="list every operator of a training step, and which resource bounds it",
)
@click.option(
    "--tokens",
    metavar="N",
    callback=_tokens,
    help="time, energy and cost of training on so many tokens, such as 15e12",
)
@options(phase_option, system_options, strategy_options(), smooth_option, json_option, plot_option)
def estimate(
    model,
    system,
    phase,
    each,
    tokens,
    devices,
    stack,
    calibration,
    settings,
    relax,
    json_file,
    plot,
    **strategy,
):
    """Estimate MODEL on SYSTEM: time, memory, energy and cost, and where they go.

    MODEL and SYSTEM are names (see diffperf list), TOML files, or for MODEL a Hugging Face config.json. Degrees of parallelism that
    are not given are set to the layout that fits memory and is fastest.
    """
    if phase != "training" and (each or tokens):
        option = "--operators" if each else "--tokens"
        raise ConfigError(
            "command line", option, f"phase {phase}", "the training phase", f"drop {option} or --phase"
        )
    question = Question.read(model, system, devices, stack, calibration, settings, strategy)
    layout = question.layout(phase, relax)
    title = question.summary(phase)
    fit, chosen = describe_fit(layout), describe_choice(layout)
    sure = time_interval(question, layout, phase, relax)
    inputs = Configuration(question.model, question.system, layout.strategy)
    listed = operators(inputs) if each else []
    console(json_file).print(
        f"[bold]{title}[/bold]",
        describe_strategy(layout.strategy, phase),
        *chosen,
        fit,
        *([describe_interval(sure)] if sure else []),
        *([describe_training(inputs, layout.report, tokens)] if tokens else []),
        "",
        table(layout.report),
        *([operator_table(listed)] if each else []),
        sep="\n",
        soft_wrap=True,
    )
    answer = estimate_json(question, layout, phase, sure)
    answer |= (
        {"operators": [dataclasses.asdict(one) | {"bound": one.bound} for one in listed]} if each else {}
    )
    answer |= {"training": training_totals(inputs, layout.report, tokens)} if tokens else {}
    write_json(answer, json_file)
    if plot:
        from diffperf.report import plots

        plots.save(
            plots.breakdown(layout.report, f"{title}\n{describe_strategy(layout.strategy, phase)}"), plot
        )


def training_totals(inputs: Configuration, report: eqx.Module, tokens: float) -> dict[str, float]:
    """What training on so many tokens takes, without restarts and evaluations: s, J and USD."""
    steps = tokens / float(inputs.strategy.global_batch * inputs.strategy.sequence_length)
    totals = {"time": report.time, "energy": report.energy.total, "cost": report.cost.run}
    return {
        "tokens": tokens,
        "steps": steps,
        **{name: float(value) * steps for name, value in totals.items()},
    }


def describe_training(inputs: Configuration, report: eqx.Module, tokens: float) -> str:
    found = training_totals(inputs, report, tokens)
    shown = ", ".join(
        units.show(found[name], unit) for name, unit in (("time", "s"), ("energy", "J"), ("cost", "USD"))
    )
    return f"Training on {tokens:.3g} tokens: {found['steps']:,.0f} steps, {shown}"


def operator_table(found: list[Operator]) -> Table:
    """Operators of a step on a device of the slowest stage: the time of all their runs, and what bounds them."""
    share = memory_bound_share(found)
    rows = Table(
        title=f"operators of a step ({share:.1%} of their time is bound by memory bandwidth)",
        title_justify="left",
        box=None,
    )
    for name in ("operator", "runs", "time", "share", "bound by"):
        rows.add_column(name, justify="left" if name in ("operator", "bound by") else "right")
    total = sum(one.time for one in found)
    for one in found:
        bounds = sorted(one.bounds.items(), key=lambda bound: -bound[1])
        by = ", ".join(f"{name} {part:.0%}" for name, part in bounds if part >= 0.05)
        rows.add_row(one.name, f"{one.count:,.0f}", units.show(one.time, "s"), f"{one.time / total:.1%}", by)
    return rows


def time_interval(question: Question, layout: Layout, phase: str, relax: Relaxation) -> Interval | None:
    """How sure the time is, where the system is calibrated."""
    if question.calibration is None:
        return None
    configuration = Configuration(question.model, question.system, layout.strategy, relax)
    return interval(question.calibration, configuration, phase)


def describe_interval(sure: Interval) -> str:
    low, high = (units.show(end, "s") for end in sure.ends)
    return f"Time {units.show(sure.time, 's')} ± {sure.relative:.1%} (90 %: {low} to {high})"


def estimate_json(question: Question, layout: Layout, phase: str, sure: Interval | None) -> dict[str, Any]:
    inputs = Configuration(question.model, question.system, layout.strategy)
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
        why = (
            "the fastest that fits memory" if layout.fits else "the least too large"
        ) + f" of {layout.candidates} layouts"
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
