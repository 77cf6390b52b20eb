"""Reading the constraints of a design problem, and finding its outputs by name."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array

from diffperf import units
from diffperf.errors import did_you_mean
from diffperf.explore.codesign.problem import Constraint, Outcome, Workload, output_of
from diffperf.explore.reader import TableReader
from diffperf.quantity import Quantity
from diffperf.report.tables import outputs

_EXCESS = "memory.excess"  # use of a workload's memory over its capacity, less 1
# Outputs that are the same for every workload, because they depend on the chip alone.
_OF_THE_CHIP = ("chip.", "cost.manufacturing", "report.cost.manufacturing")


@dataclasses.dataclass(frozen=True)
class ConstraintReader(TableReader):
    """Reads the constraints of a design problem.

    - `outcome`: that of the baseline, whose outputs may be limited.
    - `workloads`: those of the problem.
    """

    outcome: Outcome
    workloads: tuple[Workload, ...]

    @property
    def first(self) -> str:
        """The name of the first of several workloads; empty for a single one, which nothing needs to name."""
        return self.workloads[0].name if len(self.workloads) > 1 else ""

    def output(self, path: str, key: str) -> Quantity:
        """The declaration of an output of a report or of the chip."""
        known = {f"chip.{path}": declared for path, (declared, _) in outputs(self.outcome.chip).items()}
        known |= {path: declared for path, (declared, _) in outputs(self.outcome.report).items()}
        for name, report in self.outcome.reports(self.first).items() if self.first else ():
            known |= {f"{name}.{path}": declared for path, (declared, _) in outputs(report).items()}
        declared = known.get(path.removeprefix("report."))
        if not isinstance(declared, Quantity):
            raise self.error(
                key, f'"{path}"', "an output of the report or of the chip", did_you_mean(path, list(known))
            )
        return declared

    def refuse_lacking(self, path: str, key: str) -> None:
        """Refuses an output of every workload that some of several workloads do not have."""
        if not self.first or path.startswith("chip."):
            return
        reports = self.outcome.reports(self.first)
        known = {name: outputs(report) for name, report in reports.items()}
        lacking = [each for each in self.workloads if path.removeprefix("report.") not in known[each.name]]
        if not lacking:
            return
        expected = "an output of every workload, or of the chip"
        if len(lacking) < len(self.workloads):
            remedy = " and ".join(f"{each.name} ({each.phase}) has no {path}" for each in lacking)
        else:
            shared = sorted(set.intersection(*map(set, known.values())))
            named = [f"{name}.{output}" for name, found in known.items() for output in found]
            # Where nothing is similar, the shared ones alone are listed.
            hint = did_you_mean(path, [*shared, *named])
            remedy = hint if hint.startswith("did") else did_you_mean(path, shared)
        raise self.error(key, f'"{path}"', expected, remedy)

    def constraints(self, table: dict[str, Any], key: str) -> list[Constraint]:
        """A constraint; of several workloads' reports one for each, where it names none of them."""
        quantity = str(table.get("quantity"))
        named = quantity.partition(".")[0] in [workload.name for workload in self.workloads]
        if not self.first or named or quantity.startswith(_OF_THE_CHIP):
            return [self.constraint(table, key)]
        self.refuse_lacking(quantity, f"{key}.quantity")
        path = quantity.removeprefix("report.")
        return [
            self.constraint(table | {"quantity": f"{workload.name}.{path}"}, key)
            for workload in self.workloads
        ]

    def constraint(self, table: dict[str, Any], key: str) -> Constraint:
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
        declared = self.output(quantity, f"{key}.quantity")
        baseline = output_of(self.outcome, quantity, self.first)
        limit = self.limit(baseline, declared, table[senses[0]], f"{key}.{senses[0]}")
        if limit < 0:
            found = f"{quantity} {units.show(float(baseline), declared.unit)} in the baseline"
            raise self.error(f"{key}.{senses[0]}", found, "a limit of zero or more", "write the limit itself")
        return Constraint(quantity, declared, 1 if senses[0] == "at_most" else -1, limit)

    def limit(self, baseline: Array, declared: Quantity, value: Any, key: str) -> float:
        """A limit: "baseline", a multiple of it such as "0.9 baseline", or a quantity of zero or more."""
        if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d*\.?\d+)?\s*baseline\s*", value)):
            return float(match[1] or 1) * float(baseline)
        try:
            number = units.parse(value, declared.unit)
        except units.UnitError as problem:
            kind, remedy = declared.unit or "a plain number", str(problem)
            number = re.match(r"\s*([\d.]*\d)\b", str(value))
            if declared.unit and number:
                own = units.with_unit_of_example(number[1], declared.unit)
                remedy = remedy.replace(units.example(declared.unit), own)
            raise self.error(key, repr(value), f'"baseline", a multiple of it, or {kind}', remedy) from None
        if not 0 <= number < np.inf:
            raise self.error(key, repr(value), "a limit of zero or more", "check the value")
        return number

    def fits_memory(self, constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
        """That every workload fits its memory, unless a constraint says how much of it the workload may
        use.
        """
        reports = self.outcome.reports(self.first)
        quantities = [f"{name}.{_EXCESS}" if self.first else _EXCESS for name in reports]
        limited = {constraint.quantity.removeprefix("report.") for constraint in constraints}
        return tuple(
            Constraint(quantity, self.output(quantity, "constraint"), 1, 0.0)
            for quantity in quantities
            if quantity not in limited
        )

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
