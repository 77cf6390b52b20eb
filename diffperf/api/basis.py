"""Basis of an answer's figures: fitted values, data sheets or estimates."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from diffperf import units
from diffperf.api.question import Question
from diffperf.explore.calibrate.interval import UNMEASURED_STACK, Z90, Interval, interval, least_interval
from diffperf.explore.plan.ranking import report_of
from diffperf.hardware.system import System
from diffperf.workload.configuration import Configuration

CALIBRATED, DATASHEET, ESTIMATE = "calibrated", "datasheet", "estimate"


def is_calibrated(system: System) -> bool:
    """Whether the system has efficiencies that were fitted to measured runs."""
    return str(system.calibration) != "none"


def basis(system: System, phase: str) -> str:
    """The basis of the figures of a phase, in a few words.

    "calibrated": fitted efficiencies and software fitted to measured runs; "datasheet": such software on
    hardware that nobody fitted; "estimate": neither was fitted.
    """
    measured = system.stack_of(phase).is_measured
    if not is_calibrated(system):
        return DATASHEET if measured else ESTIMATE
    return CALIBRATED if measured else f"{CALIBRATED}, software an {ESTIMATE}"


def basis_of_design(technology: str) -> str:
    """The basis of figures of a designed accelerator, whose rates and sizes follow from a technology."""
    return f"{ESTIMATE} in {technology}"


def describe_basis(system: System, phase: str) -> str:
    """A line about what the figures of a phase rest on."""
    if is_calibrated(system):
        fitted = f"efficiencies of {system.accelerator.name} fitted to measurements"
        return f"Rests on {fitted}, and {_software(system, phase)}"
    error = f"± {Z90 * UNMEASURED_STACK:.0%} or more (90 %)" if has_least_interval(system, phase) else ""
    return f"Rests on {_unfitted(system, phase)}: {error or 'no interval is known'}"


def has_least_interval(system: System, phase: str) -> bool:
    """Whether all that is known of the error of a time is that of software that nobody measured."""
    return not is_calibrated(system) and not system.stack_of(phase).is_measured


def _unfitted(system: System, phase: str) -> str:
    """What the figures of a phase rest on, on hardware that nobody fitted."""
    figures = f"figures of {system.accelerator.name} that nobody fitted to measurements"
    return f"{figures} (data sheets and estimates), and {_software(system, phase)}"


def describe_systems(systems: Sequence[System], phase: str) -> str:
    """A line about what the figures of several systems rest on: those that rest on the same together."""
    if len(systems) == 1:
        return describe_basis(systems[0], phase)
    names: dict[str, dict[str, None]] = {}
    for system in systems:
        names.setdefault(basis(system, phase), {})[str(system.name)] = None
    return "Rests on: " + "; ".join(f"{kind}: {', '.join(each)}" for kind, each in names.items())


def describe_basis_of_design(technology: str, template: System, phase: str) -> str:
    """A line about what the figures of a designed accelerator rest on: the technology of this name, and what
    it takes over from a system, its template.
    """
    name = template.accelerator.name
    fitted = "as fitted to measurements" if is_calibrated(template) else "that nobody fitted"
    return (
        f"Rests on rates, areas and powers of {technology} (published figures and estimates), efficiencies of"
        f" {name} {fitted}, and {_software(template, phase)}: no interval is known"
    )


def _software(system: System, phase: str) -> str:
    """The basis of the software's efficiencies in a phase: measured runs or estimates."""
    stack = system.stack_of(phase)
    return f"{stack.name} as fitted to measured runs" if stack.is_measured else f"estimates of {stack.name}"


@dataclasses.dataclass(frozen=True)
class Certainty:
    """Certainty of the time of a phase on a system.

    - `interval`: the 90 % interval of the time, where neither hardware nor software was fitted the least that
      it can be; None for software that was fitted, on hardware that was not.
    """

    system: System
    phase: str
    interval: Interval | None

    @classmethod
    def of(cls, question: Question, configuration: Configuration, phase: str) -> "Certainty":
        """Certainty of the time of a phase, for the configuration that was chosen for a question."""
        fitted, spread = question.calibration, None
        if fitted is not None:
            spread = interval(fitted, configuration, phase)
        elif has_least_interval(question.system, phase):
            report: Any = report_of(configuration, phase)  # of any phase: all have a time
            spread = least_interval(float(report.time))
        return cls(question.system, phase, spread)

    def line(self) -> str:
        """A line about the time with its interval, or about what it rests on where nobody fitted it."""
        spread = self.interval
        if spread is None:
            return describe_basis(self.system, self.phase)
        low, high = (units.show(end, "s") for end in spread.ends)
        least = has_least_interval(self.system, self.phase)
        relative = f"{spread.relative:.1%}" + " or more" * least
        line = f"Time {units.show(spread.time, 's')} ± {relative} (90 %: {low} to {high})"
        if least:
            return f"{line}; rests on {_unfitted(self.system, self.phase)}"
        stack = self.system.stack_of(self.phase)
        return f"{line}; the numbers of {stack.name} are estimates" if spread.stack else line

    def as_dict(self) -> dict[str, Any]:
        """The basis of the time, with its interval where one is known, for JSON."""
        spread = {"time_interval": self.interval.as_dict()} if self.interval else {}
        return {"basis": basis(self.system, self.phase), **spread}
