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
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array
from scipy.stats import qmc

from diffperf import units
from diffperf.compiler import digest_of, stored, stored_closure
from diffperf.errors import ARGUMENTS, ConfigError, did_you_mean
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.alike_workloads import of_each
from diffperf.explore.codesign.job_file import OF_A_WORKLOAD, JobReader
from diffperf.explore.codesign.layouts import possible_layouts
from diffperf.explore.codesign.problem import (
    Constraint,
    DesignProblem,
    Outcome,
    Uncertainty,
    Workload,
    output_of,
)
from diffperf.explore.codesign.replaced_inputs import refuse_replaced_input
from diffperf.explore.codesign.variables import (
    FEATURE,
    NODE,
    Candidate,
    DesignVector,
    Variable,
    with_part,
)
from diffperf.explore.inputs import full_path
from diffperf.explore.reader import TableReader
from diffperf.hardware.chip import chip
from diffperf.load import (
    checked,
    declared_at,
    display,
    find,
    load,
    load_node,
    load_nodes,
    read_toml,
    refuse_other_stack,
    refuse_training_fields,
)
from diffperf.quantity import Choice, Quantity, locate
from diffperf.report.tables import outputs
from diffperf.trees import as_float64
from diffperf.workload.configuration import Configuration

KEYS = (
    "model", "system", "n_devices", "technology", "phase", "minimize", "maximize", "strategy", "set",
    "variable", "constraint", "workload", "uncertain", "robust",
)  # fmt: skip
MEASURES = ("mean", "quantile", "worst")  # of scores over samples of what is uncertain
# Names that are no path, with the path that was meant.
ELSEWHERE = {"technology.packaging": 'write "system.accelerator.package.carrier"'}
# Outputs that are the same for every workload, because they depend on the chip alone.
_OF_THE_CHIP = ("chip.", "cost.manufacturing", "report.cost.manufacturing")


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


def _one_of(path: str, names: list[Any], options: list[eqx.Module]) -> Variable:
    """The variable that is one of some configs."""
    declared = Choice(tuple(map(str, names)), f"which {path} to use")
    return Variable(path, declared, 0.0, 1.0, options=tuple(options))


