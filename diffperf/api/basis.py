"""What an answer rests on: fitted values, data sheets or estimates; said beside its figures."""

from diffperf import units
from diffperf.api.layout_lines import time_interval
from diffperf.api.question import Question
from diffperf.explore.calibrate.interval import Interval
from diffperf.explore.plan.best_layout import Layout
from diffperf.relax import Exact, Relaxation
from diffperf.software.stack import Stack

CALIBRATED, DATASHEET, ESTIMATE = "calibrated", "datasheet", "estimate"


def stack_of(question: Question, phase: str) -> Stack:
    """The software that drives a phase of a question's system."""
    return question.system.stack if phase == "training" else question.system.inference_stack


def basis(question: Question, phase: str) -> str:
    """What the figures of a phase rest on, in a few words.

    "calibrated": fitted efficiencies and software fitted to measured runs; "datasheet": such software on
    hardware that nobody fitted; "estimate": neither was fitted.
    """
    measured = stack_of(question, phase).is_measured
    if question.calibration is None:
        return DATASHEET if measured else ESTIMATE
    return CALIBRATED if measured else f"{CALIBRATED}, software an {ESTIMATE}"


def describe_basis(question: Question, phase: str) -> str:
    """A line about what the figures of a phase rest on."""
    accelerator, stack = question.system.accelerator.name, stack_of(question, phase)
    software = (
        f"{stack.name} as fitted to measured runs" if stack.is_measured else f"estimates of {stack.name}"
    )
    if question.calibration is None:
        hardware = f"figures of {accelerator} that nobody fitted to measurements (data sheets and estimates)"
        return f"Rests on {hardware}, and {software}: no interval is known"
    return f"Rests on efficiencies of {accelerator} fitted to measurements, and {software}"


def describe_time(spread: Interval, question: Question, phase: str) -> str:
    """A line about a time and its 90 % interval."""
    low, high = (units.show(end, "s") for end in spread.ends)
    line = f"Time {units.show(spread.time, 's')} ± {spread.relative:.1%} (90 %: {low} to {high})"
    return f"{line}; the numbers of {stack_of(question, phase).name} are estimates" if spread.stack else line


def describe_certainty(
    question: Question, layout: Layout, phase: str, relax: Relaxation | None = None
) -> list[str]:
    """The time of a layout with its interval, or what it rests on where nobody fitted the hardware."""
    spread = time_interval(question, layout, phase, Exact() if relax is None else relax)
    return [describe_basis(question, phase) if spread is None else describe_time(spread, question, phase)]
