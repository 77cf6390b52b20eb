"""Activation memory by recomputation method, and model states by ZeRO stage, against the values their papers compute.

Activations: the models of Korthikanti et al. (arXiv 2205.05198) in the layouts of its Table 3, a layer against the formulas of its
Table 2, a device of the first stage against its Figures 1 and 7 (`published_activations.csv`). Model states and communication: 7.5
billion parameters on 64 data-parallel ranks against ZeRO's figure (arXiv 1910.02054, `published_zero.csv`).

    python studies/memory_by_recomputation/run.py [--quick] [--out DIR]
"""

import itertools
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.communication import Communication, communication
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.report.plots import FAINT, INK, PALETTE, bare
from diffperf.workload.memory import Memory, layer_activations, stage_parameters, training_memory
from diffperf.workload.schedule import in_flight

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, at, each, options, publish, read_rows, stacked, style

HERE = Path(__file__).parent
GIB, LENGTH, TP = 2**30, 2048, 8

# arXiv 2205.05198 Table 3: pipeline stages, chunks of each, micro-batch; eight-way tensor parallelism.
LAYOUTS = {
    "22B": ("gpt3-22b", 1, 1, 4),
    "175B": ("gpt3-175b", 8, 3, 1),
    "530B": ("gpt3-530b", 35, 3, 1),
    "1T": ("gpt3-1t", 64, 1, 1),
}

# Recomputation, sequence parallelism, and the name in Figure 7.
METHODS = {
    "none": ("none", False, "none"),
    "none + SP": ("none", True, "SP"),
    "selective": ("selective", False, "selective"),
    "selective + SP": ("selective", True, "SP+selective"),
    "full": ("full", False, "full"),
    "full + SP": ("full", True, None),
}


def paper_layer_bytes(model, micro_batch: int, recompute: str, sequence_parallel: bool) -> float:
    """Bytes of a layer and micro-batch: arXiv 2205.05198 Table 2, sbh·(10 + 24/t + 5as/ht) and its variants; full recomputation
    under sequence parallelism, which the table leaves out, as its layer input split by t."""
    hidden, heads = float(model.hidden), float(model.layers[0].heads)
    residual, scores = LENGTH * micro_batch * hidden, 5 * heads * LENGTH / hidden
    if recompute == "full":
        return 2 * residual / (TP if sequence_parallel else 1)
    outside = 10 / TP if sequence_parallel else 10
    return residual * (outside + 24 / TP + (scores / TP if recompute == "none" else 0))


def activations(model, system, strategy) -> dict:
    """Bytes of a layer and micro-batch, of all that the first stage keeps, and the memory of the fullest device."""
    layer = layer_activations(model.layers[0], model, strategy).kept
    kept = layer * model.depth / strategy.pp * in_flight(strategy, Exact())
    return {"layer": layer, "kept": kept, "memory": training_memory(model, system, strategy, Exact())}


def activation_cases() -> tuple[list[tuple[str, str]], list[tuple]]:
    names, cases = list(itertools.product(LAYOUTS, METHODS)), []
    for size, method in names:
        model, pp, chunks, micro_batch = LAYOUTS[size]
        recompute, sequence_parallel, _ = METHODS[method]
        strategy = dp.load_strategy(
            {"tp": TP, "pp": pp, "virtual_stages": chunks, "micro_batch": micro_batch, "global_batch": micro_batch * pp * 8,
             "sequence_length": LENGTH, "recompute": recompute, "sequence_parallel": sequence_parallel, "attention": "standard",
             "precision": "fp16"}
        )  # fmt: skip
        cases.append((dp.load_model(model), dp.load_system("dgx-a100", TP * pp), strategy))
    return names, cases


def published_activations() -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """GiB of a device (Figure 1) and percentages of the tensor-parallel baseline (Figure 7), by size and name of Figure 7."""
    rows = read_rows(HERE / "published_activations.csv")
    percent = {tuple(row["case"].split(" ", 1)): float(row["percent"]) for row in rows if row["percent"]}
    names = {
        "activations, no recompute, TP only": "none",
        "activations, present work (SP + selective)": "SP+selective",
    }
    absolute = {}
    for row in rows:
        size, kind = row["case"].split(" ", 1)
        if row["memory_GiB"] and kind in names:
            absolute[size, names[kind]] = float(row["memory_GiB"])
    return absolute, percent


def activation_table(names, cases, found) -> Table:
    absolute, percent = published_activations()
    baseline = {size: float(found["kept"][i]) for i, (size, method) in enumerate(names) if method == "none"}
    cells = []
    for i, ((size, method), (model, _, strategy)) in enumerate(zip(names, cases, strict=True)):
        recompute, sequence_parallel, figure_7 = METHODS[method]
        formula = paper_layer_bytes(model, int(strategy.micro_batch), recompute, sequence_parallel)
        layer, kept, memory = float(found["layer"][i]), float(found["kept"][i]), at(found["memory"], i)
        cells.append(
            (size, method, layer / 2**20, formula / 2**20, kept / GIB, absolute.get((size, figure_7)), kept / baseline[size],
             percent[size, figure_7] / 100 if figure_7 else None, memory.peak / GIB, "yes" if memory.excess <= 0 else "no")
        )  # fmt: skip
    columns = {
        "model": "", "recomputation": "", "layer MiB": ".2f", "formula": ".2f", "device GiB": ".2f", "Figure 1": ".2f",
        "of none": ".2%", "Figure 7": ".2%", "peak GiB": ".1f", "fits 80 GiB": "",
    }  # fmt: skip
    title = "Activations: a layer of one micro-batch, and what a device of the first stage keeps"
    return Table("activations", title, columns, cells)


