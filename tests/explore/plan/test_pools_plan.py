"""Plans for disaggregated serving against a plain loop over all splits, pairs of layouts and loads."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.serving.disaggregated import serve_disaggregated
from diffperf.estimate.serving.pools import Pool
from diffperf.explore.plan.pools_plan import plan_pools, plan_with_pools
from diffperf.explore.plan.serving_flags import ENGINES, launch_flags
from diffperf.explore.plan.serving_search import ServingSearch, Targets
from diffperf.quantity import replace
from diffperf.workload.requests import Requests

DEVICES = 4
GIVEN = {"chunk": 2048.0, "batch_cap": 128.0}
TARGETS = Targets(first_token=0.5, per_token=0.02)
LENGTHS = {"input_length": 2048.0, "output_length": 256.0}
# Tensor-parallel degree and number of workers that prefill, then the same of those that decode.
SPLITS = [
    (p, m, d, n)
    for p, m, d, n in itertools.product((1, 2), (1, 2, 3), (1, 2), (1, 2, 3))
    if p * m + d * n == 4
]


@pytest.fixture(scope="module")
def search():
    """A function that makes a search of tensor-parallel layouts under a load."""
    model, devices = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", DEVICES)
    requests = replace(Requests(), GIVEN | LENGTHS)

    def make(load=None, targets=TARGETS, most_devices=math.inf, **table):
        load, table = load or {}, {"pp": 1.0} | table
        return ServingSearch.of(
            model, devices, table, replace(requests, load), GIVEN | load, targets, most_devices
        )

    return make


@pytest.fixture(scope="module")
def loop(search):
    """The reports of every split under clients 3 % apart, (splits, clients)."""
    inputs, requests = search().inputs, replace(search().requests, {"load": "concurrency"})

    def report(split, clients):
        prefill_tp, prefill_workers, decode_tp, decode_workers = split
        prefill = Pool(replace(dp.load_strategy({}), {"tp": prefill_tp}), prefill_workers)
        decode = Pool(replace(dp.load_strategy({}), {"tp": decode_tp}), decode_workers)
        asked = dataclasses.replace(requests, concurrency=clients)
        return serve_disaggregated(inputs.model, inputs.system, prefill, decode, asked).serving

    clients = jnp.asarray(np.geomspace(1.0, 400.0, 200))
    over_clients = jax.vmap(report, in_axes=(None, 0))
    splits = tuple(jnp.array(column, float) for column in zip(*SPLITS, strict=True))
    return jax.jit(jax.vmap(over_clients, in_axes=(0, None)))(splits, clients)


@pytest.mark.slow
def test_the_order_of_a_loop_over_all_splits_and_loads(search, loop):
    """The best split of every pair of layouts, within the distance of the loads."""
    met = (loop.time_to_first_token <= 0.5) & (loop.time_per_output_token <= 0.02) & (loop.saturation <= 1)
    values = np.max(np.where(met, loop.tokens_per_second_per_device, 0.0), axis=1)
    expected = {}
    for (prefill_tp, _, decode_tp, _), value in zip(SPLITS, values, strict=True):
        pair = float(prefill_tp), float(decode_tp)
        expected[pair] = max(expected.get(pair, 0.0), value)
    ranked = plan_pools(search())
    assert ranked.pairs["meeting"] == len(ranked.best) == sum(value > 0 for value in expected.values())
    for served in ranked.best:
        assert served.prefill is not None
        pair = float(served.prefill.strategy.tp), float(served.strategy.tp)
        value = float(served.report.tokens_per_second_per_device)
        assert value == pytest.approx(expected[pair], rel=0.03)
        assert TARGETS.met(served.report)
        assert served.devices == DEVICES
        assert float(served.prefill.report.prefill_devices) == float(served.prefill.strategy.devices)
    ordered = [float(served.report.tokens_per_second_per_device) for served in ranked.best]
    assert ordered == sorted(ordered, reverse=True)
    assert ranked.best[0].worse == 0


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"rate": 40.0}, {"concurrency": 700.0}])
def test_workers_follow_from_the_load(search, load):
    """About as few as it takes under the targets; no more devices than are allowed."""
    ranked = plan_pools(search(load))
    best = ranked.best[0]
    for served in ranked.best:
        assert TARGETS.met(served.report)
        assert float(served.report.saturation) <= 1
        given = served.requests.rate if "rate" in load else served.requests.concurrency
        assert float(given) == pytest.approx(next(iter(load.values())))
    assert plan_pools(search(load, most_devices=best.devices - 1)).pairs["meeting"] < len(ranked.best)
    assert plan_pools(search(load, most_devices=2.0)).best == ()


@pytest.mark.slow
def test_both_kinds_are_ranked_together(search):
    both = plan_with_pools(search(), top=20)
    alone = [plan_with_pools(search(), top=20, pools=kind) for kind in ("aggregated", "disaggregated")]
    assert len(both.best) == sum(len(plan.best) for plan in alone)
    assert {served.prefill is None for served in both.best} == {True, False}
    values = [float(served.report.tokens_per_second_per_device) for served in both.best]
    assert values == sorted(values, reverse=True)
    for index, served in enumerate(both.best):
        assert served.worse == pytest.approx(1 - values[index] / values[0])
    # The best of the other kind is among them, from two on.
    first_two = plan_with_pools(search(), top=2).best
    assert {served.prefill is None for served in first_two} == {True, False}
    assert len(first_two) == 2
    assert len(plan_with_pools(search(), top=1).best) == 1
    for served in both.best:
        assert float(served.report.slots) <= float(served.requests.batch_cap)


@pytest.mark.slow
def test_pools_that_nothing_serves(search):
    strict = plan_pools(search(targets=Targets(first_token=1e-3)))
    assert (strict.best, strict.pairs["able"], strict.pairs["evaluated"]) == ((), 0, 0)
    assert plan_pools(search(dp=2.0)).pairs["searched"] == 0  # replicas are given: nothing to split


@pytest.mark.slow
def test_launch_flags_of_both_pools(search):
    search = search()
    served = plan_pools(search).best[0]
    assert served.prefill is not None
    drafting = replace(served.requests, {"draft_tokens": 2.0})
    served = dataclasses.replace(served, requests=drafting)
    expected = {
        "vllm": ('"kv_role":"kv_producer"', '"kv_role":"kv_consumer"', "proxy"),
        "sglang": ("--disaggregation-mode prefill", "--disaggregation-mode decode", "--pd-disaggregation"),
        "trtllm": (
            "disable_overlap_scheduler: true",
            "cache_transceiver_config",
            "trtllm-serve disaggregated",
        ),
    }
    assert set(expected) == set(ENGINES)
    for engine, words in expected.items():
        flags = launch_flags(search.inputs.model, served, engine)
        middle = flags.index(f"# {served.instances:g} of this server for answers")
        assert flags[0] == f"# {served.prefill.instances:g} of this server for prompts"
        for lines, word in zip((flags[:middle], flags[middle:], flags[-1:]), words, strict=True):
            assert any(word in line for line in lines), (engine, word)
        drafts = [index for index, line in enumerate(flags) if "speculative" in line]
        assert all(index > middle for index in drafts)
        assert len(drafts) == 1
