"""Lines about what a user gives for a layout and what changes nothing there, or only costs time."""

from collections.abc import Iterator

from diffperf.api.question import Question
from diffperf.report.tables import as_dict
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

_OF_EXPERTS = (
    "capacity_factor",
    "expert_imbalance",
    "expert_popularity_spread",
    "overlap_experts",
    "expert_precision",
    "expert_weight_precision",
    "dispatch_precision",
    "combine_precision",
    "recompute_experts",
    "early_routing_weights",
)


def describe_idle_settings(question: Question, strategy: Strategy) -> list[str]:
    """A line of the fields of a strategy that are given other values than their defaults and have no effect,
    each with the reason, and one about drafted tokens of which none is accepted; none where there are none.
    """
    values, usual = as_dict(strategy), as_dict(Strategy())
    listed = [
        f"{', '.join(name.replace('_', ' ') for name in idle)} ({reason})"
        for names, reason in _reasons(question.model, strategy)
        if (idle := [name for name in names if name in question.table and values[name] != usual[name]])
    ]
    lines = [f"[bold yellow]Without effect[/bold yellow]: {'; '.join(listed)}"] if listed else []
    if float(strategy.draft_tokens) > 0 and float(strategy.tokens_per_step) == 1:
        lines.append(
            "[bold yellow]No drafted token is accepted[/bold yellow]: drafts only cost time until tokens per "
            "step says how many tokens a step adds"
        )
    return lines


def _reasons(model: Model, strategy: Strategy) -> Iterator[tuple[tuple[str, ...], str]]:
    """Fields of a strategy that have no effect with this model or beside its other fields, and why."""
    if all(layers.mixture is None for layers in model.layers):
        yield _OF_EXPERTS, f"{model.name} has no experts"
    if all(layers.latent is None for layers in model.layers):
        yield ("recompute_up_projections",), f"{model.name} has no latent attention"
    if strategy.recompute.likeliest() == "none":
        yield ("recompute_share",), "recompute is none"
    if float(strategy.draft_tokens) == 0:
        yield ("draft_share",), "no tokens are drafted"
    if strategy.zero.likeliest() == "0":
        yield ("zero_ranks",), "zero is 0"
