"""Measured GEMMs, attention kernels and collectives, and what the estimator says of them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from diffperf.estimate.attention import attention_backward, attention_forward
from diffperf.estimate.collectives import place
from diffperf.estimate.gemm import gemm_work
from diffperf.estimate.machine import Machine
from diffperf.explore.measurements import Row
from diffperf.explore.stacking import (
    Evaluator,
    Outputs,
    first,
    lacking,
    lacking_system,
    numbers,
    precision,
    stacked_strategy,
    switch,
    systems_of,
)
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights
from diffperf.relax import Exact, choose
from diffperf.workload.operators import AttentionCore, Gemms
from diffperf.workload.strategy import Strategy


def _gemm_unrepresentable(row: Row) -> str | None:
    return first(lacking(row, "dtype"), lacking_system(row))


def _formats(rows: Sequence[Row], kv_column: str = "dtype") -> Strategy:
    return stacked_strategy(rows, precision=precision(rows, "dtype"), kv_precision=precision(rows, kv_column))


def _gemm_stack(rows: Sequence[Row]) -> tuple[System, Strategy, np.ndarray]:
    return systems_of(rows), _formats(rows), np.stack([numbers(rows, name) for name in ("m", "n", "k", "batch")], axis=1)


def _gemm_estimate(system: System, formats: Strategy, sizes: jax.Array) -> Outputs:
    return {"latency_s": gemm_work(Gemms.table(tuple(sizes)), Machine.of(system, formats, Exact())).total().time}


_UNFUSED = ("standard", "pytorch")  # attention kernels that write their scores to memory


def _attention_unrepresentable(row: Row) -> str | None:
    return first(
        not row["causal"] and row["q_len"] > 1 and "attention without a causal mask",
        lacking(row, "dtype", "kv_dtype"),
        lacking_system(row),
    )


def _attention_stack(rows: Sequence[Row]) -> tuple[System, Strategy, AttentionCore, np.ndarray, np.ndarray]:
    core = AttentionCore(*(numbers(rows, name) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")))
    fused = np.array([(row["kernel"] or "").lower() not in _UNFUSED for row in rows])
    both_passes = np.array([row["phase"] == "train_fwd_bwd" for row in rows])
    return systems_of(rows), _formats(rows, "kv_dtype"), core, switch(fused), switch(both_passes)


def _attention_estimate(system: System, formats: Strategy, core: AttentionCore, kernel: Weights, both_passes: Weights) -> Outputs:
    machine, dropout = Machine.of(system, formats, Exact()), jnp.zeros_like(core.queries)
    backward = attention_backward(core, dropout, machine, kernel).time
    return {"latency_s": attention_forward(core, dropout, machine, kernel).time + both_passes[1] * backward}


_COLLECTIVES = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 1, "send_recv": 2}
_TIERS = (None, "nvlink", "infiniband", "inter-node")


def _collective_unrepresentable(row: Row) -> str | None:
    return first(
        row["collective"] not in _COLLECTIVES and f"collective {row['collective']}",
        lacking_system(row),
        row["interconnect"] not in _TIERS and f"interconnect {row['interconnect']}",
    )


def _collective_stack(rows: Sequence[Row]) -> tuple[System, np.ndarray, np.ndarray, np.ndarray]:
    which = np.eye(3)[[_COLLECTIVES[row["collective"]] for row in rows]]
    return systems_of(rows), which, numbers(rows, "n_devices"), numbers(rows, "bytes")


def _collective_estimate(system: System, which: Weights, degree: Scalar, volume: Scalar) -> Outputs:
    group = place(system, degree, jnp.ones_like(degree), Exact())
    ways = [lambda: group.all_reduce(volume), lambda: group.all_gather(volume), lambda: group.send(volume)]
    return {"latency_s": choose(which, ways).time}


GEMM = Evaluator(_gemm_unrepresentable, _gemm_stack, _gemm_estimate)
ATTENTION = Evaluator(_attention_unrepresentable, _attention_stack, _attention_estimate)
COLLECTIVES = Evaluator(_collective_unrepresentable, _collective_stack, _collective_estimate)
