"""Time of the operators of a phase, all that one kind of kernel runs evaluated at once.

A program's compilation and its derivatives cost as much as the expressions in it. All matrix products of a
phase are therefore one table, and so are all streams and all attention cores, whatever layers and passes
they belong to.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from diffperf.estimate.kernels.attention import context_work, generation_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work
from diffperf.estimate.kernels.stream import stream_work
from diffperf.workload.operators import AttentionCore, Gemms, Operators

KERNELS: dict[str, Callable[[Any, Machine], Work]] = {
    "gemm": gemm_work,
    "stream": stream_work,
    "context attention": context_work,
    "generation attention": generation_work,
}


class OperatorLabel(NamedTuple):
    """Name and place of an operator of a phase, and the phase's group of operators to which it belongs.

    - `part`, `kernel`, `direction`, `per`, `of_pass`: as in `Operators`.
    - `layers`: the name of its kind of layers, and `kind` the place of that kind in `Model.grouped`; outside
      layers they are empty and 0.
    - `group`: the place of its group among the operators that the phase lists.
    """

    name: str
    part: str
    kernel: str
    direction: str
    per: str
    of_pass: str
    layers: str
    kind: int
    group: int


# Values in the labels of the operators of a set: {"part": "attention"}.
LabelValues = Mapping[str, str | int]


class ClockedTime(eqx.Module):
    """Seconds of sets of operators, and those of them that grow as the clock of the compute units falls."""

    time: Float[Array, " sets"]
    clocked: Float[Array, " sets"]


class TimedKernel(eqx.Module):
    """All operators of a phase that one kind of kernel runs, in a row, with the work of one run of each.

    - `runs`: how often each runs for one of what its label's `per` says.
    - `recomputed`: how often the backward pass repeats each, for each run.
    """

    labels: tuple[OperatorLabel, ...] = eqx.field(static=True)
    runs: Float[Array, " operators"]
    recomputed: Float[Array, " operators"]
    work: Work

    @property
    def follows_clock(self) -> bool:
        """Whether the clock of the compute units slows these operators down: streams wait for memory."""
        return any(label.kernel != "stream" for label in self.labels)

    def members(self, sets: Sequence[LabelValues]) -> Bool[np.ndarray, "sets operators"]:
        """Whether each operator belongs to each of several sets."""
        return np.array(
            [
                [all(getattr(label, name) == value for name, value in one.items()) for label in self.labels]
                for one in sets
            ],
            bool,
        ).reshape(len(sets), len(self.labels))

    def only(self, values: LabelValues) -> "TimedKernel":
        """The operators of one set, without the others."""
        places = np.flatnonzero(self.members([values])[0])
        numbers = self.runs, self.recomputed, self.work
        runs, recomputed, work = jax.tree.map(lambda leaf: leaf[..., places], numbers)
        labels = tuple(self.labels[place] for place in places)
        return TimedKernel(labels=labels, runs=runs, recomputed=recomputed, work=work)


class TimedOperators(eqx.Module):
    """The operators of a phase, sorted by their kernels, with the work of one run of each."""

    kernels: tuple[TimedKernel, ...]

    @property
    def labels(self) -> tuple[OperatorLabel, ...]:
        """The labels of all operators."""
        return tuple(label for kernel in self.kernels for label in kernel.labels)

    @property
    def kinds(self) -> int:
        """The number of kinds of layers."""
        return 1 + max(label.kind for label in self.labels)

    def only(self, values: LabelValues) -> "TimedOperators":
        """The operators of one set, without the others."""
        kernels = (kernel.only(values) for kernel in self.kernels)
        return TimedOperators(tuple(kernel for kernel in kernels if kernel.labels))

    def total(self, **values: str | int) -> Work:
        """The total work of the operators with these values in their labels, of all by default, each weighted
        by how often it runs.
        """
        return jax.tree.map(lambda leaf: leaf[..., 0], self.totals([values]))

    def totals(self, sets: Sequence[LabelValues], *, recomputed: bool = False) -> Work:
        """The total work of each of several sets of operators, side by side; on request with the runs that
        the backward pass repeats.
        """
        parts = []
        for kernel in self.kernels:
            runs = kernel.runs * (1 + kernel.recomputed) if recomputed else kernel.runs
            members = kernel.members(sets)
            parts.append(jax.tree.map(lambda leaf, r=runs, m=members: sums_over(leaf * r, m), kernel.work))
        return functools.reduce(Work.__add__, parts)

    def times(self, sets: Sequence[LabelValues], *, recomputed: bool = False) -> ClockedTime:
        """Seconds of several sets of operators; or only of their runs that the backward pass repeats."""
        parts = []
        for kernel in self.kernels:
            runs = kernel.runs * kernel.recomputed if recomputed else kernel.runs
            times = jnp.stack([kernel.work.time, kernel.work.clocked]) * runs
            parts.append(sums_over(times, kernel.members(sets)))
        time, clocked = jnp.unstack(functools.reduce(operator.add, parts))
        return ClockedTime(time=time, clocked=clocked)


def sums_over(
    numbers: Float[Array, "*batch operators"], members: Bool[np.ndarray, "sets operators"]
) -> Float[Array, "*batch sets"]:
    """Sums of a number of every operator over several sets of operators.

    Operators that stand side by side and belong to the same sets are added once for all sets.
    """
    starts = [0, *(np.flatnonzero(np.any(members[:, 1:] != members[:, :-1], axis=0)) + 1)]
    stretches = [jnp.sum(part, axis=-1) for part in jnp.split(numbers, starts[1:], axis=-1)]
    nothing = jnp.zeros_like(stretches[0])
    sums = [
        functools.reduce(
            operator.add,
            [stretch for stretch, start in zip(stretches, starts, strict=True) if of_set[start]] or [nothing],
        )
        for of_set in members
    ]
    return jnp.stack(sums, axis=-1)


def evaluate(operators: Sequence[Operators], machine: Machine) -> TimedOperators:
    """The work of each operator; each kind of kernel is traced, compiled and differentiated once."""
    labels = _labels(operators)
    kernels = []
    for kernel, work_of in KERNELS.items():
        indices = [index for index, group in enumerate(operators) if group.kernel == kernel]
        if not indices:
            continue
        groups = [operators[index] for index in indices]
        roles = [role for group in groups for role in _roles(group)]
        counts = [(group.runs, jnp.broadcast_to(group.recomputed, group.runs.shape)) for group in groups]
        runs, recomputed = _in_a_row(counts)
        work = work_of(
            _in_a_row([_columns(group) for group in groups]), machine.for_roles(roles) if roles else machine
        )
        if any(group.busiest is not None for group in groups):
            stretches = [
                jnp.ones_like(group.runs) if group.busiest is None else group.busiest for group in groups
            ]
            work = work.stretched(_in_a_row(stretches))
        kernels.append(
            TimedKernel(
                labels=tuple(label for index in indices for label in labels[index]),
                runs=runs,
                recomputed=jnp.asarray(recomputed, runs.dtype),
                work=work,
            )
        )
    return TimedOperators(tuple(kernels))


def _labels(operators: Sequence[Operators]) -> list[list[OperatorLabel]]:
    """The labels of the operators of every group, in the order of its raveled table."""
    sizes = {group.structure: len(group.layers) for group in operators if group.layers}
    labels = []
    for index, group in enumerate(operators):
        before = sum(sizes.get(structure, 0) for structure in range(group.structure))
        labels.append(
            [
                OperatorLabel(
                    name=name,
                    part=group.part,
                    kernel=group.kernel,
                    direction=group.direction,
                    per=group.per,
                    of_pass=group.of_pass,
                    layers=layers,
                    kind=before + kind,
                    group=index,
                )
                for kind, layers in enumerate(group.layers or ("",))
                for name in group.names
            ]
        )
    return labels


def _columns(operators: Operators) -> Any:
    """The table of some operators, with arrays that all have the shape of their runs and without names."""
    table, shape = operators.table, operators.runs.shape
    if not isinstance(table, AttentionCore):
        named = ("names", "roles") if isinstance(table, Gemms) else ("names",)
        table = dataclasses.replace(table, **dict.fromkeys(named, ()))
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape), table)


def _roles(operators: Operators) -> tuple[str, ...]:
    """The role of the weights of every product, in the order of the raveled table; none for other kernels."""
    table = operators.table
    if not isinstance(table, Gemms):
        return ()
    kinds = math.prod(operators.runs.shape[:-1])
    return (table.roles or ("linear",) * operators.runs.shape[-1]) * kinds


def _in_a_row(tables: list[Any]) -> Any:
    """The operators of several tables, of any shape each, as one table with a single axis."""
    return jax.tree.map(lambda *columns: jnp.concatenate([jnp.ravel(c) for c in columns]), *tables)
