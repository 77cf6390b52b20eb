"""How long operators take: all that one kind of kernel runs is evaluated at once.

A program's compilation and its derivatives cost as much as the expressions in it. All matrix products of a
phase are therefore one table, and so are all streams and all attention cores, whatever layers and passes
they belong to.
"""

import dataclasses
import math
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
    """What an operator of a phase is, and which of the phase's groups of operators it belongs to.

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


class TimedOperators(eqx.Module):
    """The operators of a phase in a row, those of one kernel side by side, with the work of one run of each.

    - `runs`: how often each runs for one of what its label's `per` says.
    - `recomputed`: how often the backward pass repeats each, for each run.
    """

    labels: tuple[OperatorLabel, ...] = eqx.field(static=True)
    runs: Float[Array, " operators"]
    recomputed: Float[Array, " operators"]
    work: Work

    def chosen(self, **fields: str | int) -> Bool[np.ndarray, " operators"]:
        """Which operators have these values in their labels: `chosen(part="attention")`."""
        return np.array(
            [all(getattr(label, name) == value for name, value in fields.items()) for label in self.labels],
            bool,
        )

    @property
    def of_kinds(self) -> Bool[np.ndarray, "kinds operators"]:
        """Which operators belong to the layers of each kind."""
        count = 1 + max(label.kind for label in self.labels)
        return np.stack([self.chosen(per="layer", kind=kind) for kind in range(count)])

    def only(self, members: Bool[np.ndarray, " operators"]) -> "TimedOperators":
        """The operators of one set, without the others."""
        places = np.flatnonzero(members)
        runs, recomputed, work = jax.tree.map(
            lambda leaf: leaf[..., places], (self.runs, self.recomputed, self.work)
        )
        labels = tuple(self.labels[place] for place in places)
        return TimedOperators(labels=labels, runs=runs, recomputed=recomputed, work=work)

    def total(self, **fields: str | int) -> Work:
        """The total work of the operators with these values in their labels, of all by default, each weighted
        by how often it runs.
        """
        return self.totals([fields])[0]

    def totals(self, sets: Sequence[Mapping[str, str | int]]) -> list[Work]:
        """The same for several sets of operators, each given by values in their labels."""
        members = np.stack([self.chosen(**fields) for fields in sets])
        return [_work_of(column) for column in jnp.unstack(sums_of(self._rows * self.runs, members), axis=-1)]

    def both_passes(self, members: Bool[np.ndarray, "sums operators"]) -> Work:
        """The total work of several sets of operators, side by side, with what the backward pass repeats."""
        return _work_of(sums_of(self._rows * (self.runs * (1 + self.recomputed)), members))

    @property
    def _rows(self) -> Float[Array, "numbers operators"]:
        """The numbers of the work of one run, one below the other."""
        work = self.work
        return jnp.stack([work.time, work.clocked, work.flops, work.arithmetic, *work.traffic])


def _work_of(numbers: Float[Array, "numbers ..."]) -> Work:
    """The work whose numbers stand one below the other."""
    time, clocked, flops, arithmetic = jnp.unstack(numbers[:4])
    return Work(time=time, clocked=clocked, flops=flops, arithmetic=arithmetic, traffic=numbers[4:])


def sums_of(
    numbers: Float[Array, "*batch operators"], members: Bool[np.ndarray, "*sums operators"]
) -> Float[Array, "..."]:
    """Sums of a number of every operator over several sets of operators.

    A product with a constant matrix: one operation, whatever the number of sets, and one in a gradient.
    """
    return jnp.tensordot(
        numbers, members.astype(numbers.dtype), axes=((-1,), (-1,)), precision=jax.lax.Precision.HIGHEST
    )


def evaluate(operators: Sequence[Operators], machine: Machine) -> TimedOperators:
    """The work of each operator; each kind of kernel is traced, compiled and differentiated once."""
    labels = _labels(operators)
    order: list[int] = []
    works: list[Work] = []
    for kernel, work_of in KERNELS.items():
        indices = [index for index, group in enumerate(operators) if group.kernel == kernel]
        if indices:
            table = _in_a_row([_columns(operators[index]) for index in indices])
            roles = [role for index in indices for role in _roles(operators[index])]
            works.append(work_of(table, machine.for_roles(roles) if roles else machine))
            order += indices
    groups = [operators[index] for index in order]
    runs, recomputed = (
        jnp.concatenate([jnp.ravel(jnp.broadcast_to(number, group.runs.shape)) for group, number in column])
        for column in (
            [(group, group.runs) for group in groups],
            [(group, jnp.asarray(group.recomputed, group.runs.dtype)) for group in groups],
        )
    )
    return TimedOperators(
        labels=tuple(label for index in order for label in labels[index]),
        runs=runs,
        recomputed=recomputed,
        work=jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-1), *works),
    )


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
