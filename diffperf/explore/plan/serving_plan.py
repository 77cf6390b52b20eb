"""A plan for serving: the layouts that meet targets, ranked, and why the other layouts lose."""

import dataclasses
from collections.abc import Callable
from typing import cast

import jax
import numpy as np
from jaxtyping import Bool, Float

from diffperf import units
from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.estimate.serving.disaggregated import DisaggregatedReport
from diffperf.estimate.serving.serving_report import ServingReport
from diffperf.explore.plan.blocks import count, take
from diffperf.explore.plan.pools_layouts import EvaluatedPools
from diffperf.explore.plan.ranking import report_at
from diffperf.explore.plan.serving_layouts import Evaluated, attention_ranks
from diffperf.explore.plan.serving_search import ServingSearch, best_of_each, largest_of_each_engine
from diffperf.load import check
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import Strategy

# The objectives that layouts may be ranked by: an output of the report, and whether more of it is better.
SERVING_OBJECTIVES = {
    "throughput": ("tokens_per_second_per_device", True),
    "cost": ("cost_per_million_tokens", False),
    "energy": ("tokens_per_joule", True),
}

_SAME_VALUE = 5e-4  # relative: a smaller difference between two layouts is shown as none
# A layout that is better by less than this share is not worth further devices: the error of the objective is
# much larger.
_WORTH_DEVICES = 0.03


@dataclasses.dataclass(frozen=True)
class PrefillWorkers:
    """The pool that prefills, where another decodes.

    - `strategy`: the layout, with all workers as data-parallel ranks; `engines`: engines of a worker.
    - `report`: the steady state of both pools.
    """

    strategy: Strategy
    engines: float
    report: DisaggregatedReport

    @property
    def instances(self) -> float:
        """Workers of the pool."""
        return float(self.strategy.dp) / self.engines


@dataclasses.dataclass(frozen=True)
class ServedLayout:
    """A layout under the load that it is chosen for.

    - `strategy`: the layout; of the workers that decode, where others prefill.
    - `engines`: engines of an instance, the smallest part that serves on its own: above 1 where engines with
      attention of their own share experts.
    - `limit`: what keeps an engine from bearing a larger load, and the load that it bears, in words.
    - `worse`: by how much its objective is worse than that of the best layout, as a share of the latter.
    - `prefill`: the workers that prefill; None where all devices both prefill and decode.
    """

    strategy: Strategy
    requests: Requests
    report: ServingReport
    engines: float
    limit: str
    worse: float = 0.0
    prefill: PrefillWorkers | None = None

    @property
    def instances(self) -> float:
        """Copies of the smallest part that serves on its own."""
        return float(self.strategy.dp) / self.engines

    @property
    def devices(self) -> float:
        """Devices of all copies, of both pools."""
        others = 0.0 if self.prefill is None else float(self.prefill.strategy.devices)
        return float(self.strategy.devices) + others

    @property
    def load_per_engine(self) -> float:
        """Clients or requests per second of an engine."""
        requests = self.requests
        load = requests.rate if requests.load.possible["rate"] else requests.concurrency
        return float(load / self.strategy.dp)

    @property
    def name(self) -> str:
        """The layout in a few words, such as "tp 2 · pp 2 · ep 8 · attention dp 4", of workers that prefill
        before those that decode: "tp 1 → tp 2".
        """
        own = layout_name(self.strategy, self.engines)
        if self.prefill is None:
            return own
        return f"{layout_name(self.prefill.strategy, self.prefill.engines)} → {own}"

    @property
    def copies(self) -> str:
        """The number of copies, of workers that prefill before those that decode: "3 → 2"."""
        own = units.plain(self.instances)
        return own if self.prefill is None else f"{units.plain(self.prefill.instances)} → {own}"


def layout_name(strategy: Strategy, engines: float) -> str:
    """The layout of an instance with so many engines in a few words."""
    degrees = {name: float(getattr(strategy, name)) for name in ("tp", "pp", "cp", "ep")}
    shown = [
        f"{name} {units.plain(degree)}" for name, degree in degrees.items() if name == "tp" or degree > 1
    ]
    if strategy.ep > 1 and strategy.expert_tp > 1:
        shown.append(f"expert tp {units.plain(strategy.expert_tp)}")
    shown += [f"attention dp {units.plain(engines)}"] if engines > 1 else []
    return " · ".join(shown)


