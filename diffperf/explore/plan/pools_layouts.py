"""Pools of workers for disaggregated serving, and the points at which they are evaluated."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Int

from diffperf.compiler import stored
from diffperf.estimate.serving.disaggregated import DisaggregatedReport, serve_disaggregated
from diffperf.estimate.serving.pools import Pool
from diffperf.estimate.serving.serving_report import ServingReport
from diffperf.explore.plan.blocks import evaluate_in_blocks, take
from diffperf.explore.plan.candidates import Candidates
from diffperf.explore.plan.serving_layouts import (
    Column,
    attention_ranks,
    concatenate,
    instance_devices,
    serving_strategy,
)
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests
from diffperf.workload.rules import broken
from diffperf.workload.strategy import Strategy


class PoolPoints(NamedTuple):
    """Pairs of pools under loads, one entry of every array for each point.

    - `prefill`, `decode`: the places of the layouts of either pool's workers in the list of layouts.
    - `prefill_workers`, `decode_workers`: their numbers.
    - `chunk`: most tokens of a pass that prefills; `cap`: most sequences of an engine that decodes.
    - `load`: the load of both pools together, in clients or in requests per second.
    """

    prefill: Int[np.ndarray, " points"]
    decode: Int[np.ndarray, " points"]
    prefill_workers: Column
    decode_workers: Column
    chunk: Column
    cap: Column
    load: Column


class EvaluatedPools(NamedTuple):
    """Points with their reports and the number of rules that each breaks; leaves have a leading axis."""

    points: PoolPoints
    pools: DisaggregatedReport
    broken: Int[np.ndarray, " points"]

    @property
    def reports(self) -> ServingReport:
        """The reports of both pools together."""
        return self.pools.serving

    @property
    def fits(self) -> Bool[np.ndarray, " points"]:
        """Whether each point breaks no rule and fits the memory of the devices of both pools."""
        excess = self.pools.serving.memory.excess, self.pools.prefill_memory.excess
        return (self.broken == 0) & np.all(np.stack(excess) <= 0, axis=0)


def as_workers(layouts: Candidates) -> Candidates:
    """The layouts with the data-parallel ranks of one worker: the smallest part that serves on its own."""
    return layouts | {"dp": np.asarray(attention_ranks(layouts), layouts["dp"].dtype)}


def pool_devices(workers: Candidates, points: PoolPoints) -> Column:
    """The devices of both pools of each point."""
    size = instance_devices(workers)
    return size[points.prefill] * points.prefill_workers + size[points.decode] * points.decode_workers


def evaluate_pools(
    inputs: Configuration, requests: Requests, workers: Candidates, points: PoolPoints
) -> EvaluatedPools:
    """The reports of all points, by one compiled program."""
    kind = np.asarray(requests.chunk).dtype
    columns = {
        "prefill_workers": points.prefill_workers,
        "decode_workers": points.decode_workers,
        "chunk": points.chunk,
        "batch_cap": points.cap,
        "rate": points.load,
        "concurrency": points.load,
    }
    fields = {name: np.asarray(column, kind) for name, column in columns.items()}
    pools = take(workers, points.prefill), take(workers, points.decode)
    results = [
        result
        for _, result in evaluate_in_blocks(
            lambda block: _evaluate_pools(inputs, requests, *block), (*pools, fields)
        )
    ]
    reports, rules_broken = concatenate(results)
    return EvaluatedPools(points=points, pools=reports, broken=rules_broken)


@stored()
def _evaluate_pools(
    inputs: Configuration,
    requests: Requests,
    prefill: dict[str, Any],
    decode: dict[str, Any],
    fields: dict[str, Any],
) -> tuple[DisaggregatedReport, Int[Array, " points"]]:
    """The reports of a block of points, and how many rules each breaks."""

    def evaluate_point(
        prefill: dict[str, Any], decode: dict[str, Any], fields: dict[str, Any]
    ) -> tuple[DisaggregatedReport, Int[Array, ""]]:
        prompts = Pool(_worker(inputs, prefill), fields["prefill_workers"])
        answers = Pool(_worker(inputs, decode), fields["decode_workers"])
        limits = {name: value for name, value in fields.items() if not name.endswith("_workers")}
        asked = dataclasses.replace(requests, **limits)
        report = serve_disaggregated(inputs.model, inputs.system, prompts, answers, asked, relax=inputs.relax)
        return report, _broken(inputs, prompts) + _broken(inputs, answers)

    return jax.vmap(evaluate_point)(prefill, decode, fields)


def _worker(inputs: Configuration, layout: dict[str, Any]) -> Strategy:
    """The strategy of a worker of a layout."""
    return serving_strategy(dataclasses.replace(inputs.strategy, **layout))


def _broken(inputs: Configuration, pool: Pool) -> Int[Array, ""]:
    """Number of rules that a worker of a pool breaks on the devices that it takes."""
    system = replace(inputs.system, {"n_devices": pool.strategy.devices})
    return broken(Configuration(inputs.model, system, pool.strategy, inputs.relax), "decode")
