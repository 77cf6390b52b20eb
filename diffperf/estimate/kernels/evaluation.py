"""How long operators take: all that one kind of kernel runs is evaluated at once.

A program's compilation and its derivatives cost as much as the expressions in it. All matrix products of a
phase are therefore one table, and so are all streams and all attention cores, whatever layers and passes
they belong to.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.estimate.kernels.attention import context_work, generation_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.machine import Machine
from diffperf.estimate.kernels.roofline import Work, idle_arithmetic
from diffperf.estimate.kernels.stream import stream_work
from diffperf.trees import split_tree
from diffperf.workload.operators import AttentionCore, Gemms, Operators

KERNELS: dict[str, Callable[[Any, Machine], Work]] = {
    "gemm": gemm_work,
    "stream": stream_work,
    "context attention": context_work,
    "generation attention": generation_work,
}


class TimedOperators(eqx.Module):
    """Operators, and the work that one run of each of them is."""

    operators: Operators
    work: Work

    def once(self) -> Work:
        """The total work of the operators, each weighted by how often it runs."""
        counts = self.operators.runs
        axes = tuple(range(-counts.ndim, 0))
        return jax.tree.map(lambda leaf: jnp.sum(leaf * counts, axis=axes), self.work)

    def by_kind(self) -> Work:
        """The total work of the operators for each kind of layers: the leading axis of `runs`."""
        return jax.tree.map(lambda leaf: jnp.sum(leaf * self.operators.runs, axis=-1), self.work)

    def recomputed_by_kind(self) -> Work:
        """The work that the backward pass repeats, for each kind of layers."""
        runs = self.operators.runs * self.operators.recomputed
        return jax.tree.map(lambda leaf: jnp.sum(leaf * runs, axis=-1), self.work)


def evaluate(operators: Sequence[Operators], machine: Machine) -> list[TimedOperators]:
    """The work of each operator, in the order given; each kind of kernel is traced, compiled and
    differentiated once.
    """
    works: dict[int, Work] = {}
    for kernel, work_of in KERNELS.items():
        indices = [index for index, group in enumerate(operators) if group.kernel == kernel]
        if indices:
            tables = [_columns(operators[index]) for index in indices]
            roles = [role for index in indices for role in _roles(operators[index])]
            work = work_of(_in_a_row(tables), machine.for_roles(roles) if roles else machine)
            works |= zip(indices, _like_tables(work, tables), strict=True)
    return [TimedOperators(operators=group, work=works[index]) for index, group in enumerate(operators)]


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


def _like_tables(work: Work, tables: list[Any]) -> list[Work]:
    """The work of operators that stand in a row, in the shapes of the tables that they come from."""
    shapes = [jax.tree.leaves(table)[0].shape for table in tables]
    parts = split_tree(work, [math.prod(shape) for shape in shapes], axis=-1)
    return [
        jax.tree.map(lambda leaf, shape=shape: jnp.reshape(leaf, leaf.shape[:-1] + shape), part)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def total(works: Iterable[Work], machine: Machine) -> Work:
    """The sum of some works; none is no work."""
    zero = jnp.zeros_like(machine.kernel_overhead)
    result = idle_arithmetic(zero, jnp.zeros(len(machine.levels), zero.dtype))
    for work in works:
        result = result + work
    return result
