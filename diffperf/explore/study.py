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
from diffperf.errors import ConfigError, did_you_mean
from diffperf.estimate.phases import PHASES
from diffperf.explore.lagrangian import Bounds
from diffperf.hardware.system import System
from diffperf.hardware.technology import Chip, ChipDesign, Technology, chip, design_of, system_of
from diffperf.load import check, config_root, find, load, load_strategy, override, read_toml
from diffperf.quantity import Choice, Quantity, as_float64, locate, replace
from diffperf.relax import Relaxation
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

_KEYS = (
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
        parts = [np.atleast_1d(np.asarray(locate(self.baseline, v.path)[0], dtype=float)) for v in self.variables]
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
    path = find(str(name), "studies")
    file = f"configs/studies/{path.name}" if path.is_relative_to(config_root()) else str(path)
    table = read_toml(path)
    with jax.enable_x64(True):
        return _Reader(file, path).study(table)


class _Reader:
    """Builds a study from the table of one file."""

    def __init__(self, file: str, path: Path):
        self.file, self.path = file, path

    def error(self, key: str, found: object, expected: str, remedy: str) -> ConfigError:
        return ConfigError(self.file, key, found, expected, remedy)

    def study(self, table: dict[str, Any]) -> Study:
        for key in table:
            if key not in _KEYS:
                raise self.error(key, f'unknown key "{key}"', "a key of a study", did_you_mean(key, _KEYS))
        for key in ("model", "system", "technology", "variable", "constraint"):
            if key not in table:
                raise self.error(key, "no such key", "one", f"add {key}")
        phase = table.get("phase", "training")
        if phase not in PHASES:
            raise self.error("phase", f'"{phase}"', "one of " + ", ".join(PHASES), did_you_mean(str(phase), list(PHASES)))

        baseline = self.baseline(table, phase)
        report = _evaluate(phase)(baseline.model, baseline.system, baseline.strategy)
        made = chip(baseline.design, baseline.technology, baseline.system.accelerator)
        outcome = Outcome(made, report)

        if ("minimize" in table) == ("maximize" in table):
            raise self.error("minimize", "both or neither of minimize and maximize", "exactly one", "name one output to optimize")
        sense = 1 if "minimize" in table else -1
        objective = table["minimize" if sense == 1 else "maximize"]
        declared = self.declared_output(outcome, objective, "minimize" if sense == 1 else "maximize")
        variables = tuple(self.variable(baseline, v, f"variable[{i}]") for i, v in enumerate(self.tables(table, "variable")))
        constraints = tuple(self.constraint(outcome, c, f"constraint[{i}]") for i, c in enumerate(self.tables(table, "constraint")))
        return Study(self.path.stem, baseline, outcome, phase, objective, declared, sense, variables, constraints)

    def tables(self, table: dict[str, Any], key: str) -> list[dict[str, Any]]:
        value = table[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.error(key, "no array of tables", f"at least one [[{key}]]", f"write [[{key}]] before each")
        return value

    def baseline(self, table: dict[str, Any], phase: str) -> Candidate:
        asked = {key: (self.file, key) for key in ("model", "system", "technology")}
        model = load(Model, table["model"], beside=self.path.parent, asked_by=asked["model"])
        system = load(System, table["system"], beside=self.path.parent, asked_by=asked["system"])
        technology = load(Technology, table["technology"], beside=self.path.parent, asked_by=asked["technology"])
        if "n_devices" in table:
            system = override(system, {"n_devices": table["n_devices"]}, self.file)
        if not isinstance(table.get("strategy", {}), dict):
            raise self.error("strategy", "no table", "a table of strategy keys", "write [strategy]")
        strategy = load_strategy(table.get("strategy", {}), self.file, float(system.n_devices))
        check(model, system, strategy, phase, self.file)
        candidate = Candidate(design_of(system, technology), model, system, strategy, technology)
        return as_float64(override(candidate, table.get("set", {}), self.file))

    def variable(self, baseline: Candidate, table: dict[str, Any], key: str) -> Variable:
        for name in table:
            if name not in ("path", "from", "to"):
                raise self.error(
                    f"{key}.{name}", f'unknown key "{name}"', "path, from and to", did_you_mean(name, ["path", "from", "to"])
                )
        path = table.get("path")
        try:
            _, declared = locate(baseline, str(path))
        except KeyError as problem:
            known, missing = problem.args[0]
            raise self.error(f"{key}.path", f'"{path}"', "a path into the candidate", did_you_mean(missing, known)) from None
        if declared is None:
            raise self.error(f"{key}.path", f'"{path}"', "one number or choice", "go on to one of its parts")
        if isinstance(declared, Choice):
            return Variable(path, declared, 0.0, 1.0)
        low, high = (
            self.bound(declared, table.get(end, default), f"{key}.{end}")
            for end, default in zip(("from", "to"), declared.bounds, strict=True)
        )
        if not low < high:
            raise self.error(
                f"{key}.from", units.show(low, declared.unit), f"less than to = {units.show(high, declared.unit)}", "swap them"
            )
        return Variable(path, declared, low, high)

    def bound(self, declared: Quantity, value: Any, key: str) -> float:
        try:
            number = value if isinstance(value, float) and value in declared.bounds else units.parse(value, declared.unit)
        except units.UnitError as problem:
            raise self.error(key, repr(value), f"a quantity in {declared.unit or 'plain numbers'}", str(problem)) from None
        low, high = declared.bounds
        if not low <= number <= high:
            limits = f"{units.show(low, declared.unit)} to {units.show(high, declared.unit)}"
            raise self.error(key, repr(value), limits, f"check the value and its unit ({declared.doc})")
        return number

    def declared_output(self, outcome: Outcome, path: Any, key: str) -> Quantity:
        try:
            _, declared = locate(outcome, _full_path(str(path)))
        except KeyError as problem:
            known, missing = problem.args[0]
            raise self.error(key, f'"{path}"', "an output of the report or of the chip", did_you_mean(missing, known)) from None
        if declared is None:
            raise self.error(key, f'"{path}"', "one number", "go on to one of its parts")
        return declared

    def constraint(self, outcome: Outcome, table: dict[str, Any], key: str) -> Constraint:
        senses = [name for name in ("at_most", "at_least") if name in table]
        extra = [name for name in table if name not in ("quantity", "at_most", "at_least")]
        if extra or len(senses) != 1 or "quantity" not in table:
            raise self.error(key, ", ".join(table) or "nothing", "quantity and one of at_most, at_least", "write these two keys")
        declared = self.declared_output(outcome, table["quantity"], f"{key}.quantity")
        limit = self.limit(outcome, table["quantity"], declared, table[senses[0]], f"{key}.{senses[0]}")
        return Constraint(table["quantity"], declared, 1 if senses[0] == "at_most" else -1, limit)

    def limit(self, outcome: Outcome, path: str, declared: Quantity, value: Any, key: str) -> float:
        if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+)?\s*(?:[×*x]\s*)?baseline\s*", value)):
            return float(match[1] or 1) * float(output_of(outcome, path))
        try:
            number = units.parse(value, declared.unit)
        except units.UnitError as problem:
            raise self.error(
                key, repr(value), f'"baseline" or a quantity in {declared.unit or "plain numbers"}', str(problem)
            ) from None
        if not np.isfinite(number) or number < 0:
            raise self.error(key, repr(value), "a limit of zero or more", "check the value")
        return number
