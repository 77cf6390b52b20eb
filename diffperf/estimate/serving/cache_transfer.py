"""The way of a request's KV cache from the engine that prefilled its prompt to the engine that decodes."""

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.energy import transfer_energy
from diffperf.estimate.network.placement import place
from diffperf.estimate.network.transfers import send
from diffperf.estimate.serving.engine_passes import sequence_bytes
from diffperf.estimate.serving.pools import Pool
from diffperf.estimate.serving.queueing import Moments, wait_for_server, wait_share_of_servers
from diffperf.quantity import Scalar
from diffperf.relax import positive
from diffperf.workload.configuration import Configuration
from diffperf.workload.requests import Requests


class CacheTransfer(eqx.Module):
    """Transfers of caches between two pools.

    - `time`: seconds of the transfer for a prompt of mean length, if no other transfer is under way.
    - `square`, `cube`: mean square and mean cube of that time.
    - `lanes`: transfers that can be under way at once: engines of the pool that has fewer.
    - `energy`: joules of a request's transfer, on the links and in device memory.
    """

    time: Scalar
    square: Scalar
    cube: Scalar
    lanes: Scalar
    energy: Scalar

    @classmethod
    def of(cls, c: Configuration, prefill: Pool, decode: Pool, requests: Requests) -> "CacheTransfer":
        """The transfers from the engines of one pool to those of the other.

        Every device of the decoding engine gets what it keeps of the request's cache, or of the state of a
        recurrence, after the prompt's last pass; the devices of the other engine send equal parts of it. The
        two pools fill the nearest devices one after the other, so that on average a device and its partner
        are at a distance of half of all devices: those within a scale-up domain use its links, all others the
        network beyond.

        - `c`: the configuration of a decoding worker.
        """
        kept = sequence_bytes(c, requests.input_length)
        fan_out = decode.engine_devices / prefill.engine_devices
        sent = kept * c.relax.maximum(fan_out, jnp.ones_like(fan_out))
        distance = (prefill.devices + decode.devices) / 2
        transfer = send(place(c.system, jnp.full_like(distance, 2.0), distance, c.relax), sent)
        links, in_memory = transfer_energy(transfer, c.system)
        # The bytes are proportional to the length of the prompt, which is log-normal.
        spread = 1 + requests.input_spread**2
        return cls(
            time=transfer.time,
            square=transfer.time**2 * spread,
            cube=transfer.time**3 * spread**3,
            lanes=c.relax.minimum(prefill.engines, decode.engines),
            energy=(links + in_memory) * kept / sent * decode.engine_devices,
        )

    @property
    def capacity(self) -> Scalar:
        """Transfers per second that keep all lanes busy."""
        return self.lanes / positive(self.time)

    def duration(self, rate: Scalar, steepest: float) -> tuple[Moments, Moments]:
        """Seconds of a transfer and of the wait for it where `rate` requests per second are transferred.

        - `steepest`: the utilization from which waits grow along a tangent (see `delay_factor`).
        """
        each = rate / self.lanes
        wait = wait_for_server(each, (self.time, self.square, self.cube), steepest)
        fewer = wait_share_of_servers(each * self.time, self.lanes)
        waiting = Moments(wait.mean * fewer, wait.variance * fewer)
        return waiting, Moments(self.time, self.square - self.time**2)
