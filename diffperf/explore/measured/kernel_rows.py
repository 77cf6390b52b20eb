"""Measured GEMMs, attention kernels and collectives, and the estimator's times of them."""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.attention import generated_share
from diffperf.estimate.kernels.clock import clock_under_limit
from diffperf.estimate.kernels.evaluation import evaluate
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import stream_latency, stream_time
from diffperf.estimate.network.placement import place
from diffperf.estimate.network.transfers import COLLECTIVES
from diffperf.explore.measured.benchmarks import benchmark_of, duration_and_runs
from diffperf.explore.measured.names import StackNames
from diffperf.explore.measured.platforms import Platforms, double_precision, stated_network
from diffperf.explore.measured.stacking import (
    Evaluator,
    Outputs,
    numbers,
    one_of,
    precision,
    software_of,
    stacked_strategy,
    systems_of,
    unknown_precision,
    weights,
)
from diffperf.explore.measured.table import Row
from diffperf.hardware.formats import width
from diffperf.hardware.network import NetworkTier
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, real
from diffperf.relax import Exact, choose
from diffperf.workload.assembly import FUSED_KERNELS, attention_operators
from diffperf.workload.operators import NO_WINDOW, AttentionCore, Gemms, operators_of
from diffperf.workload.strategy import Strategy


def _formats(rows: Sequence[Row], kv_column: str = "dtype") -> Strategy:
    """Strategies that say the number formats of operands, and of the KV cache."""
    return stacked_strategy(rows, precision=precision(rows, "dtype"), kv_precision=precision(rows, kv_column))


# --- GEMMs


def _gemm_unrepresentable(row: Row) -> str | None:
    return unknown_precision(row, "dtype")


# Texts in the column `layout` that name a pass of the products of experts, in rows with the sizes of the
# forward pass: the product's sizes (m, n, k), and bytes of an element of the sums that it is added to.
_EXPERT_PASSES = {
    "fwd": (("m", "n", "k"), 0.0),
    "bwd_grad_act": (("m", "k", "n"), 0.0),
    "bwd_grad_w": (("k", "n", "m"), 4.0),
}


def _products(row: Row) -> tuple[float, ...]:
    """Sizes (m, n, k, batch) of a row's products, bytes of an element of sums that they are added to, and
    kernels: one for each expert, as Transformer Engine's GroupedLinear launches them, or one for all.
    """
    sizes, accumulator = _EXPERT_PASSES.get(row["layout"] or "", (("m", "n", "k"), 0.0))
    kernels = row["batch"] if row["layout"] in _EXPERT_PASSES else 1.0
    return (*(row[size] for size in sizes), row["batch"], accumulator, kernels)


