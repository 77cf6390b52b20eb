"""Reading a design problem from its TOML file.

    model = "gpt3-175b"            # what runs
    system = "dgx-a100"            # the baseline, and the template of what is not designed
    n_devices = 64
    technology = "n7-hbm2e"
    minimize = "time"              # or maximize = "tokens_per_second"; any output of the report

    [strategy]
    tp = 8                         # dp follows from the other degrees, unless given or a variable

    [[variable]]
    path = "design.compute_units"
    from = 16
    to = 512

    [[constraint]]
    quantity = "cost.manufacturing"
    at_most = "baseline"           # or a quantity with its unit, or "0.9 baseline"

A problem without a constraint is optimized within the bounds of its variables alone.
Several workloads are tables of their own, and the objective is the mean over them, relative to the baseline:

    [[workload]]
    name = "chat"                  # constraints may name it: "chat.time_per_output_token"
    share = 0.7                    # of the baseline's time
    model = "llama-2-70b"
    phase = "decode"
    strategy = {tp = 8}

A variable may be one of listed numbers, alternatives or configs: `path = "technology.memory"`,
`values = ["hbm3", "hbm4"]`. What the file sets below the path of configs holds for each of them.
What is not known exactly is sampled (`[[uncertain]]` with a path and factors from and to), and the design is
judged by the mean, a quantile or the worst of every score over the samples (`[robust]` with `measure`).

Optional are `phase`, and a table `set` of overrides by path. `technology.feature`, as a variable or in `set`,
moves the technology to another silicon node: every figure of the node follows, but for those that are set.
`technology.node` as a variable is one of some nodes: `values = ["n7", "n5", "3 nm"]`.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.stats import qmc

from diffperf.compiler import digest_of, stored, stored_closure
from diffperf.errors import ARGUMENTS, did_you_mean
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.alike_workloads import of_each
from diffperf.explore.codesign.constraint_reader import ConstraintReader
from diffperf.explore.codesign.job_file import OF_A_WORKLOAD, JobReader
from diffperf.explore.codesign.layouts import possible_layouts
from diffperf.explore.codesign.problem import (
    DesignProblem,
    Outcome,
    Uncertainty,
    Workload,
    output_of,
)
from diffperf.explore.codesign.replaced_inputs import refuse_replaced_input
from diffperf.explore.codesign.variable_reader import VariableReader
from diffperf.explore.codesign.variables import (
    FEATURE,
    Candidate,
    DesignVector,
)
from diffperf.explore.reader import TableReader
from diffperf.hardware.chip import chip
from diffperf.load import (
    declared_at,
    display,
    find,
    load_nodes,
    read_toml,
    refuse_other_stack,
    refuse_training_fields,
)
from diffperf.quantity import Quantity
from diffperf.workload.configuration import Configuration

KEYS = (
    "model", "system", "n_devices", "technology", "phase", "minimize", "maximize", "strategy", "set",
    "variable", "constraint", "workload", "uncertain", "robust",
)  # fmt: skip
MEASURES = ("mean", "quantile", "worst")  # of scores over samples of what is uncertain


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


@stored("phase")
def estimated(configuration: Configuration, phase: str) -> eqx.Module:
    """The report of a phase, by a program that stays compiled from one process to the next."""
    return estimate(configuration, phase)


def baseline_reports(configurations: list[Configuration], phases: list[str]) -> list[eqx.Module]:
    """The reports of several workloads, by a program for these numbers alone, which takes half as long to
    trace.
    """

    def reports() -> list[eqx.Module]:
        return of_each(estimate, configurations, phases)

    return stored_closure(reports, digest_of(*configurations, *phases))()


class ProblemReader(TableReader):
    """Reads a design problem from the tables of one file."""

    def problem(self, name: str) -> DesignProblem:
        """The design problem, checked: its baseline, variables, constraints, and that a layout exists."""
        self.known_keys(self.table, KEYS, "", "a key of a design problem")
        first, *others = self.workloads()
        objective, sense = self.objective()
        variables = self.tables("variable")
        constraints = self.tables("constraint") if "constraint" in self.table else []
        baseline = first.baseline(first.workload.phase)
        for path in first.settings:
            refuse_replaced_input(baseline, path, self.file, f"set.{path}")
        beside = tuple(job.beside(baseline) for job in others)
        baseline = dataclasses.replace(baseline, beside=beside)
        total = sum(job.workload.share for job in (first, *others))
        workloads = tuple(
            dataclasses.replace(job.workload, share=job.workload.share / total) for job in (first, *others)
        )
        outcome = self.baseline_outcome(baseline, workloads)
        key = "minimize" if sense == 1 else "maximize"
        limits = ConstraintReader(self.file, self.folder, self.table, outcome=outcome, workloads=workloads)
        limits.refuse_lacking(objective, key)
        declared = limits.output(objective, key)
        self.refuse_not_above_zero(objective, key, outcome, workloads)
        reader = VariableReader(self.file, self.folder, self.table, first=first, baseline=baseline)
        vector = DesignVector(
            baseline,
            tuple(reader.variable(table, f"variable[{i}]") for i, table in enumerate(variables)),
            derives_dp=tuple(job.strategy_path for job in (first, *others) if job.derives_dp),
            nodes=load_nodes() if any(table.get("path") == FEATURE for table in variables) else (),
            kept=tuple(path for path in first.settings if path.startswith("technology.") and path != FEATURE),
        )
        reader.each_path_once(vector.variables)
        for index, variable in enumerate(vector.variables):
            if variable.options is None:
                refuse_replaced_input(baseline, variable.path, self.file, f"variable[{index}].path")
        reader.storage_has_a_technology(vector, first.settings)
        for job, workload in zip((first, *others), workloads, strict=True):
            prefix = f"{job.strategy_path}."
            own = [path.removeprefix(prefix) for path in vector.paths if path.startswith(prefix)]
            refuse_training_fields(sorted(own), workload.phase, self.file)
        changed = [*first.settings, *vector.paths]
        refuse_other_stack(changed, [workload.phase for workload in workloads], self.file)
        limited = tuple(
            limit
            for i, table in enumerate(constraints)
            for limit in limits.constraints(table, f"constraint[{i}]")
        )
        limits.no_contradiction(limited)
        limited += limits.fits_memory(limited)
        return DesignProblem(
            name=name,
            vector=vector,
            baseline_outcome=outcome,
            workloads=workloads,
            objective=objective,
            objective_declared=declared,
            sense=sense,
            constraints=limited,
            layouts=possible_layouts(vector, [each.phase for each in workloads], self.file),
            uncertainty=self.uncertainty(reader),
        )

    def workloads(self) -> list[JobReader]:
        """The workloads: one of the file itself, or one of each table `workload`."""
        if "workload" not in self.table:
            return [JobReader(self.file, self.folder, self.table)]
        for key in OF_A_WORKLOAD:
            if key in self.table:
                raise self.error(
                    key, "a key beside [[workload]]", "each in its workload", f"move {key} there"
                )
        shared = {key: value for key, value in self.table.items() if key != "workload"}
        readers = []
        for number, table in enumerate(self.tables("workload")):
            self.known_keys(
                table, ("name", "share", *OF_A_WORKLOAD), f"workload[{number}].", "a workload's key"
            )
            readers.append(JobReader(self.file, self.folder, shared | table, f"workload[{number}]."))
        names = [reader.workload.name for reader in readers]
        for number, name in enumerate(names):
            if name in names[:number] or name in ("chip", "report"):
                key = f"workload[{number}].name"
                raise self.error(key, f'"{name}"', "a name of its own", f'add name = "{name}-{number}"')
        return readers

    def uncertainty(self, reader: VariableReader) -> Uncertainty | None:
        """The uncertain inputs, and how a design is judged over a sample of them."""
        if "uncertain" not in self.table:
            if "robust" in self.table:
                raise self.error(
                    "robust", "no uncertain input", "[[uncertain]] beside it", "name some inputs"
                )
            return None
        robust = {"measure": "mean", "quantile": 0.9, "samples": 16} | self.sub_table("robust")
        self.known_keys(robust, ("measure", "quantile", "samples"), "robust.", "measure, quantile, samples")
        if robust["measure"] not in MEASURES:
            hint = did_you_mean(str(robust["measure"]), MEASURES)
            raise self.error("robust.measure", repr(robust["measure"]), " or ".join(MEASURES), hint)
        quantile, samples = robust["quantile"], robust["samples"]
        if not isinstance(quantile, float) or not 0 < quantile < 1:
            raise self.error("robust.quantile", repr(quantile), "a number between 0 and 1", "write 0.9")
        if not isinstance(samples, int) or not 2 <= samples <= 4096:
            raise self.error("robust.samples", repr(samples), "a whole number from 2 to 4096", "write 16")
        tables = self.tables("uncertain")
        paths, ranges = [], []
        for index, table in enumerate(tables):
            key = f"uncertain[{index}]"
            self.known_keys(table, ("path", "from", "to"), f"{key}.", "path, from and to")
            path = reader.full_path(str(table.get("path")), f"{key}.path")
            declared = declared_at(reader.baseline, path, self.file, f"{key}.path")
            if not isinstance(declared, Quantity) or declared.integer:
                found = (
                    f'"{path}", which is {"a whole number" if isinstance(declared, Quantity) else "a choice"}'
                )
                raise self.error(f"{key}.path", found, "a real number", "name another input")
            refuse_replaced_input(reader.baseline, path, self.file, f"{key}.path")
            low, high = table.get("from"), table.get("to")
            if not isinstance(low, int | float) or not isinstance(high, int | float) or not 0 < low < high:
                found = f"from {low!r} to {high!r}"
                raise self.error(key, found, "factors from < to above 0", "write from = 0.8, to = 1.25")
            paths.append(path)
            ranges.append((float(low), float(high)))
        shares = qmc.Sobol(len(paths), rng=np.random.default_rng(0)).random(samples)
        low, high = np.array(ranges).T
        return Uncertainty(tuple(paths), low * (high / low) ** shares, robust["measure"], quantile)

    def objective(self) -> tuple[str, int]:
        """The output to optimize, and 1 to minimize it or −1 to maximize it."""
        given = [key for key in ("minimize", "maximize") if key in self.table]
        if len(given) != 1:
            found = " and ".join(given) or "neither minimize nor maximize"
            raise self.error(
                "minimize", found, "exactly one of minimize, maximize", "name one output to optimize"
            )
        return str(self.table[given[0]]), 1 if given[0] == "minimize" else -1

    def refuse_not_above_zero(
        self, objective: str, key: str, outcome: Outcome, workloads: tuple[Workload, ...]
    ) -> None:
        """Refuses an objective that is not above zero in the baseline: designs are judged by its ratio to
        that of the baseline.
        """
        of_workloads = objective.removeprefix("report.")
        first = workloads[0].name
        names = [""] if objective.startswith("chip.") else [f"{workload.name}." for workload in workloads]
        for name in names:
            value = float(output_of(outcome, f"{name}{of_workloads}" if name else objective, first))
            if not value > 0:
                found = f'"{objective}", {value:.4g} in the baseline'
                expected = "an output that is above zero there"
                raise self.error(key, found, expected, "limit it by a [[constraint]], and optimize another")

    def baseline_outcome(self, baseline: Candidate, workloads: tuple[Workload, ...]) -> Outcome:
        """The exact reports of the baseline on the system as configured, and its chip in the technology."""
        made = chip(baseline.design, baseline.technology, baseline.system.accelerator)
        configurations = baseline.configurations(baseline.system)
        first, *others = baseline_reports(configurations, [workload.phase for workload in workloads])
        names = [workload.name for workload in workloads[1:]]
        return Outcome(made, first, dict(zip(names, others, strict=True)))