# --- ZeRO

RANKS = 64
SHARDINGS = {"none": (0, 0), "ZeRO-1": (1, 0), "ZeRO-2": (2, 0), "ZeRO-3": (3, 0), "ZeRO-3 of 8": (3, 8)}
MICRO_BATCHES = (1, 4)


def shardings(system) -> list[tuple[str, int, Memory, Communication, float]]:
    """Memory and communication of every sharding and number of micro-batches; parameters of a device. fp16 gradients, as there."""
    model = dp.load_model("gpt-7.5b")
    base = dp.load_strategy({"dp": RANKS, "precision": "fp16", "gradient_precision": "fp16"})

    def evaluate(stage, ranks, micro_batches):
        strategy = replace(base, {"zero": stage, "zero_ranks": ranks, "global_batch": RANKS * micro_batches})
        parameters = stage_parameters(model, strategy, Exact())
        told = communication(model, system, strategy, parameters, Exact())
        return training_memory(model, system, strategy, Exact()), told, parameters.total

    names = list(itertools.product(SHARDINGS, MICRO_BATCHES))
    stages, ranks, counts = zip(
        *((np.eye(4)[SHARDINGS[name][0]], float(SHARDINGS[name][1]), m) for name, m in names), strict=True
    )
    found = each(evaluate, np.stack(stages), np.array(ranks), np.array(counts, float))
    return [(*name, *at(found, i)) for i, name in enumerate(names)]


def sharding_table(found) -> Table:
    published = {row["name"]: row for row in read_rows(HERE / "published_zero.csv")}
    cells = []
    for name, micro_batches, memory, told, parameters in found:
        parts = [part / 1e9 for part in (memory.weights, memory.gradients, memory.optimizer)]
        row = published.get(name)
        paper = float(row["model_states_gb"]) if row else None
        sent = (told.gradients.sent + told.weights.sent) / (2 * parameters)
        volume = float(row["volume_per_parameter"]) if row and micro_batches == 1 else None
        error = sum(parts) / paper - 1 if paper else None
        cells.append((name, micro_batches, *parts, sum(parts), paper, error, sent.sum(), volume, *sent))
    columns = {
        "sharding": "", "micro-batches": ".0f", "weights": ".2f", "gradients": ".2f", "optimizer": ".2f", "sum": ".2f",
        "published": ".4g", "error": "+.1%", "sent / Ψ": ".3f", "published ": ".0f", "NVLink": ".3f", "InfiniBand": ".3f",
    }  # fmt: skip
    title = f"GB of model states of 7.5B parameters (Ψ) on {RANKS} ranks, and parameters that a rank sends in a step"
    return Table("zero", title, columns, cells)


# --- figure


