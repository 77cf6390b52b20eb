"""A co-design study: which numbers may change, what to minimize, what must hold. Read from TOML, evaluated as pure functions.

    model = "gpt3-175b"            # what runs
    system = "dgx-a100"            # the baseline, and the template of what is not designed
    n_devices = 64
    technology = "n7-hbm2e"
    minimize = "time"              # or maximize = "tokens_per_second"; any output of the report

    [strategy]
    tp = 8

    [[variable]]
    path = "design.compute_units"
    from = 16
    to = 512

    [[constraint]]
    quantity = "cost.manufacturing"
    at_most = "baseline"           # or a quantity with its unit, or "0.9 baseline"

Optional are `phase`, and a table `set` of overrides by path.
"""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from diffperf import units
from diffperf.errors import did_you_mean
from diffperf.estimate.phases import PHASES
from diffperf.explore.codesign.lagrangian import Bounds
from diffperf.explore.inputs import check_phase
from diffperf.explore.reader import TableReader
from diffperf.hardware.system import System
from diffperf.hardware.technology import Chip, ChipDesign, Technology, chip, design_of, system_of
from diffperf.load import check, checked, declared_at, display, find, load_strategy, override, read_toml
from diffperf.quantity import Choice, Quantity, as_float64, locate, replace
from diffperf.relax import Relaxation
from diffperf.report.tables import outputs
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

KEYS = (
    "model", "system", "n_devices", "technology", "phase", "minimize", "maximize", "strategy", "set", "variable", "constraint",
)  # fmt: skip


class Candidate(eqx.Module):
    """Everything a variable's path may point into."""

    design: ChipDesign
    model: Model
    system: System
    strategy: Strategy
    technology: Technology


class Outcome(eqx.Module):
    """What a candidate comes to: the chip, and the report of the phase on a system built of it."""

    chip: Chip
    report: eqx.Module


@dataclasses.dataclass(frozen=True)
class Variable:
    """A number (or the weights of a choice) that the search may change."""

    path: str
    declared: Quantity | Choice
    low: float
    high: float

    @property
    def size(self) -> int:
        return len(self.declared.alternatives) if isinstance(self.declared, Choice) else 1

    @property
    def integer(self) -> bool:
        return isinstance(self.declared, Quantity) and self.declared.integer


@dataclasses.dataclass(frozen=True)
class Constraint:
    """`sense` · quantity ≤ `sense` · limit, with sense 1 for "at most" and −1 for "at least"."""

    quantity: str
    declared: Quantity
    sense: int
    limit: float

    def __str__(self):
        relation = "≤" if self.sense > 0 else "≥"
        return f"{self.quantity} {relation} {units.show(self.limit, self.declared.unit)}"

    def slack(self, value: Array, limit: Array) -> Array:
        """g ≤ 0 where it holds, relative to the limit (absolute for a limit of zero, which only relative quantities have)."""
        zero = self.limit == 0
        return self.sense * (value - limit if zero else value / limit - 1)


@dataclasses.dataclass(frozen=True)
class Study:
    """A loaded study; every array float64."""

    name: str
    baseline: Candidate
    baseline_outcome: Outcome
    phase: str
    objective: str
    objective_declared: Quantity
    sense: int  # 1 to minimize, −1 to maximize
    variables: tuple[Variable, ...]
    constraints: tuple[Constraint, ...]

    @property
    def limits(self) -> np.ndarray:
        return np.array([constraint.limit for constraint in self.constraints])

    @property
    def bounds(self) -> Bounds:
        low, high, log, simplexes = [], [], [], []
        for variable in self.variables:
            if isinstance(variable.declared, Choice):
                simplexes.append((len(low), len(low) + variable.size))
            low += [variable.low] * variable.size
            high += [variable.high] * variable.size
            log += [isinstance(variable.declared, Quantity) and variable.declared.log] * variable.size
        return Bounds(jnp.asarray(low), jnp.asarray(high), jnp.asarray(log), tuple(simplexes))

    @property
    def start(self) -> np.ndarray:
        """The baseline as a vector of variables, moved into the bounds."""
        parts = [
            np.atleast_1d(np.asarray(locate(self.baseline, v.path)[0], dtype=float)) for v in self.variables
        ]
        return np.clip(np.concatenate(parts), np.asarray(self.bounds.low), np.asarray(self.bounds.high))

    def candidate(self, x: Array) -> Candidate:
        """The candidate a vector of variables stands for."""
        values, begin = {}, 0
        for variable in self.variables:
            end = begin + variable.size
            values[variable.path] = x[begin:end] if isinstance(variable.declared, Choice) else x[begin]
            begin = end
        return replace(self.baseline, values)

    def outcome(self, x: Array, relax: Relaxation) -> Outcome:
        """Chip and report of a vector of variables; pure JAX."""
        c = self.candidate(x)
        system = system_of(c.design, c.technology, c.system)
        made = chip(c.design, c.technology, c.system.accelerator)
        return Outcome(made, PHASES[self.phase](c.model, system, c.strategy, relax))

    def score(self, outcome: Outcome, limits: Array) -> tuple[Array, Array]:
        """(f, g): log of the objective over the baseline's, and the constraints' relative excess; both of order one."""
        base = output_of(self.baseline_outcome, self.objective)
        objective = self.sense * jnp.log(output_of(outcome, self.objective) / base)
        slacks = [c.slack(output_of(outcome, c.quantity), limits[i]) for i, c in enumerate(self.constraints)]
        return objective, jnp.stack(slacks)


