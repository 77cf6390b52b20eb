"""diffperf plan: the best of all strategies, why the others lose, and the flags that train with it."""

import dataclasses
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE, Question, describe_strategy, describe_system
from diffperf.api.renting import describe_rent, rent_of_run, rented
from diffperf.api.whole_training import describe_training, training_totals
from diffperf.cli.options import json_option, options, output_file, plot_option, question_options
from diffperf.cli.terminal import console, progress, write_json, write_output
from diffperf.cli.training_and_rent_options import rent_option, tokens_option
from diffperf.explore.plan.candidates import FIELDS
from diffperf.explore.plan.megatron_flags import megatron_flags
from diffperf.explore.plan.plan import Plan, RankedStrategy, Search, largest_part, smallest_system
from diffperf.explore.plan.plan import plan as rank_strategies
from diffperf.explore.plan.reasons import OBJECTIVES
from diffperf.report.tables import as_dict

# Columns of the table of strategies: the heading of each, and its field of the strategy.
_COLUMNS = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "expert tp": "expert_tp",
    "virtual": "virtual_stages",
    "embedding in split": "embedding_in_split",
    "loss in split": "loss_in_split",
    "batch": "micro_batch",
    "schedule": "schedule",
    "recompute": "recompute",
    "ZeRO": "zero",
}
# Fields that the table always shows; any other only where some strategy does not have its default.
_ALWAYS_SHOWN = ("tp", "pp", "dp", "micro_batch", "recompute", "zero")

_NARROW_MARGIN = 0.05  # share of the memory: where less is left, the answer says so
_ADVISED_MARGIN = 0.1  # share of the memory that the answer then tells how to keep free


class DoesNotFit(click.ClickException):
    """No strategy fits memory."""

    exit_code = 3


def _names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in value.split(","))


