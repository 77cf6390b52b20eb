"""The layouts of a serving system under targets for its latencies: the load that each of them bears."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from diffperf import units
from diffperf.errors import ARGUMENTS, counted
from diffperf.estimate.serving.serving_report import ServingReport
from diffperf.explore.plan.blocks import count, take
from diffperf.explore.plan.candidates import Candidates
from diffperf.explore.plan.serving_layouts import (
    Evaluated,
    Points,
    attention_ranks,
    concatenate,
    enumerate_layouts,
    evaluate_points,
    instance_devices,
    serving_strategy,
)
from diffperf.hardware.system import System
from diffperf.load import load_strategy, refuse_training_fields
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import Strategy

PERCENTILES = ("mean", "90")

# What is searched of the limits of an engine, where the user does not give them. The defaults of serving
# software lie between 2,048 and 8,192 tokens a step, and at up to 1,024 sequences.
CHUNKS = (512.0, 2048.0, 8192.0)
CAPS = (16.0, 64.0, 256.0, 1024.0)

LOADS = 16  # loads at which an engine is first evaluated
_FINE_LOADS = 12  # loads between the largest of these that meets the targets, and the next
LIGHTEST_RATE = 1e-3  # requests per second of an engine at which nothing waits
# Relative increase of the load that shows which target fails first: more than a step of the fine loads.
MORE_LOAD = 0.05
_ROUNDING = 1e-6
_AT_CAPACITY = 1e-3  # a utilization that is so close to `MOST_UTILIZED` is limited by capacity
MOST_UTILIZED = 0.98  # load over capacity: above, waits grow without bound


@dataclasses.dataclass(frozen=True)
class Targets:
    """The latencies that a serving system must keep.

    - `first_token`, `per_token`: seconds to the first token, and per output token after it; infinite without
      a target.
    - `percentile`: what is held against the targets, the "mean" or the "90"th percentile of requests.
    """

    first_token: float = math.inf
    per_token: float = math.inf
    percentile: str = "mean"

    def latencies(self, reports: ServingReport) -> tuple[np.ndarray, np.ndarray]:
        """The seconds to the first token and per token of reports, by the percentile of the targets."""
        suffix = "" if self.percentile == "mean" else f"_p{self.percentile}"
        names = ("time_to_first_token", "time_per_output_token")
        first_token, per_token = (np.asarray(getattr(reports, name + suffix)) for name in names)
        return first_token, per_token

    def ratios(self, reports: ServingReport) -> Float[np.ndarray, "2 *points"]:
        """The latencies of reports over their targets: the first token's, and those of the tokens after."""
        first_token, per_token = self.latencies(reports)
        return np.stack([first_token / self.first_token, per_token / self.per_token])

    def met(self, reports: ServingReport) -> Bool[np.ndarray, "*points"]:
        """Whether each report meets both targets."""
        return np.asarray(np.all(self.ratios(reports) <= 1, axis=0))