@dataclasses.dataclass(frozen=True)
class Front:
    """All points of a search that fit memory, as a figure shows them.

    - `interactivity`: tokens per second that a user gets, 1 / time per output token.
    - `throughput`: output tokens per second and device.
    - `met`: whether the targets are met.
    """

    interactivity: Float[np.ndarray, " points"]
    throughput: Float[np.ndarray, " points"]
    met: Bool[np.ndarray, " points"]

    @property
    def best(self) -> np.ndarray:
        """The indices of points that no other point exceeds in both, by rising interactivity."""
        order = np.lexsort((-self.throughput, -self.interactivity))
        highest = np.maximum.accumulate(np.concatenate([[-np.inf], self.throughput[order][:-1]]))
        return order[self.throughput[order] > highest][::-1]


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """The best layouts, the best first.

    - `by`: the objective that ranks them, a name from `SERVING_OBJECTIVES`.
    - `best`: those that meet the targets and serve the load, as many as were asked for.
    - `nearest`: where no layout does, the one that comes nearest: to fitting memory, to the targets, or to
      the devices, with the devices that it takes to serve the load.
    - `counts`: how many layouts there are, and how many are left after each condition, the strictest last:
      "searched", "possible", "fitting", "meeting" the targets, "serving" the load.
    - `missed`: the layout that comes nearest of those that fail at a condition, by the condition; at
      "serving" it is on the devices that there are.
    - `front`: the points of the figure.
    - `pairs`: where pools of workers are compared, how many pairs of layouts there are ("searched"), are left
      ("able", "meeting", "serving"), and how many splits of devices were "evaluated".
    """

    by: str
    best: tuple[ServedLayout, ...]
    front: Front
    nearest: ServedLayout | None = None
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    missed: dict[str, ServedLayout] = dataclasses.field(default_factory=dict)
    pairs: dict[str, int] = dataclasses.field(default_factory=dict)


def plan_serving(
    search: ServingSearch,
    by: str = "throughput",
    top: int = 10,
    progress: Callable[[int], None] = lambda points: None,
    file: str = ARGUMENTS,
) -> ServingPlan:
    """The best `top` layouts by an objective (a name from `SERVING_OBJECTIVES`).

    **Raises:** `ConfigError` that names `file` for an unknown objective, or where no layout is possible.
    """
    check_objective(by, file)
    lightest = search.at_lightest_load()
    _check_possible(search, lightest, file)
    met = lightest.fits & search.targets.met(lightest.reports)
    conditions = {"possible": lightest.broken == 0, "fitting": lightest.fits, "meeting": met}
    counts = {"searched": len(search)} | {
        name: len(np.unique(lightest.points.layout[which])) for name, which in conditions.items()
    }
    missed = _missed(search, lightest, conditions)
    if not met.any():
        nearest = missed["meeting" if counts["fitting"] else "fitting"]
        return ServingPlan(
            by=by,
            best=(),
            nearest=nearest,
            counts=counts | {"serving": 0},
            missed=missed,
            front=front_of(search, lightest),
        )
    points = search.loads_that_meet_targets(take(lightest, lightest.fits), progress)
    front = front_of(search, points)
    points = take(points, search.targets.met(points.reports))
    chosen = take(points, best_of_each(points.points.layout, objective(points.reports, by)))
    ranked, serving = _rank(search, points, chosen, by, top)
    counts = counts | {"serving": serving}
    if serving:
        return ServingPlan(by=by, best=ranked[:serving], counts=counts, missed=missed, front=front)
    # The layouts of a search have the same devices, so that those with the largest loads serve most.
    within = take(points, search.within_capacity(points.reports))
    most = int(np.argmax(within.points.load * take(search.layouts, within.points.layout)["dp"]))
    missed = missed | {"serving": _served(search, within, _all_devices(search, within), most)}
    return ServingPlan(by=by, best=(), nearest=ranked[0], counts=counts, missed=missed, front=front)


def check_objective(by: str, file: str) -> None:
    """Raises `ConfigError` that names `file` for an unknown objective."""
    if by not in SERVING_OBJECTIVES:
        expected, hint = (
            "one of " + ", ".join(SERVING_OBJECTIVES),
            did_you_mean(by, tuple(SERVING_OBJECTIVES)),
        )
        raise ConfigError(file, "--by", f'"{by}"', expected, hint)


def _rank(
    search: ServingSearch, points: Evaluated, chosen: Evaluated, by: str, top: int
) -> tuple[tuple[ServedLayout, ...], int]:
    """The best `top` layouts, each under its chosen load or with the replicas that the given load takes; and
    how many of all serve the load on the devices there are. Where none does, the one with fewest devices is
    the first.

    - `points`: all that meet the targets; `chosen`: the best of each layout.
    """
    busiest, sized, devices = _sized(search, points, chosen, by)
    values, limits = objective(sized.reports, by), search.limits(busiest)
    serving = devices <= search.most_devices
    # lexsort orders by its last key first. Of layouts as good, those with fewer devices and parts are better.
    missing = np.where(serving, 0.0, devices)
    order = np.lexsort((np.asarray(sized.reports.memory.peak), devices, -values, missing))[:top]
    best = values[order[0]]
    ranked = tuple(
        _served(
            search,
            points=sized,
            devices=devices,
            index=int(index),
            limit=limits[index],
            worse=float((best - values[index]) / abs(best)),
        )
        for index in order
    )
    return ranked, int(serving.sum())