def _is_input(candidate: Candidate, path: str) -> bool:
    """Whether a path leads to a number or a choice: not to a config, and not to nothing."""
    try:
        return locate(candidate, path)[1] is not None
    except KeyError:
        return False


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
        self.refuse_lacking(outcome, objective, key, workloads)
        declared = self.output(outcome, objective, key)
        vector = DesignVector(
            baseline,
            tuple(self.variable(first, baseline, v, f"variable[{i}]") for i, v in enumerate(variables)),
            derives_dp=tuple(job.strategy_path for job in (first, *others) if job.derives_dp),
            nodes=load_nodes() if any(table.get("path") == FEATURE for table in variables) else (),
            kept=tuple(path for path in first.settings if path.startswith("technology.") and path != FEATURE),
        )
        self.each_path_once(vector.variables)
        for index, variable in enumerate(vector.variables):
            if variable.options is None:
                refuse_replaced_input(baseline, variable.path, self.file, f"variable[{index}].path")
        self.storage_has_a_technology(vector, first.settings)
        for job, workload in zip((first, *others), workloads, strict=True):
            prefix = f"{job.strategy_path}."
            own = [path.removeprefix(prefix) for path in vector.paths if path.startswith(prefix)]
            refuse_training_fields(sorted(own), workload.phase, self.file)
        changed = [*first.settings, *vector.paths]
        refuse_other_stack(changed, [workload.phase for workload in workloads], self.file)
        limited = tuple(
            limit
            for i, table in enumerate(constraints)
            for limit in self.constraints(outcome, table, f"constraint[{i}]", workloads)
        )
        self.no_contradiction(limited)
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
            uncertainty=self.uncertainty(baseline),
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

    def uncertainty(self, baseline: Candidate) -> Uncertainty | None:
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
            path = self.full_path(baseline, str(table.get("path")), f"{key}.path")
            if not isinstance(declared_at(baseline, path, self.file, f"{key}.path"), Quantity):
                raise self.error(f"{key}.path", f'"{path}"', "a number", "choices are not uncertain")
            refuse_replaced_input(baseline, path, self.file, f"{key}.path")
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

    def baseline_outcome(self, baseline: Candidate, workloads: tuple[Workload, ...]) -> Outcome:
        """The exact reports of the baseline on the system as configured, and its chip in the technology."""
        made = chip(baseline.design, baseline.technology, baseline.system.accelerator)
        configurations = baseline.configurations(baseline.system)
        first, *others = baseline_reports(configurations, [workload.phase for workload in workloads])
        names = [workload.name for workload in workloads[1:]]
        return Outcome(made, first, dict(zip(names, others, strict=True)))

    def variable(self, first: JobReader, baseline: Candidate, table: dict[str, Any], key: str) -> Variable:
        """A variable with its bounds, which are those of its declaration where the table gives none."""
        self.known_keys(table, ("path", "from", "to", "values"), f"{key}.", "path, from and to, or values")
        path = self.full_path(baseline, str(table.get("path")), f"{key}.path")
        if path in ELSEWHERE:
            raise self.error(f"{key}.path", f'"{path}"', "a path into the inputs", ELSEWHERE[path])
        if "values" in table:
            return self.listed(first, baseline, path, table, key)
        if path == NODE:
            remedy = f'write values = ["n7", "n5"], or path = "{FEATURE}" with from and to'
            raise self.error(key, f"{path} without values", "a list of nodes", remedy)
        declared = declared_at(baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            return Variable(path, declared, 0.0, 1.0)
        ends = zip(("from", "to"), declared.bounds, strict=True)
        low, high = (
            float(checked(declared, table[end], self.file, f"{key}.{end}")) if end in table else bound
            for end, bound in ends
        )
        if low == high and "from" in table and "to" in table:
            raise self.single_value(path, table["from"], key)
        if not low < high:
            raise self.error(
                f"{key}.from",
                units.show(low, declared.unit),
                f"less than to = {units.show(high, declared.unit)}",
                "swap them",
            )
        return Variable(path, declared, low, high)

    def single_value(self, path: str, value: Any, key: str) -> ConfigError:
        """The error about a variable that can only be one value."""
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        remedy = f'write "{path}" = {shown} under [set]'
        if path.startswith("beside."):
            remedy = f"write {path.rpartition('.')[2]} = {shown} in the strategy of its workload"
        return self.error(key, f"one value, {shown}", "a range, or two values or more", remedy + " instead")

    def full_path(self, baseline: Candidate, path: str, key: str) -> str:
        """The path of an input, which may be the ending of a path of the system or of the design; those of a
        workload's layout may begin with its name.
        """
        first, _, rest = path.partition(".")
        if baseline.beside and rest.startswith("strategy.") and first == self.workloads()[0].workload.name:
            return rest
        if first in [job.name.text for job in baseline.beside]:
            return f"beside.{path}"
        return full_path(baseline, path, self.file, key)

    def listed(
        self, first: JobReader, baseline: Candidate, path: str, table: dict[str, Any], key: str
    ) -> Variable:
        """A variable that takes one of some values: numbers, alternatives of a choice, or configs."""
        values = table["values"]
        if isinstance(values, list) and len(values) == 1 and _is_input(baseline, path):
            raise self.single_value(path, values[0], f"{key}.values")
        if not isinstance(values, list) or len(values) < 2 or "from" in table or "to" in table:
            raise self.error(
                f"{key}.values", repr(values), "two values or more, without from and to", "list them"
            )
        if path == NODE:
            nodes = [load_node(node, self.file, f"{key}.values[{i}]") for i, node in enumerate(values)]
            return _one_of(path, values, [as_float64(node) for node in nodes])
        try:
            node, declared = locate(baseline, path)
        except KeyError:
            node, declared = None, declared_at(baseline, path, self.file, f"{key}.path")
        if isinstance(declared, Choice):
            rows = [
                checked(declared, value, self.file, f"{key}.values[{index}]")
                for index, value in enumerate(values)
            ]
            places = sorted({float(np.argmax(row)) for row in rows})
            if len(places) < 2 or any(np.max(row) < 1 for row in rows):
                remedy = "name each once, without weights"
                raise self.error(f"{key}.values", repr(values), "two alternatives or more", remedy)
            return Variable(path, declared, 0.0, 1.0, values=tuple(places))
        if isinstance(declared, Quantity):
            numbers = sorted(
                float(checked(declared, value, self.file, f"{key}.values[{index}]"))
                for index, value in enumerate(values)
            )
            return Variable(path, declared, numbers[0], numbers[-1], values=tuple(numbers))
        if not isinstance(node, eqx.Module):
            declared_at(baseline, path, self.file, f"{key}.path")
        assert isinstance(node, eqx.Module), "anything else is refused"
        return _one_of(path, values, self.options(first, path, type(node), values, key))

    def options(
        self, first: JobReader, path: str, cls: type[eqx.Module], names: list[Any], key: str
    ) -> list[eqx.Module]:
        """What each of some configs holds, with what the file sets in it, as it does in the baseline."""
        loaded = [
            load(cls, str(name), beside=self.folder, asked_by=(self.file, f"{key}.values[{index}]"))
            for index, name in enumerate(names)
        ]
        for index, part in enumerate(loaded):
            if jax.tree.structure(part) != jax.tree.structure(loaded[0]):
                expected = f'the parts of "{names[0]}"'
                remedy = "compare configs of one kind"
                raise self.error(f"{key}.values[{index}]", f'"{names[index]}"', expected, remedy)
        if path.startswith("beside."):
            return [as_float64(part) for part in loaded]
        candidates = [first.configured(with_part(first.as_loaded, path, part)) for part in loaded]
        return [as_float64(locate(candidate, path)[0]) for candidate in candidates]

    def each_path_once(self, variables: tuple[Variable, ...]) -> None:
        """Refuses a second variable of the same path, which would leave the first without effect."""
        paths = [variable.path for variable in variables]
        for index, path in enumerate(paths):
            if path in paths[:index]:
                raise self.error(
                    f"variable[{index}].path", f'"{path}" again', "each path once", "merge the two variables"
                )

    def storage_has_a_technology(self, vector: DesignVector, settings: Mapping[str, Any]) -> None:
        """Refuses stacks of storage of a technology that has none: they would be of nothing."""
        stacks = "design.storage_stacks"
        if stacks in {*settings, *vector.paths} and vector.baseline.technology.storage is None:
            found = f"{vector.baseline.technology.name}, without storage, beside {stacks}"
            raise self.error("technology", found, "storage", 'add storage = "hbs" to the technology\'s file')

    def output(self, outcome: Outcome, path: str, key: str, first: str = "") -> Quantity:
        """The declaration of an output of a report or of the chip."""
        known = {f"chip.{path}": declared for path, (declared, _) in outputs(outcome.chip).items()}
        known |= {path: declared for path, (declared, _) in outputs(outcome.report).items()}
        for name, report in outcome.reports(first).items() if first else ():
            known |= {f"{name}.{path}": declared for path, (declared, _) in outputs(report).items()}
        declared = known.get(path.removeprefix("report."))
        if not isinstance(declared, Quantity):
            raise self.error(
                key, f'"{path}"', "an output of the report or of the chip", did_you_mean(path, list(known))
            )
        return declared

    def refuse_lacking(self, outcome: Outcome, path: str, key: str, workloads: tuple[Workload, ...]) -> None:
        """Refuses an output of every workload that some of several workloads do not have."""
        if len(workloads) < 2 or path.startswith("chip."):
            return
        reports = outcome.reports(workloads[0].name)
        known = {name: outputs(report) for name, report in reports.items()}
        lacking = [each for each in workloads if path.removeprefix("report.") not in known[each.name]]
        if not lacking:
            return
        expected = "an output of every workload, or of the chip"
        if len(lacking) < len(workloads):
            remedy = " and ".join(f"{each.name} ({each.phase}) has no {path}" for each in lacking)
        else:
            shared = sorted(set.intersection(*map(set, known.values())))
            named = [f"{name}.{output}" for name, found in known.items() for output in found]
            # Where nothing is similar, the shared ones alone are listed.
            hint = did_you_mean(path, [*shared, *named])
            remedy = hint if hint.startswith("did") else did_you_mean(path, shared)
        raise self.error(key, f'"{path}"', expected, remedy)

    def constraints(
        self, outcome: Outcome, table: dict[str, Any], key: str, workloads: tuple[Workload, ...]
    ) -> list[Constraint]:
        """A constraint; of several workloads' reports one for each, where it names none of them."""
        quantity = str(table.get("quantity"))
        named = quantity.partition(".")[0] in [workload.name for workload in workloads]
        first = workloads[0].name if len(workloads) > 1 else ""
        if not first or named or quantity.startswith(_OF_THE_CHIP):
            return [self.constraint(outcome, table, key, first)]
        self.refuse_lacking(outcome, quantity, f"{key}.quantity", workloads)
        path = quantity.removeprefix("report.")
        return [
            self.constraint(outcome, table | {"quantity": f"{workload.name}.{path}"}, key, first)
            for workload in workloads
        ]

    def constraint(self, outcome: Outcome, table: dict[str, Any], key: str, first: str = "") -> Constraint:
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
        declared = self.output(outcome, quantity, f"{key}.quantity", first)
        limit = self.limit(
            output_of(outcome, quantity, first), declared, table[senses[0]], f"{key}.{senses[0]}"
        )
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
