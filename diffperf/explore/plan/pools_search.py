"""Disaggregated serving under targets: which workers prefill, which decode, and how many of either."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from diffperf import units
from diffperf.explore.plan.blocks import count, take
from diffperf.explore.plan.candidates import Candidates
from diffperf.explore.plan.pools_layouts import (
    EvaluatedPools,
    PoolPoints,
    as_workers,
    evaluate_pools,
    pool_devices,
)
from diffperf.explore.plan.serving_layouts import Column, attention_ranks, instance_devices
from diffperf.explore.plan.serving_search import (
    LIGHTEST_RATE,
    LOADS,
    MORE_LOAD,
    MOST_UTILIZED,
    ServingSearch,
    best_of_each,
    largest_loads,
)
from diffperf.quantity import replace

# Decode steps in the time to a first token: the request's own first step, and half of the step that runs when
# the request arrives, in the mean.
_DECODE_STEPS = 1.5

# Pairs of layouts are evaluated for this many splits of the devices each, and so many splits in all, those
# with the largest bounds on the throughput per device first.
_SPLITS_OF_PAIR = 3
_SPLITS = 256
# So many workers prefill as fast as anybody asks.
_ABUNDANT = 1e4
_BATCHES = 10  # batches at which an engine that decodes is evaluated alone
# Where a load is given: workers beyond the fewest that could serve it.
_SPARE_PREFILL, _SPARE_DECODE = (0.0, 1.0, 2.0, 4.0), (-1.0, 0.0, 1.0)


class _Alone(NamedTuple):
    """Requests per second of a worker in either pool, by the workers' layouts and, for prefill, by the limit
    `chunk`.

    - `prefill`: requests per second that it prefills; 0 where its memory or the target for the first token
      forbids it.
    - `decode`: requests per second that it decodes at the largest batch within the target for the time per
      token; `clients`: those of its engines together. 0 where its memory or the target forbids it.
    """

    prefill: Float[np.ndarray, "layouts chunks"]
    decode: Float[np.ndarray, " layouts"]
    clients: Float[np.ndarray, " layouts"]


@dataclasses.dataclass(frozen=True)
class PoolsSearch:
    """All pairs of layouts for the workers of two pools, for the requests and the targets of a search of
    aggregated layouts.

    - `workers`: the layouts of a worker.
    """

    search: ServingSearch
    workers: Candidates

    @classmethod
    def of(cls, search: ServingSearch) -> "PoolsSearch":
        """The pairs of all layouts of the search; none where it gives the number of replicas."""
        workers = as_workers(search.layouts)
        return cls(search, take(workers, slice(0, 0)) if "dp" in search.table else workers)

    def evaluate(self, points: PoolPoints) -> EvaluatedPools:
        """The reports of points under the kind of load of the search."""
        return evaluate_pools(self.search.inputs, self.search.requests, self.workers, points)

    def alone(self) -> tuple[_Alone, int]:
        """Requests per second of workers of each layout by themselves, and the number of layouts that fit
        memory.

        Both pools have workers of one layout, those that prefill more than enough of them, and the clients
        of a closed loop from one to as many as the decoding engines have room for.
        """
        search = self.search
        numbers = np.arange(count(self.workers)), np.arange(len(search.chunks)), np.arange(_BATCHES)
        layout, chunk, batch = (np.ravel(column) for column in np.meshgrid(*numbers, indexing="ij"))
        engines = attention_ranks(self.workers)[layout]
        most = search.caps[-1]
        clients = engines * np.geomspace(1.0, most, _BATCHES)[batch]
        ones = np.ones_like(clients)
        points = PoolPoints(
            prefill=layout,
            decode=layout,
            prefill_workers=_ABUNDANT * ones,
            decode_workers=ones,
            chunk=np.array(search.chunks)[chunk],
            cap=most * ones,
            load=clients,
        )
        closed = replace(search.requests, {"load": "concurrency"})
        found = evaluate_pools(search.inputs, closed, self.workers, points)
        shape = count(self.workers), len(search.chunks), _BATCHES
        first_token, per_token = (times.reshape(shape) for times in search.targets.latencies(found.reports))
        fits = found.fits.reshape(shape)
        saturation = np.asarray(found.reports.saturation).reshape(shape)
        rate = np.asarray(found.reports.requests_per_second).reshape(shape)
        before_decode = first_token[..., 0] - _DECODE_STEPS * per_token[..., 0]
        prefills = fits[..., 0] & (before_decode <= search.targets.first_token)
        capacity = np.asarray(found.pools.prefill_capacity).reshape(shape)[..., 0] / _ABUNDANT
        # Only the first chunk: decoding does not depend on it.
        decodes = (fits & (per_token <= search.targets.per_token) & (saturation <= 1))[:, 0]
        best = np.where(decodes, rate[:, 0], 0.0)
        batches = np.where(decodes, clients.reshape(shape)[:, 0], 0.0)
        alone = _Alone(np.where(prefills, capacity, 0.0), best.max(axis=1), batches.max(axis=1))
        return alone, int(fits[:, 0, 0].sum())

    def splits(self, alone: _Alone) -> PoolPoints:
        """The splits of the devices over two pools to evaluate.

        Of all devices, where no load is given: those whose bound on the throughput per device is largest,
        min(prefill, decode) of what the workers can do alone. For a given load: about as many workers as it
        takes, for every pair of layouts.
        """
        places = np.nonzero(alone.prefill > 0), np.flatnonzero(alone.decode > 0)
        pair, decode = (
            np.ravel(column) for column in np.meshgrid(np.arange(len(places[0][0])), places[1], indexing="ij")
        )
        prefill, chunk = places[0][0][pair], places[0][1][pair]
        pairs = _Pairs(
            prefill=prefill,
            decode=decode,
            chunk=chunk,
            prefill_rate=alone.prefill[prefill, chunk],
            decode_rate=alone.decode[decode],
        )
        if not len(pair):
            return self._points(pairs, np.zeros(0), np.zeros(0), np.zeros(0))
        return self._fill_devices(pairs) if self.search.load is None else self._for_load(pairs, alone)

    def _fill_devices(self, pairs: "_Pairs") -> PoolPoints:
        """The splits of all devices of the system with the largest bounds."""
        devices, size = float(self.search.inputs.system.n_devices), instance_devices(self.workers)
        prefill_size, decode_size = size[pairs.prefill][:, None], size[pairs.decode][:, None]
        prefill = np.arange(1.0, math.floor(devices) + 1)[None, :]
        decode = (devices - prefill * prefill_size) / decode_size
        possible = (decode >= 1) & (decode == np.round(decode))
        bound = np.minimum(prefill * pairs.prefill_rate[:, None], decode * pairs.decode_rate[:, None])
        bound = np.where(possible, bound, 0.0)
        best = np.argsort(-bound, axis=1)[:, :_SPLITS_OF_PAIR]
        rows = np.repeat(np.arange(len(bound)), best.shape[1])
        best = best.ravel()
        order = np.argsort(-bound[rows, best], kind="stable")[:_SPLITS]
        order = order[bound[rows, best][order] > 0]
        rows, best = rows[order], best[order]
        load = np.full(len(rows), LIGHTEST_RATE if self.search.of_rate else 1.0)
        return self._points(take(pairs, rows), prefill[0, best], decode[rows, best], load)

    def _for_load(self, pairs: "_Pairs", alone: _Alone) -> PoolPoints:
        """About as many workers of every pair as the given load takes."""
        load = float(self.search.load or 0)
        if self.search.of_rate:
            decode = load / pairs.decode_rate
            rate = np.full(len(decode), load)
        else:
            decode = load / alone.clients[pairs.decode]
            rate = decode * pairs.decode_rate
        prefill = np.ceil(rate / (MOST_UTILIZED * pairs.prefill_rate))
        spare = np.meshgrid(_SPARE_PREFILL, _SPARE_DECODE, indexing="ij")
        more_prefill, more_decode = (column.ravel()[None, :] for column in spare)
        prefill = np.maximum(prefill[:, None] + more_prefill, 1.0)
        decode = np.maximum(np.ceil(decode)[:, None] + more_decode, 1.0)
        rows = np.repeat(np.arange(len(prefill)), prefill.shape[1])
        points = self._points(take(pairs, rows), prefill.ravel(), decode.ravel(), np.full(len(rows), load))
        enough = pool_devices(self.workers, points) <= self.search.most_devices
        return take(points, np.flatnonzero(enough))

    def _points(self, pairs: "_Pairs", prefill: Column, decode: Column, load: Column) -> PoolPoints:
        chunk = np.array(self.search.chunks)[pairs.chunk]
        cap = np.full(len(load), self.search.caps[-1])
        return PoolPoints(
            prefill=pairs.prefill,
            decode=pairs.decode,
            prefill_workers=prefill,
            decode_workers=decode,
            chunk=chunk,
            cap=cap,
            load=load,
        )

    def under_load(self, splits: PoolPoints, progress: Callable[[int], None]) -> EvaluatedPools:
        """The splits under the given load, or under loads up to the largest that meet the targets."""
        lightest = self.evaluate(splits)
        progress(count(splits))
        if self.search.load is not None:
            return lightest
        if self.search.of_rate:
            capacity = lightest.points.load / np.asarray(lightest.reports.saturation)
            loads = np.maximum(capacity[:, None] * np.linspace(0, MOST_UTILIZED, LOADS), LIGHTEST_RATE)
        else:
            engines = attention_ranks(self.workers)[splits.decode] * splits.decode_workers
            most = np.maximum(engines * np.asarray(lightest.reports.slots), 1.0)
            loads = np.round(np.geomspace(np.ones_like(most), most, LOADS, axis=1))
        return largest_loads(self._under(splits), loads, self.search, progress)

    def _under(self, splits: PoolPoints) -> Callable[[np.ndarray], EvaluatedPools]:
        def evaluate(loads: Float[np.ndarray, "splits loads"]) -> EvaluatedPools:
            points = take(splits, np.repeat(np.arange(len(loads)), loads.shape[1]))
            return self.evaluate(points._replace(load=np.ravel(loads)))

        return evaluate

    def best_of_splits(
        self, points: EvaluatedPools, values: Float[np.ndarray, " points"]
    ) -> Int[np.ndarray, " splits"]:
        """The index of the best point for every pair of layouts."""
        groups = points.points.prefill * count(self.workers) + points.points.decode
        return best_of_each(groups, values)

    def limits(self, best: EvaluatedPools) -> list[str]:
        """The quantity that keeps each point from a larger load: the one that fails first at a load a
        little larger.
        """
        load = best.points.load * (1 + MORE_LOAD)
        loaded = self.evaluate(best.points._replace(load=load if self.search.of_rate else np.ceil(load)))
        uses = np.stack([loaded.pools.prefill_utilization, loaded.pools.decode_utilization])
        pool = np.array(["the prefill pool", "the decode pool"])[np.argmax(uses, axis=0)]
        ratios = self.search.targets.ratios(loaded.reports)
        names = np.where(ratios[1] > 1, "TPOT", "nothing up to 5 %")
        names = np.where(np.asarray(loaded.reports.saturation) > 1, pool, names)
        late = np.char.add(np.char.add("TTFT (", pool), ")")
        names = np.where((ratios[0] > 1) & (ratios[0] >= ratios[1]), late, names)
        return [
            f"{name} beyond {units.show(at, '', 4)} {self.search.load_name}"
            for name, at in zip(names, best.points.load, strict=True)
        ]


class _Pairs(NamedTuple):
    """Layouts for the workers of two pools, a limit `chunk` by its place, and what a worker does alone, in
    requests per second.
    """

    prefill: Int[np.ndarray, " pairs"]
    decode: Int[np.ndarray, " pairs"]
    chunk: Int[np.ndarray, " pairs"]
    prefill_rate: Float[np.ndarray, " pairs"]
    decode_rate: Float[np.ndarray, " pairs"]
