"""diffperf plan: the best of all strategies, why the others lose, and the flags that train with it."""

from typing import Any

import click
from rich.table import Table

from diffperf import units
from diffperf.cli.options import (
    Question,
    describe_strategy,
    describe_system,
    json_option,
    options,
    plot_option,
    strategy_options,
    system_options,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.explore.plan.candidates import FIELDS
from diffperf.explore.plan.megatron_flags import megatron_flags
from diffperf.explore.plan.plan import OBJECTIVES, Candidate, Plan, Search, largest_part, smallest_system
from diffperf.explore.plan.plan import plan as run
from diffperf.report.tables import as_dict

# Columns of the table: heading, and the field of the strategy. Those that are the same everywhere and the default are left out.
_COLUMNS = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "expert tp": "expert_tp",
    "virtual": "virtual_stages",
    "batch": "micro_batch",
    "schedule": "schedule",
    "recompute": "recompute",
    "ZeRO": "zero",
}
_MARGIN = 0.05  # share of the memory that is worth a word where less is left
_ALWAYS = ("tp", "pp", "dp", "micro_batch", "recompute", "zero")


class DoesNotFit(click.ClickException):
    """No strategy fits memory."""

    exit_code = 3


def _names(ctx, parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(","))


@click.command()
@click.argument("model")
@click.argument("system")
@click.option(
    "--by", default="time", show_default=True, metavar="|".join(OBJECTIVES), help="what to make small"
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="strategies to print"
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
    "--flags", metavar="FILE", help="write the best strategy as flags of Megatron-LM (- for stdout)"
)
@options(system_options, strategy_options(FIELDS, "searched"), json_option, plot_option)
def plan(
    model,
    system,
    by,
    top,
    schedules,
    flags,
    devices,
    stack,
    calibration,
    settings,
    json_file,
    plot,
    **strategy,
):
    """Find the best strategy to train MODEL on SYSTEM: all of them, ranked, and why those behind the best lose.

    Searched are the degrees of parallelism, virtual stages, the micro-batch, recomputation and the ZeRO stage, among what the
    output says. What is given is kept, and all else is the default of its option. Where no strategy fits memory, the exit code
    is 3.
    """
    question = Question.read(model, system, devices, stack, calibration, settings, strategy)
    search = Search.of(question.model, question.system, question.table, schedules)
    with progress(f"comparing {len(search):,} strategies", len(search)) as advance:
        found = run(search, by, top, progress=advance)
    terminal = console("-" if flags == "-" else json_file)
    terminal.print(*describe_search(question, search, found), sep="\n")
    if not found.best:
        raise refuse(search, found, json_file)

    terminal.print(
        "",
        f"Best by {by}: {describe_strategy(found.best[0].strategy, 'training')}",
        "",
        ranked(found),
        sep="\n",
    )
    if len(found.best) > 1:
        terminal.print("", "Why the others lose", reasons(found), sep="\n")
    terminal.print(*describe_margin(search, found.best[0]), sep="\n")
    write_json(plan_json(search, found), json_file)
    if flags is not None:
        with click.open_file(flags, "w", encoding="utf-8") as stream:
            stream.write("\n".join(flag_lines(question, search, found.best[0])) + "\n")
    if plot:
        from diffperf.report import plots

        title = f"{question.summary('training')}\n{describe_strategy(found.best[0].strategy, 'training')}"
        plots.save(plots.breakdown(found.best[0].report, title), plot)


def describe_search(question: Question, search: Search, found: Plan) -> list[str]:
    """What was asked, how many strategies there were, and among what."""
    counts = (
        f"{found.searched:,} strategies: {found.possible:,} possible, {found.fitting:,} of them fit memory"
    )
    lines = [f"[bold]{question.summary('training')}[/bold]", counts]
    if search.searched:
        lines.append(f"Searched: {'; '.join(search.searched.values())}")
    if "global_batch" not in question.table:
        lines.append(
            f"Chosen: global batch {float(search.inputs.strategy.global_batch):g} (one micro-batch per device)"
        )
    return lines