@click.command()
@click.option(
    "--by",
    default="time",
    show_default=True,
    metavar="|".join(OBJECTIVES),
    help="what the best strategy takes the least of",
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="how many of the best strategies to print",
)
@click.option(
    "--schedules",
    default="1f1b",
    show_default=True,
    metavar="NAME,…",
    callback=_names,
    help="pipeline schedules to choose from",
)
@click.option(
    "--flags",
    metavar="FILE",
    callback=output_file,
    help="write the best strategy as flags of Megatron-LM (- for stdout)",
)
@options(tokens_option, rent_option, question_options(FIELDS, "searched"), json_option, plot_option)
def plan(
    question: Question,
    tokens: float | None,
    rent: bool,
    by: str,
    top: int,
    schedules: tuple[str, ...],
    flags: str | None,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Find the best strategy to train MODEL on SYSTEM: all of them, ranked, and why those behind the best
    lose.

    The search covers the degrees of parallelism, virtual stages, the micro-batch, recomputation and the
    ZeRO stage, within limits that the output states. An option that is given is kept, and every other field
    has the default of its option. Where no strategy fits memory, the exit code is 3.
    """
    if rent:
        rented(question.system)  # refuses a system without a rent before the search takes its time
    search = Search.of(question.model, question.system, question.table, schedules, COMMAND_LINE)
    with progress(f"comparing {len(search):,} strategies", len(search)) as advance:
        ranked = rank_strategies(search, by, top, advance, COMMAND_LINE)
    terminal = console("-" if flags == "-" else json_file)
    terminal.print(*describe_search(question, search, ranked), sep="\n")
    if not ranked.best:
        raise refuse(search, ranked, json_file)

    best = ranked.best[0]
    summary = describe_strategy(best.strategy, "training")
    terminal.print("", f"Best by {by}: {summary}", "", strategy_table(ranked), sep="\n")
    training = None
    if tokens is not None:
        chosen = dataclasses.replace(search.inputs, strategy=best.strategy)
        training = training_totals(chosen, best.report, tokens)
        terminal.print("", *describe_training(training), sep="\n")
    costs = None
    if rent:
        time, owned = best.report.time, best.report.cost.run
        if training is not None:
            time, owned = training["time"], training["cost"]
        costs = rent_of_run(question.system, time, owned)
        what = "The training" if training else "A step"
        terminal.print("", describe_rent(question.system, what, costs), sep="\n")
    if len(ranked.best) > 1:
        terminal.print("", "Why the others lose", reason_table(ranked), sep="\n")
    terminal.print(*describe_margin(search, best), sep="\n")
    write_json(
        plan_json(search, ranked)
        | ({"training": training} if training else {})
        | ({"rent": costs} if costs else {}),
        json_file,
    )
    if flags is not None:
        write_output("\n".join(flag_lines(question, search, best)) + "\n", flags)
    if plot:
        from diffperf.report import plots

        plots.save(plots.breakdown(best.report, f"{question.summary('training')}\n{summary}"), plot)


def describe_search(question: Question, search: Search, ranked: Plan) -> list[str]:
    """What was asked, how many strategies there were, and what was searched."""
    counts = f"{ranked.searched:,} strategies: {ranked.possible:,} possible"
    lines = [
        f"[bold]{question.summary('training')}[/bold]",
        f"{counts}, {ranked.fitting:,} of them fit memory",
    ]
    if search.searched:
        lines += ["Searched:", *(f"  {description}" for description in search.searched.values())]
    if "global_batch" not in question.table:
        batch = f"{float(search.inputs.strategy.global_batch):g}"
        lines.append(f"Chosen: global batch {batch} (one micro-batch per device)")
    return lines


def strategy_table(ranked: Plan) -> Table:
    """The best strategies, a row each."""
    table = Table(box=None, pad_edge=False)
    strategies = [as_dict(best.strategy) for best in ranked.best]
    default = as_dict(type(ranked.best[0].strategy)())
    fields = {
        heading: name
        for heading, name in _COLUMNS.items()
        if name in _ALWAYS_SHOWN or any(strategy[name] != default[name] for strategy in strategies)
    }
    for heading in ("", *fields, "time", "MFU", "memory", "cost", "energy"):
        table.add_column(heading, justify="right", style="bold" if heading == ranked.by else None)
    for place, (best, strategy) in enumerate(zip(ranked.best, strategies, strict=True), 1):
        values = (strategy[name] for name in fields.values())
        shown = [value if isinstance(value, str) else f"{value:g}" for value in values]
        table.add_row(str(place), *shown, *main_outputs(best))
    return table


def main_outputs(ranked: RankedStrategy) -> list[str]:
    """Time, utilization, memory, cost and energy of a training step, as texts."""
    report, memory = ranked.report, ranked.report.memory
    return [
        units.show(report.time, "s"),
        f"{float(report.mfu):.1%}",
        f"{units.show(memory.peak, 'byte', 3)} of {units.show(memory.capacity, 'byte', 3)}",
        units.show(report.cost.run, "USD"),
        units.show(report.energy.total, "J"),
    ]


def reason_table(ranked: Plan) -> Table:
    """Why each of the strategies behind the best one loses, a row each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for place, strategy in enumerate(ranked.best[1:], 2):
        table.add_row(str(place), str(strategy.behind))
    return table


def refuse(search: Search, ranked: Plan, json_file: str | None) -> DoesNotFit:
    """The error where no strategy fits: what takes the memory, and how many devices would have enough of it.

    The JSON, which has an answer in this case too, is written.
    """
    least = ranked.least
    assert least is not None, "a plan without a best strategy has one that exceeds the memory by the least"
    with progress("looking for a system that fits"):
        smallest = smallest_system(search)
    if smallest is None:
        devices, most = None, float(search.inputs.system.network[-1].size)
        remedy = f"no system of up to {most:,.0f} devices fits either, by doubling"
    else:
        larger, better = smallest
        devices = float(larger.inputs.system.n_devices)
        remedy = f"the smallest that fits, by doubling, is {describe_system(larger.inputs.system)}"
        remedy += f" with {describe_strategy(better.best[0].strategy, 'training')}"
    extra = {"least": strategy_json(least), "smallest_system": devices}
    write_json(plan_json(search, ranked) | extra, json_file)

    memory = least.report.memory
    part, size = largest_part(memory)
    needs = (
        f"needs {units.show(memory.peak, 'byte')} of the {units.show(memory.capacity, 'byte')} of a device"
    )
    return DoesNotFit(
        f"no strategy fits memory: the least too large ({describe_strategy(least.strategy, 'training')}) "
        f"{needs}, most of it {part} ({units.show(size, 'byte')}); {remedy}"
    )


def describe_margin(search: Search, best: RankedStrategy) -> list[str]:
    """A warning where the best strategy all but fills the memory, with the option that keeps more free."""
    memory, reserve = best.report.memory, search.inputs.system.stack.memory_reserve
    spare = float(memory.capacity - memory.peak)
    if spare > _NARROW_MARGIN * float(memory.capacity):
        return []
    reserved = units.show(reserve + _ADVISED_MARGIN * memory.capacity, "byte", 3)
    left = f"The best leaves {units.show(spare, 'byte', 3)} of memory"
    margin = f"for a margin of {100 * _ADVISED_MARGIN:.0f} %, --set memory_reserve='{reserved}'"
    return ["", f"{left}: {margin}"]


def strategy_json(ranked: RankedStrategy) -> dict[str, Any]:
    """A strategy for a program, with its report and the reason why it loses."""
    reason = ranked.behind
    behind = reason and {"why": str(reason), "more": reason.more, "parts": dict(reason.parts)}
    return {"strategy": as_dict(ranked.strategy), "report": as_dict(ranked.report), "behind": behind}


def plan_json(search: Search, ranked: Plan) -> dict[str, Any]:
    """The answer for a program, in SI units."""
    counts = {name: getattr(ranked, name) for name in ("searched", "possible", "fitting")}
    return {
        "by": ranked.by,
        **counts,
        "among": search.searched,
        "fits": bool(ranked.best),
        "best": [strategy_json(strategy) for strategy in ranked.best],
        "system": as_dict(search.inputs.system),
        "model": as_dict(search.inputs.model),
    }


def flag_lines(question: Question, search: Search, best: RankedStrategy) -> list[str]:
    """The flags of the best strategy, under comments that say what they are for."""
    step = f"{units.show(best.report.time, 's')} a step, {float(best.report.mfu):.1%} MFU"
    return [
        f"# {question.summary('training')}: {describe_strategy(best.strategy, 'training')}",
        f"# diffperf plan: {step}",
        "# What a model's file does not say, such as the base of rotary positions, has its default.",
        *megatron_flags(search.inputs.model, best.strategy),
    ]
