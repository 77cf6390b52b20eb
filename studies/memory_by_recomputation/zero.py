"""Model states and communication by ZeRO stage, against the ZeRO paper (arXiv 1910.02054)."""

import dataclasses
import itertools
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from reporting import (
    Table,
    choice_weights,
    evaluate_cases,
    label_point,
    read_rows,
)

import diffperf as dp
from diffperf.estimate.network.transfers import transfers
from diffperf.hardware.system import System
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.report.plots import FAINT, INK, PALETTE, bare
from diffperf.workload.collectives import gradient_collectives, weight_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, training_memory
from diffperf.workload.stage_parameters import stage_parameters
from diffperf.workload.strategy import Strategy

HERE = Path(__file__).parent
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


# --- figure and finding


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
