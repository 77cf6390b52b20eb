"""Time of kernels that only stream through device memory."""

from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, idle_arithmetic, stream_latency, stream_time, streamed
from diffperf.relax import smaller
from diffperf.workload.operators import Streams


def stream_work(streams: Streams, machine: Machine) -> Work:
    """Time, energy and memory traffic of each kernel of a table, bound by the bandwidth of device memory or
    of the cache that holds its tensors; zero for a kernel without bytes.
    """
    moved, running = streams.bytes, stream_time(machine, streams.bytes)
    time = running + stream_latency(machine, moved) + machine.kernel_overhead
    present = smaller(moved, 1.0)
    return idle_arithmetic(time * present, running * present, streamed(machine, moved))
