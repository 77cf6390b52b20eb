"""Pipeline schedules of GPT-3 175B: bubble, step time and peak memory.

The numbers of micro-batches and of pipeline stages vary; the model runs on DGX A100 with eight-way tensor
parallelism and one pipeline. The schedules are GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B
(2104.04473), zero-bubble H1 (2401.10241) and DualPipe (2412.19437).

    python studies/schedules/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, GREY, ORANGE, RED
from diffperf.workload.configuration import Configuration
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from reporting import (
    Table,
    binary_axis,
    capacity_line,
    choice_weights,
    evaluate_cases,
    figure_style,
    parse_options,
    publish,
)

TENSOR_PARALLEL = 8
# The number of stages where micro-batches vary, and of micro-batches where stages vary: the latter is a
# multiple of every number of stages and at least twice as large, as DualPipe needs.
STAGES, MICRO_BATCHES = 8, 96
VARIED_MICRO_BATCHES = tuple(STAGES * 2**power for power in range(6))
VARIED_STAGES = (4, 8, 12, 24)
SMALL_BUBBLE = 0.05  # the share of a step below which the finding calls a bubble small
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule as the estimator knows it, the model chunks of each stage, and how the figure draws it."""

    name: str
    schedule: str
    chunks: int
    colour: str
    width: float = 1.8
    dashes: str = "-"