@dataclasses.dataclass(frozen=True)
class ServingSearch:
    """All layouts to choose from, the requests that they serve, and the targets that they must meet.

    - `inputs`: model, system, and a strategy with the given fields.
    - `table`: the fields of the strategy that are given.
    - `requests`: lengths and limits; of a given load, also its kind and size.
    - `load`: clients or requests per second of the whole system, where they are given; then the number of
      replicas follows. Else all devices of the system serve as much as the targets allow.
    - `most_devices`: devices that a given load may take at most.
    - `chunks`, `caps`: limits of an engine to choose from.
    """

    inputs: Configuration
    table: dict[str, Any]
    requests: Requests
    targets: Targets
    load: float | None
    most_devices: float
    chunks: tuple[float, ...]
    caps: tuple[float, ...]
    layouts: Candidates

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: dict[str, Any],
        requests: Requests,
        given: dict[str, Any],
        targets: Targets,
        most_devices: float = math.inf,
        file: str = ARGUMENTS,
    ) -> "ServingSearch":
        """The layouts of a system's devices.

        - `given`: the fields of `requests` that are given; `rate` or `concurrency` among them is a load to
          be served, `chunk` and `batch_cap` are not searched then.

        **Raises:** `ConfigError` that names `file` for a bad value in the table of the strategy, and for a
        field of training.
        """
        refuse_training_fields(table, "serving", file)
        lengths = {"sequence_length": requests.input_length, "output_length": requests.output_length}
        strategy = replace(serving_strategy(load_strategy(table, file)), lengths)
        inputs = Configuration(model, system, strategy)
        of_rate = "rate" in given
        load = next(
            (float(getattr(requests, name)) for name in ("rate", "concurrency") if name in given), None
        )
        cap = float(requests.batch_cap) if "batch_cap" in given else None
        return cls(
            inputs=inputs,
            table=table,
            requests=replace(requests, {"load": "rate" if of_rate else "concurrency"}),
            targets=targets,
            load=load,
            most_devices=most_devices,
            chunks=(float(requests.chunk),) if "chunk" in given else CHUNKS,
            # In a closed loop an engine has as many sequences as clients at most, which are searched.
            caps=(cap,) if cap else CAPS if of_rate else CAPS[-1:],
            layouts=enumerate_layouts(inputs, table),
        )

    def __len__(self) -> int:
        return count(self.layouts)

    @property
    def of_rate(self) -> bool:
        """Whether the load is a rate of requests, rather than a number of clients."""
        return bool(self.requests.load.possible["rate"])

    @property
    def load_name(self) -> str:
        """Name of the quantity that the load counts: requests per second, or clients."""
        return "requests/s" if self.of_rate else "clients"

    def load_text(self, load: float) -> str:
        """A load with what it counts: "1 client", "2.5 requests/s"."""
        noun, _, second = self.load_name.partition("/")
        text = counted(load, noun.removesuffix("s"), units.plain(load))
        return f"{text}/{second}" if second else text

    def on(self, n_devices: float) -> "ServingSearch":
        """This search on another number of devices of the same kind."""
        inputs = dataclasses.replace(
            self.inputs, system=replace(self.inputs.system, {"n_devices": n_devices})
        )
        return dataclasses.replace(self, inputs=inputs, layouts=enumerate_layouts(inputs, self.table))

    def evaluate(self, points: Points, devices: np.ndarray | None = None) -> Evaluated:
        """The reports of points, on the system's devices or on as many as are given for each point."""
        return evaluate_points(self.inputs, self.requests, self.layouts, points, devices)

    def at_lightest_load(self) -> Evaluated:
        """Every layout under every limit of an engine, with a single client or next to no requests."""
        numbers = np.arange(len(self)), np.array(self.chunks), np.array(self.caps)
        layout, chunk, cap = (np.ravel(column) for column in np.meshgrid(*numbers, indexing="ij"))
        lightest = LIGHTEST_RATE if self.of_rate else 1.0
        return self.evaluate(Points(layout, chunk, cap, np.full(len(layout), lightest)))

    def loads_that_meet_targets(
        self, lightest: Evaluated, progress: Callable[[int], None] = lambda points: None
    ) -> Evaluated:
        """The engines of `lightest` under loads up to what their memory or their speed bears.

        A coarse grid of loads is followed by a fine one, between the last load that meets the targets and
        the next. `progress` is called with a number of points each time so many more are evaluated.
        """
        loads = self._coarse_loads(lightest)
        return largest_loads(lambda loads: self._under(lightest.points, loads), loads, self, progress)

    def _coarse_loads(self, lightest: Evaluated) -> Float[np.ndarray, "engines loads"]:
        """Loads of each engine up to its slots, or up to next to its capacity."""
        if self.of_rate:
            capacity = lightest.points.load / np.asarray(lightest.reports.saturation)
            utilizations = np.linspace(0, MOST_UTILIZED, LOADS)
            return np.maximum(capacity[:, None] * utilizations, lightest.points.load[:, None])
        slots = np.minimum(np.asarray(lightest.reports.slots), lightest.points.cap)
        return self.whole(np.geomspace(np.ones_like(slots), np.floor(slots), LOADS, axis=1))

    def within_capacity(self, reports: ServingReport) -> Bool[np.ndarray, " points"]:
        """Whether each report's load is not beyond its capacity or its slots."""
        return np.asarray(reports.saturation) <= 1 + _ROUNDING

    def whole(self, loads: np.ndarray) -> np.ndarray:
        """The loads themselves, or whole numbers of clients."""
        return loads if self.of_rate else np.round(loads)

    def _under(self, engines: Points, loads: Float[np.ndarray, "engines loads"]) -> Evaluated:
        """Engines under loads. A closed loop needs no more slots than clients."""
        points = take(engines, np.repeat(np.arange(len(loads)), loads.shape[1]))
        points = points._replace(load=np.ravel(loads))
        return self.evaluate(points if self.of_rate else points._replace(cap=points.load))

    def limits(self, best: Evaluated) -> list[str]:
        """The quantity that keeps each point from a larger load, such as "TTFT beyond 91 clients": the
        one that fails first at a load a little larger. Where none fails, a larger load gains nothing.
        """
        load = best.points.load
        larger_load = load * (1 + MORE_LOAD) if self.of_rate else np.ceil(load * (1 + MORE_LOAD))
        points = best.points._replace(load=larger_load)
        points = points if self.of_rate else points._replace(cap=larger_load)
        reports = self.evaluate(points).reports
        beyond = ~self.within_capacity(reports)
        late, slow = self.targets.ratios(reports)
        names = np.where(beyond, "capacity" if self.of_rate else "KV cache", "no gain")
        if not self.of_rate:
            names = np.where(load + 1 > max(self.caps), "batch cap", names)
        # Loads beyond the capacity wait for it: it delays their first tokens, and is what limits them. Of
        # rates that holds for those that come as close to it as any that are searched.
        waiting = best.reports.saturation >= MOST_UTILIZED - _AT_CAPACITY if self.of_rate else beyond
        names = np.where(slow > 1, "TPOT", names)
        names = np.where((late > 1) & (late >= slow) & ~np.asarray(waiting), "TTFT", names)
        return [
            f"{name} beyond {units.show(at, '', 4)} {self.load_name} an engine"
            for name, at in zip(names, load, strict=True)
        ]

    def sized(self, best: Evaluated) -> tuple[Evaluated, Float[np.ndarray, " points"]]:
        """Points with as many replicas as the given load takes, and the devices of each; without a load all
        devices of the system.
        """
        if self.load is None:
            return best, np.full(count(best.points), float(self.inputs.system.n_devices))
        strategies = take(self.layouts, best.points.layout)
        engines = attention_ranks(strategies)
        # A margin for rounding, so that a load that fills its replicas takes no further one.
        instances = np.maximum(np.ceil(self.load / (engines * best.points.load) - _ROUNDING), 1.0)
        devices = instances * instance_devices(strategies)
        points = best.points._replace(load=self.load / (engines * instances))
        if not self.of_rate:
            points = points._replace(cap=np.maximum(np.ceil(points.load), 1.0))
        return self.evaluate(points, devices), devices

    def requests_at(self, points: Points, devices: np.ndarray, index: int) -> Requests:
        """The requests of the whole system at a point, with the limits of its engines."""
        load = float(points.load[index]) * float(self.strategy_at(points, devices, index).dp)
        limits = {"chunk": float(points.chunk[index]), "batch_cap": float(points.cap[index])}
        return replace(self.requests, limits | {"rate" if self.of_rate else "concurrency": load})

    def strategy_at(self, points: Points, devices: np.ndarray, index: int) -> Strategy:
        """The strategy of a point, with the replicas that its devices make."""
        fields = take(self.layouts, int(points.layout[index]))
        strategy = dataclasses.replace(self.inputs.strategy, **fields)
        replicas = float(devices[index]) / float(strategy.tp * strategy.pp * strategy.cp)
        return serving_strategy(replace(strategy, {"dp": replicas}))


