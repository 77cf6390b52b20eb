"""What the tests of attention kernels share: a round-numbered accelerator, attention cores, and their work by
either kernel.
"""

import jax.numpy as jnp
import numpy as np

import diffperf as dp
from diffperf.estimate.kernels.attention import generated_share
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.quantity import Weights, real, replace
from diffperf.relax import Exact
from diffperf.workload.assembly import FUSED_KERNELS, attention_operators
from diffperf.workload.operators import AttentionCore

RATE, VECTOR, UNITS = 100e12, 10e12, 100
HBM, L2 = 1e12, 4e12  # byte/s, reachable
EFFICIENCY, SOFTMAX, LATENCY, OVERHEAD = 0.8, 20.0, 4e-6, 3e-6
TILE_LATENCY, HEAD_LATENCY, GROUP_LATENCY, ROW_LATENCY, SPLIT_LATENCY = 2e-6, 1e-6, 5e-6, 1e-7, 7e-6
FREE = 1e30  # byte/s
FIXED = LATENCY + OVERHEAD

_OF_FORMAT = ("efficiency", "tile_latency", "group_latency")  # what attention kernels have for each format
_KERNELS = {
    "efficiency": EFFICIENCY,
    "backward_efficiency": 0.5,
    "softmax_flops": SOFTMAX,
    "latency": LATENCY,
    "tile_latency": TILE_LATENCY,
    "head_latency": HEAD_LATENCY,
    "group_latency": GROUP_LATENCY,
    "row_latency": ROW_LATENCY,
    "split_latency": SPLIT_LATENCY,
}
_SYSTEM = {
    "accelerator.matrix.bf16.rate": RATE,
    "accelerator.vector": VECTOR,
    "accelerator.compute_units": UNITS,
    "accelerator.kernel_latency": OVERHEAD / 3,
    "accelerator.power_limit": 1e30,
    "accelerator.memory.smem.capacity": UNITS * 262144.0,
    "accelerator.memory.l2.capacity": 48e6,
    "accelerator.memory.l2.bandwidth": FREE,
    "accelerator.memory.l2.efficiency": 1.0,
    "accelerator.memory.l2.latency": 1e-30,
    "accelerator.memory.hbm.bandwidth": FREE,
    "accelerator.memory.hbm.efficiency": 1.0,
    "accelerator.memory.hbm.latency": 1e-30,
    "stack.kernel_overhead": OVERHEAD * 2 / 3,
    "stack.attention_efficiency": 1.0,
    "stack.grouped_heads": 32.0,
} | {
    f"accelerator.attention.{kind}.{name}" if name in _OF_FORMAT else f"accelerator.attention.{name}": value
    for kind in ("bf16", "fp8")
    for name, value in _KERNELS.items()
}


def machine_of(system, values=None, relax=None):
    """A round-numbered accelerator whose memory costs nothing but what `values` say, by their paths in an
    accelerator or from `stack.` on.
    """
    given = {
        path if path.startswith("stack.") else f"accelerator.{path}": value
        for path, value in (values or {}).items()
    }
    return Machine.of(replace(system, _SYSTEM | given), dp.load_strategy({}), relax or Exact())


def core_of(queries, context=None, heads=8, kv_heads=None, sequences=1, head_dim=128, **others):
    """An attention core of some queries, by default a prompt whose heads each have keys and values."""
    return AttentionCore(
        sequences=real(sequences),
        queries=real(queries),
        context=real(queries if context is None else context),
        heads=real(heads),
        kv_heads=real(heads if kv_heads is None else kv_heads),
        head_dim=real(head_dim),
        **others,
    )


def attention_work(core, machine, kernel="flash", direction="forward"):
    """The work of an attention core in one direction, by the kernel that the shape of its tokens asks for."""
    return attention_works(core, machine, kernel, (direction,))[direction]


def attention_works(core, machine, kernel="flash", directions=("forward", "backward")):
    """The work of an attention core by direction."""
    generated = generated_share(core, machine)
    operators = attention_operators(
        core,
        Weights(real(np.array([kernel == "standard", kernel == "flash"])), ("standard", "flash")),
        Weights(jnp.stack([1 - generated, generated]), FUSED_KERNELS),
        element=real(2.0),
        dropout=real(0.0),
        directions=directions,
    )
    timed = evaluate(operators, machine)
    return {direction: timed.total(direction=direction) for direction in directions}


def seconds_per_score(head_dim=128, rate=RATE * EFFICIENCY):
    """Seconds of the whole device for one score: its products and its softmax, which overlap in part."""
    return np.hypot(4 * head_dim / rate, SOFTMAX / VECTOR)
