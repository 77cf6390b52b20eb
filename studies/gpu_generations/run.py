"""Training of GPT-3 175B from A100 to B200: what compute, networks, number formats and memory each bring.

Optimus (arXiv 2407.14645) predicts about 35 times the speed from clusters of A100 to clusters of B200. Here a
cluster of 1,024 A100 becomes one of B200 in steps (`generations.py`), each with the fastest layout of those
that `diffperf plan` compares: once with the calibrated numbers of every generation, and once with the numbers
of datasheets and the efficiencies of A100. Measured ratios stand beside ours. Of the paper only
its total is compared, which its abstract gives.

    python studies/gpu_generations/run.py [--quick] [--out DIR]
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.report.plots import BLUE, GREY, INK, ORANGE, PALETTE, RED, bare
from diffperf.workload.model import Model

sys.path.append(str(Path(__file__).parents[1]))
from generations import (
    A100,
    B200,
    DEVICES,
    H100,
    PEAK_STEPS,
    RESOURCES,
    STEPS,
    Result,
    elasticities,
    results,
    whole_system,
)
from reporting import Table, figure_style, label_point, parse_options, publish, read_rows

PUBLISHED = Path(__file__).parent / "published.csv"
MEASURED = Path(__file__).parents[1] / "stacks" / "data"
# Measured runs of the tables in that folder: the older and the newer of a ratio.
FORMATS = ("nemo-bridge-0036", "nemo-bridge-0086")  # Llama 3.1 405B on 256 GB200 in one layout: fp8, nvfp4
GENERATIONS = ("korthikanti-0004", "nemo-launcher-0001")  # GPT-3 175B: 64 A100 in 2022, 512 H100 in 2024
SCALES = (256, 1024, 4096)  # devices

# The parts of a step in the figure, and the fields of the breakdown that each adds up.
PARTS = {
    "linear layers": ("matmul",),
    "attention": ("attention",),
    "element-wise": ("elementwise", "recompute"),
    "tensor-parallel": ("tensor_parallel",),
    "pipeline bubble": ("pipeline_bubble",),
    "pipeline transfers": ("pipeline_transfers",),
    "gradients": ("data_parallel",),
    "head, optimizer, host": ("head", "optimizer", "host"),
}


@dataclasses.dataclass(frozen=True)
class Chain:
    """All steps in order: times are in s a sequence."""

    results: list[Result]

    @property
    def gains(self) -> list[float]:
        """The speed of every step over that of the step before; 1 for the first."""
        times = [result.seconds for result in self.results]
        return [1.0, *(before / after for before, after in itertools.pairwise(times))]

    @property
    def totals(self) -> list[float]:
        """The speed of every step over that of the first."""
        return [self.results[0].seconds / result.seconds for result in self.results]

    @property
    def total(self) -> float:
        """The speed of the last step over that of the first."""
        return self.totals[-1]

    def gain(self, name: str) -> float:
        """The gain of a step by its name."""
        return self.gains[[result.step.name for result in self.results].index(name)]

    def result(self, name: str) -> Result:
        """The result of a step by its name."""
        return next(result for result in self.results if result.step.name == name)


def peak_ratio() -> float:
    """Returns the fp4 rate of B200 over the bf16 rate of A100."""
    new, old = (dp.load_system(name).accelerator for name in (B200, A100))
    return float(new.matrix.nvfp4.rate / old.matrix.bf16.rate)


def measured_gain(runs: tuple[str, str]) -> float:
    """Returns the measured tokens a second and device of a run over those of an older one."""
    rows = [*read_rows(MEASURED / "korthikanti.csv"), *read_rows(MEASURED / "nemo.csv")]
    speeds = {row["id"]: row["tokens_per_s_per_device"] for row in rows}
    older, newer = (float(speeds[run]) for run in runs)
    return newer / older


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A published or measured ratio of speeds, ours, and where the former is from."""

    name: str
    kind: str
    published: float
    ours: float
    source: str


def comparisons(model: Model, ours: Chain) -> list[Comparison]:
    """Returns the ratios that are compared: the published total first, the measured ones after it."""
    total, generation = read_rows(PUBLISHED)
    h100, b200 = (whole_system(model, name, "fp8") for name in (H100, B200))
    first = float(ours.results[0].report.time)
    folder = "studies/stacks/data"
    return [
        Comparison(total["name"], total["kind"], float(total["ratio"]), ours.total, total["source"]),
        Comparison(
            name="A100 at fp16 to H100 at fp8",
            kind="measured",
            published=measured_gain(GENERATIONS),
            ours=first / h100,
            source=f"GPT-3 175B, software of 2022 and of 2024: {' and '.join(GENERATIONS)} of {folder}",
        ),
        Comparison(
            name=generation["name"],
            kind=generation["kind"],
            published=float(generation["ratio"]),
            ours=h100 / b200,
            source=generation["source"],
        ),
        Comparison(
            name="fp8 to nvfp4",
            kind="measured",
            published=measured_gain(FORMATS),
            ours=ours.gain("fp4"),
            source=f"Llama 3.1 405B on 256 GB200: {' and '.join(FORMATS)} of {folder}",
        ),
    ]


