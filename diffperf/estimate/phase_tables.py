"""A phase's operators and collectives as tables: what listings show is what the report sums."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.evaluation import TimedOperators
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.network.transfers import TimedCollective
from diffperf.quantity import Scalar
from diffperf.relax import positive
from diffperf.workload.operators import Operators


class OperatorTable(eqx.Module):
    """Operators of a phase on a device of the slowest pipeline stage, a row for each kernel, kind of layers
    and pass.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)  # fields of the phase's breakdown
    kernels: tuple[str, ...] = eqx.field(static=True)  # kinds of kernels
    run_time: Float[Array, " operators"]  # s of one run
    runs: Float[Array, " operators"]  # in the phase
    flops: Float[Array, " operators"]  # FLOP of one run on the matrix units
    traffic: Float[Array, "levels operators"]  # bytes of one run by memory level outside the innermost

    @property
    def time(self) -> Float[Array | np.ndarray, " operators"]:
        """Seconds of all runs."""
        return self.run_time * self.runs


class CollectiveTable(eqx.Module):
    """Collectives of a phase on a device of the slowest pipeline stage."""

    names: tuple[str, ...] = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)  # fields of the phase's breakdown
    run_time: Float[Array, " collectives"]  # s of one run, were it not hidden
    runs: Float[Array, " collectives"]  # in the phase
    exposed: Float[Array, " collectives"]  # s of all runs that count in the breakdown


class PhaseTables(eqx.Module):
    """All operators and collectives of a phase."""

    operators: OperatorTable
    collectives: CollectiveTable


def operator_table(
    operators: Iterable[TimedOperators], counts: dict[str, Array | float], *, trained: bool
) -> OperatorTable:
    """The table of timed operators; `counts` says how many of each `per` the phase has: layers,
    micro-batches, steps. Layers may be counted by kind, in the order of the operators' structures.

    In training, what the backward pass recomputes has rows of its own.
    """
    operators = list(operators)
    layered = [timed.operators for timed in operators if timed.operators.per == "layer"]
    sizes = {group.structure: group.runs.shape[0] for group in layered}
    names: list[str] = []
    parts: list[str] = []
    kernels: list[str] = []
    columns: list[_Columns] = []
    for timed in operators:
        group = timed.operators
        count = _count(counts[group.per], group, sizes)
        rows = [
            f"{name} ({kind})" if kind else name for kind in group.layers or ("",) for name in group.names
        ]
        work, runs = timed.work, count * group.runs
        if len(set(group.names)) < len(group.names):  # one kernel at several contexts of a generation
            work, rows = _mean_work(work, runs), rows[:: len(group.names)]
            runs = jnp.sum(runs, axis=-1, keepdims=True)
        repeated = jnp.ravel(runs * group.recomputed)
        row = _Columns(
            time=jnp.ravel(work.time),
            runs=jnp.ravel(runs),
            flops=jnp.ravel(work.flops),
            traffic=jnp.reshape(work.traffic, (work.traffic.shape[0], -1)),
        )
        names += rows
        parts += [group.part] * len(rows)
        kernels += [group.kernel] * len(rows)
        columns.append(row)
        if trained and group.per == "layer" and group.direction == "forward":
            names += [f"{name}, recomputed" for name in rows]
            parts += ["recompute"] * len(rows)
            kernels += [group.kernel] * len(rows)
            columns.append(row._replace(runs=repeated))
    whole = _Columns(*(jnp.concatenate(column, axis=-1) for column in zip(*columns, strict=True)))
    return OperatorTable(
        names=tuple(names),
        parts=tuple(parts),
        kernels=tuple(kernels),
        run_time=whole.time,
        runs=whole.runs,
        flops=whole.flops,
        traffic=whole.traffic,
    )


class _Columns(NamedTuple):
    """The numbers of rows of a table of operators: those of one run, and how many runs there are."""

    time: Array
    runs: Array
    flops: Array
    traffic: Array


def _mean_work(work: Work, runs: Array) -> Work:
    """The mean of the work of several operators on the last axis, weighted by how often each runs."""
    share = runs / positive(jnp.sum(runs, axis=-1, keepdims=True))
    return jax.tree.map(lambda leaf: jnp.sum(leaf * share, axis=-1, keepdims=True), work)


def _count(count: Array | float, group: Operators, sizes: dict[int, int]) -> Array | float:
    """How many of what some operators run for the phase has, to multiply their runs with.

    `sizes` are the numbers of kinds of layers of each structure.
    """
    if group.per != "layer" or jnp.ndim(count) == 0:
        return count
    before = sum(sizes[structure] for structure in range(group.structure))
    return jnp.asarray(count)[before : before + sizes[group.structure], None]


def collective_table(
    collectives: Iterable[TimedCollective],
    runs: Callable[[TimedCollective], Scalar],
    exposed: dict[str, Scalar],
) -> CollectiveTable:
    """The table of timed collectives.

    `runs` counts a collective's runs in the phase; `exposed` says for each purpose the seconds that count
    in the breakdown, which its collectives share by the time that they take.
    """
    collectives = list(collectives)
    counts = [runs(timed) for timed in collectives]
    totals: dict[str, Scalar] = {}
    for timed, count in zip(collectives, counts, strict=True):
        purpose = timed.collective.purpose
        totals[purpose] = totals.get(purpose, jnp.zeros_like(count)) + timed.transfer.time * count
    shares = {purpose: exposed[purpose] / positive(total) for purpose, total in totals.items()}
    return CollectiveTable(
        names=tuple(timed.collective.name for timed in collectives),
        parts=tuple(timed.collective.part for timed in collectives),
        run_time=jnp.stack([timed.transfer.time for timed in collectives]),
        runs=jnp.stack(counts),
        exposed=jnp.stack(
            [
                timed.transfer.time * count * shares[timed.collective.purpose]
                for timed, count in zip(collectives, counts, strict=True)
            ]
        ),
    )