def _gemm_inputs(
    rows: Sequence[Row], platforms: Platforms
) -> tuple[System, Strategy, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Systems, number formats and products; and how the benchmark of each row ran its kernel.

    A benchmark repeats a kernel for some seconds, or a number of times without a pause: the other of the two
    is 0. Last are the seconds from one replay of recorded kernels to the next, and the most kernels in one.
    """
    products = np.array([_products(row) for row in rows], dtype=float)
    durations, runs = np.array([duration_and_runs(row) for row in rows], dtype=float).T
    ran = [benchmark_of(row) for row in rows]
    replays = np.array([(benchmark.replay_start, benchmark.weights) for benchmark in ran], dtype=float)
    return systems_of(rows, platforms), _formats(rows), products, durations, runs, replays


def _start_of_replay(system: System, formats: Strategy, weights: Scalar, replay: Float[Array, "2"]) -> Scalar:
    """Seconds of the start of a replay for each of its kernels, which have weights of their own: as many as
    together fill the cache, up to a number.
    """
    start, most = replay
    cache = system.accelerator.memory[system.accelerator.last_cache].capacity
    kernels = jnp.ceil(cache / (weights * width(formats.precision)))
    return start / jnp.clip(kernels, 1.0, most)


def _gemm_estimate(
    system: System,
    formats: Strategy,
    product: Float[Array, "6"],
    duration: Scalar,
    runs: Scalar,
    replay: Float[Array, "2"],
) -> Outputs:
    machine = Machine.of(system, formats, Exact())
    *sizes, accumulator, kernels = product
    table = Gemms.table({"product": tuple(sizes)}).added_to(accumulator).in_kernels(kernels)
    timed = evaluate([operators_of(table, part="matmul")], machine)
    work = timed.total()
    clock = clock_under_limit(work, machine, duration + runs * work.time)
    _, n, k, batch = sizes
    start = _start_of_replay(system, formats, batch * n * k, replay)
    return {"latency_s": clock.slow_all(timed).total().time + start}


# --- attention


def _attention_unrepresentable(row: Row) -> str | None:
    return unknown_precision(row, "dtype", "kv_dtype")


def _attention_inputs(
    rows: Sequence[Row], platforms: Platforms
) -> tuple[System, Strategy, AttentionCore, Weights, np.ndarray, np.ndarray]:
    """Systems, number formats, attention cores, kernels (standard or flash), and two flags.

    The flags are 1 where the backward pass is measured too, and where the call prepares its inputs in
    another kernel.
    """
    zeros = real(np.zeros(len(rows)))
    core = AttentionCore(
        sequences=real(numbers(rows, "batch")),
        queries=real(numbers(rows, "q_len")),
        context=real(numbers(rows, "kv_len")),
        heads=real(numbers(rows, "heads")),
        kv_heads=real(numbers(rows, "kv_heads")),
        head_dim=real(numbers(rows, "head_dim")),
        causal=real(numbers(rows, "causal")),
        window=zeros + NO_WINDOW,
        latent=zeros,
        backward=zeros,
        launches=zeros + 1,
    )
    both_passes = np.array([row["phase"] == "train_fwd_bwd" for row in rows], dtype=float)
    # Of a library that no stack is called, nothing is known: its kernels are taken as fused, without others
    # before them.
    libraries = [
        software.names if (software := software_of(row, platforms)) else StackNames() for row in rows
    ]
    prepares = np.array([names.prepares_inputs for names in libraries], dtype=float)
    kernel = weights(["flash" if names.fused else "standard" for names in libraries], ("standard", "flash"))
    systems = systems_of(rows, platforms)
    return systems, _formats(rows, "kv_dtype"), core, kernel, both_passes, prepares


def _preparation_time(core: AttentionCore, machine: Machine) -> Scalar:
    """Seconds to rotate queries and keys in place, and to copy keys and values of new tokens to the cache.

    The launch of the kernel that does so is part of the attention call's latency.
    """
    new = core.kv_elements * core.queries / core.context
    bytes_ = 2 * machine.matrix.output_width * core.query_elements
    bytes_ = bytes_ + (machine.matrix.output_width + machine.attention.kv_width) * new
    return stream_time(machine, bytes_) + stream_latency(machine, bytes_)


def _attention_estimate(
    system: System,
    formats: Strategy,
    core: AttentionCore,
    kernel: Weights,
    both_passes: Scalar,
    prepares: Scalar,
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
    timed = evaluate(operators, machine)
    forward, backward = timed.times([{"direction": "forward"}, {"direction": "backward"}]).time
    prepared = prepares * _preparation_time(core, machine)
    return {"latency_s": forward + prepared + both_passes * backward}


# --- collectives


def _collective_unrepresentable(row: Row) -> str | None:
    return None if row["collective"] in COLLECTIVES else f"collective {row['collective']}"


def _with_stated_networks(rows: Sequence[Row], systems: System) -> System:
    """The systems with the networks between nodes that the rows' interconnects mean.

    An interconnect that means no other network leaves the system its own.
    """
    texts = [row["interconnect"] or "" for row in rows]
    outermost = systems.network[-1]
    for text in set(texts):
        stated = stated_network(text, double_precision())
        if stated is not None:
            outermost = _replaced(outermost, stated, np.array([other == text for other in texts]))
    return eqx.tree_at(lambda s: s.network[-1], systems, outermost)


def _replaced(tiers: NetworkTier, other: NetworkTier, where: np.ndarray) -> NetworkTier:
    """Network tiers with a leading axis, with another tier in place of those at some positions."""

    def leaf(own: np.ndarray, others: Array) -> np.ndarray:
        return np.where(where.reshape(-1, *(1,) * (own.ndim - 1)), np.asarray(others), own)

    return jax.tree.map(leaf, tiers, other)


def _collective_inputs(
    rows: Sequence[Row], platforms: Platforms
) -> tuple[System, Weights, np.ndarray, np.ndarray]:
    """Systems, collectives, numbers of devices and bytes.

    Which tiers the devices span follows from how many share a node; the stack of the row's library drives
    them.
    """
    systems = _with_stated_networks(rows, systems_of(rows, platforms))
    which = one_of(rows, "collective", tuple(COLLECTIVES))
    return systems, which, numbers(rows, "n_devices"), numbers(rows, "bytes")


def _collective_estimate(system: System, which: Weights, degree: Scalar, volume: Scalar) -> Outputs:
    group = place(system, degree, jnp.ones_like(degree), Exact())
    alternatives = {name: functools.partial(time_of, group, volume) for name, time_of in COLLECTIVES.items()}
    return {"latency_s": choose(which, alternatives).time}


GEMM = Evaluator(_gemm_unrepresentable, _gemm_inputs, _gemm_estimate)
ATTENTION = Evaluator(_attention_unrepresentable, _attention_inputs, _attention_estimate)
COLLECTIVE_ROWS = Evaluator(_collective_unrepresentable, _collective_inputs, _collective_estimate)
