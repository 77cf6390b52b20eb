"""Reading a design problem from its TOML file.

    model = "gpt3-175b"            # what runs
    system = "dgx-a100"            # the baseline, and the template of what is not designed
    n_devices = 64
    technology = "n7-hbm2e"
    minimize = "time"              # or maximize = "tokens_per_second"; any output of the report

    [strategy] tp = 8                         # dp, where it is neither given nor a variable, follows from the
    other degrees

    [[variable]]
    path = "design.compute_units"
    from = 16
    to = 512

    [[constraint]]
    quantity = "cost.manufacturing"
    at_most = "baseline"           # or a quantity with its unit, or "0.9 baseline"

Optional are `phase`, and a table `set` of overrides by path. `technology.feature`, as a variable or in `set`,
moves the technology to another silicon node: every figure of the node follows.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from diffperf import units
from diffperf.compiler import stored
from diffperf.errors import ARGUMENTS, did_you_mean
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.layouts import possible_layouts
from diffperf.explore.codesign.problem import Constraint, DesignProblem, Outcome, output_of
from diffperf.explore.codesign.variables import FEATURE, Candidate, DesignVector, Variable
from diffperf.explore.inputs import check_phase
from diffperf.explore.reader import TableReader
from diffperf.hardware.chip import chip, design_of
from diffperf.hardware.node import node_at
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology, moved
from diffperf.load import (
    check,
    checked,
    declared_at,
    display,
    find,
    literal,
    load_nodes,
    load_strategy,
    override,
    read_toml,
    refuse_training_fields,
)
from diffperf.quantity import Choice, Quantity
from diffperf.report.tables import outputs
from diffperf.trees import as_float64
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

KEYS = (
    "model", "system", "n_devices", "technology", "phase", "minimize", "maximize", "strategy", "set",
    "variable", "constraint",
)  # fmt: skip


def load_problem(
    source: DesignProblem | str | Path | Mapping[str, Any], file: str = ARGUMENTS, key: str = ""
) -> DesignProblem:
    """A design problem by the name of a shipped problem or the path of a TOML file, or its table.

    **Raises:** `ConfigError`, in one line.
    """
    if isinstance(source, DesignProblem):
        return source
    with jax.enable_x64(True):
        if isinstance(source, Mapping):
            return ProblemReader(file, Path(), dict(source)).problem("design problem")
        path = find(str(source), "problems", asked_by=(file, key))
        return ProblemReader(display(path), path.parent, read_toml(path)).problem(path.stem)


@stored("phase", optimized=False)
def _estimated(configuration: Configuration, phase: str) -> eqx.Module:
    """The report of a phase, by a program that stays compiled from one process to the next."""
    return estimate(configuration, phase)


class ProblemReader(TableReader):
    """Reads a design problem from the tables of one file."""

    def problem(self, name: str) -> DesignProblem:
        """The design problem, checked: its baseline, variables, constraints, and that a layout exists."""
        self.known_keys(self.table, KEYS, "", "a key of a design problem")
        phase = check_phase(self.table.get("phase", "training"), self.file, "phase")
        objective, sense = self.objective()
        variables, constraints = self.tables("variable"), self.tables("constraint")
        baseline = self.baseline(phase)
        outcome = self.baseline_outcome(baseline, phase)
        declared = self.output(outcome, objective, "minimize" if sense == 1 else "maximize")
        vector = DesignVector(
            baseline,
            tuple(self.variable(baseline, v, f"variable[{i}]") for i, v in enumerate(variables)),
            derives_dp="dp" not in self.strategy_table(),
            nodes=load_nodes() if any(table.get("path") == FEATURE for table in variables) else (),
        )
        self.each_path_once(vector.variables)
        designed = [variable.path.removeprefix("strategy.") for variable in vector.variables]
        refuse_training_fields(designed, phase, self.file)
        limited = tuple(self.constraint(outcome, c, f"constraint[{i}]") for i, c in enumerate(constraints))
        self.no_contradiction(limited)
        return DesignProblem(
            name=name,
            vector=vector,
            baseline_outcome=outcome,
            phase=phase,
            objective=objective,
            objective_declared=declared,
            sense=sense,
            constraints=limited,
            layouts=possible_layouts(vector, phase, self.file),
        )

    def objective(self) -> tuple[str, int]:
        """The output to optimize, and 1 to minimize it or −1 to maximize it."""
        given = [key for key in ("minimize", "maximize") if key in self.table]
        if len(given) != 1:
            found = " and ".join(given) or "neither minimize nor maximize"
            raise self.error(
                "minimize", found, "exactly one of minimize, maximize", "name one output to optimize"
            )
        return str(self.table[given[0]]), 1 if given[0] == "minimize" else -1

    def baseline(self, phase: str) -> Candidate:
        """The candidate before any variable changes, in float64."""
        model, system, technology = (
            self.config(Model, "model"),
            self.config(System, "system"),
            self.config(Technology, "technology"),
        )
        if "n_devices" in self.table:
            system = override(system, {"n_devices": self.table["n_devices"]}, self.file)
        candidate = Candidate(
            design=design_of(system, technology),
            model=model,
            system=system,
            strategy=Strategy(),
            technology=technology,
        )
        overrides = self.sub_table("set")
        others = {path: value for path, value in overrides.items() if not path.startswith("strategy.")}
        candidate = override(candidate, others, self.file)
        if FEATURE in others:
            technology = moved(candidate.technology, node_at(load_nodes(), candidate.technology.feature))
            candidate = dataclasses.replace(candidate, technology=technology)
        strategy = load_strategy(self.strategy_table(), self.file, float(candidate.system.n_devices))
        refuse_training_fields(self.strategy_table(), phase, self.file)
        check(candidate.model, candidate.system, strategy, phase, self.file)
        return as_float64(dataclasses.replace(candidate, strategy=strategy))

    def strategy_table(self) -> dict[str, Any]:
        """The given fields of the strategy, by name: those of its own table and those among the overrides."""
        prefix = "strategy."
        overridden = {
            path.removeprefix(prefix): literal(value)
            for path, value in self.sub_table("set").items()
            if path.startswith(prefix)
        }
        return self.sub_table("strategy") | overridden

    def baseline_outcome(self, baseline: Candidate, phase: str) -> Outcome:
        """The exact report of the baseline on the system as configured, and its chip in the technology."""
        made = chip(baseline.design, baseline.technology, baseline.system.accelerator)
        return Outcome(made, _estimated(baseline.configuration, phase))

    def variable(self, baseline: Candidate, table: dict[str, Any], key: str) -> Variable:
        """A variable with its bounds, which are those of its declaration where the table gives none."""
        self.known_keys(table, ("path", "from", "to"), f"{key}.", "path, from and to")
        path = str(table.get("path"))
        declared = declared_at(baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            return Variable(path, declared, 0.0, 1.0)
        ends = zip(("from", "to"), declared.bounds, strict=True)
        low, high = (
            float(checked(declared, table[end], self.file, f"{key}.{end}")) if end in table else bound
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

    def each_path_once(self, variables: tuple[Variable, ...]) -> None:
        """Refuses a second variable of the same path, which would leave the first without effect."""
        paths = [variable.path for variable in variables]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise self.error(
                    f"variable[{index}].path", f'"{path}" again', "each path once", "merge the two variables"
                )

    def output(self, outcome: Outcome, path: str, key: str) -> Quantity:
        """The declaration of an output of the report or of the chip."""
        known = {path.removeprefix("report."): declared for path, (declared, _) in outputs(outcome).items()}
        declared = known.get(path.removeprefix("report."))
        if not isinstance(declared, Quantity):
            raise self.error(
                key, f'"{path}"', "an output of the report or of the chip", did_you_mean(path, list(known))
            )
        return declared

    def constraint(self, outcome: Outcome, table: dict[str, Any], key: str) -> Constraint:
        """A constraint with its limit in the unit of its quantity."""
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

    def no_contradiction(self, constraints: tuple[Constraint, ...]) -> None:
        """Refuses two constraints that ask a quantity to be at most a limit and at least a greater limit."""
        for index, lower in enumerate(constraints):
            for upper in constraints:
                same = lower.quantity.removeprefix("report.") == upper.quantity.removeprefix("report.")
                if same and lower.sense < 0 < upper.sense and lower.limit > upper.limit:
                    raise self.error(
                        f"constraint[{index}].at_least",
                        f"{lower} beside {upper}",
                        "limits that some value satisfies",
                        "change one of the two limits",
                    )
