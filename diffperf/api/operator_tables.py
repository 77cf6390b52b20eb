"""The operators and collectives of a phase as tables: how long each takes, and what bounds it."""

from rich.table import Table

from diffperf import units
from diffperf.explore.bottlenecks import CollectiveTime, Operator, memory_bound_share
from diffperf.report.tables import column_table

_SHOWN_BOUND = 0.05  # share of an operator's time from which a resource is named as what bounds it
_MORE_THAN_ALL = 1.01  # sum of an operator's shares from which the caption explains it
_CAPTION = (
    "Bound by: what one per cent more of a resource saves of an operator's time, in parts of a per cent."
)
_BEYOND_ALL = (
    "\nShares may add up to more than 100 %: at the power limit, more of a resource that shortens other"
    "\noperators lowers the clock of this one: its share, below 0, is not listed, and power makes up for it."
)


def operator_table(listed: list[Operator], phase: str) -> Table:
    """Operators of a phase on a device of the slowest stage: the time of all runs, and what bounds it."""
    share = memory_bound_share(listed)
    title = f"operators of {_passes(phase)} ({share:.1%} of their time is bound by memory bandwidth)"
    rows = column_table("operator", "runs", "time", "share", title=title)
    rows.add_column("bound by", justify="left")
    total = sum(operator.time for operator in listed)
    for operator in listed:
        bounds = sorted(operator.bounds.items(), key=lambda bound: -bound[1])
        rows.add_row(
            _row_name(operator, phase),
            f"{operator.count:,.4g}",
            units.show(operator.time, "s"),
            f"{operator.time / total:.1%}",
            ", ".join(f"{resource} {part:.0%}" for resource, part in bounds if part >= _SHOWN_BOUND),
        )
    rows.caption = _CAPTION
    if any(sum(operator.bounds.values()) > _MORE_THAN_ALL for operator in listed):
        rows.caption += _BEYOND_ALL
    rows.caption_justify, rows.caption_style = "left", ""
    return rows


def collective_table(listed: list[CollectiveTime], phase: str) -> Table:
    """Collectives of a phase on a device of the slowest stage: the time of all runs, hidden or exposed."""
    title = f"collectives of {_passes(phase)}"
    rows = column_table("collective", "runs", "time", "exposed", title=title)
    for collective in listed:
        rows.add_row(
            _row_name(collective, phase),
            f"{collective.count:,.4g}",
            units.show(collective.time, "s"),
            units.show(collective.exposed, "s"),
        )
    return rows


def _passes(phase: str) -> str:
    """The step or the pass to which the rows of a listing belong, in words."""
    return {"training": "a step", "generate": "the prefill and of one decode pass"}.get(phase, "the pass")


def _row_name(row: Operator | CollectiveTime, phase: str) -> str:
    """The name of a row; a generation says which of its passes the row belongs to."""
    return f"{row.pass_name}: {row.name}" if phase == "generate" else row.name
