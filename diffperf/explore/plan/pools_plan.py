"""A plan for disaggregated serving, and its layouts ranked together with those of aggregated serving."""

import dataclasses
from collections.abc import Callable
from typing import cast

import numpy as np
from jaxtyping import Float

from diffperf.errors import ARGUMENTS
from diffperf.estimate.serving.disaggregated import DisaggregatedReport
from diffperf.explore.plan.blocks import count, take
from diffperf.explore.plan.pools_layouts import EvaluatedPools, pool_devices
from diffperf.explore.plan.pools_search import PoolsSearch
from diffperf.explore.plan.ranking import report_at
from diffperf.explore.plan.serving_layouts import attention_ranks, serving_strategy
from diffperf.explore.plan.serving_plan import (
    SERVING_OBJECTIVES,
    Front,
    PrefillWorkers,
    ServedLayout,
    ServingPlan,
    check_objective,
    front_of,
    objective,
    plan_serving,
)
from diffperf.explore.plan.serving_search import ServingSearch
from diffperf.quantity import replace
from diffperf.workload.strategy import Strategy

POOLS = ("aggregated", "disaggregated", "both")


def plan_with_pools(
    search: ServingSearch,
    by: str = "throughput",
    top: int = 10,
    progress: Callable[[int], None] = lambda points: None,
    file: str = ARGUMENTS,
    pools: str = "both",
) -> ServingPlan:
    """The best `top` layouts by an objective (a name from `SERVING_OBJECTIVES`): of devices that all prefill
    and decode ("aggregated"), of two pools ("disaggregated"), or of either kind (`pools`, a name from
    `POOLS`). Where the best are all of one kind, the best of the other takes the last place.

    **Raises:** `ConfigError` that names `file` for an unknown objective, or where no layout is possible.
    """
    if pools == "aggregated":
        return plan_serving(search, by, top, progress, file)
    if pools == "disaggregated":
        return plan_pools(search, by, top, progress, file)
    together = plan_serving(search, by, top, progress, file)
    separate = plan_pools(search, by, top, progress, file)
    merged = _ranked([*together.best, *separate.best], by)
    missing = _best_of_missing_kind(merged, top) if top > 1 else []
    merged = [*merged[: top - len(missing)], *missing]
    fronts = together.front, separate.front
    front = Front(
        interactivity=np.concatenate([each.interactivity for each in fronts]),
        throughput=np.concatenate([each.throughput for each in fronts]),
        met=np.concatenate([each.met for each in fronts]),
    )
    nearest = None if merged else together.nearest
    return dataclasses.replace(
        together, best=tuple(merged), nearest=nearest, front=front, pairs=separate.pairs
    )


def _best_of_missing_kind(ranked: list[ServedLayout], top: int) -> list[ServedLayout]:
    """The best layout with two pools, or without, where none of its kind is among the first `top`."""
    shown = {layout.prefill is None for layout in ranked[:top]}
    return [layout for layout in ranked[top:] if (layout.prefill is None) not in shown][:1]


def plan_pools(
    search: ServingSearch,
    by: str = "throughput",
    top: int = 10,
    progress: Callable[[int], None] = lambda points: None,
    file: str = ARGUMENTS,
) -> ServingPlan:
    """The best `top` pairs of pools by an objective, each pair of layouts with its best split of devices."""
    check_objective(by, file)
    pools = PoolsSearch.of(search)
    alone, fitting = pools.alone() if count(pools.workers) else (None, 0)
    nothing = Front(interactivity=np.zeros(0), throughput=np.zeros(0), met=np.zeros(0, bool))
    pairs = {"searched": count(pools.workers) ** 2, "fitting": fitting**2}
    pairs |= dict.fromkeys(("able", "evaluated", "meeting"), 0)
    if alone is None:
        return ServingPlan(by=by, best=(), front=nothing, pairs=pairs)
    pairs["able"] = int((alone.prefill.max(axis=1) > 0).sum() * (alone.decode > 0).sum())
    splits = pools.splits(alone)
    pairs["evaluated"] = count(splits)
    if not count(splits):
        return ServingPlan(by=by, best=(), front=nothing, pairs=pairs)
    points = pools.under_load(splits, progress)
    front = front_of(search, points)
    points = take(points, np.flatnonzero(points.fits & search.targets.met(points.reports) & _serves(points)))
    values = _rank_values(pools, points, by)
    chosen = take(points, pools.best_of_splits(points, values))
    pairs["meeting"] = count(chosen.points)
    order = np.argsort(-_rank_values(pools, chosen, by), kind="stable")[:top]
    chosen = take(chosen, order)
    limits = pools.limits(chosen) if len(order) else []
    served = [_served(pools, chosen, index, limit) for index, limit in enumerate(limits)]
    return ServingPlan(by=by, best=tuple(_ranked(served, by)), front=front, pairs=pairs)


def _serves(points: EvaluatedPools) -> np.ndarray:
    """Whether neither pool is beyond its capacity."""
    return np.asarray(points.reports.saturation) <= 1


def _rank_values(pools: PoolsSearch, points: EvaluatedPools, by: str) -> Float[np.ndarray, " points"]:
    """The objective of every point, the larger the better; of equal ones those with fewer devices."""
    devices = pool_devices(pools.workers, points.points)
    return objective(points.reports, by) - 1e-12 * devices


def _ranked(served: list[ServedLayout], by: str) -> list[ServedLayout]:
    """Layouts from the best to the worst, each with by how much it is worse than the first."""
    path, more_is_better = SERVING_OBJECTIVES[by]
    sign = 1.0 if more_is_better else -1.0

    def value(layout: ServedLayout) -> float:
        return sign * float(getattr(layout.report, path))

    order = sorted(served, key=lambda layout: (-value(layout), layout.devices))
    best = value(order[0]) if order else 0.0
    return [dataclasses.replace(layout, worse=(best - value(layout)) / abs(best)) for layout in order]


def _served(pools: PoolsSearch, points: EvaluatedPools, index: int, limit: str) -> ServedLayout:
    """The layout of a point."""
    search, point = pools.search, take(points.points, index)
    report = cast(DisaggregatedReport, report_at(points.pools, index))
    ranks = attention_ranks(pools.workers)
    prefill = PrefillWorkers(
        strategy=_strategy(pools, int(point.prefill), float(point.prefill_workers)),
        engines=float(ranks[point.prefill]),
        report=report,
    )
    strategy = _strategy(pools, int(point.decode), float(point.decode_workers))
    load = float(point.load)
    cap = float(point.cap)
    if not search.of_rate:
        # A closed loop needs no more slots than clients.
        cap = min(cap, float(np.ceil(load / float(strategy.dp))))
    limits = {"chunk": float(point.chunk), "batch_cap": max(cap, 1.0)}
    return ServedLayout(
        strategy=strategy,
        requests=replace(search.requests, limits | {"rate" if search.of_rate else "concurrency": load}),
        report=replace(report.serving, {"slots": min(float(report.serving.slots), limits["batch_cap"])}),
        engines=float(ranks[point.decode]),
        limit=limit,
        prefill=prefill,
    )


def _strategy(pools: PoolsSearch, layout: int, workers: float) -> Strategy:
    """The strategy of so many workers of a layout."""
    fields = take(pools.workers, layout)
    strategy = dataclasses.replace(pools.search.inputs.strategy, **fields)
    return serving_strategy(replace(strategy, {"dp": float(strategy.dp) * workers}))
