"""The steady state of continuous batching against an event-driven simulation of the engine's scheduler."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_simulator import Observed, log_normal_lengths, simulate

import diffperf as dp
from diffperf.estimate.serving.closed_loop import closed_loop
from diffperf.estimate.serving.engine_state import Engine, SteadyState
from diffperf.estimate.serving.engine_steps import EngineSteps
from diffperf.estimate.serving.open_loop import open_loop
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar, replace
from diffperf.relax import Exact
from diffperf.workload.requests import Requests

# An 8-billion-parameter model on an accelerator of 3 TB/s and 600 TFLOP/s: weights read, a token computed, a
# token of a context read, and the rest of a prompt token's attention.
OVERHEAD, WEIGHTS, TOKEN, CONTEXT, PROMPT_TOKEN = 1e-3, 5e-3, 27e-6, 44e-9, 2e-6


def step_time(running: float, context: float, prompt_tokens: float) -> float:
    """Seconds of a step, as the simulator asks for it."""
    linear = max(WEIGHTS, TOKEN * (running + prompt_tokens))
    return OVERHEAD + linear + CONTEXT * context + PROMPT_TOKEN * prompt_tokens


# Software that adds nothing outside the steps.
STACK = dp.load_system("dgx-a100").inference_stack


class SimulatedSteps(EngineSteps):
    """The same step times for sequences of a mean context."""

    context: Scalar

    def time(self, running: Scalar, prompt_tokens: Scalar) -> Scalar:
        linear = jnp.maximum(WEIGHTS, TOKEN * (running + prompt_tokens))
        return OVERHEAD + linear + CONTEXT * self.context * running + PROMPT_TOKEN * prompt_tokens


@jax.jit
def _steady_states(requests: Requests) -> dict[str, SteadyState]:
    traffic = Traffic.of(requests, jnp.ones_like(requests.rate))
    engine = Engine(
        steps=SimulatedSteps(traffic.context),
        traffic=traffic,
        slots=requests.batch_cap,
        chunk=requests.chunk,
        queries=jnp.ones_like(requests.rate),
        mixed=requests.mixed_steps,
        batch_wait=requests.batch_wait,
        begin_together=requests.begin_together,
        stack=STACK,
        relax=Exact(),
    )
    return {"rate": open_loop(engine, traffic.rate), "concurrency": closed_loop(engine, traffic.clients)}


def _requests(prompt: float, output: float, chunk: float, spread: float, mixed: bool, cap: float) -> Requests:
    return Requests(
        input_length=prompt,
        input_spread=spread,
        output_length=output,
        output_spread=spread,
        chunk=chunk,
        mixed_steps=mixed,
        batch_cap=cap,
    )


def _simulated(requests: Requests, load: str, number: int = 6000, seeds: int = 1) -> Observed:
    """Mean values of simulated runs, whose lengths and arrivals differ."""
    shape = ("input_length", "output_length", "input_spread", "output_spread")
    shape = [float(getattr(requests, name)) for name in shape]
    offered = {"rate": float(requests.rate)} if load == "rate" else {"clients": int(requests.concurrency)}
    runs = [
        simulate(
            step_time,
            log_normal_lengths(*shape, seed=seed),
            **offered,
            cap=int(requests.batch_cap),
            chunk=int(requests.chunk),
            mixed=bool(requests.mixed_steps.on == 1),
            batch_wait=int(requests.batch_wait),
            requests=number,
            seed=seed,
        )
        for seed in range(seeds)
    ]
    return Observed(*(np.mean(values) for values in zip(*map(dataclasses.astuple, runs), strict=True)))


def _agree(state: SteadyState, observed: Observed, token: float = 0.05, first: float = 0.10) -> None:
    """Throughput within 5 %, time per token and time to first token within the given shares."""
    assert float(state.throughput) == pytest.approx(observed.throughput, rel=0.05)
    assert float(state.step_time.mean) == pytest.approx(observed.tpot, rel=token)
    assert float(state.first_token.mean) == pytest.approx(observed.ttft, rel=first)


SHAPES = [(1024, 256, 2048), (512, 128, 8192), (1000, 200, 1000), (2000, 400, 8192)]


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize("spread", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("shape", SHAPES)
def test_closed_loop_is_the_simulated_one(shape, spread, mixed):
    for clients, number in ((1, 1000), (4, 2000), (16, 6000), (64, 6000)):
        requests = replace(_requests(*shape, spread, mixed, 1e4), {"concurrency": clients})
        _agree(_steady_states(requests)["concurrency"], _simulated(requests, "concurrency", number))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(
    ("shape", "clients"),
    [((1000, 2, 8192), 16), ((1000, 8, 8192), 16), ((8000, 16, 8192), 4), ((8000, 16, 8192), 16)],
)
def test_short_answers_do_not_outrun_their_prompts(shape, clients, spread, mixed):
    """Prompts keep the engine busy, whose throughput is theirs; a few clients wait for each other's."""
    requests = replace(_requests(*shape, spread, mixed, 1e4), {"concurrency": clients})
    state, observed = _steady_states(requests)["concurrency"], _simulated(requests, "concurrency", 3000)
    assert float(state.throughput) == pytest.approx(observed.throughput, rel=0.02)
    cycle = float(state.first_token.mean + state.decode)
    assert cycle == pytest.approx(clients / observed.throughput, rel=0.02)
    assert float(state.first_token.mean) == pytest.approx(observed.ttft, rel=0.25)


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize(("shape", "clients"), [((1000, 1, 8192), 16), ((8000, 1, 8192), 2)])
def test_answers_of_one_token_are_those_of_prompts(shape, clients, mixed):
    """Nothing decodes: the engine prefills all the time, and the queue in front of it is M/G/1."""
    requests = replace(_requests(*shape, 0.0, mixed, 500), {"concurrency": clients})
    state = _steady_states(requests)["concurrency"]
    prompts_of_step = min(shape[2] // shape[0], clients)
    rate = prompts_of_step / step_time(0, 0, prompts_of_step * shape[0])
    assert float(state.throughput) == pytest.approx(rate, rel=0.02)
    assert float(state.first_token.mean) == pytest.approx(clients / rate, rel=0.02)
    # As many prompts come one by one as half of those that a step of one of them answers.
    alone = step_time(0, 0, shape[0])
    state = _steady_states(replace(requests, {"rate": 0.5 / alone}))["rate"]
    assert alone < float(state.first_token.mean) < 2 * alone


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize(
    "spread", [pytest.param(0.1, marks=pytest.mark.slow), 0.3, pytest.param(0.7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_open_loop_is_the_simulated_one(shape, spread, mixed):
    requests = _requests(*shape, spread, mixed, 256)
    capacity = 1 / float(_steady_states(requests)["rate"].saturation)
    # The emptier the engine, the more steps a request takes, and the less its times vary.
    for load, number, seeds in ((0.1, 3000, 1), (0.5, 6000, 2), (0.75, 12000, 4), (0.85, 12000, 4)):
        offered = replace(requests, {"rate": load * capacity})
        _agree(_steady_states(offered)["rate"], _simulated(offered, "rate", number, seeds=seeds))


@pytest.mark.parametrize(
    "mixed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["mixed", "separate"]
)
@pytest.mark.parametrize("shape", [(4096, 256, 1024), (2048, 64, 512), (8192, 512, 2048)])
def test_open_loop_with_prompts_of_many_chunks(shape, mixed):
    """Prompts that take four steps each use most of the steps at high load."""
    requests = _requests(*shape, 0.3, mixed, 256)
    capacity = 1 / float(_steady_states(requests)["rate"].saturation)
    for load in (0.3, 0.6, 0.85):
        offered = replace(requests, {"rate": load * capacity})
        _agree(_steady_states(offered)["rate"], _simulated(offered, "rate", 12000, seeds=4))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize("steps", [5, 20])
def test_prompts_wait_for_others(steps, mixed):
    """An engine that gathers prompts for some steps before it prefills them, up to nearly a full step."""
    waits = replace(_requests(1024, 256, 8192, 0.3, mixed, 256), {"batch_wait": steps})
    for clients, number in ((1, 1000), (4, 3000), (16, 6000), (64, 6000)):
        requests = replace(waits, {"concurrency": clients})
        observed = _simulated(requests, "concurrency", number)
        _agree(_steady_states(requests)["concurrency"], observed, first=0.13 if clients == 64 else 0.10)
    capacity = 1 / float(_steady_states(waits)["rate"].saturation)
    for load in (0.1, 0.5, 0.75):
        requests = replace(waits, {"rate": load * capacity})
        _agree(_steady_states(requests)["rate"], _simulated(requests, "rate", 6000, seeds=2))


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("scheduled", [1, 3])
def test_requests_wait_for_steps_under_way(monkeypatch, scheduled, spread):
    """Clients come at the end of a step, when the next ones have begun or are scheduled.

    Where all answers are equally long, prompts follow one another, and each waits for steps with those
    before it.
    """
    stack = dataclasses.replace(STACK, scheduled_steps=jnp.asarray(float(scheduled)))
    monkeypatch.setattr("test_serving_queues.STACK", stack)
    steady = jax.jit(_steady_states.__wrapped__)
    for clients in (4, 16, 64):
        requests = replace(_requests(1024, 256, 1100, spread, True, 1e4), {"concurrency": clients})
        lengths = log_normal_lengths(1024, 256, spread, spread)
        limits = {"chunk": 1100, "clients": clients, "scheduled": scheduled}
        observed = simulate(step_time, lengths, **limits, requests=3000)
        _agree(steady(requests)["concurrency"], observed, first=0.11)
    alone = replace(_requests(1024, 256, 1100, spread, True, 1e4), {"concurrency": 1})
    service = OVERHEAD + (TOKEN + PROMPT_TOKEN) * 1024  # nobody waits for an idle engine
    assert float(steady(alone)["concurrency"].first_token.mean) == pytest.approx(service, rel=0.05)


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
def test_a_full_step_ends_the_wait_for_others(mixed):
    """Four prompts fill a step, and come in fewer than 20 steps: the estimate assumes that they come evenly,
    and is up to 15 % too early.
    """
    waits = replace(_requests(512, 128, 2048, 0.3, mixed, 256), {"batch_wait": 20})
    for clients in (4, 16, 64):
        requests = replace(waits, {"concurrency": clients})
        observed = _simulated(requests, "concurrency", 6000)
        _agree(_steady_states(requests)["concurrency"], observed, first=0.16 if clients == 64 else 0.10)
    unbounded = replace(waits, {"concurrency": 64, "chunk": 65536})
    assert _simulated(unbounded, "concurrency", 6000).ttft > 1.5 * observed.ttft


@pytest.mark.slow
@pytest.mark.parametrize("cap", [8, 32])
def test_requests_wait_for_slots(cap):
    requests = _requests(1024, 256, 2048, 0.4, True, cap)
    capacity = 1 / float(_steady_states(requests)["rate"].saturation)
    for load in (0.6, 0.85):
        offered = replace(requests, {"rate": load * capacity})
        _agree(_steady_states(offered)["rate"], _simulated(offered, "rate", 24000, seeds=4))
    crowd = replace(requests, {"concurrency": 64})
    state = _steady_states(crowd)["concurrency"]
    assert float(state.saturation) == pytest.approx(64 / cap)
    _agree(state, _simulated(crowd, "concurrency", 12000))


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
@pytest.mark.parametrize("shape", [(1000, 200, 8192), (4096, 256, 1024), (512, 128, 8192)])
def test_equal_requests_move_in_lockstep(shape, mixed):
    """Clients whose requests are all alike come back together, and so do their prompts."""
    requests = replace(_requests(*shape, 0.0, mixed, 1e4), {"concurrency": 16})
    _agree(_steady_states(requests)["concurrency"], _simulated(requests, "concurrency"))


def one_after_the_other(clients: int) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Equal requests but for the first of each client, which end in one step after the other."""

    def lengths(requests: int) -> tuple[np.ndarray, np.ndarray]:
        outputs = np.full(requests, 256)
        outputs[:clients] += np.arange(clients)
        return np.full(requests, 1024), outputs

    return lengths


@pytest.mark.parametrize(("mixed", "scheduled"), [(True, 0), (True, 3), (False, 0)])
def test_equal_requests_follow_one_another(monkeypatch, mixed, scheduled):
    """Clients who come a step apart once always do: no step has two prompts, though eight would fit."""
    stack = dataclasses.replace(STACK, scheduled_steps=jnp.asarray(max(float(scheduled), 1e-6)))
    monkeypatch.setattr("test_serving_queues.STACK", stack)
    steady = jax.jit(_steady_states.__wrapped__)
    requests = replace(_requests(1024, 256, 8192, 0.0, mixed, 1e4), {"begin_together": "off"})
    limits = {"chunk": 8192, "mixed": mixed, "scheduled": scheduled}
    for clients in (8, 16, 64):
        observed = simulate(step_time, one_after_the_other(clients), **limits, clients=clients, requests=3000)
        _agree(steady(replace(requests, {"concurrency": clients}))["concurrency"], observed, first=0.11)


@pytest.mark.parametrize("load", ["rate", "concurrency"])
def test_percentiles_are_close_to_the_simulated_ones(load):
    """The distributions are assumptions: 90th percentiles are good to a quarter."""
    requests = replace(_requests(1024, 256, 2048, 0.4, True, 256), {"rate": 14.0, "concurrency": 32})
    state, observed = _steady_states(requests)[load], _simulated(requests, load, 12000)
    assert float(state.first_token.p90) == pytest.approx(observed.ttft_p90, rel=0.25)
    assert float(state.step_time.p90) == pytest.approx(observed.tpot_p90, rel=0.25)


def test_a_wrong_step_time_is_noticed():
    requests = replace(_requests(1024, 256, 2048, 0.3, True, 1e4), {"concurrency": 16})
    observed = _simulated(requests, "concurrency")
    slower = dataclasses.replace(observed, tpot=1.2 * observed.tpot)
    with pytest.raises(AssertionError):
        _agree(_steady_states(requests)["concurrency"], slower)


def test_the_simulator_keeps_littles_law():
    requests = replace(_requests(1024, 256, 2048, 0.3, True, 1e4), {"rate": 10.0})
    observed = _simulated(requests, "rate", 12000, seeds=4)
    assert observed.in_system == pytest.approx(observed.throughput * observed.latency, rel=0.03)


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "separate"])
def test_no_load_is_without_an_answer(float32, mixed):
    """Up to a million times the load that an engine answers, with prompts of thousands of steps, answers
    are finite in single precision.
    """
    generator = np.random.default_rng(0)
    low, high = np.log([1, 2, 16, 1, 1e-6]), np.log([2e5, 2e4, 1e5, 1e4, 1e5])
    lengths = np.exp(generator.uniform(low, high, (500, 5))).astype(np.float32)

    def answer(numbers):
        fields = dict(
            zip(("input_length", "output_length", "chunk", "batch_cap", "rate"), numbers, strict=True)
        )
        loads = {"rate": numbers[-1], "concurrency": 1 + numbers[-1]}
        requests = replace(_requests(1024, 256, 2048, 0.5, mixed, 256), fields | loads)
        return _steady_states.__wrapped__(requests)

    for state in jax.jit(jax.vmap(answer))(jnp.asarray(lengths)).values():
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))
        for mean in (state.running, state.throughput, state.first_token.mean, state.step_time.mean):
            assert np.all(np.asarray(mean) > 0)