@runtime_checkable
class _HasReports(Protocol):
    """Points that were evaluated."""

    @property
    def reports(self) -> ServingReport: ...


Reported = TypeVar("Reported", bound=_HasReports)


def largest_loads(
    under: Callable[[np.ndarray], Reported],
    loads: Float[np.ndarray, "engines loads"],
    search: ServingSearch,
    progress: Callable[[int], None],
) -> Reported:
    """Engines under loads, followed by a finer grid between the last load that meets the targets without
    saturation and the next.

    - `under`: evaluates all engines, each under the loads of its row.
    """
    coarse = under(loads)
    progress(loads.size)
    met = (search.targets.met(coarse.reports) & search.within_capacity(coarse.reports)).reshape(loads.shape)
    last = np.max(np.where(met, np.arange(loads.shape[1]), 0), axis=1)
    rows = np.arange(len(loads))
    low, high = loads[rows, last], loads[rows, np.minimum(last + 1, loads.shape[1] - 1)]
    fine_loads = search.whole(np.geomspace(low, high, _FINE_LOADS, axis=1))
    fine = under(fine_loads)
    progress(fine_loads.size)
    return cast(Reported, concatenate([coarse, fine]))


def largest_of_each_engine(search: ServingSearch, points: Evaluated) -> Int[np.ndarray, " engines"]:
    """The index of the largest load within the capacity of every engine: a layout with its limits."""
    layout, chunk, cap, load = points.points
    # In a closed loop the cap follows from the load.
    engines = np.stack([layout, chunk, cap if search.of_rate else np.zeros_like(cap)], axis=1)
    groups = np.unique(engines, axis=0, return_inverse=True)[1].ravel()
    return best_of_each(groups, np.where(search.within_capacity(points.reports), load, -np.inf))


def best_of_each(
    groups: Int[np.ndarray, " points"], values: Float[np.ndarray, " points"]
) -> Int[np.ndarray, " groups"]:
    """The index of the largest value of every group, the first of several; groups in ascending order."""
    order = np.lexsort((np.arange(len(values)), -values, groups))
    return order[np.unique(groups[order], return_index=True)[1]]