def draw_activations(axes: Axes, table: Table, capacity: float) -> None:
    """GiB that a device keeps, by model and method; the papers' values as marks."""
    absolute, percent = published_activations()
    width = 0.13
    for column, method in enumerate(METHODS):
        rows = [row for row in table.rows if row[1] == method]
        x = np.arange(len(rows)) + (column - (len(METHODS) - 1) / 2) * width
        axes.bar(x, [row[4] for row in rows], width=0.92 * width, color=PALETTE[column], label=method)
        if figure_7 := METHODS[method][2]:
            marks = [percent[row[0], figure_7] / 100 * absolute[row[0], "none"] for row in rows]
            axes.plot(
                x,
                marks,
                "_",
                color=INK,
                markersize=11,
                markeredgewidth=1.6,
                label="published" if column == 0 else None,
            )
    axes.axhline(capacity, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate("A100 80 GB", (-0.45, capacity), xytext=(0, 4), textcoords="offset points", fontsize=9)
    axes.set_xticks(range(len(LAYOUTS)), list(LAYOUTS))
    axes.set_title("Activations on a device of the first stage (GiB)")
    axes.legend(frameon=False, fontsize=9, ncols=2)
    bare(axes)


def draw_states(axes: Axes, table: Table) -> None:
    rows = [row for row in table.rows if row[1] == 1]
    bottom = np.zeros(len(rows))
    for column, (part, colour) in enumerate(
        zip(("weights", "gradients", "optimizer state"), PALETTE[::3], strict=False)
    ):
        values = np.array([row[2 + column] for row in rows])
        axes.bar(range(len(rows)), values, bottom=bottom, width=0.62, color=colour, label=part)
        bottom += values
    for x, row in enumerate(rows):
        text = f"{row[5]:.1f}" if row[6] is None else f"{row[5]:.4g}\n({row[6]:g})"
        axes.annotate(
            text, (x, bottom[x]), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_ylim(0, 1.18 * bottom.max())
    axes.set_xticks(range(len(rows)), [row[0].replace(" ", "\n", 1) for row in rows], fontsize=9)
    axes.set_title("Model states of 7.5B, 64 ranks: GB (published)")
    axes.legend(frameon=False, fontsize=9)
    bare(axes)


def draw_volume(axes: Axes, table: Table) -> None:
    names = list(SHARDINGS)
    for shift, micro_batches in zip((-0.2, 0.2), MICRO_BATCHES, strict=True):
        rows = [row for row in table.rows if row[1] == micro_batches]
        x, inside, outside = (
            np.arange(len(names)) + shift,
            *(np.array([row[i] for row in rows]) for i in (10, 11)),
        )
        faded = 1.0 if micro_batches == 1 else 0.55
        of = "1 micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"
        axes.bar(x, inside, width=0.37, color=PALETTE[0], alpha=faded, label=f"NVLink, {of}")
        axes.bar(
            x, outside, bottom=inside, width=0.37, color=PALETTE[7], alpha=faded, label=f"InfiniBand, {of}"
        )
        marks = [(position, row[9]) for position, row in zip(x, rows, strict=True) if row[9] is not None]
        if marks:
            axes.plot(
                *zip(*marks, strict=True),
                "_",
                color=INK,
                markersize=20,
                markeredgewidth=1.6,
                label="published",
            )
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names], fontsize=9)
    axes.set_title("Sent by a rank in a step (parameters / Ψ)")
    axes.grid(axis="y", color=FAINT)
    axes.legend(frameon=False, fontsize=9)
    bare(axes)


def finding(activation: Table, zero: Table) -> str:
    layers = max(abs(row[2] / row[3] - 1) for row in activation.rows)
    every = MICRO_BATCHES[-1]
    devices = [abs(row[4] / row[5] - 1) for row in activation.rows if row[5] is not None]
    percents = [abs(row[6] - row[7]) for row in activation.rows if row[7] is not None]
    shares = {method: [row[6] for row in activation.rows if row[1] == method] for method in METHODS}
    fitting = {
        method: [row[0] for row in activation.rows if row[1] == method and row[9] == "yes"]
        for method in METHODS
    }
    alone = [method for method, models in fitting.items() if len(models) == len(LAYOUTS)]
    states = {row[0]: row for row in zero.rows if row[1] == 1}
    parameters = states["none"][5] / 16
    errors = [abs(row[7]) for row in states.values() if row[7] is not None]
    volumes = [row[8] / row[9] for row in states.values() if row[9] is not None]
    gathered = next(row[8] for row in zero.rows if row[0] == "ZeRO-3" and row[1] == every)
    hybrid = states["ZeRO-3 of 8"]
    low, high = min(shares["selective + SP"]), max(shares["selective + SP"])
    return (
        f"A layer's activations equal the paper's formulas to {layers:.0e}, a device's its Figure 1 to {max(devices):.2%} and the"
        f" percentages of Figure 7 to {100 * max(percents):.2f} points, which are read off bars. Selective recomputation with"
        f" sequence parallelism keeps {low:.1%} to {high:.1%} of what tensor parallelism alone keeps, full recomputation"
        f" {min(shares['full']):.1%} to {max(shares['full']):.1%}; all four models fit 80 GB, parameters and reserve included, with"
        f" {', '.join(alone)}, and without any {', '.join(fitting['none']) or 'none of them'}. ZeRO's"
        f" 120, 31.4, 16.6 and 1.88 GB come out within {max(errors):.1%}, because this model of 7.5B has {parameters:.2f} billion"
        f" parameters, and its 2, 2, 2 and 3 parameters sent per parameter as {min(volumes):.3f} of that: a rank does not send its"
        f" own 64th. With {every} micro-batches in a step ZeRO-3 sends {gathered:.1f}, as each gathers the weights twice;"
        f" sharded inside nodes of eight it keeps {hybrid[5]:.1f} GB and sends {hybrid[11]:.2f} over InfiniBand in place of"
        f" {states['ZeRO-3'][11]:.2f}."
    )


def main() -> None:
    arguments = options(__doc__, "memory_by_recomputation", "changes nothing: all cases take seconds")
    names, cases = activation_cases()
    activation = activation_table(names, cases, each(activations, *stacked(cases)))
    system = dp.load_system("dgx-a100", RANKS)
    zero = sharding_table(shardings(system))
    with style():
        figure = Figure(figsize=(15, 4.8), layout="constrained")
        axes = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        draw_activations(
            axes[0], activation, float(jnp.asarray(system.accelerator.device_memory.capacity)) / GIB
        )
        draw_states(axes[1], zero)
        draw_volume(axes[2], zero)
    publish(arguments.out, [activation, zero], figure, finding(activation, zero))


if __name__ == "__main__":
    main()
