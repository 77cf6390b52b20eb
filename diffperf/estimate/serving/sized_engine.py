"""An engine as its configuration makes it: its slots by the memory for its KV cache, and its passes."""

import equinox as eqx

from diffperf.estimate.serving.engine_passes import EnginePasses, engine_passes, kv_room, step_tokens
from diffperf.estimate.serving.engine_state import Engine
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests


class SizedEngine(eqx.Module):
    """One of `number` equal engines that share the requests, with its passes.

    - `available`: bytes of a device that its KV cache may take.
    """

    number: Scalar
    engine: Engine
    passes: EnginePasses
    available: Scalar

    @classmethod
    def of(cls, c: Configuration, requests: Requests, number: Scalar) -> "SizedEngine":
        """An engine of a configuration, with as many slots as its KV cache has room for or its batch cap
        allows.
        """
        traffic = Traffic.of(requests, number)
        available, cache = kv_room(c, requests, traffic)
        slots = c.relax.minimum(requests.batch_cap, larger(available / cache, 1.0))
        # Clients in closed loop bound the batches worth evaluating.
        clients = c.relax.minimum(slots, larger(traffic.clients, 1.0))
        most = requests.load.rate * slots + requests.load.concurrency * clients
        passes = engine_passes(c, requests, traffic, most)
        engine = Engine(
            steps=passes.steps,
            traffic=traffic,
            slots=slots,
            chunk=step_tokens(c, requests),
            queries=1 + requests.draft_tokens,
            mixed=requests.mixed_steps,
            batch_wait=requests.batch_wait,
            begin_together=requests.begin_together,
            stack=c.system.stack,
            relax=c.relax,
            stages=c.strategy.pp,
        )
        return cls(number=number, engine=engine, passes=passes, available=available)
