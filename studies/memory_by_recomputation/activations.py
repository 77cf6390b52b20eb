"""Activations by recomputation method, against Korthikanti et al. (arXiv 2205.05198)."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from reporting import (
    Table,
    capacity_line,
    evaluate_cases,
    label_point,
    read_rows,
    stack_cases,
)

import diffperf as dp
from diffperf.hardware.system import System
from diffperf.relax import Exact
from diffperf.report.plots import INK, PALETTE, bare
from diffperf.workload.activations import layer_activations
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import training_memory
from diffperf.workload.model import Model
from diffperf.workload.schedule import in_flight
from diffperf.workload.strategy import Strategy

HERE = Path(__file__).parent
MIB, GIB = 2**20, 2**30
SEQUENCE_LENGTH, TENSOR_PARALLEL = 2048, 8


@dataclasses.dataclass(frozen=True)
class Layout:
    """A model of arXiv 2205.05198 and its layout in Table 3."""

    model: str
    stages: int
    chunks: int
    micro_batch: int


LAYOUTS = {
    "22B": Layout("gpt3-22b", stages=1, chunks=1, micro_batch=4),
    "175B": Layout("gpt3-175b", stages=8, chunks=3, micro_batch=1),
    "530B": Layout("gpt3-530b", stages=35, chunks=3, micro_batch=1),
    "1T": Layout("gpt3-1t", stages=64, chunks=1, micro_batch=1),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A recomputation method, whether sequence parallelism is on, and the name of the pair in Figure 7."""

    recompute: str
    sequence_parallel: bool
    figure_7: str | None


METHODS = {
    "none": Method("none", sequence_parallel=False, figure_7="none"),
    "none + SP": Method("none", sequence_parallel=True, figure_7="SP"),
    "selective": Method("selective", sequence_parallel=False, figure_7="selective"),
    "selective + SP": Method("selective", sequence_parallel=True, figure_7="SP+selective"),
    "full": Method("full", sequence_parallel=False, figure_7="full"),
    "full + SP": Method("full", sequence_parallel=True, figure_7=None),
}


def paper_layer_bytes(model: Model, micro_batch: int, method: Method) -> float:
    """Returns the bytes that a layer keeps of one micro-batch by Table 2 of arXiv 2205.05198.

    The table's formula is sbh·(10 + 24/t + 5as/ht) and its variants. Full recomputation with sequence
    parallelism is not in the table: there a layer keeps its input, split among the t ranks.
    """
    hidden, heads = float(model.hidden), float(model.layers[0].heads)
    residual = SEQUENCE_LENGTH * micro_batch * hidden
    if method.recompute == "full":
        return 2 * residual / (TENSOR_PARALLEL if method.sequence_parallel else 1)
    outside = 10 / TENSOR_PARALLEL if method.sequence_parallel else 10
    scores = 5 * heads * SEQUENCE_LENGTH / hidden if method.recompute == "none" else 0
    return residual * (outside + 24 / TENSOR_PARALLEL + scores / TENSOR_PARALLEL)


def activation_inputs(layout: Layout, method: Method) -> tuple[Model, System, Strategy]:
    """Returns model, system and strategy of a model's layout with a recomputation method."""
    strategy = dp.load_strategy(
        {
            "tp": TENSOR_PARALLEL,
            "pp": layout.stages,
            "virtual_stages": layout.chunks,
            "micro_batch": layout.micro_batch,
            "global_batch": layout.micro_batch * layout.stages * 8,
            "sequence_length": SEQUENCE_LENGTH,
            "recompute": method.recompute,
            "sequence_parallel": method.sequence_parallel,
            "attention": "standard",
            "precision": "fp16",
        }
    )
    return dp.load_model(layout.model), dp.load_system("dgx-a100", TENSOR_PARALLEL * layout.stages), strategy


def activations(model: Model, system: System, strategy: Strategy) -> dict:
    """Returns the bytes of a layer and micro-batch, of all on the first stage, and the memory of a device."""
    layer = layer_activations(model.layers[0], model, strategy).kept
    stage = layer * model.depth / strategy.pp * in_flight(strategy, Exact())
    memory = training_memory(Configuration(model, system, strategy))
    return {"layer": layer, "stage": stage, "memory": memory}


@dataclasses.dataclass(frozen=True)
class PublishedActivations:
    """Figures 1 and 7 of arXiv 2205.05198, by model size and by the name of a method in Figure 7."""

    gib: dict[tuple[str, str], float]  # on a device of the first stage, Figure 1
    share: dict[tuple[str, str], float]  # of what tensor parallelism alone keeps, Figure 7

    @classmethod
    def read(cls) -> "PublishedActivations":
        """Reads the published values."""
        rows = read_rows(HERE / "published_activations.csv")
        methods = {
            "activations, no recompute, TP only": "none",
            "activations, present work (SP + selective)": "SP+selective",
        }
        gib, share = {}, {}
        for row in rows:
            size, case = row["case"].split(" ", 1)
            if row["percent"]:
                share[size, case] = float(row["percent"]) / 100
            if row["memory_GiB"] and case in methods:
                gib[size, methods[case]] = float(row["memory_GiB"])
        return cls(gib, share)


