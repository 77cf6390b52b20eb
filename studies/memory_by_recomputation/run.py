"""Activation memory by recomputation method, and model states by ZeRO stage, against published values.

Activations: the models of Korthikanti et al. (arXiv 2205.05198) in the layouts of Table 3; one layer
against the formulas of Table 2, a device of the first stage against Figures 1 and 7
(`published_activations.csv`). Model states and communication: 7.5 billion parameters on 64 data-parallel
ranks against the ZeRO paper (arXiv 1910.02054, `published_zero.csv`).

    python studies/memory_by_recomputation/run.py [--quick] [--out DIR]
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.network.transfers import transfers
from diffperf.hardware.system import System
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.report.plots import FAINT, INK, PALETTE, bare
from diffperf.workload.activations import layer_activations
from diffperf.workload.collectives import gradient_collectives, weight_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, training_memory
from diffperf.workload.model import Model
from diffperf.workload.parameters import stage_parameters
from diffperf.workload.schedule import in_flight
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from reporting import (
    Table,
    capacity_line,
    choice_weights,
    evaluate_cases,
    figure_style,
    label_point,
    parse_options,
    publish,
    read_rows,
    stack_cases,
)

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


# --- activations


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


# --- ZeRO

RANKS = 64
NODE_DEVICES = 8
MICRO_BATCHES = (1, 4)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """A ZeRO stage, and the ranks that share the states; 0 stands for all data-parallel ranks."""

    stage: str
    ranks: int = 0


SHARDINGS = {
    "none": Sharding("0"),
    "ZeRO-1": Sharding("1"),
    "ZeRO-2": Sharding("2"),
    "ZeRO-3": Sharding("3"),
    "ZeRO-3 of 8": Sharding("3", ranks=NODE_DEVICES),
}


def evaluate_shardings(system: System) -> list[dict]:
    """Estimates memory, sent bytes and parameters of a device for all shardings and numbers of micro-batches.

    Gradients are in fp16, as in the ZeRO paper.
    """
    model = dp.load_model("gpt-7.5b")
    base = dp.load_strategy({"dp": RANKS, "precision": "fp16", "gradient_precision": "fp16"})

    def evaluate(stage: jax.Array, ranks: jax.Array, micro_batches: jax.Array) -> dict:
        strategy = replace(base, {"zero": stage, "zero_ranks": ranks, "global_batch": RANKS * micro_batches})
        configuration = Configuration(model, system, strategy)
        parameters = stage_parameters(model, strategy, Exact())
        collectives = [
            *gradient_collectives(configuration, parameters),
            *weight_collectives(configuration, parameters),
        ]
        timed = transfers(collectives, system, Exact())
        return {
            "memory": training_memory(configuration),
            # Bytes by network tier: each collective runs `forward` times in a step.
            "sent": sum(run.transfer.sent * run.collective.forward for run in timed),
            "parameters": parameters.total,
        }

    names = list(itertools.product(SHARDINGS, MICRO_BATCHES))
    results = evaluate_cases(
        evaluate,
        np.stack([choice_weights(Strategy, "zero", SHARDINGS[name].stage) for name, _ in names]),
        np.array([SHARDINGS[name].ranks for name, _ in names], float),
        np.array([micro_batches for _, micro_batches in names], float),
    )
    return [
        {"sharding": name, "micro_batches": micro_batches} | result
        for (name, micro_batches), result in zip(names, results, strict=True)
    ]


def sharding_row(result: dict, published: dict[str, str] | None) -> dict:
    """Returns the row of one sharding: GB of states, and parameters sent per parameter (two bytes each)."""
    memory: Memory = result["memory"]
    states = (memory.weights + memory.gradients + memory.optimizer) / 1e9
    nvlink, infiniband = result["sent"] / (2 * result["parameters"])
    row = {
        "sharding": result["sharding"],
        "micro_batches": result["micro_batches"],
        "weights_gb": memory.weights / 1e9,
        "gradients_gb": memory.gradients / 1e9,
        "optimizer_gb": memory.optimizer / 1e9,
        "states_gb": states,
        "sent": nvlink + infiniband,
        "sent_nvlink": nvlink,
        "sent_infiniband": infiniband,
    }
    if published:
        row["published_gb"] = float(published["model_states_gb"])
        row["error"] = states / row["published_gb"] - 1
        if result["micro_batches"] == 1:
            row["published_sent"] = float(published["volume_per_parameter"])
    return row


def sharding_table(system: System) -> Table:
    """Estimates and tabulates states and communication of all shardings."""
    columns = {
        "sharding": ("sharding", ""),
        "micro_batches": ("micro-batches", ".0f"),
        "weights_gb": ("weights", ".2f"),
        "gradients_gb": ("gradients", ".2f"),
        "optimizer_gb": ("optimizer", ".2f"),
        "states_gb": ("sum", ".2f"),
        "published_gb": ("published", ".4g"),
        "error": ("error", "+.1%"),
        "sent": ("sent / Ψ", ".3f"),
        "published_sent": ("published", ".0f"),
        "sent_nvlink": ("NVLink", ".3f"),
        "sent_infiniband": ("InfiniBand", ".3f"),
    }
    published = {row["name"]: row for row in read_rows(HERE / "published_zero.csv")}
    rows = [sharding_row(result, published.get(result["sharding"])) for result in evaluate_shardings(system)]
    title = f"GB of states of 7.5B parameters (Ψ) on {RANKS} ranks; parameters that a rank sends in a step"
    return Table("zero", title, columns, rows)


# --- figure


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


def draw_states(axes: Axes, table: Table) -> None:
    """Draws the model states of all shardings as stacked bars, in GB."""
    rows = [row for row in table.rows if row["micro_batches"] == 1]
    bottom = np.zeros(len(rows))
    for part, colour in zip(("weights", "gradients", "optimizer"), PALETTE[::3], strict=False):
        values = np.array([row[f"{part}_gb"] for row in rows])
        axes.bar(range(len(rows)), values, bottom=bottom, width=0.62, color=colour, label=part)
        bottom += values
    for x, row in enumerate(rows):
        states, published = row["states_gb"], row.get("published_gb")
        text = f"{states:.1f}" if published is None else f"{states:.4g}\n({published:g})"
        label_point(axes, text, x, bottom[x])
    axes.set_ylim(0, 1.18 * bottom.max())
    axes.set_xticks(range(len(rows)), [row["sharding"].replace(" ", "\n", 1) for row in rows], fontsize=9)
    axes.set_title("Model states of 7.5B, 64 ranks: GB (published)")
    axes.legend(frameon=False, fontsize=9)
    bare(axes)


def draw_volume(axes: Axes, table: Table) -> None:
    """Draws what a rank sends in a step over each network tier, in parameters per parameter."""
    for shift, micro_batches in zip((-0.2, 0.2), MICRO_BATCHES, strict=True):
        rows = [row for row in table.rows if row["micro_batches"] == micro_batches]
        x = np.arange(len(SHARDINGS)) + shift
        inside = np.array([row["sent_nvlink"] for row in rows])
        outside = np.array([row["sent_infiniband"] for row in rows])
        alpha = 1.0 if micro_batches == 1 else 0.55
        count = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
        look = {"width": 0.37, "alpha": alpha}
        axes.bar(x, inside, color=PALETTE[0], label=f"NVLink, {count}", **look)
        axes.bar(x, outside, bottom=inside, color=PALETTE[7], label=f"InfiniBand, {count}", **look)
        marks = [
            (position, row["published_sent"])
            for position, row in zip(x, rows, strict=True)
            if row.get("published_sent") is not None
        ]
        if marks:
            look = {"color": INK, "markersize": 20, "markeredgewidth": 1.6}
            axes.plot(*zip(*marks, strict=True), "_", label="published", **look)
    names = [name.replace(" ", "\n", 1) for name in SHARDINGS]
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_title("Sent by a rank in a step (parameters / Ψ)")
    axes.grid(axis="y", color=FAINT)
    axes.legend(frameon=False, fontsize=9)
    bare(axes)


def draw(activation: Table, zero: Table, published: PublishedActivations, system: System) -> Figure:
    """Draws the figure of the study."""
    capacity = float(system.accelerator.device_memory.capacity) / GIB
    with figure_style():
        figure = Figure(figsize=(15, 4.8), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        draw_activations(left, activation, published, capacity)
        draw_states(middle, zero)
        draw_volume(right, zero)
    return figure


# --- finding


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


def zero_finding(table: Table) -> str:
    """Writes what the table of shardings shows."""
    states = {row["sharding"]: row for row in table.rows if row["micro_batches"] == 1}
    errors = [abs(row["error"]) for row in states.values() if "error" in row]
    volumes = [row["sent"] / row["published_sent"] for row in states.values() if "published_sent" in row]
    most = MICRO_BATCHES[-1]
    gathered = next(
        row["sent"] for row in table.rows if (row["sharding"], row["micro_batches"]) == ("ZeRO-3", most)
    )
    hybrid = states["ZeRO-3 of 8"]
    # Unsharded states are 16 bytes a parameter: 2 of weights, 2 of gradients and 12 of the optimizer.
    billions = states["none"]["states_gb"] / 16
    return (
        f" The 120, 31.4, 16.6 and 1.88 GB of the ZeRO paper come out within {max(errors):.1%}, because"
        f" this model of 7.5B has {billions:.2f} billion parameters. Its 2, 2, 2 and 3 parameters sent per"
        f" parameter come out as {min(volumes):.3f} of that, because a rank does not send its own 64th."
        f" With {most} micro-batches in a step ZeRO-3 sends {gathered:.1f}, as each micro-batch gathers"
        f" the weights twice; sharded inside nodes of eight it keeps {hybrid['states_gb']:.1f} GB and"
        f" sends {hybrid['sent_infiniband']:.2f} over InfiniBand in place of"
        f" {states['ZeRO-3']['sent_infiniband']:.2f}."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "memory_by_recomputation", "changes nothing: all cases take seconds")
    published, system = PublishedActivations.read(), dp.load_system("dgx-a100", RANKS)
    activation, zero = activation_table(published), sharding_table(system)
    finding = activation_finding(activation) + zero_finding(zero)
    publish(options.out, [activation, zero], finding, {"figure": draw(activation, zero, published, system)})


if __name__ == "__main__":
    main()
