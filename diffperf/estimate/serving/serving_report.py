"""Report of a serving system: latencies, throughput, memory, power and cost in the steady state."""

import jax.numpy as jnp

from diffperf.cost.ownership import Cost, run_cost
from diffperf.estimate.serving.closed_loop import closed_loop
from diffperf.estimate.serving.engine_passes import EnginePasses, engine_memory
from diffperf.estimate.serving.engine_state import Engine, SteadyState
from diffperf.estimate.serving.open_loop import open_loop
from diffperf.estimate.serving.queueing import Moments, mean_end_in_line
from diffperf.estimate.serving.sized_engine import SizedEngine
from diffperf.estimate.serving.traffic import Traffic
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output
from diffperf.relax import Exact, Relaxation, choose, larger, smaller
from diffperf.report.tables import Readable
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory
from diffperf.workload.model import Model
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import Strategy


class ServingReport(Readable):
    """The steady state of a serving system.

    Rates and powers are those of the whole system, sequences and bytes those of an engine and of a device.
    Times are means over requests. A `saturation` above 1 flags a load beyond capacity: in an open loop no
    steady state exists then, the throughput is the capacity, and the time to first token a large number
    that grows with the load.
    """

    time_to_first_token: Scalar = output("s", "mean time to first token, with all waits")
    queueing: Scalar = output("s", "mean wait of a request before its first step")
    time_to_first_token_p90: Scalar = output("s", "90th percentile of the time to first token")
    time_to_first_token_at_start: Scalar = output(
        "s", "mean time to first token if all clients, or a single one, begin at once on an idle system"
    )
    time_per_output_token: Scalar = output("s", "mean time per output token after the first")
    time_per_output_token_p90: Scalar = output("s", "90th percentile over requests of the time per token")
    latency: Scalar = output("s", "mean time from a request to the end of its answer")
    requests_per_second: Scalar = output("1/s", "requests answered per second")
    tokens_per_second: Scalar = output("token/s", "output tokens per second")
    total_tokens_per_second: Scalar = output("token/s", "tokens per second, of prompts and answers")
    tokens_per_second_per_device: Scalar = output("token/s", "output tokens per second and device")
    saturation: Scalar = output("", "load over capacity (above 1: requests queue without end, or for a slot)")
    running: Scalar = output("", "mean number of sequences that an engine decodes for")
    slots: Scalar = output("", "most requests that an engine works on at once")
    kv_used: Scalar = output("byte", "mean size of the KV cache on a device")
    kv_available: Scalar = output("byte", "memory of a device that the KV cache may take")
    kv_pressure: Scalar = output("", "share of the memory for the KV cache that is in use")
    power: Scalar = output("W", "average power per device")
    tokens_per_joule: Scalar = output("token/J", "output tokens per joule")
    cost_per_million_tokens: Scalar = output("USD", "cost per million output tokens")
    memory: Memory
    cost: Cost


def serve(
    model: Model, system: System, strategy: Strategy, requests: Requests, relax: Relaxation | None = None
) -> ServingReport:
    """The steady state of a model that `requests` are put to, on engines laid out by a strategy.

    Each of the strategy's dp replicas is an engine. The strategy's batch and lengths are not used.
    """
    relax = Exact() if relax is None else relax
    c = Configuration(model=model, system=system, strategy=strategy, relax=relax).for_inference()
    sized = SizedEngine.of(c, requests, strategy.dp)
    engine, traffic = sized.engine, sized.engine.traffic
    state = steady_state(engine, requests)
    power = dynamic_power(sized.passes, requests, traffic, state) + static_power(system)
    in_prefill = state.throughput * (state.first_token.mean - state.waiting)
    return serving_report(
        c,
        requests,
        sized,
        state,
        memory=engine_memory(c, requests, traffic, state.running + in_prefill),
        power=power,
        at_start=first_token_at_start(
            engine, relax.minimum(traffic.clients, engine.slots), state.step_time.mean
        ),
    )