# --- tables


def steps_table(ours: Chain, datasheet: Chain) -> Table:
    """Tabulates every step with its layout, its gain and the ratio of the datasheet number it changes."""
    columns = {
        "step": ("step", ""),
        "precision": ("format", ""),
        "layout": ("fastest layout (v chunks)", ""),
        "fitting": ("of", ",.0f"),
        "milliseconds": ("ms/sequence", ".3f"),
        "mfu": ("MFU", ".0%"),
        "clock": ("clock", ".0%"),
        "peak": ("datasheet ×", ".2f"),
        "gain": ("gain ×", ".2f"),
        "kept": ("layout kept ×", ".2f"),
        "total": ("total ×", ".2f"),
        "datasheet_gain": ("A100's eff. ×", ".2f"),
        "datasheet_total": ("total ×", ".2f"),
    }
    rows: list[dict[str, Any]] = []
    before = ours.results[0].seconds
    for index, result in enumerate(ours.results):
        rows.append(
            {
                "step": result.step.name,
                "precision": result.step.precision,
                "layout": result.layout,
                "fitting": result.fitting,
                "milliseconds": 1e3 * result.seconds,
                "mfu": float(result.report.mfu),
                "clock": float(result.report.clock),
                "peak": result.peak,
                "gain": ours.gains[index],
                "kept": None if result.kept is None else before / result.kept,
                "total": ours.totals[index],
                "datasheet_gain": datasheet.gains[index],
                "datasheet_total": datasheet.totals[index],
            }
        )
        before = result.seconds
    title = f"Steps from {DEVICES:,} A100 to {DEVICES:,} B200; MFU is of the peak rate of the format"
    return Table("steps", title, columns, rows)


def bounds_table(chain: Chain, shares: Sequence[dict[str, float]]) -> Table:
    """Tabulates what binds every step: the relative fall of its time by the growth of each resource."""
    columns = {"step": ("step", "")} | {name: (name, ".0%") for name in RESOURCES}
    columns["rest"] = ("latency, fixed", ".0%")
    rows = [
        {"step": result.step.name, **share, "rest": 1 - sum(share.values())}
        for result, share in zip(chain.results, shares, strict=True)
    ]
    return Table("bounds", "What binds a step: elasticities of its time", columns, rows)


def comparison_table(compared: Sequence[Comparison]) -> Table:
    """Tabulates published and measured ratios beside ours."""
    columns = {
        "name": ("ratio", ""),
        "kind": ("", ""),
        "published": ("published ×", ".2f"),
        "ours": ("ours ×", ".2f"),
        "difference": ("ours over it", "+.0%"),
        "source": ("source", ""),
    }
    rows = [
        {**dataclasses.asdict(ratio), "difference": ratio.ours / ratio.published - 1} for ratio in compared
    ]
    return Table("comparison", "Published and measured ratios of speed, and ours", columns, rows)


def scales_table(chains: dict[int, Chain]) -> Table:
    """Tabulates the total by the number of devices."""
    columns = {
        "devices": ("devices", ",.0f"),
        "first": ("MFU of A100", ".0%"),
        "last": ("MFU of B200", ".0%"),
        "total": ("total ×", ".2f"),
    }
    rows = [
        {
            "devices": devices,
            "first": float(chain.results[0].report.mfu),
            "last": float(chain.results[-1].report.mfu),
            "total": chain.total,
        }
        for devices, chain in chains.items()
    ]
    return Table("scales", "From A100 to B200 by the number of devices", columns, rows)


# --- figure and report


def draw(ours: Chain, datasheet: Chain) -> Figure:
    """Draws the speed over that of A100, and the parts of the time of a sequence, step by step."""
    with figure_style():
        figure = Figure(figsize=(14, 5.6), layout="constrained")
        speeds, parts = figure.subplots(1, 2)
        _draw_speeds(speeds, ours, datasheet)
        _draw_parts(parts, ours)
        for axes in (speeds, parts):
            bare(axes, keep="left")
            names = [step.name for step in STEPS]
            axes.set_xticks(range(len(STEPS)), names, rotation=40, ha="right", fontsize=9)
    return figure


def _draw_speeds(axes: Axes, ours: Chain, datasheet: Chain) -> None:
    """Draws the speed of every step over that of the first, with the published total."""
    places = np.arange(len(STEPS))
    colours = [ORANGE if step.name in PEAK_STEPS else BLUE for step in STEPS]
    axes.bar(places, ours.totals, color=colours, width=0.7)
    axes.plot(places, datasheet.totals, "D", color="white", markeredgecolor=INK, label="A100's efficiencies")
    ratios = [(result.step.name in PEAK_STEPS and result.peak) or 1.0 for result in ours.results]
    peaks = np.cumprod(ratios)
    axes.step(places, peaks, where="mid", color=GREY, linewidth=1.4, label="ratio of peak rates")
    published = float(read_rows(PUBLISHED)[0]["ratio"])
    axes.axhline(published, color=RED, linewidth=1.4, linestyle=(0, (4, 2)), label="published total")
    for place, total in enumerate(ours.totals):
        label_point(axes, f"{total:.1f}", place, total, xytext=(0, -12), color="white")
    axes.set_yscale("log", base=2)
    ticks = (1, 2, 4, 8, 16, 32)
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.set_ylabel("speed over A100 (orange: compute and number formats)")
    axes.set_ylim(0.8, 1.2 * published)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.93))


