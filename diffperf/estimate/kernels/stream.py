"""How long kernels take that only stream through device memory."""

from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, idle_arithmetic, stream_latency, stream_time, streamed
from diffperf.relax import smaller
from diffperf.workload.operators import Streams


def stream_work(streams: Streams, machine: Machine) -> Work:
    """What each kernel of a table takes, bound by the bandwidth of device memory or of the cache that holds
    its tensors; a kernel without bytes takes nothing.
    """
    moved = streams.bytes
    time = stream_time(machine, moved) + stream_latency(machine, moved) + machine.kernel_overhead
    return idle_arithmetic(time * smaller(moved, 1.0), streamed(machine, moved))
