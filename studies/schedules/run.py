"""Pipeline schedules: bubble, step time and peak memory of GPT-3 175B by number of micro-batches and of stages.

Eight-way tensor parallelism on DGX A100, one pipeline. GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (2104.04473),
zero-bubble H1 (2401.10241), DualPipe (2412.19437).

    python studies/schedules/run.py [--quick] [--out DIR]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import diffperf as dp
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, FAINT, GREY, INK, ORANGE, RED
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import SCHEDULES

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, at, each, options, publish, style

# Schedule, chunks of a stage, colour.
KINDS = {
    "GPipe": ("gpipe", 1, GREY),
    "1F1B": ("1f1b", 1, BLUE),
    "interleaved, 2 chunks": ("1f1b", 2, "#5b9bd5"),
    "interleaved, 4 chunks": ("1f1b", 4, "#8cc0e8"),
    "zero-bubble H1": ("zero_bubble", 1, ORANGE),
    "DualPipe": ("dualpipe", 1, RED),
}
STAGES, MICRO_BATCHES = (
    8,
    96,
)  # where the other is varied: 96 is a multiple of all stages, and twice as many as the most
TP, GIB = 8, 2**30

Case = tuple[str, int, int]  # kind, stages, micro-batches


def cases() -> list[Case]:
    """By micro-batches in so many stages, then by stages with so many micro-batches."""
    by_batches = [(kind, STAGES, STAGES * 2**i) for kind in KINDS for i in range(6)]
    return by_batches + [(kind, stages, MICRO_BATCHES) for kind in KINDS for stages in (4, 8, 12, 24)]


def evaluate(of: list[Case]) -> tuple[list[TrainingReport], np.ndarray]:
    """Reports, and which of the cases a schedule allows."""
    model, system = dp.load_model("gpt3-175b"), dp.load_system("dgx-a100", TP)
    base = dp.load_strategy(
        {"tp": TP, "recompute": "selective", "attention": "standard", "precision": "fp16"}
    )

    def step(schedule, chunks, stages, micro_batches):
        values = {"schedule": schedule, "virtual_stages": chunks, "pp": stages, "global_batch": micro_batches}
        strategy, pods = replace(base, values), replace(system, {"n_devices": TP * stages})
        return dp.training_step(model, pods, strategy), feasible(model, pods, strategy)

    schedules = np.stack([np.eye(len(SCHEDULES))[SCHEDULES.index(KINDS[kind][0])] for kind, _, _ in of])
    chunks = np.array([KINDS[kind][1] for kind, _, _ in of], float)
    reports, allowed = each(
        step, schedules, chunks, *(np.array(column, float) for column in list(zip(*of, strict=True))[1:])
    )
    return [at(reports, i) for i in range(len(of))], allowed


def work(report: TrainingReport) -> float:
    """Seconds that a stage works on its micro-batches."""
    parts = ("matmul", "attention", "elementwise", "recompute", "host", "tensor_parallel")
    return sum(getattr(report.breakdown, part) for part in parts)


def idle(kind: str, stages: int, micro_batches: int) -> float | None:
    """Bubble over the work of a stage by the published formula, (p − 1)/(v·m) (arXiv 2104.04473 §2.2.1, 2.2.2). None where it
    depends on how long weight gradients take."""
    return (stages - 1) / (KINDS[kind][1] * micro_batches) if KINDS[kind][0] in ("gpipe", "1f1b") else None


def table(of: list[Case], reports: list[TrainingReport]) -> Table:
    cells = []
    for (kind, stages, micro_batches), report in zip(of, reports, strict=True):
        time, bubble, memory = report.time, report.breakdown.pipeline_bubble, report.memory
        cells.append(
            (stages, micro_batches, kind, time, bubble / time, bubble / work(report), idle(kind, stages, micro_batches), report.mfu,
             report.breakdown.pipeline_transfers / time, memory.activations / GIB, memory.peak / GIB,
             "yes" if memory.excess <= 0 else "no")
        )  # fmt: skip
    columns = {
        "stages": ".0f", "micro-batches": ".0f", "schedule": "", "step s": ".2f", "bubble": ".1%", "bubble / work": ".4f",
        "formula": ".4f", "MFU": ".1%", "transfers": ".1%", "activations": ".1f", "peak GiB": ".1f", "fits": "",
    }  # fmt: skip
    return Table(
        "schedules",
        "GPT-3 175B on A100 80 GB, tensor-parallel by eight, selective recomputation",
        columns,
        cells,
    )


def panel(axes: Axes, along: str, lines: dict[str, list[tuple[float, float]]], title: str) -> None:
    for kind, points in lines.items():
        # GPipe has 1F1B's bubble and zero-bubble H1 its memory: lines of two widths show both.
        width, dash = (5, "-") if kind == "GPipe" else (1.8, "--" if kind == "zero-bubble H1" else "-")
        axes.plot(
            *zip(*points, strict=True),
            color=KINDS[kind][2],
            linewidth=width,
            linestyle=dash,
            marker="o",
            markersize=4,
            label=kind,
        )
    ticks = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(along)
    axes.set_title(title)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


MEASURES = {
    "Bubble, % of the step": lambda report: 100 * report.breakdown.pipeline_bubble / report.time,
    "Model FLOPs utilization, %": lambda report: 100 * report.mfu,
    "Peak memory, GiB": lambda report: report.memory.peak / GIB,
}


def draw(of: list[Case], reports: list[TrainingReport]) -> Figure:
    with style():
        figure = Figure(figsize=(14, 8), layout="constrained")
        rows = figure.subplots(2, 3)
        by_batches = [
            i for i, (_, stages, count) in enumerate(of) if stages == STAGES and count != MICRO_BATCHES
        ]
        by_stages = [i for i, (_, _, count) in enumerate(of) if count == MICRO_BATCHES]
        for axes_of, chosen, x, along in (
            (rows[0], by_batches, 2, f"micro-batches, in {STAGES} stages"),
            (rows[1], by_stages, 1, f"stages, with {MICRO_BATCHES} micro-batches"),
        ):
            for axes, (title, measure) in zip(axes_of, MEASURES.items(), strict=True):
                lines = {
                    kind: [(of[i][x], measure(reports[i])) for i in chosen if of[i][0] == kind]
                    for kind in KINDS
                }
                panel(axes, along, lines, title)
                axes.set_ylim(bottom=0 if "Bubble" in title else None)
            peaks, capacity = axes_of[-1], reports[0].memory.capacity / GIB
            peaks.set_yscale("log", base=2)
            peaks.set_ylim(24, 512)
            peaks.set_yticks([32, 64, 128, 256, 512], ["32", "64", "128", "256", "512"])
            peaks.axhline(capacity, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
            beside = {
                "xycoords": ("axes fraction", "data"),
                "xytext": (-4, 4),
                "textcoords": "offset points",
                "fontsize": 9,
            }
            peaks.annotate(f"{capacity:.0f} GiB", (1, capacity), ha="right", **beside)
        rows[0, 0].legend(frameon=False, fontsize=9)
    return figure


def finding(of: list[Case], reports: list[TrainingReport]) -> str:
    found = dict(zip(of, reports, strict=True))

    def share(case: Case) -> float:
        return found[case].breakdown.pipeline_bubble / found[case].time

    def enough(kind: str) -> int:
        """Micro-batches that keep the bubble below 5 % in the stages of the first row."""
        return min(
            count
            for name, stages, count in of
            if name == kind and stages == STAGES and share((kind, stages, count)) < 0.05
        )

    off = max(
        abs(one.breakdown.pipeline_bubble / work(one) / formula - 1)
        for case, one in found.items()
        if (formula := idle(*case)) is not None
    )
    plain, zero, dual = (
        found[kind, STAGES, MICRO_BATCHES] for kind in ("1F1B", "zero-bubble H1", "DualPipe")
    )
    fewer = zero.breakdown.pipeline_bubble / plain.breakdown.pipeline_bubble
    dual_share = dual.breakdown.pipeline_bubble / plain.breakdown.pipeline_bubble
    chunks, most = "interleaved, 4 chunks", max(stages for _, stages, _ in of)
    interleaved = found[chunks, STAGES, MICRO_BATCHES]
    moved = (
        found[chunks, most, MICRO_BATCHES].breakdown.pipeline_transfers
        / found[chunks, most, MICRO_BATCHES].time
    )
    gpipe = max(
        count
        for name, stages, count in of
        if (name, stages) == ("GPipe", STAGES) and found[name, stages, count].memory.excess <= 0
    )
    fitting = {
        kind: found[kind, STAGES, MICRO_BATCHES]
        for kind in KINDS
        if found[kind, STAGES, MICRO_BATCHES].memory.excess <= 0
    }
    best = min(fitting, key=lambda kind: fitting[kind].time)
    needed = ", ".join(f"{kind} {enough(kind)}" for kind in KINDS)
    return (
        f"Bubbles of GPipe, 1F1B and interleaved 1F1B are the published (p − 1)/(v·m) of a stage's work to {off:.0e}. In {STAGES}"
        f" stages a bubble below 5% of the step takes these numbers of micro-batches: {needed}. GPipe keeps the activations of all"
        f" of them and fits 80 GiB up to {gpipe}. Zero-bubble H1 has {fewer:.0%} of 1F1B's bubble in the same memory, not the third"
        f" of its paper, where forward pass, input and weight gradients take as long as each other: here weight gradients are"
        f" {(1 - fewer) / 2:.0%} of both passes, for attention has none and tensor-parallel communication is in the others."
        f" Four chunks quarter the bubble for {(interleaved.memory.peak - plain.memory.peak) / GIB:.1f} GiB more of activations,"
        f" and their transfers take {moved:.1%} of the step in {most} stages. DualPipe has {dual_share:.0%} of 1F1B's bubble for"
        f" {(dual.memory.peak - plain.memory.peak) / GIB:.0f} GiB more, its second copy of the weights and gradients. With"
        f" {MICRO_BATCHES} micro-batches in {STAGES} stages the fastest that fits is {best}: {fitting[best].time:.2f} s for"
        f" 1F1B's {plain.time:.2f} s."
    )


def main() -> None:
    arguments = options(__doc__, "schedules", "changes nothing: all cases take seconds")
    everything = cases()
    reports, allowed = evaluate(everything)
    of = [case for case, can in zip(everything, allowed, strict=True) if can]
    reports = [report for report, can in zip(reports, allowed, strict=True) if can]
    publish(arguments.out, [table(of, reports)], draw(of, reports), finding(of, reports))


if __name__ == "__main__":
    main()