def activation_table(published: PublishedActivations) -> Table:
    """Estimates and tabulates the activations of all models and methods."""
    columns = {
        "model": ("model", ""),
        "method": ("recomputation", ""),
        "layer_mib": ("layer MiB", ".2f"),
        "paper_layer_mib": ("formula", ".2f"),
        "device_gib": ("device GiB", ".2f"),
        "figure_1_gib": ("Figure 1", ".2f"),
        "share": ("share of none", ".2%"),
        "figure_7_share": ("Figure 7", ".2%"),
        "peak_gib": ("peak GiB", ".1f"),
        "fits": ("fits 80 GiB", ""),
    }
    names = list(itertools.product(LAYOUTS, METHODS))
    inputs = [activation_inputs(LAYOUTS[size], METHODS[method]) for size, method in names]
    results = evaluate_cases(activations, *stack_cases(inputs))
    baseline = {
        size: result["stage"]
        for (size, method), result in zip(names, results, strict=True)
        if method == "none"
    }
    rows = []
    for (size, name), (model, _, _), result in zip(names, inputs, results, strict=True):
        method, memory = METHODS[name], result["memory"]
        figure_7 = method.figure_7 or ""
        rows.append(
            {
                "model": size,
                "method": name,
                "layer_mib": result["layer"] / MIB,
                "paper_layer_mib": paper_layer_bytes(model, LAYOUTS[size].micro_batch, method) / MIB,
                "device_gib": result["stage"] / GIB,
                "figure_1_gib": published.gib.get((size, figure_7)),
                "share": result["stage"] / baseline[size],
                "figure_7_share": published.share.get((size, figure_7)),
                "peak_gib": memory.peak / GIB,
                "fits": "yes" if memory.excess <= 0 else "no",
            }
        )
    title = "Activations: a layer of one micro-batch, and what a device of the first stage keeps"
    return Table("activations", title, columns, rows)


# --- figure and finding


def draw_activations(axes: Axes, table: Table, published: PublishedActivations, capacity: float) -> None:
    """Draws what a device keeps, in GiB, by model and method; the published values are marks."""
    width = 0.13
    for column, (name, method) in enumerate(METHODS.items()):
        rows = [row for row in table.rows if row["method"] == name]
        x = np.arange(len(rows)) + (column - (len(METHODS) - 1) / 2) * width
        heights = [row["device_gib"] for row in rows]
        axes.bar(x, heights, width=0.92 * width, color=PALETTE[column], label=name)
        if method.figure_7:
            marks = [
                published.share[row["model"], method.figure_7] * published.gib[row["model"], "none"]
                for row in rows
            ]
            label = "published" if column == 0 else None
            axes.plot(x, marks, "_", color=INK, markersize=11, markeredgewidth=1.6, label=label)
    capacity_line(axes, capacity)
    label_point(axes, "A100 80 GB", -0.45, capacity, ha="left")
    axes.set_xticks(range(len(LAYOUTS)), list(LAYOUTS))
    axes.set_title("Activations on a device of the first stage (GiB)")
    axes.legend(frameon=False, fontsize=9, ncols=2)
    bare(axes)


def activation_finding(table: Table) -> str:
    """Writes what the table of activations shows."""
    rows = table.rows
    layers = max(abs(row["layer_mib"] / row["paper_layer_mib"] - 1) for row in rows)
    devices = max(abs(row["device_gib"] / row["figure_1_gib"] - 1) for row in rows if row["figure_1_gib"])
    points = max(100 * abs(row["share"] - row["figure_7_share"]) for row in rows if row["figure_7_share"])
    shares = {name: [row["share"] for row in rows if row["method"] == name] for name in METHODS}
    fitting = {
        name: [row["model"] for row in rows if row["method"] == name and row["fits"] == "yes"]
        for name in METHODS
    }
    for_all = [name for name, models in fitting.items() if len(models) == len(LAYOUTS)]
    selective, full = shares["selective + SP"], shares["full"]
    return (
        f"The activations of a layer equal the formulas of the paper to {layers:.0e}, those of a device"
        f" its Figure 1 to {devices:.2%} and the percentages of its Figure 7 to {points:.2f} points, which"
        f" are read off bars. Selective recomputation with sequence parallelism keeps {min(selective):.1%}"
        f" to {max(selective):.1%} of what tensor parallelism alone keeps, full recomputation"
        f" {min(full):.1%} to {max(full):.1%}. All four models fit 80 GB, parameters and reserve included,"
        f" with {', '.join(for_all)}; without recomputation and sequence parallelism"
        f" {', '.join(fitting['none']) or 'none of them'} does."
    )
