"""Measured GEMMs, attention kernels and collectives, and what the estimator says of them."""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffperf.estimate.kernels.attention import generated_share
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import memory_times
from diffperf.estimate.network.placement import place
from diffperf.estimate.network.transfers import COLLECTIVES
from diffperf.explore.measured.platforms import stacked_systems
from diffperf.explore.measured.stacking import (
    Evaluator,
    Outputs,
    lacking,
    numbers,
    one_of,
    precision,
    stacked_strategy,
    systems_of,
    weights,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.load import load_system
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Exact, choose
from diffperf.workload.assembly import FUSED_KERNELS, attention_operators
from diffperf.workload.operators import NO_WINDOW, AttentionCore, Gemms, operators_of
from diffperf.workload.strategy import Strategy


def _gemm_unrepresentable(row: Row) -> str | None:
    return lacking(row, "dtype")


def _formats(rows: Sequence[Row], kv_column: str = "dtype") -> Strategy:
    return stacked_strategy(rows, precision=precision(rows, "dtype"), kv_precision=precision(rows, kv_column))


def _gemm_stack(rows: Sequence[Row]) -> tuple[System, Strategy, np.ndarray]:
    return (
        systems_of(rows),
        _formats(rows),
        np.stack([numbers(rows, name) for name in ("m", "n", "k", "batch")], axis=1),
    )


def _gemm_estimate(system: System, formats: Strategy, sizes: jax.Array) -> Outputs:
    product = operators_of(Gemms.table({"product": tuple(sizes)}), part="matmul")
    (timed,) = evaluate([product], Machine.of(system, formats, Exact()))
    return {"latency_s": timed.once().time}


_UNFUSED = ("standard", "pytorch")  # attention kernels that write their scores to memory

# The stack of a library of attention kernels, on all hardware or by the first letter of the hardware's name. Of what is not here
# nothing is known: the system's own stack stands for it.
_LIBRARIES = {
    ("tensorrt-llm", ""): "tensorrt-llm-kernels",
    ("flashattention-1", ""): "flash-attention-1",
    ("flashattention-2", ""): "flash-attention-2",
    ("flashattention-2", "h"): "flash-attention-2-hopper",
    ("flashattention-3", ""): "flash-attention-3",
    ("cudnn", ""): "cudnn-attention",
    ("triton", ""): "triton-attention",
}
# Libraries whose measured calls rotate queries and keys, and write keys and values to the cache, in a kernel before the fused one.
_PREPARING = ("tensorrt-llm",)


def _library(row: Row) -> str:
    return (row["kernel"] or "").lower()


def _attention_stack_of(row: Row) -> str | None:
    everywhere = _LIBRARIES.get((_library(row), ""))
    return _LIBRARIES.get((_library(row), row["hardware"][:1]), everywhere)


def _attention_unrepresentable(row: Row) -> str | None:
    return lacking(row, "dtype", "kv_dtype")


def _attention_stack(
    rows: Sequence[Row],
) -> tuple[System, Strategy, AttentionCore, Weights, np.ndarray, np.ndarray]:
    sizes = [numbers(rows, name) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")]
    causal, one = np.array([bool(row["causal"]) for row in rows], dtype=float), np.ones(len(rows))
    core = AttentionCore(*sizes, causal=causal, window=NO_WINDOW * one, latent=0 * one)
    systems = stacked_systems(
        [row["hardware"] for row in rows], [_attention_stack_of(row) for row in rows], one, one
    )
    fused = np.array([_library(row) not in _UNFUSED for row in rows])
    both_passes = np.array([row["phase"] == "train_fwd_bwd" for row in rows], dtype=float)
    prepared = np.array([_library(row) in _PREPARING for row in rows], dtype=float)
    kernel = weights(["flash" if one else "standard" for one in fused], ("standard", "flash"))
    return systems, _formats(rows, "kv_dtype"), core, kernel, both_passes, prepared


def _preparation(core: AttentionCore, machine: Machine) -> Scalar:
    """Time to rotate queries and keys in place, and to copy keys and values of new tokens to the cache.

    The launch of the kernel that does so is part of the attention call's latency.
    """
    new = core.kv_elements * core.queries / core.context
    bytes_ = 2 * machine.matrix.output_width * core.query_elements
    bytes_ += (machine.matrix.output_width + machine.attention.kv_width) * new
    return memory_times(machine, [bytes_] * (len(machine.accelerator.memory) - 1))[-1]


def _attention_estimate(
    system: System,
    formats: Strategy,
    core: AttentionCore,
    kernel: Weights,
    both_passes: Scalar,
    prepared: Scalar,
) -> Outputs:
    machine = Machine.of(system, formats, Exact())
    generated = generated_share(core, machine)
    operators = attention_operators(
        core,
        kernel,
        Weights(jnp.stack([1 - generated, generated]), FUSED_KERNELS),
        element=formats.activation_width,
        dropout=jnp.zeros_like(core.queries),
        directions=("forward", "backward"),
    )
    times = {"forward": jnp.zeros_like(core.queries), "backward": jnp.zeros_like(core.queries)}
    for timed in evaluate(operators, machine):
        times[timed.operators.direction] += timed.once().time
    forward = times["forward"] + prepared * _preparation(core, machine)
    return {"latency_s": forward + both_passes * times["backward"]}


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def _collective_unrepresentable(row: Row) -> str | None:
    return None if row["collective"] in _COLLECTIVES else f"collective {row['collective']}"


_UNSTATED = "a100-cloud"  # the system whose outermost tier stands for a network between nodes of which no more is known


def _with_stated_network(rows: Sequence[Row], systems: System) -> System:
    """The systems, those of rows whose interconnect is just "inter-node" without the network that the system has of its own."""
    unstated = np.array([row["interconnect"] == "inter-node" for row in rows])
    outer = load_system(_UNSTATED).network[-1]

    def either(own, other):
        return np.where(unstated.reshape(-1, *(1,) * (own.ndim - 1)), np.asarray(other), own)

    return eqx.tree_at(lambda s: s.network[-1], systems, jax.tree.map(either, systems.network[-1], outer))


def _collective_stack(rows: Sequence[Row]) -> tuple[System, Weights, np.ndarray, np.ndarray]:
    """The tiers that a row's devices span follow from how many share a node; the library's stack drives them."""
    return (
        _with_stated_network(rows, systems_of(rows)),
        one_of(rows, "collective", _COLLECTIVES),
        numbers(rows, "n_devices"),
        numbers(rows, "bytes"),
    )


def _collective_estimate(system: System, which: Weights, degree: Scalar, volume: Scalar) -> Outputs:
    group = place(system, degree, jnp.ones_like(degree), Exact())
    kinds = {name: functools.partial(COLLECTIVES[name], group, volume) for name in _COLLECTIVES}
    return {"latency_s": choose(which, kinds).time}


GEMM = Evaluator(_gemm_unrepresentable, _gemm_stack, _gemm_estimate)
ATTENTION = Evaluator(_attention_unrepresentable, _attention_stack, _attention_estimate)
COLLECTIVES = Evaluator(_collective_unrepresentable, _collective_stack, _collective_estimate)
