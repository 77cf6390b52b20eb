"""Operator by operator: how long each kernel of a phase takes, and which resource bounds it.

What bounds a kernel is read off derivatives: its time falls by some share of a per cent for one per cent more
of a resource, and the shares of all resources, with what no rate changes (latencies and launches), add up to
one.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffperf.compiler import stored
from diffperf.estimate.phase_tables import PhaseTables
from diffperf.estimate.phases import phase_tables
from diffperf.flat_program import flattened_calls
from diffperf.hardware.accelerator import MatrixFormat
from diffperf.hardware.system import System
from diffperf.workload.configuration import Configuration

OVERHEAD = "latency and launch"


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator of a phase on a device of the slowest pipeline stage.

    - `pass_name`: the field of the phase's report that the operator's time is part of.
    - `part`: the part of that breakdown.
    - `count`: how often the operator runs in the phase.
    - `time`: seconds of all its runs.
    - `bounds`: by resource, the share of a per cent that one per cent more of the resource saves.
    - `flops`: FLOP of all its runs on the matrix units.
    - `traffic`: bytes of all its runs, by the name of the memory level that serves them.
    """

    name: str
    pass_name: str
    part: str
    count: float
    time: float
    bounds: dict[str, float]
    flops: float
    traffic: dict[str, float]

    @property
    def bound(self) -> str:
        """The resource that bounds the operator most."""
        return max(self.bounds, key=self.bounds.__getitem__)


@dataclasses.dataclass(frozen=True)
class CollectiveTime:
    """One collective of a phase on a device of the slowest pipeline stage: how often it runs, and seconds of
    all runs.

    `exposed` are the seconds that the report's breakdown counts: those that no computation hides.
    """

    name: str
    pass_name: str
    part: str
    count: float
    time: float
    exposed: float


def resources(system: System) -> list[str]:
    """The names of the resources of a device that work competes for."""
    levels = [f"{level.name} bandwidth" for level in system.accelerator.memory[1:]]
    return ["matrix units", "vector units", *levels, "power"]


def scaled(system: System, growth: Float[Array, " resources"]) -> System:
    """The system with each of its resources grown by a logarithm."""
    matrix, vector, *levels, power = jnp.exp(growth)
    accelerator = system.accelerator
    innermost, *outer = accelerator.memory
    memory = [
        dataclasses.replace(level, bandwidth=level.bandwidth * factor)
        for level, factor in zip(outer, levels, strict=True)
    ]

    def faster(matrix_format: MatrixFormat) -> MatrixFormat:
        return dataclasses.replace(matrix_format, rate=matrix_format.rate * matrix)

    def is_format(node) -> bool:
        return isinstance(node, MatrixFormat)

    grown = dataclasses.replace(
        accelerator,
        matrix=jax.tree.map(faster, accelerator.matrix, is_leaf=is_format),
        vector=accelerator.vector * vector,
        memory=(innermost, *memory),
        # Energies stay; idle and active power grow with the limit, so that what is left for arithmetic and
        # data grows by the same factor.
        power_limit=accelerator.power_limit * power,
        static_power=accelerator.static_power * power,
        active_power=accelerator.active_power * power,
    )
    return eqx.tree_at(lambda s: s.accelerator, system, grown)


@stored("phase")
def _evaluate(configuration: Configuration, phase: str):
    """The phase's tables, and by how much the time of each operator falls as each resource grows, relative to
    both.
    """
    system = configuration.system

    def at(growth):
        grown = dataclasses.replace(configuration, system=scaled(system, growth))
        tables = phase_tables(grown, phase)
        return {name: table.operators.run_time for name, table in tables.items()}, tables

    slopes, tables = jax.jacfwd(flattened_calls(at), has_aux=True)(jnp.zeros(len(resources(system))))
    shares = {
        name: -slopes[name] / jnp.where(table.operators.run_time > 0, table.operators.run_time, 1.0)[:, None]
        for name, table in tables.items()
    }
    return tables, shares


class Listing(NamedTuple):
    """The operators and the collectives of a phase, each the longest first."""

    operators: list[Operator]
    collectives: list[CollectiveTime]


def listing(configuration: Configuration, phase: str = "training") -> Listing:
    """The operators and the collectives of a phase; what they take adds up to the report's breakdown.

    What takes no time, such as shared experts of a model that has none, is left out.
    """
    tables, shares = jax.device_get(_evaluate(configuration, phase))
    names = resources(configuration.system)
    levels = [str(level.name) for level in configuration.system.accelerator.memory[1:]]
    operators = [
        row
        for name, table in tables.items()
        for row in _operator_rows(name, table, shares[name], names, levels)
    ]
    collectives = [row for name, table in tables.items() for row in _collective_rows(name, table)]
    return Listing(
        sorted(operators, key=lambda operator: -operator.time),
        sorted(collectives, key=lambda collective: -collective.time),
    )


def _operator_rows(
    pass_name: str, table: PhaseTables, shares: np.ndarray, resources: list[str], levels: list[str]
) -> Iterable[Operator]:
    asked = table.operators
    numbers = asked.run_time, asked.runs, asked.flops, asked.traffic.T
    columns = zip(asked.names, asked.parts, shares, *numbers, strict=True)
    for name, part, share, run_time, runs, flops, traffic in columns:
        bounds = {resource: max(float(saved), 0.0) for resource, saved in zip(resources, share, strict=True)}
        # With the shares below 0: of resources that, as they grow, lower the clock of all operators.
        bounds[OVERHEAD] = max(1.0 - float(sum(share)), 0.0)
        if run_time * runs > 0:
            yield Operator(
                name=name,
                pass_name=pass_name,
                part=part,
                count=float(runs),
                time=float(run_time * runs),
                bounds=bounds,
                flops=float(flops * runs),
                traffic=dict(zip(levels, (traffic * runs).tolist(), strict=True)),
            )


def _collective_rows(pass_name: str, table: PhaseTables) -> Iterable[CollectiveTime]:
    asked = table.collectives
    columns = zip(asked.names, asked.parts, asked.run_time, asked.runs, asked.exposed, strict=True)
    for name, part, run_time, runs, exposed in columns:
        if run_time * runs > 0:
            yield CollectiveTime(
                name=name,
                pass_name=pass_name,
                part=part,
                count=float(runs),
                time=float(run_time * runs),
                exposed=float(exposed),
            )


def memory_bound_share(rows: list[Operator]) -> float:
    """The share of the operators' time that more bandwidth of some memory level would save, to first
    order.
    """
    bound = sum(
        row.time * sum(share for name, share in row.bounds.items() if name.endswith(" bandwidth"))
        for row in rows
    )
    return bound / sum(row.time for row in rows)