def _sized(
    search: ServingSearch, points: Evaluated, chosen: Evaluated, by: str
) -> tuple[Evaluated, Evaluated, np.ndarray]:
    """The points that decide how many replicas a given load takes, one of each layout; the same layouts with
    so many replicas; and the devices of each.

    An engine is at its best under its chosen load. It may bear a much larger one at nearly the same
    throughput, so that fewer devices serve the given load: they do where those for the chosen load are more
    than there are, or no better by `_WORTH_DEVICES`.
    """
    sized, devices = search.sized(chosen)
    if search.load is None:
        return chosen, sized, devices
    # The largest load of every engine. Under their share of the given load, of the engines of a layout that
    # are as good those with the fewest devices, and of these the one with the earliest first token.
    largest = take(points, largest_of_each_engine(search, points))
    fuller, fewer = search.sized(largest)
    serves = search.targets.met(fuller.reports) & search.within_capacity(fuller.reports)
    values, layouts = objective(fuller.reports, by), largest.points.layout
    within_reach = np.where(serves, values, -np.inf)
    highest = within_reach[best_of_each(layouts, within_reach)][np.unique(layouts, return_inverse=True)[1]]
    worth_it = serves & (values >= highest - _WORTH_DEVICES * np.abs(values))
    order = np.lexsort((search.targets.latencies(fuller.reports)[0], fewer, ~worth_it, layouts))
    best = order[np.unique(layouts[order], return_index=True)[1]]
    largest, fuller, fewer, serves = take((largest, fuller, fewer, serves), best)
    usual = objective(sized.reports, by)
    as_good = values[best] >= usual - _WORTH_DEVICES * np.abs(usual)
    use = serves & (fewer < devices) & (as_good | (devices > search.most_devices))

    def of_either(fuller: np.ndarray, usual: np.ndarray) -> np.ndarray:
        return np.where(np.reshape(use, (-1,) + (1,) * (np.ndim(usual) - 1)), fuller, usual)

    merged = jax.tree.map(of_either, (largest, fuller, fewer), (chosen, sized, devices))
    return cast(tuple[Evaluated, Evaluated, np.ndarray], merged)


def objective(reports: ServingReport, by: str) -> Float[np.ndarray, " points"]:
    """An objective of every report, the larger the better."""
    path, more_is_better = SERVING_OBJECTIVES[by]
    values = np.asarray(getattr(reports, path))
    return values if more_is_better else -values


def _check_possible(search: ServingSearch, lightest: Evaluated, file: str) -> None:
    """Raises `ConfigError` with the first rule that the likeliest layout breaks, where all break some."""
    if lightest.broken.all():
        inputs, likeliest = search.inputs, int(np.argmin(lightest.broken))
        fields = take(search.layouts, int(lightest.points.layout[likeliest]))
        strategy = dataclasses.replace(inputs.strategy, **fields)
        check(inputs.model, inputs.system, strategy, "decode", file)


def _missed(
    search: ServingSearch, lightest: Evaluated, conditions: dict[str, np.ndarray]
) -> dict[str, ServedLayout]:
    """The layout that comes nearest of those that fail to fit memory, and of those that miss the targets."""
    excess = np.asarray(lightest.reports.memory.excess)
    over_targets = np.max(search.targets.ratios(lightest.reports), axis=0)
    nearest = {}
    for before, name, distance in (("possible", "fitting", excess), ("fitting", "meeting", over_targets)):
        layout = lightest.points.layout
        passed = np.isin(layout, layout[conditions[name]])
        failed = np.flatnonzero(conditions[before] & ~passed)
        if len(failed):
            index = int(failed[np.argmin(distance[failed])])
            nearest[name] = _served(search, lightest, _all_devices(search, lightest), index)
    return nearest


def _all_devices(search: ServingSearch, evaluated: Evaluated) -> np.ndarray:
    return np.full(count(evaluated.points), float(search.inputs.system.n_devices))


def _served(
    search: ServingSearch,
    points: Evaluated,
    devices: np.ndarray,
    index: int,
    limit: str = "",
    worse: float = 0.0,
) -> ServedLayout:
    """The layout of a point, on its devices."""
    fields = take(search.layouts, points.points.layout[index : index + 1])
    return ServedLayout(
        strategy=search.strategy_at(points.points, devices, index),
        requests=search.requests_at(points.points, devices, index),
        report=cast(ServingReport, report_at(points.reports, index)),
        engines=float(attention_ranks(fields)[0]),
        limit=limit,
        worse=worse,
    )


def front_of(search: ServingSearch, points: Evaluated | EvaluatedPools) -> Front:
    """The points of the figure."""
    _, per_token = search.targets.latencies(points.reports)
    return Front(
        interactivity=1 / per_token,
        throughput=np.asarray(points.reports.tokens_per_second_per_device),
        met=points.fits & search.targets.met(points.reports),
    )


def same_value(worse: float) -> bool:
    """Whether a layout is as good as the best one, as far as a table shows."""
    return worse < _SAME_VALUE
