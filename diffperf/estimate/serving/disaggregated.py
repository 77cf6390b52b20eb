"""Disaggregated serving: prompts are prefilled by one pool of workers, answers decoded by another."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.cache_transfer import CacheTransfer
from diffperf.estimate.serving.engine_passes import engine_memory, engine_passes, step_tokens
from diffperf.estimate.serving.engine_steps import StepsWithHandover
from diffperf.estimate.serving.pools import Pool
from diffperf.estimate.serving.prefill_pool import PrefillPool
from diffperf.estimate.serving.prompt_prefill import Prefill
from diffperf.estimate.serving.serving_report import ServingReport, serving_report, static_power
from diffperf.estimate.serving.sized_engine import SizedEngine
from diffperf.estimate.serving.traffic import Traffic
from diffperf.estimate.serving.two_pools import PoolsState, TwoPools, closed_pools, open_pools
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, output, replace
from diffperf.relax import Exact, Relaxation, choose, larger
from diffperf.report.tables import Readable
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory
from diffperf.workload.model import Model
from diffperf.workload.requests import Requests


class DisaggregatedReport(Readable):
    """The steady state of a server whose prompts and answers are worked on by different devices.

    `serving` is the answer of both pools together; its sequences, slots and bytes are those of the pool that
    decodes.
    """

    transfer: Scalar = output("s", "mean transfer of a request's KV cache between the pools, with waits")
    prefill_utilization: Scalar = output("", "throughput over the capacity of the pool that prefills")
    decode_utilization: Scalar = output("", "throughput over the capacity of the pool that decodes")
    transfer_utilization: Scalar = output("", "throughput over the capacity of the network between the pools")
    prefill_capacity: Scalar = output("1/s", "requests per second that the pool that prefills can take")
    decode_capacity: Scalar = output("1/s", "requests per second that the pool that decodes can take")
    prefill_devices: Scalar = output("", "devices that prefill")
    decode_devices: Scalar = output("", "devices that decode")
    prefill_power: Scalar = output("W", "average power of a device that prefills")
    decode_power: Scalar = output("W", "average power of a device that decodes")
    prefill_memory: Memory
    serving: ServingReport


def serve_disaggregated(
    model: Model,
    system: System,
    prefill: Pool,
    decode: Pool,
    requests: Requests,
    relax: Relaxation | None = None,
) -> DisaggregatedReport:
    """The steady state of two pools of workers that `requests` are put to.

    The devices are those of both pools, whatever their number in `system`. The strategies' batches and
    lengths are not used. The engines that prefill take the tokens of `chunk` into a pass; those that decode
    run `batch_cap` sequences at once at most.
    """
    relax = Exact() if relax is None else relax
    devices = prefill.devices + decode.devices
    whole = eqx.tree_at(lambda system: system.n_devices, system, devices)
    c = Configuration(model=model, system=whole, strategy=decode.strategy, relax=relax).for_inference()
    prompts = _Prompts.of(prefill.worker(c).for_inference(), prefill, requests)
    answers = _Answers.of(decode.worker(c), decode, requests)
    engine, traffic = answers.sized.engine, answers.sized.engine.traffic
    pools = TwoPools(
        prefill=prompts.pool,
        decode=engine,
        engines=decode.engines,
        transfer=CacheTransfer.of(answers.c, prefill, decode, requests),
    )
    state = choose(
        requests.load,
        {
            "rate": lambda: open_pools(pools, traffic.rate),
            "concurrency": lambda: closed_pools(pools, traffic.clients),
        },
    )
    rate = state.requests.throughput * decode.engines
    in_prefill = relax.minimum(rate * prompts.energy, prompts.power_limit * prefill.workers)
    prefill_watts = in_prefill + static_power(prompts.c.system) * prefill.workers
    decode_watts = answers.power(pools, state) + static_power(answers.c.system) * decode.workers
    in_decode = state.requests.running + state.in_transfer
    serving = serving_report(
        c,
        requests,
        answers.sized,
        state.requests,
        memory=engine_memory(answers.c, requests, traffic, in_decode),
        power=prefill_watts + decode_watts + rate * pools.transfer.energy,
        at_start=pools.first_token_at_start(traffic.clients),
    )
    return DisaggregatedReport(
        transfer=state.transfer,
        prefill_utilization=state.prefill_use,
        decode_utilization=state.decode_use,
        transfer_utilization=state.transfer_use,
        prefill_capacity=pools.prefill.capacity,
        decode_capacity=pools.decode_capacity * decode.engines,
        prefill_devices=prefill.devices,
        decode_devices=decode.devices,
        prefill_power=prefill_watts / prefill.devices,
        decode_power=decode_watts / decode.devices,
        prefill_memory=prompts.memory(requests, state, decode.engines / prefill.engines),
        serving=serving,
    )


class _Prompts(eqx.Module):
    """The pool that prefills.

    - `c`: the configuration of one of its workers; `energy`: joules of a request's prompt, without static
      power.
    - `power_limit`: the most watts that a worker can draw beyond static power.
    """

    c: Configuration
    pool: PrefillPool
    energy: Scalar
    power_limit: Scalar

    @classmethod
    def of(cls, c: Configuration, prefill: Pool, requests: Requests) -> "_Prompts":
        """The pool from the passes of one of its engines, which drafts no tokens."""
        traffic = Traffic.of(requests, prefill.engines)
        # In this pool a request's cache holds the tokens of its prompt alone.
        traffic = dataclasses.replace(traffic, context=requests.input_length)
        plain = replace(requests, {"draft_tokens": 0.0, "tokens_per_step": 1.0, "draft_share": 0.0})
        passes = engine_passes(c, plain, traffic, jnp.ones_like(traffic.context))
        nobody = jnp.zeros_like(traffic.context)
        handing = StepsWithHandover(passes.steps, c.system.stack.handover / traffic.prompt)
        steps = Prefill.of(handing, traffic, nobody, step_tokens(c, requests), c.relax, c.strategy.pp)
        # The energy of a pass is that of all engines of a worker.
        energy = traffic.prompt * passes.prompt_energy / c.strategy.dp
        return cls(c, PrefillPool(steps, traffic, prefill.engines), energy, passes.power_limit)

    def memory(self, requests: Requests, state: PoolsState, ratio: Scalar) -> Memory:
        """The memory of a device, which keeps a cache until it is transferred.

        - `ratio`: engines that decode over engines that prefill.
        """
        sequences = larger(state.in_prefill + state.in_transfer * ratio, 1.0)
        return engine_memory(self.c, requests, self.pool.traffic, sequences)


class _Answers(eqx.Module):
    """The pool that decodes.

    - `c`: the configuration of one of its workers; `workers`: their number.
    - `sized`: an engine of it.
    """

    c: Configuration
    workers: Scalar
    sized: SizedEngine

    @classmethod
    def of(cls, c: Configuration, decode: Pool, requests: Requests) -> "_Answers":
        """The pool from the passes of one of its engines."""
        # No prompts come to it that could wait for others.
        answered = replace(requests, {"batch_wait": 0.0})
        return cls(c=c, workers=decode.workers, sized=SizedEngine.of(c, answered, decode.engines))

    def power(self, pools: TwoPools, state: PoolsState) -> Scalar:
        """Watts of all devices of the pool for arithmetic and data movement."""
        requests = state.requests
        passes = self.sized.passes
        energy = pools.steps / requests.seen * passes.decode_energy(requests.seen)
        return self.workers * passes.relax.minimum(requests.throughput * energy, passes.power_limit)
