"""A phase's operators and collectives as tables: what listings show is what the report sums."""

from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.estimate.kernels.evaluation import OperatorLabel, TimedOperators, sums_over
from diffperf.estimate.network.transfers import TimedCollective
from diffperf.quantity import Scalar
from diffperf.relax import positive


class OperatorTable(eqx.Module):
    """Operators of a phase, a row for each kernel, kind of layers and pass: in training those of a device of
    the slowest pipeline stage, in inference those of the pass of one micro-batch through all stages.
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
    """Collectives of a phase: in training those of a device of the slowest pipeline stage, in inference those
    of the pass of one micro-batch through all stages.
    """

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
    operators: TimedOperators, counts: dict[str, Array | float], *, trained: bool
) -> OperatorTable:
    """The table of timed operators; `counts` says how many of each `per` the phase has: layers,
    micro-batches, steps. Layers may be counted by kind, in the order of `Model.grouped`.

    In training, what the backward pass recomputes has rows of its own. One kernel at several contexts of a
    generation has one row.
    """
    groups: dict[int, dict[OperatorLabel, list[int]]] = {}
    for place, label in enumerate(operators.labels):
        groups.setdefault(label.group, {}).setdefault(label, []).append(place)
    rows: list[tuple[OperatorLabel, list[int], bool]] = []  # the last says whether it is recomputed
    for _, of_group in sorted(groups.items()):
        rows += [(label, places, False) for label, places in of_group.items()]
        rows += [
            (label, places, True)
            for label, places in of_group.items()
            if trained and label.per == "layer" and label.direction == "forward"
        ]
    members = np.zeros((len(rows), len(operators.labels)), bool)
    for row, (_, places, _) in enumerate(rows):
        members[row, places] = True
    first, alone = members.argmax(axis=1), members.sum(axis=1) == 1
    repeated = np.array([is_repeated for _, _, is_repeated in rows])

    numbers = [(kernel.runs, kernel.recomputed, kernel.work) for kernel in operators.kernels]
    runs, recomputed, work = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-1), *numbers)
    runs = runs * _counts(operators, counts)
    every = sums_over(runs, members)
    in_rows = jnp.where(repeated, sums_over(runs * recomputed, members), every)

    def of_one_run(number: Array) -> Array:
        """A number of one run of every row: the mean where a row stands for several operators."""
        return jnp.where(alone, number[..., first], sums_over(number * runs, members) / positive(every))

    return OperatorTable(
        names=tuple(_row_name(label, is_repeated) for label, _, is_repeated in rows),
        parts=tuple("recompute" if is_repeated else label.part for label, _, is_repeated in rows),
        kernels=tuple(label.kernel for label, _, _ in rows),
        run_time=of_one_run(work.time),
        runs=in_rows,
        flops=of_one_run(work.flops),
        traffic=of_one_run(work.traffic),
    )


def _row_name(label: OperatorLabel, recomputed: bool) -> str:
    """The name of an operator, with its kind of layers, where a listing has a row for it."""
    name = f"{label.name} ({label.layers})" if label.layers else label.name
    return f"{name}, recomputed" if recomputed else name


def _counts(operators: TimedOperators, counts: dict[str, Array | float]) -> Float[Array, " operators"]:
    """Number of repetitions in the phase of each operator's unit: layers, micro-batches or steps."""
    of_kinds = {per: jnp.atleast_1d(jnp.asarray(count)) for per, count in counts.items()}
    starts = dict(zip(of_kinds, np.cumsum([0, *map(len, of_kinds.values())]), strict=False))
    places = [
        starts[label.per] + (label.kind if len(of_kinds[label.per]) > 1 else 0) for label in operators.labels
    ]
    return jnp.concatenate(list(of_kinds.values()))[np.array(places)]


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
