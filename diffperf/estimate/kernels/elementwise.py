"""How long kernels take that only stream through device memory."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.roofline import Machine, Work, stream_time
from diffperf.quantity import Scalar
from diffperf.relax import smaller


def stream_work(elements: Float[Array, " kernels"], machine: Machine) -> Work:
    """Element-wise kernels, bound by device memory: each moves `elements` elements of activations; none, no kernel."""
    bytes_ = elements * machine.activation
    time = stream_time(machine, bytes_) + machine.levels[-1].latency + machine.kernel_overhead
    return Work(
        time * smaller(elements, 1.0), jnp.zeros_like(time), jnp.stack([bytes_] * len(machine.levels))
    )


def as_fused(machine: Machine) -> Scalar:
    """Bytes of one of the stack's element-wise kernels over those of one of Megatron-LM's fusions."""
    return machine.elementwise_traffic / machine.elementwise_kernels


def layer_stream_work(elements: Float[Array, " kernels"], machine: Machine) -> Work:
    """A layer's element-wise kernels as the stack fuses them: `elements` are those of Megatron-LM's fusions, and the stack moves
    `elementwise_traffic` times their bytes in `elementwise_kernels` times as many kernels."""
    return stream_work(elements * as_fused(machine), machine) * machine.elementwise_kernels