# GPipe has the bubble of 1F1B, and zero-bubble H1 its memory: different lines keep both visible.
SCHEDULES = (
    Schedule("GPipe", "gpipe", chunks=1, colour=GREY, width=5),
    Schedule("1F1B", "1f1b", chunks=1, colour=BLUE),
    Schedule("interleaved, 2 chunks", "1f1b", chunks=2, colour="#5b9bd5"),
    Schedule("interleaved, 4 chunks", "1f1b", chunks=4, colour="#8cc0e8"),
    Schedule("zero-bubble H1", "zero_bubble", chunks=1, colour=ORANGE, dashes="--"),
    Schedule("DualPipe", "dualpipe", chunks=1, colour=RED),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A schedule with a number of pipeline stages and of micro-batches, and the estimate of its step."""

    schedule: Schedule
    stages: int
    micro_batches: int
    report: TrainingReport

    @property
    def bubble_share(self) -> float:
        """The share of the step in which the devices of a pipeline stage idle."""
        return self.report.breakdown.pipeline_bubble / self.report.time

    @property
    def bubble_over_work(self) -> float:
        """The pipeline bubble over the time that a stage works on its micro-batches."""
        parts = ("matmul", "attention", "elementwise", "recompute", "host", "tensor_parallel")
        work = sum(getattr(self.report.breakdown, part) for part in parts)
        return self.report.breakdown.pipeline_bubble / work

    @property
    def published_bubble(self) -> float | None:
        """The bubble over the work of a stage by the published formula, (p − 1)/(v·m).

        From arXiv 2104.04473, sections 2.2.1 and 2.2.2, for p stages of v chunks and m micro-batches. None
        for the schedules whose bubble depends on the time of weight gradients.
        """
        if self.schedule.schedule not in ("gpipe", "1f1b"):
            return None
        return (self.stages - 1) / (self.schedule.chunks * self.micro_batches)

    @property
    def fits(self) -> bool:
        """Whether the peak memory of every device is within its capacity."""
        return bool(self.report.memory.excess <= 0)


def evaluate() -> list[Case]:
    """Estimates all combinations that their schedule allows: first by micro-batches, then by stages."""
    combinations = [(schedule, STAGES, count) for schedule in SCHEDULES for count in VARIED_MICRO_BATCHES]
    combinations += [(schedule, count, MICRO_BATCHES) for schedule in SCHEDULES for count in VARIED_STAGES]
    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", TENSOR_PARALLEL)
    base = dp.load_strategy(
        {"tp": TENSOR_PARALLEL, "recompute": "selective", "attention": "standard", "precision": "fp16"}
    )

    def step(
        schedule: jax.Array, chunks: jax.Array, stages: jax.Array, micro_batches: jax.Array
    ) -> tuple[TrainingReport, jax.Array]:
        strategy = replace(
            base,
            {"schedule": schedule, "virtual_stages": chunks, "pp": stages, "global_batch": micro_batches},
        )
        devices = replace(system, {"n_devices": TENSOR_PARALLEL * stages})
        return dp.training_step(model, devices, strategy), feasible(Configuration(model, devices, strategy))

    schedules, stages, micro_batches = zip(*combinations, strict=True)
    results = evaluate_cases(
        step,
        np.stack([choice_weights(Strategy, "schedule", schedule.schedule) for schedule in schedules]),
        np.array([schedule.chunks for schedule in schedules], float),
        np.array(stages, float),
        np.array(micro_batches, float),
    )
    return [
        Case(*combination, report)
        for combination, (report, allowed) in zip(combinations, results, strict=True)
        if allowed
    ]


def schedule_table(cases: list[Case]) -> Table:
    """Tabulates times and memory of all cases beside the published bubbles."""
    columns = {
        "stages": ("stages", ".0f"),
        "micro_batches": ("micro-batches", ".0f"),
        "schedule": ("schedule", ""),
        "step_s": ("step s", ".2f"),
        "bubble": ("bubble", ".1%"),
        "bubble_over_work": ("bubble / work", ".4f"),
        "published": ("published formula", ".4f"),
        "mfu": ("MFU", ".1%"),
        "transfers": ("transfers", ".1%"),
        "activations_gib": ("activations GiB", ".1f"),
        "peak_gib": ("peak GiB", ".1f"),
        "fits": ("fits", ""),
    }
    rows = [
        {
            "stages": case.stages,
            "micro_batches": case.micro_batches,
            "schedule": case.schedule.name,
            "step_s": case.report.time,
            "bubble": case.bubble_share,
            "bubble_over_work": case.bubble_over_work,
            "published": case.published_bubble,
            "mfu": case.report.mfu,
            "transfers": case.report.breakdown.pipeline_transfers / case.report.time,
            "activations_gib": case.report.memory.activations / GIB,
            "peak_gib": case.report.memory.peak / GIB,
            "fits": "yes" if case.fits else "no",
        }
        for case in cases
    ]
    title = "GPT-3 175B on A100 80 GB, eight-way tensor parallelism, selective recomputation"
    return Table("schedules", title, columns, rows)


# --- figure


def draw_panel(
    axes: Axes, cases: list[Case], along: str, name: str, title: str, measure: Callable[[Case], float]
) -> None:
    """Draws a line for each schedule: a measure of the step over a field of the case, `along`."""
    for schedule in SCHEDULES:
        chosen = [case for case in cases if case.schedule == schedule]
        axes.plot(
            [getattr(case, along) for case in chosen],
            [measure(case) for case in chosen],
            color=schedule.colour,
            linewidth=schedule.width,
            linestyle=schedule.dashes,
            marker="o",
            markersize=4,
            label=schedule.name,
        )
    ticks = sorted({getattr(case, along) for case in cases})
    binary_axis(axes, ticks, [f"{tick:g}" for tick in ticks], name)
    axes.set_title(title)


def draw_peaks(axes: Axes, cases: list[Case], along: str, name: str) -> None:
    """Draws the peak memory on a logarithmic axis, with the capacity of a device."""
    draw_panel(
        axes, cases, along, name, "Peak memory, GiB", lambda case: float(case.report.memory.peak) / GIB
    )
    axes.set_yscale("log", base=2)
    axes.set_ylim(24, 512)
    ticks = (32, 64, 128, 256, 512)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    capacity = float(cases[0].report.memory.capacity) / GIB
    capacity_line(axes, capacity)
    axes.annotate(
        f"{capacity:.0f} GiB",
        (1, capacity),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def draw(cases: list[Case]) -> Figure:
    """Draws bubble, utilization and peak memory: above over micro-batches, below over stages."""
    by_micro_batches = [
        case for case in cases if case.stages == STAGES and case.micro_batches != MICRO_BATCHES
    ]
    by_stages = [case for case in cases if case.micro_batches == MICRO_BATCHES]
    rows = (
        (by_micro_batches, "micro_batches", f"micro-batches, in {STAGES} stages"),
        (by_stages, "stages", f"stages, with {MICRO_BATCHES} micro-batches"),
    )
    with figure_style():
        figure = Figure(figsize=(14, 8), layout="constrained")
        grid = figure.subplots(2, 3)
        for (bubble, utilization, peaks), (chosen, along, name) in zip(grid, rows, strict=True):
            draw_panel(
                bubble, chosen, along, name, "Bubble, % of the step", lambda case: 100 * case.bubble_share
            )
            bubble.set_ylim(bottom=0)
            draw_panel(
                utilization,
                chosen,
                along,
                name,
                "Model FLOPs utilization, %",
                lambda case: 100 * case.report.mfu,
            )
            draw_peaks(peaks, chosen, along, name)
        grid[0, 0].legend(frameon=False, fontsize=9)
    return figure


# --- finding


def micro_batches_for_small_bubble(cases: list[Case], schedule: Schedule) -> int:
    """Returns the fewest micro-batches that keep the bubble of a schedule below `SMALL_BUBBLE`."""
    return min(
        case.micro_batches
        for case in cases
        if case.schedule == schedule and case.stages == STAGES and case.bubble_share < SMALL_BUBBLE
    )


def finding(cases: list[Case]) -> str:
    """Writes what the table shows."""
    by_stages = {
        (case.schedule.name, case.stages): case for case in cases if case.micro_batches == MICRO_BATCHES
    }
    at_base = {name: case for (name, stages), case in by_stages.items() if stages == STAGES}
    plain, zero_bubble, dual_pipe = (at_base[name] for name in ("1F1B", "zero-bubble H1", "DualPipe"))
    interleaved, deepest = at_base["interleaved, 4 chunks"], max(VARIED_STAGES)
    deep = by_stages["interleaved, 4 chunks", deepest].report
    error = max(
        abs(case.bubble_over_work / case.published_bubble - 1) for case in cases if case.published_bubble
    )
    zero_bubble_share, dual_pipe_share = (
        case.report.breakdown.pipeline_bubble / plain.report.breakdown.pipeline_bubble
        for case in (zero_bubble, dual_pipe)
    )
    extra_chunks, extra_dual_pipe = (
        (case.report.memory.peak - plain.report.memory.peak) / GIB for case in (interleaved, dual_pipe)
    )
    gpipe_limit = max(
        case.micro_batches
        for case in cases
        if case.schedule.name == "GPipe" and case.stages == STAGES and case.fits
    )
    best = min((case for case in at_base.values() if case.fits), key=lambda case: case.report.time)
    needed = ", ".join(
        f"{schedule.name} {micro_batches_for_small_bubble(cases, schedule)}" for schedule in SCHEDULES
    )
    return (
        "Bubbles of GPipe, 1F1B and interleaved 1F1B equal the published (p − 1)/(v·m) of a stage's work"
        f" to {error:.0e}. In {STAGES} stages, a bubble below {SMALL_BUBBLE:.0%} of the step takes these"
        f" numbers of micro-batches: {needed}. GPipe keeps the activations of all micro-batches and fits"
        f" 80 GiB up to {gpipe_limit}. Zero-bubble H1 has {zero_bubble_share:.0%} of the bubble of 1F1B in"
        " the same memory, not the third of its paper, where forward pass, input gradients and weight"
        f" gradients take equally long: here weight gradients are {(1 - zero_bubble_share) / 2:.0%} of"
        " both passes, because attention has none and tensor-parallel communication belongs to the other"
        f" two. Four chunks quarter the bubble for {extra_chunks:.1f} GiB more of activations, and their"
        f" transfers take {deep.breakdown.pipeline_transfers / deep.time:.1%} of the step in {deepest}"
        f" stages. DualPipe has {dual_pipe_share:.0%} of the bubble of 1F1B for {extra_dual_pipe:.0f} GiB"
        f" more, its second copy of weights and gradients. With {MICRO_BATCHES} micro-batches in {STAGES}"
        f" stages the fastest schedule that fits is {best.schedule.name}: {best.report.time:.2f} s, where"
        f" 1F1B takes {plain.report.time:.2f} s."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "schedules", "changes nothing: all cases take seconds")
    cases = evaluate()
    publish(options.out, [schedule_table(cases)], finding(cases), {"figure": draw(cases)})


if __name__ == "__main__":
    main()