def _draw_parts(axes: Axes, chain: Chain) -> None:
    """Draws the share of every part of the time of each step."""
    bottom = np.zeros(len(STEPS))
    for (name, fields), colour in zip(PARTS.items(), PALETTE, strict=False):
        shares = np.array(
            [
                sum(float(getattr(result.report.breakdown, field)) for field in fields)
                / float(result.report.time)
                for result in chain.results
            ]
        )
        axes.bar(range(len(STEPS)), shares, bottom=bottom, color=colour, width=0.8, label=name)
        bottom += shares
    axes.set_ylabel("share of the step")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)


def finding(ours: Chain, datasheet: Chain, compared: Sequence[Comparison], last: dict[str, float]) -> str:
    """Writes what the tables show."""
    published, *measured = compared
    start, end = float(ours.results[0].report.mfu), float(ours.results[-1].report.mfu)
    ratios = ", ".join(f"{ratio.name} {ratio.published:.2f} (ours {ratio.ours:.2f})" for ratio in measured)
    return (
        f"From {DEVICES:,} A100 to {DEVICES:,} B200 we estimate {ours.total:.1f} times the speed, of which"
        f" the larger batch is {ours.gain('4 × batch'):.2f}; with A100's efficiencies and no power limits it"
        f" is {datasheet.total:.1f}. The published total is about {published.published:.0f}: it is"
        f" {published.published / ours.total:.1f} times ours, and more than the ratio of the peak rates,"
        f" {peak_ratio():.1f}, so that it takes clusters that lose less at fp4 on B200 than at bf16 on A100."
        f" Our fastest layouts reach {start:.0%} of A100's peak and {end:.0%} of B200's at fp4."
        f" {shortfall_finding(ours)} {memory_finding(ours)} In the last step the rate of matrix units binds"
        f" {last['matrix units']:.0%} of the time, power {last['power']:.0%}, HBM and caches"
        f" {last['HBM'] + last['caches']:.0%}, networks {last['NVLink'] + last['InfiniBand']:.0%}. Measured:"
        f" {ratios}; their product, with the gain of software from 2022 to 2024 and without switch and batch,"
        f" is {math.prod(ratio.published for ratio in measured):.1f}."
    )


def shortfall_finding(ours: Chain) -> str:
    """Writes by how much the steps of compute and number formats miss the ratios of their peak rates."""
    gains = {name: ours.gain(name) for name in PEAK_STEPS}
    peaks = {name: ours.result(name).peak or 1.0 for name in PEAK_STEPS}
    missing = {name: peaks[name] / gains[name] for name in PEAK_STEPS}
    listed = ", ".join(f"{name} {gains[name]:.2f} of {peaks[name]:.2f}" for name in PEAK_STEPS)
    worst = max(missing, key=missing.__getitem__)
    return (
        "The steps of compute and number formats fall short of the ratios of their peak rates by"
        f" {math.prod(missing.values()):.1f} times in all ({listed}), {worst} by the most; networks, memory"
        f" and batch together bring {ours.total / math.prod(gains.values()):.2f} times."
    )


def memory_finding(ours: Chain) -> str:
    """Writes what the fastest layout does with the room of HBM3e."""
    before, memory = ours.result("fp4"), ours.result("HBM3e of B200")
    kept = before.seconds / (memory.kept or memory.seconds)
    degrees, micro_batches = (
        [float(getattr(result.configuration.strategy, field)) for result in (before, memory)]
        for field in ("tp", "micro_batch")
    )
    return (
        f"With the room of HBM3e the fastest layout has a tensor-parallel degree of {degrees[1]:.0f} (before:"
        f" {degrees[0]:.0f}) and a micro-batch of {micro_batches[1]:.0f} (before: {micro_batches[0]:.0f}):"
        f" {ours.gain(memory.step.name):.2f} times the speed, {kept:.2f} with the layout kept."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "gpu_generations", "1,024 devices only")
    model = dp.load_model("gpt3-175b")
    chains = {
        devices: Chain(results(model, devices)) for devices in ((DEVICES,) if options.quick else SCALES)
    }
    ours, datasheet = chains[DEVICES], Chain(results(model, calibrated=False))
    compared = comparisons(model, ours)
    shares = [elasticities(result) for result in ours.results]
    tables = [
        steps_table(ours, datasheet),
        bounds_table(ours, shares),
        comparison_table(compared),
        scales_table(chains),
    ]
    text = finding(ours, datasheet, compared, shares[-1])
    publish(options.out, tables, text, {"figure": draw(ours, datasheet)})


if __name__ == "__main__":
    main()
