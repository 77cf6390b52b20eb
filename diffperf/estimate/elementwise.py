"""How long kernels take that only stream through device memory."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.machine import Machine, Work, memory_times


def stream_work(elements: Float[Array, " kernels"], machine: Machine) -> Work:
    """Element-wise kernels, bound by device memory: each moves `elements` operand-sized elements."""
    bytes_ = elements * machine.width
    levels = len(machine.accelerator.memory) - 1
    time = memory_times(machine, [bytes_] * levels)[-1] + machine.kernel_overhead
    return Work(time, jnp.zeros_like(time), jnp.stack([bytes_] * levels))


def layer_stream_work(elements: Float[Array, " kernels"], machine: Machine) -> Work:
    """A layer's element-wise kernels as the stack fuses them: `elements` are those of Megatron-LM's fusions, and the stack moves
    `elementwise_traffic` times their bytes in `elementwise_kernels` times as many kernels."""
    kernels = machine.elementwise_kernels
    return stream_work(elements * (machine.elementwise_traffic / kernels), machine) * kernels
