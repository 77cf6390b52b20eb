"""How long kernels take that only stream through device memory."""

import jax.numpy as jnp

from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, stream_latency, stream_time, streamed
from diffperf.relax import smaller
from diffperf.workload.operators import Streams


def stream_work(streams: Streams, machine: Machine) -> Work:
    """What each kernel of a table takes, bound by the bandwidth of device memory or of the cache that holds
    its tensors; a kernel without bytes takes nothing.
    """
    moved = streams.bytes
    time = stream_time(machine, moved) + stream_latency(machine, moved) + machine.kernel_overhead
    present = smaller(moved, 1.0)
    return Work(time=time * present, flops=jnp.zeros_like(time), traffic=streamed(machine, moved))
