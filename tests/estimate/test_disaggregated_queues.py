"""The steady state of two pools against an event-driven simulation of disaggregated serving."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_simulator import Observed, log_normal_lengths
from pools_simulator import simulate_pools
from test_serving_queues import STACK, SimulatedSteps, step_time

from diffperf.estimate.serving.cache_transfer import CacheTransfer
from diffperf.estimate.serving.engine_state import Engine
from diffperf.estimate.serving.prefill_pool import PrefillPool
from diffperf.estimate.serving.prompt_prefill import Prefill
from diffperf.estimate.serving.traffic import Traffic
from diffperf.estimate.serving.two_pools import PoolsState, TwoPools, closed_pools, open_pools
from diffperf.quantity import Scalar, replace
from diffperf.relax import Exact
from diffperf.workload.requests import Requests

# Prompt, answer, tokens of a pass, engines that prefill and that decode, seconds of a transfer, spread.
CASES = {
    "prefill binds": (1024, 256, 2048, 1, 1, 0.01, 0.5),
    "decode binds": (2000, 400, 8192, 2, 1, 0.02, 0.5),
    "prompts of several passes": (3000, 128, 1024, 3, 1, 0.01, 0.1),
    "passes of several prompts": (512, 128, 8192, 1, 2, 0.005, 0.5),
    "network binds": (64, 64, 8192, 2, 2, 0.03, 0.3),
}


@jax.jit
def steady_states(
    requests: Requests, prefill_engines: Scalar, decode_engines: Scalar, transfer: Scalar
) -> dict[str, PoolsState]:
    """Both kinds of load on engines whose steps take the times of the simulation."""
    traffic = Traffic.of(requests, decode_engines)
    steps, nobody = SimulatedSteps(traffic.context), jnp.zeros_like(transfer)
    decode = Engine(
        steps=steps,
        traffic=traffic,
        slots=requests.batch_cap,
        chunk=requests.chunk,
        queries=jnp.ones_like(transfer),
        mixed=requests.mixed_steps,
        batch_wait=nobody,
        begin_together=requests.begin_together,
        stack=STACK,
        relax=Exact(),
    )
    prefill = Prefill.of(steps, traffic, nobody, requests.chunk, Exact())
    lanes = jnp.minimum(prefill_engines, decode_engines)
    network = CacheTransfer(transfer, transfer**2, transfer**3, lanes, energy=nobody)
    pools = TwoPools(PrefillPool(prefill, traffic, prefill_engines), decode, decode_engines, network)
    return {"rate": open_pools(pools, traffic.rate), "concurrency": closed_pools(pools, traffic.clients)}


class Case:
    """A server with two pools, by the estimate and by the simulation."""

    def __init__(self, prompt, output, chunk, prefill_engines, decode_engines, transfer, spread, cap=256):
        self.requests = Requests(
            input_length=prompt,
            input_spread=spread,
            output_length=output,
            output_spread=spread,
            chunk=chunk,
            batch_cap=cap,
        )
        self.engines, self.transfer, self.cap = (prefill_engines, decode_engines), transfer, cap
        self.lengths, self.chunk = (prompt, output, spread, spread), chunk

    def estimated(self, load: str, value: float) -> PoolsState:
        numbers = map(jnp.asarray, (*map(float, self.engines), self.transfer))
        return steady_states(replace(self.requests, {load: value}), *numbers)[load]

    def simulated(self, load: str, value: float, number: int = 6000, seeds: int = 2) -> Observed:
        runs = [
            simulate_pools(
                step_time,
                log_normal_lengths(*self.lengths, seed=seed),
                prefill_engines=self.engines[0],
                decode_engines=self.engines[1],
                transfer_time=self.transfer,
                cap=self.cap,
                chunk=self.chunk,
                requests=number,
                seed=seed,
                **({"rate": value} if load == "rate" else {"clients": int(value)}),
            )
            for seed in range(seeds)
        ]
        return Observed(*(np.mean(values) for values in zip(*map(dataclasses.astuple, runs), strict=True)))

    def agrees(self, state: PoolsState, found: Observed, first: float = 0.10) -> None:
        """Throughput and time per token within 5 %, time to first token within a share."""
        requests = state.requests
        throughput = float(requests.throughput) * self.engines[1]
        assert throughput == pytest.approx(found.throughput, rel=0.05)
        assert float(requests.step_time.mean) == pytest.approx(found.tpot, rel=0.05)
        assert float(requests.first_token.mean) == pytest.approx(found.ttft, rel=first)


@pytest.mark.parametrize("name", CASES)
def test_open_loop_is_the_simulated_one(name):
    case = Case(*CASES[name])
    capacity = 1 / float(case.estimated("rate", 1.0).requests.saturation)
    for load, number in ((0.4, 6000), (0.85, 20000)):
        rate = load * capacity
        case.agrees(case.estimated("rate", rate), case.simulated("rate", rate, number))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_closed_loop_is_the_simulated_one(name):
    """From one client to several times as many as saturate a pool."""
    case = Case(*CASES[name])
    for clients in (1, 16, 256):
        case.agrees(case.estimated("concurrency", clients), case.simulated("concurrency", clients, 4000))


def test_the_tighter_pool_is_the_one_that_saturates():
    uses = {name: Case(*case).estimated("concurrency", 1024) for name, case in CASES.items()}
    for name, used in (("prefill", "prefill_use"), ("decode", "decode_use"), ("network", "transfer_use")):
        state = uses[f"{name} binds"]
        assert float(getattr(state, used)) == pytest.approx(1, abs=0.02)
        assert float(state.requests.saturation) > 1
        others = {"prefill_use", "decode_use", "transfer_use"} - {used}
        assert all(float(getattr(state, other)) < 0.9 for other in others)


@pytest.mark.slow
def test_requests_wait_for_slots():
    case = Case(1024, 256, 2048, 1, 1, 0.01, 0.4, cap=32)
    capacity = 1 / float(case.estimated("rate", 1.0).requests.saturation)
    case.agrees(case.estimated("rate", 0.8 * capacity), case.simulated("rate", 0.8 * capacity, 24000))
    case.agrees(case.estimated("concurrency", 64), case.simulated("concurrency", 64))


def test_equal_requests_move_in_lockstep():
    """Clients whose requests are all alike come back in the order of their prompts, which never wait."""
    case = Case(1000, 200, 4096, 1, 1, 0.01, 0.0)
    case.agrees(case.estimated("concurrency", 16), case.simulated("concurrency", 16))


def test_percentiles_are_close_to_the_simulated_ones():
    """The distributions are assumptions: 90th percentiles are good to a quarter."""
    for load, value in (("rate", 20.0), ("concurrency", 48), ("concurrency", 256)):
        case = Case(*CASES["prefill binds"])
        state, found = case.estimated(load, value), case.simulated(load, value)
        assert float(state.requests.first_token.p90) == pytest.approx(found.ttft_p90, rel=0.25)
        assert float(state.requests.step_time.p90) == pytest.approx(found.tpot_p90, rel=0.25)


def test_a_wrong_transfer_is_noticed():
    case = Case(*CASES["passes of several prompts"])
    found = case.simulated("concurrency", 16)
    case.transfer += 0.01
    with pytest.raises(AssertionError):
        case.agrees(case.estimated("concurrency", 16), found)