def steady_state(engine: Engine, requests: Requests) -> SteadyState:
    """The steady state of an engine under its share of the requests."""
    traffic = engine.traffic
    return choose(
        requests.load,
        {
            "rate": lambda: open_loop(engine, traffic.rate),
            "concurrency": lambda: closed_loop(engine, traffic.clients),
        },
    )


def first_token_at_start(engine: Engine, clients: Scalar, step_time: Scalar) -> Scalar:
    """Mean seconds until an engine has the first tokens of `clients` requests that come at once while it is
    idle: their prompts fill one step after another. What delays them beside that is counted in steps of
    `step_time` seconds.
    """
    prefill = engine.prefill_alone()
    mean = engine.traffic.mean
    in_line = mean_end_in_line(clients, mean(prefill.busy_time), mean(prefill.alone_time))
    in_line = in_line + mean(prefill.passage(prefill.alone_time))
    return engine.stack.request_overhead + in_line + engine.stack.start_steps * step_time


def static_power(system: System) -> Scalar:
    """Watts of all devices, whatever they do."""
    return system.n_devices * system.accelerator.static_power


def dynamic_power(passes: EnginePasses, requests: Requests, traffic: Traffic, state: SteadyState) -> Scalar:
    """Watts of all devices beyond their idle power.

    Prompt tokens that ride along with decode steps use weights that those steps read anyway. Otherwise both
    are counted as in passes of their own, at the clocks of these, and together may come to more than the
    limit leaves. At the clock that it leaves them, whose times steps have, they draw the limit.
    """
    decode = traffic.decode_steps / state.seen * passes.decode_energy(state.seen)
    saved = requests.mixed_steps.on * state.chunks * passes.weights_energy
    prompt = larger(traffic.prompt * passes.prompt_energy - saved, 0.0)
    return passes.relax.minimum(state.throughput * (decode + prompt), passes.power_limit)


def serving_report(
    c: Configuration,
    requests: Requests,
    sized: SizedEngine,
    state: SteadyState,
    *,
    memory: Memory,
    power: Scalar,
    at_start: Scalar,
) -> ServingReport:
    """The report of a system whose decoding engines are like `sized`, in one state.

    - `c`: the configuration, whose system has all devices.
    - `memory`: the use of a device's memory; `power`: watts that all devices draw.
    - `at_start`: the time to first token where all requests come at once.
    """
    traffic = sized.engine.traffic
    rate = state.throughput * sized.number
    tokens = rate * requests.output_length
    # The first tokens wait in the server for those that it sends with them. The client sees the rest of the
    # answer in what is left of the time.
    steps_withheld = smaller(c.system.stack.stream_interval - 1, traffic.decode_steps)
    first_token = Moments(
        state.first_token.mean + steps_withheld * state.step_time.mean, state.first_token.variance
    )
    seen_step = (1 - steps_withheld / traffic.decode_steps) / requests.tokens_per_step
    cost = run_cost(c.system, jnp.ones_like(power), power, c.relax)
    return ServingReport(
        time_to_first_token=first_token.mean,
        queueing=state.waiting,
        time_to_first_token_p90=first_token.p90,
        time_to_first_token_at_start=at_start + steps_withheld * state.step_time.mean,
        time_per_output_token=state.step_time.mean * seen_step,
        time_per_output_token_p90=state.step_time.p90 * seen_step,
        latency=state.first_token.mean + state.decode,
        requests_per_second=rate,
        tokens_per_second=tokens,
        total_tokens_per_second=tokens + rate * requests.input_length,
        tokens_per_second_per_device=tokens / c.system.n_devices,
        saturation=state.saturation,
        running=state.running,
        slots=sized.engine.slots,
        kv_used=memory.kv_cache,
        kv_available=sized.available,
        kv_pressure=memory.kv_cache / sized.available,
        power=power / c.system.n_devices,
        tokens_per_joule=tokens / power,
        cost_per_million_tokens=cost.run / tokens * 1e6,
        memory=memory,
        cost=cost,
    )