@functools.cache
def _evaluate(phase: str):
    """The estimator of a phase, compiled once."""
    return jax.jit(PHASES[phase])


def _full_path(path: str) -> str:
    return path if path.startswith(("chip.", "report.")) else f"report.{path}"


def output_of(outcome: Outcome, path: str) -> Array:
    return locate(outcome, _full_path(path))[0]


def load_study(name: str | Path) -> Study:
    """A study by the name of a shipped one or the path of a TOML file.

    **Raises:** `ConfigError`, in one line.
    """
    path = find(str(name), "problems")
    with jax.enable_x64(True):
        return _Reader(display(path), path.parent, read_toml(path)).study(path.stem)


class _Reader(TableReader):
    """Reads a study from the tables of one file."""

    def study(self, name: str) -> Study:
        self.known_keys(self.table, KEYS, "", "a key of a study")
        phase = check_phase(self.table.get("phase", "training"), self.file, "phase")
        objective, sense = self.objective()
        variables, constraints = self.tables("variable"), self.tables("constraint")
        baseline = self.baseline(phase)
        report = _evaluate(phase)(baseline.model, baseline.system, baseline.strategy)
        outcome = Outcome(chip(baseline.design, baseline.technology, baseline.system.accelerator), report)
        return Study(
            name=name,
            baseline=baseline,
            baseline_outcome=outcome,
            phase=phase,
            objective=objective,
            objective_declared=self.output(outcome, objective, "minimize" if sense == 1 else "maximize"),
            sense=sense,
            variables=tuple(self.variable(baseline, v, f"variable[{i}]") for i, v in enumerate(variables)),
            constraints=tuple(
                self.constraint(outcome, c, f"constraint[{i}]") for i, c in enumerate(constraints)
            ),
        )

    def objective(self) -> tuple[str, int]:
        given = [key for key in ("minimize", "maximize") if key in self.table]
        if len(given) != 1:
            found = " and ".join(given) or "neither minimize nor maximize"
            raise self.error(
                "minimize", found, "exactly one of minimize, maximize", "name one output to optimize"
            )
        return str(self.table[given[0]]), 1 if given[0] == "minimize" else -1

    def baseline(self, phase: str) -> Candidate:
        model, system, technology = (
            self.config(Model, "model"),
            self.config(System, "system"),
            self.config(Technology, "technology"),
        )
        if "n_devices" in self.table:
            system = override(system, {"n_devices": self.table["n_devices"]}, self.file)
        strategy = load_strategy(self.sub_table("strategy"), self.file, float(system.n_devices))
        check(model, system, strategy, phase, self.file)
        candidate = Candidate(design_of(system, technology), model, system, strategy, technology)
        return as_float64(override(candidate, self.sub_table("set"), self.file))

    def variable(self, baseline: Candidate, table: dict[str, Any], key: str) -> Variable:
        self.known_keys(table, ("path", "from", "to"), f"{key}.", "path, from and to")
        path = str(table.get("path"))
        declared = declared_at(baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            return Variable(path, declared, 0.0, 1.0)
        ends = zip(("from", "to"), declared.bounds, strict=True)
        low, high = (
            checked(declared, table[end], self.file, f"{key}.{end}") if end in table else bound
            for end, bound in ends
        )
        if not low < high:
            raise self.error(
                f"{key}.from",
                units.show(low, declared.unit),
                f"less than to = {units.show(high, declared.unit)}",
                "swap them",
            )
        return Variable(path, declared, low, high)

    def output(self, outcome: Outcome, path: str, key: str) -> Quantity:
        """The declaration of an output of the report or of the chip."""
        known = {path.removeprefix("report."): declared for path, (declared, _) in outputs(outcome).items()}
        if path.removeprefix("report.") not in known:
            raise self.error(
                key, f'"{path}"', "an output of the report or of the chip", did_you_mean(path, list(known))
            )
        return known[path.removeprefix("report.")]

    def constraint(self, outcome: Outcome, table: dict[str, Any], key: str) -> Constraint:
        self.known_keys(
            table, ("quantity", "at_most", "at_least"), f"{key}.", "quantity and one of at_most, at_least"
        )
        senses = [name for name in ("at_most", "at_least") if name in table]
        if len(senses) != 1 or "quantity" not in table:
            raise self.error(
                key,
                ", ".join(table) or "nothing",
                "quantity and one of at_most, at_least",
                "write these two keys",
            )
        quantity = str(table["quantity"])
        declared = self.output(outcome, quantity, f"{key}.quantity")
        limit = self.limit(output_of(outcome, quantity), declared, table[senses[0]], f"{key}.{senses[0]}")
        return Constraint(quantity, declared, 1 if senses[0] == "at_most" else -1, limit)

    def limit(self, baseline: Array, declared: Quantity, value: Any, key: str) -> float:
        """A limit: "baseline", a multiple of it such as "0.9 baseline", or a quantity of zero or more."""
        if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d*\.?\d+)?\s*baseline\s*", value)):
            return float(match[1] or 1) * float(baseline)
        try:
            number = units.parse(value, declared.unit)
        except units.UnitError as problem:
            kind = declared.unit or "a plain number"
            raise self.error(
                key, repr(value), f'"baseline", a multiple of it, or {kind}', str(problem)
            ) from None
        if not 0 <= number < np.inf:
            raise self.error(key, repr(value), "a limit of zero or more", "check the value")
        return number
