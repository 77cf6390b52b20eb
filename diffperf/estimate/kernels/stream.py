"""Time of kernels that only stream through device memory."""

from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, idle_arithmetic, stream_latency, stream_time, streamed
from diffperf.relax import smaller
from diffperf.workload.operators import Streams


def stream_work(streams: Streams, machine: Machine) -> Work:
    """Time, energy and memory traffic of each kernel of a table, bound by the bandwidth of device memory or
    of the cache that holds its tensors; zero for a kernel without bytes.
    """
    moved, present = streams.bytes, smaller(streams.bytes, 1.0)
    start = stream_latency(machine, moved) + machine.kernel_overhead
    time = stream_time(machine, moved) + start
    return idle_arithmetic(time * present, start * present, streamed(machine, moved))
