"""The layouts of a serving system, and the points at which they are evaluated: a layout under a load."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from diffperf.compiler import stored
from diffperf.estimate.serving.serving_report import ServingReport, serve
from diffperf.explore.plan.blocks import count, evaluate_in_blocks, take
from diffperf.explore.plan.candidates import LAYOUT, Candidates, enumerate_candidates
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests
from diffperf.workload.rules import broken
from diffperf.workload.strategy import Strategy

# The fields of a strategy that are searched for serving.
SERVING_FIELDS = LAYOUT

Column = Float[np.ndarray, " points"]


class Points(NamedTuple):
    """Layouts under loads, one entry of every array for each point.

    - `layout`: the place of the point's layout in the list of layouts.
    - `chunk`, `cap`: the limits of an engine (`chunk` and `batch_cap` of `Requests`).
    - `load`: the load of one engine, in clients or in requests per second.
    """

    layout: Int[np.ndarray, " points"]
    chunk: Column
    cap: Column
    load: Column


class Evaluated(NamedTuple):
    """Points with their reports and the number of rules that each breaks; leaves have a leading axis."""

    points: Points
    reports: ServingReport
    broken: Int[np.ndarray, " points"]

    @property
    def fits(self) -> Bool[np.ndarray, " points"]:
        """Whether each point breaks no rule and fits the memory of its devices."""
        return (self.broken == 0) & (np.asarray(self.reports.memory.excess) <= 0)


def enumerate_layouts(inputs: Configuration, given: Collection[str]) -> Candidates:
    """All strategies of the system's devices that engines can run, keeping the fields that are `given`.

    Serving software spreads the experts over at least the tensor-parallel group: it has no second copy of
    an expert within a group.
    """
    candidates = enumerate_candidates(inputs, given, SERVING_FIELDS)
    spread = _expert_ranks(candidates) % candidates["tp"] == 0
    return take(candidates, spread) if spread.any() else candidates


def attention_ranks(candidates: Candidates) -> np.ndarray:
    """The data-parallel ranks, each an engine with attention of its own, that share the experts between
    them; 1 where every engine has all experts."""
    return np.maximum(_expert_ranks(candidates) / candidates["tp"] / candidates["cp"], 1.0)


def instance_devices(candidates: Candidates) -> np.ndarray:
    """The devices of the smallest part that serves on its own: all engines that share experts."""
    return candidates["tp"] * candidates["pp"] * candidates["cp"] * attention_ranks(candidates)


def _expert_ranks(candidates: Candidates) -> np.ndarray:
    """The devices over which the experts of a layer are spread."""
    expert_tp = np.where(candidates["expert_tp"] > 0, candidates["expert_tp"], candidates["tp"])
    return expert_tp * candidates["ep"]


def evaluate_points(
    inputs: Configuration,
    requests: Requests,
    layouts: Candidates,
    points: Points,
    devices: Column | None = None,
) -> Evaluated:
    """The reports of all points, by one compiled program.

    - `devices`: the devices of each point where the number of replicas is not that of its layout.
    """
    strategies = take(layouts, points.layout)
    size = strategies["tp"] * strategies["pp"] * strategies["cp"]
    if devices is None:
        devices = np.full(count(points), float(inputs.system.n_devices))
    else:
        strategies = strategies | {"dp": devices / size}
    kind = np.asarray(requests.chunk).dtype
    load = points.load * strategies["dp"]
    columns = {
        "devices": devices,
        "chunk": points.chunk,
        "batch_cap": points.cap,
        "rate": load,
        "concurrency": load,
    }
    fields = {name: np.asarray(column, kind) for name, column in columns.items()}
    strategies["dp"] = np.asarray(strategies["dp"], kind)
    results = [
        result
        for _, result in evaluate_in_blocks(
            lambda block: _evaluate(inputs, requests, *block), (strategies, fields)
        )
    ]
    reports, rules_broken = concatenate(results)
    return Evaluated(points=points, reports=reports, broken=rules_broken)


def concatenate(parts: Sequence[Any]) -> Any:
    """Trees of one structure, joined along the leading axis of every leaf."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


@stored()
def _evaluate(
    inputs: Configuration, requests: Requests, strategies: dict[str, Any], fields: dict[str, Any]
) -> tuple[ServingReport, Int[Array, " points"]]:
    """The reports of a block of points, and how many rules each breaks."""

    def evaluate_point(
        strategy_fields: dict[str, Any], fields: dict[str, Any]
    ) -> tuple[ServingReport, Int[Array, ""]]:
        strategy = serving_strategy(dataclasses.replace(inputs.strategy, **strategy_fields))
        system = replace(inputs.system, {"n_devices": fields["devices"]})
        limits = {name: value for name, value in fields.items() if name != "devices"}
        configuration = Configuration(inputs.model, system, strategy, inputs.relax)
        report = serve(inputs.model, system, strategy, dataclasses.replace(requests, **limits), inputs.relax)
        return report, broken(configuration, "decode")

    return jax.vmap(evaluate_point)(strategies, fields)


def serving_strategy(strategy: Strategy) -> Strategy:
    """The strategy with a sequence for every replica, as the rules want it; `serve` uses no batch."""
    return replace(strategy, {"global_batch": strategy.dp})