def ranked(found: Plan) -> Table:
    """The best strategies, a row each."""
    rows = Table(box=None, pad_edge=False)
    told = [as_dict(candidate.strategy) for candidate in found.best]
    default = as_dict(type(found.best[0].strategy)())
    fields = {
        heading: name
        for heading, name in _COLUMNS.items()
        if name in _ALWAYS or any(strategy[name] != default[name] for strategy in told)
    }
    shown = ("time", "MFU", "memory", "cost", "energy")
    for heading in ("", *fields, *shown):
        rows.add_column(heading, justify="right", style="bold" if heading == found.by else None)
    for place, (candidate, strategy) in enumerate(zip(found.best, told, strict=True), 1):
        values = [
            value if isinstance(value := strategy[name], str) else f"{value:g}" for name in fields.values()
        ]
        rows.add_row(str(place), *values, *results(candidate))
    return rows


def results(candidate: Candidate) -> list[str]:
    report, memory = candidate.report, candidate.report.memory
    return [
        units.show(report.time, "s"),
        f"{float(report.mfu):.1%}",
        f"{units.show(memory.peak, 'byte', 3)} of {units.show(memory.capacity, 'byte', 3)}",
        units.show(report.cost.run, "USD"),
        units.show(report.energy.total, "J"),
    ]


def reasons(found: Plan) -> Table:
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(justify="right")
    rows.add_column()
    for place, candidate in enumerate(found.best[1:], 2):
        rows.add_row(str(place), str(candidate.behind))
    return rows


def refuse(search: Search, found: Plan, json_file: str | None) -> DoesNotFit:
    """What is missing, where no strategy fits: memory for what, and the devices that would have it."""
    memory = found.least.report.memory
    with progress("looking for a system that fits"):
        smallest = smallest_system(search)
    part, size = largest_part(memory)
    needs = (
        f"needs {units.show(memory.peak, 'byte')} of the {units.show(memory.capacity, 'byte')} of a device"
    )
    least = describe_strategy(found.least.strategy, "training")
    most = float(search.inputs.system.network[-1].size)
    if smallest is None:
        remedy = f"no system of up to {most:,.0f} devices fits either, by doubling"
    else:
        larger, better = smallest
        remedy = f"the smallest that fits, by doubling, is {describe_system(larger.inputs.system)}"
        remedy += f" with {describe_strategy(better.best[0].strategy, 'training')}"
    devices = None if smallest is None else float(smallest[0].inputs.system.n_devices)
    write_json(
        plan_json(search, found) | {"least": candidate_json(found.least), "smallest_system": devices},
        json_file,
    )
    return DoesNotFit(
        f"no strategy fits memory: the least too large ({least}) {needs}, most of it {part} ({units.show(size, 'byte')}); {remedy}"
    )


def describe_margin(search: Search, best: Candidate) -> list[str]:
    """A word of caution where the best strategy all but fills the memory, and how to ask for one that does not."""
    memory, reserve = best.report.memory, search.inputs.system.stack.memory_reserve
    spare = float(memory.capacity - memory.peak)
    if spare > _MARGIN * float(memory.capacity):
        return []
    more = units.show(reserve + 0.1 * memory.capacity, "byte", 3)
    return [
        "",
        f"The best leaves {units.show(spare, 'byte', 3)} of memory: for a margin of 10 %, --set memory_reserve='{more}'",
    ]


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    behind = candidate.behind and {
        "why": str(candidate.behind),
        "more": candidate.behind.more,
        "parts": dict(candidate.behind.parts),
    }
    return {"strategy": as_dict(candidate.strategy), "report": as_dict(candidate.report), "behind": behind}


def plan_json(search: Search, found: Plan) -> dict[str, Any]:
    counts = {name: getattr(found, name) for name in ("searched", "possible", "fitting")}
    return {
        "by": found.by,
        **counts,
        "among": search.searched,
        "fits": bool(found.best),
        "best": [candidate_json(candidate) for candidate in found.best],
        "system": as_dict(search.inputs.system),
        "model": as_dict(search.inputs.model),
    }


def flag_lines(question: Question, search: Search, best: Candidate) -> list[str]:
    strategy = best.strategy
    return [
        f"# {question.summary('training')}: {describe_strategy(strategy, 'training')}",
        f"# diffperf plan: {units.show(best.report.time, 's')} a step, {float(best.report.mfu):.1%} MFU",
        "# What a model's file does not say, such as the base of rotary positions, is left to Megatron-LM's defaults.",
        *megatron_flags(search.inputs.model, strategy),
    ]
