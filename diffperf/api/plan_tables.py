"""Tables of a plan: the search, the strategies, the reasons why the others lose, and the memory that is
left.
"""

from typing import Any

from rich.table import Table

from diffperf import units
from diffperf.api.question import Question, describe_strategy
from diffperf.errors import counted
from diffperf.explore.plan.megatron_flags import megatron_flags
from diffperf.explore.plan.plan import Plan, RankedStrategy, Search
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
    "first stage": "first_stage_layers",
    "last stage": "last_stage_layers",
    "embedding in split": "embedding_in_split",
    "loss in split": "loss_in_split",
    "batch": "micro_batch",
    "schedule": "schedule",
    "recompute": "recompute",
    "ZeRO": "zero",
}
# Fields that the table always shows; any other only where some strategy does not have its default.
_ALWAYS_SHOWN = ("tp", "pp", "dp", "micro_batch", "recompute", "zero")

_ENERGY = "device energy"  # that of a whole training is the facility's
_NARROW_MARGIN = 0.05  # share of the memory: where less is left, the answer says so
_ADVISED_MARGIN = 0.1  # share of the memory that the answer then tells how to keep free


def describe_search(question: Question, search: Search, ranked: Plan) -> list[str]:
    """The question, the number of strategies, and the values that were searched."""
    searched = counted(ranked.searched, "strategy", plural="strategies")
    counts = f"{searched}: {ranked.possible:,} possible"
    lines = [
        f"[bold]{question.summary('training')}[/bold]",
        *question.described_overrides(),
        f"{counts}, {ranked.fitting:,} of them fit memory",
    ]
    if search.searched:
        lines += ["Searched:", *(f"  {description}" for description in search.searched.values())]
    if search.known:
        known = ", ".join(f"{name.replace('_', ' ')} {_show(value)}" for name, value in search.known.items())
        lines.append(f"As {search.inputs.system.stack.name} trains: {known}")
    if "global_batch" not in question.table:
        batch = units.plain(search.inputs.strategy.global_batch)
        lines.append(f"Chosen: global batch {batch} (one micro-batch per device)")
    return lines


def strategy_table(ranked: Plan) -> Table:
    """The best strategies, a row each."""
    table = Table(box=None, pad_edge=False)
    strategies = [_with_recomputed_classes(as_dict(best.strategy)) for best in ranked.best]
    default = as_dict(type(ranked.best[0].strategy)())
    fields = {
        heading: name
        for heading, name in _COLUMNS.items()
        if name in _ALWAYS_SHOWN or any(strategy[name] != default[name] for strategy in strategies)
    }
    for heading in ("", *fields, "time", "MFU", "memory", "cost", _ENERGY):
        style = "bold" if heading == {"energy": _ENERGY}.get(ranked.by, ranked.by) else None
        table.add_column(heading, justify="right", style=style, no_wrap=heading in ("schedule", "memory"))
    for place, (best, strategy) in enumerate(zip(ranked.best, strategies, strict=True), 1):
        values = (strategy[name] for name in fields.values())
        shown = [value if isinstance(value, str) else units.plain(value) for value in values]
        table.add_row(str(place), *shown, *main_outputs(best))
    return table


def _with_recomputed_classes(strategy: dict[str, Any]) -> dict[str, Any]:
    """The fields of a strategy, with all that it recomputes in `recompute`, as a text."""
    classes = [
        name.removeprefix("recompute_").replace("_", " ")
        for name, share in strategy.items()
        if name.startswith("recompute_") and name != "recompute_share" and share > 0
    ]
    whole = [] if classes and strategy["recompute"] == "none" else [strategy["recompute"]]
    return strategy | {"recompute": ", ".join([*whole, *classes])}


def _show(value: Any) -> str:
    """A value of a config as a text: switches as on or off."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


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
    """The answer for a program, in internal units."""
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
