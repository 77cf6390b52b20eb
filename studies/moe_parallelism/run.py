"""Mixtures of experts in five dimensions of parallelism: how the topology between nodes decides on expert parallelism.

All layouts of Mixtral 8x22B on 512 H100 with long sequences and of DeepSeek-V3 on 2,048 with its own batch: tensor, pipeline,
context, expert and data parallelism, tensor parallelism of the experts, micro-batch, recomputation. For every network the fastest
layout that fits, by the degree of expert parallelism, with tokens sent to experts in the open or under other micro-batches. And
DeepSeek-V3 as it was trained (`published.csv`).

    python studies/moe_parallelism/run.py [--quick] [--out DIR]
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import diffperf as dp
from diffperf.hardware.formats import PRECISIONS
from diffperf.hardware.network import TOPOLOGIES
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, FAINT, GREY, ORANGE, RED
from diffperf.workload.rules import feasible
from diffperf.workload.strategy import SCHEDULES

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, options, publish, read_rows, style

SYSTEM, STACK = "dgx-h100", "megatron-core"
NVLINK_H800 = 200e9  # byte/s, one direction: 400 GB/s in all, NVIDIA H800 datasheet

# Between nodes, at the system's 50 GB/s a device: topology, oversubscription, devices on NVLink, colour, line.
NETWORKS = {
    "rail": ("rail", 1, 8, BLUE, "-"),
    "fat tree 1:1": ("fat_tree", 1, 8, "#8cc0e8", "--"),
    "dragonfly": ("dragonfly", 1, 8, "#3d9a8b", ":"),
    "fat tree 2:1": ("fat_tree", 2, 8, "#e9c46a", "-"),
    "fat tree 4:1": ("fat_tree", 4, 8, ORANGE, "-"),
    "3D torus": ("torus_3d", 1, 8, RED, "-"),
    "NVLink of 64": ("switch", 1, 64, GREY, "-"),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    model: str
    devices: int
    global_batch: int
    sequence_length: int
    experts: int
    contexts: tuple[int, ...]  # context-parallel degrees tried

    @property
    def title(self) -> str:
        return f"{self.model}, {self.devices:,} H100, {self.sequence_length:,} tokens"


MIXTRAL = Workload("mixtral-8x22b", 512, 256, 32768, 8, (1, 2, 4, 8))
DEEPSEEK = Workload("deepseek-v3", 2048, 15360, 4096, 256, (1, 2))

COLUMNS = ("tp", "pp", "cp", "ep", "dp", "expert_tp", "micro_batch")
RECOMPUTE = ("none", "full")  # FlashAttention leaves nothing to selective recomputation


def layouts(work: Workload) -> np.ndarray:
    """All layouts whose degrees multiply up, with and without recomputation and overlap: `COLUMNS`, recomputed, hidden."""
    found = []
    degrees = itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), work.contexts, [2**i for i in range(9)], (0, 1), (1, 2, 4)
    )
    for tp, pp, cp, ep, expert_tp, micro_batch in degrees:
        dp_, left = divmod(work.devices, tp * pp * cp)
        whole = dp_ and not left and work.global_batch % (dp_ * micro_batch) == 0
        if (
            whole
            and ep <= work.experts
            and (tp > 1 or not expert_tp)
            and tp * cp * dp_ % ((expert_tp or tp) * ep) == 0
        ):
            found += [
                (tp, pp, cp, ep, dp_, expert_tp, micro_batch, recomputed, hidden)
                for recomputed, hidden in itertools.product((0, 1), (0, 1))
            ]
    return np.array(found, float)


def one_hot(name: str, names: tuple[str, ...]) -> np.ndarray:
    return np.eye(len(names))[names.index(name)]


def program(work: Workload):
    """Compiled estimates: (networks, layouts, ways) -> numbers by name, [networks, layouts]."""
    model, system = dp.load_model(work.model), dp.load_system(SYSTEM, work.devices, stack=STACK)
    base = dp.load_strategy(
        {"global_batch": work.global_batch, "sequence_length": work.sequence_length, "zero": "1"}
    )

    def one(network: dict, way: dict, layout) -> dict:
        *degrees, recomputed, hidden = layout
        values = dict(zip(COLUMNS, degrees, strict=True)) | way
        values["recompute"] = jnp.stack([1 - recomputed, 0 * recomputed, recomputed])
        strategy = replace(base, values | {"overlap_experts": jnp.stack([1 - hidden, hidden])})
        placed = replace(system, {f"network.{path}": value for path, value in network.items()})
        report = dp.training_step(model, placed, strategy)
        time, memory = report.breakdown, report.memory
        return {
            "time": report.time, "mfu": report.mfu, "peak": memory.peak, "experts": time.expert_parallel,
            "bubble": time.pipeline_bubble, "head": time.head,
            "fits": memory.excess <= 0, "allowed": feasible(model, placed, strategy),
        }  # fmt: skip

    @jax.jit
    def everything(networks: dict, way: dict, layouts) -> dict:
        return jax.lax.map(
            lambda network: jax.vmap(lambda layout: one(network, way, layout))(layouts), networks
        )

    return everything


def networks(nvlink: float) -> dict[str, np.ndarray]:
    """Configuration of all networks, by path below the system's network."""
    topology, over, size, _, _ = zip(*NETWORKS.values(), strict=True)
    return {
        "infiniband.topology": np.stack([one_hot(name, TOPOLOGIES) for name in topology]),
        "infiniband.oversubscription": np.array(over, float),
        "nvlink.size": np.array(size, float),
        "nvlink.bandwidth": np.full(len(over), nvlink),
    }


def way(schedule: str, precision: str) -> dict[str, np.ndarray]:
    return {"schedule": one_hot(schedule, SCHEDULES), "precision": one_hot(precision, PRECISIONS)}


@dataclasses.dataclass(frozen=True)
class Best:
    """The fastest layout that fits, of those that qualify, and its numbers."""

    index: int
    layout: np.ndarray
    numbers: dict[str, float]

    @classmethod
    def of(cls, tried: np.ndarray, numbers: dict[str, np.ndarray], qualifies: np.ndarray) -> "Best | None":
        possible = np.flatnonzero(qualifies & numbers["fits"] & numbers["allowed"])
        if not possible.size:
            return None
        index = possible[numbers["time"][possible].argmin()]
        return cls(index, tried[index], {name: float(values[index]) for name, values in numbers.items()})

    @property
    def exposed(self) -> float:
        """Share of the step in which tokens go to experts and back in the open."""
        return self.numbers["experts"] / self.numbers["time"]


_EP, _HIDDEN = COLUMNS.index("ep"), -1
HIDDEN = {"in the open": 0, "hidden": 1}


class Found:
    """What a workload's layouts come to on every network."""

    def __init__(self, work: Workload, nvlink: float):
        self.work, self.tried, self.run = work, layouts(work), program(work)
        self.networks = networks(nvlink)
        numbers = jax.device_get(self.run(self.networks, way("1f1b", "bf16"), self.tried))
        self.numbers = [{name: values[i] for name, values in numbers.items()} for i in range(len(NETWORKS))]

    def best(self, network: str, hidden: int, ep: float | None = None) -> Best | None:
        qualifies = (self.tried[:, _HIDDEN] == hidden) & ((self.tried[:, _EP] == ep) if ep else True)
        return Best.of(self.tried, self.numbers[list(NETWORKS).index(network)], qualifies)

    @property
    def degrees(self) -> list[float]:
        return sorted(set(self.tried[:, _EP]))


def best_table(found: list[Found]) -> Table:
    """The best layout on every network, and what the one that is best with rails costs there."""
    cells = []
    for one in found:
        for hidden, number in HIDDEN.items():
            rail = one.best("rail", number)
            for i, network in enumerate(NETWORKS):
                best = one.best(network, number)
                tp, pp, cp, ep, dp_, expert_tp, micro_batch, recomputed, _ = best.layout
                kept = one.numbers[i]["time"][rail.index] / best.numbers["time"] - 1
                cells.append(
                    (one.work.model, hidden, network, ep, tp, pp, cp, dp_, expert_tp or tp, micro_batch, RECOMPUTE[int(recomputed)],
                     best.numbers["time"], best.numbers["mfu"], best.exposed, kept)
                )  # fmt: skip
    columns = {
        "model": "", "all-to-all": "", "network": "", "ep": ".0f", "tp": ".0f", "pp": ".0f", "cp": ".0f", "dp": ".0f",
        "expert tp": ".0f", "mb": ".0f", "recompute": "", "step s": ".2f", "MFU": ".1%", "exposed": ".1%", "rail's layout": "+.1%",
    }  # fmt: skip
    return Table(
        "best",
        "The fastest layouts that fit; exposed all-to-all; how much slower the layout is that is best with rails",
        columns,
        cells,
    )


def degree_table(found: list[Found]) -> Table:
    """The best step and its exposed communication with experts, by network and degree of expert parallelism."""
    degrees, cells = sorted({ep for one in found for ep in one.degrees}), []
    measures = {
        "step s": lambda best: best.numbers["time"],
        "exposed s": lambda best: best.numbers["experts"],
    }
    for one in found:
        for (hidden, number), (measure, value), network in itertools.product(
            HIDDEN.items(), measures.items(), NETWORKS
        ):
            bests = [one.best(network, number, ep) for ep in degrees]
            cells.append(
                (one.work.model, hidden, measure, network, *(value(best) if best else None for best in bests))
            )
    columns = {"model": "", "all-to-all": "", "of": "", "network": ""} | {
        f"ep {ep:.0f}": ".2f" for ep in degrees
    }
    return Table("degrees", "The fastest layouts that fit, by degree of expert parallelism", columns, cells)


def as_trained(found: Found) -> Table:
    """DeepSeek-V3 in its own layout on H800: seconds of a step from the published hours, and ours."""
    row = read_rows(Path(__file__).parent / "published.csv")[0]
    tokens = float(row["global_batch"]) * float(row["sequence_length"])
    published = float(row["device_hours_per_trillion_tokens"]) * 3600 / float(row["devices"]) * tokens / 1e12
    layout = np.array(
        [[float(row.get(name) or 0) for name in COLUMNS] + [recomputed, 1] for recomputed in (0, 1)]
    )
    numbers = jax.device_get(found.run(networks(NVLINK_H800), way(row["schedule"], row["precision"]), layout))
    rail, cells = list(NETWORKS).index("rail"), []
    for i, recomputed in enumerate(RECOMPUTE):
        one = {name: float(values[rail, i]) for name, values in numbers.items()}
        parts = [one[name] for name in ("experts", "head", "bubble")]
        error, without = one["time"] / published - 1, one["time"] - one["experts"]
        cells.append(
            (
                recomputed,
                published,
                one["time"],
                error,
                *parts,
                without,
                one["peak"] / 2**30,
                "yes" if one["fits"] else "no",
            )
        )
    columns = {
        "recompute": "", "published s": ".2f", "ours s": ".2f", "error": "+.0%", "exposed all-to-all s": ".2f", "head s": ".2f",
        "bubble s": ".2f", "ours without all-to-all s": ".2f", "peak GiB": ".0f", "fits": "",
    }  # fmt: skip
    return Table(
        "as_trained", "DeepSeek-V3 as trained: 2,048 H800, fp8, pp 16, ep 64, DualPipe", columns, cells
    )


def panel(axes: Axes, found: Found, hidden: int, measure, title: str) -> None:
    for network, (_, _, _, colour, line) in NETWORKS.items():
        points = [(ep, measure(best)) for ep in found.degrees if (best := found.best(network, hidden, ep))]
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            linestyle=line,
            linewidth=2,
            marker="o",
            markersize=3.5,
            label=network,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.degrees, [f"{ep:g}" for ep in found.degrees])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("expert-parallel degree")
    axes.set_title(title)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def draw(found: list[Found]) -> Figure:
    with style():
        figure = Figure(figsize=(14.5, 4.6 * len(found)), layout="constrained")
        parts = np.atleast_1d(figure.subfigures(len(found), 1))
        for part, one in zip(parts, found, strict=True):
            part.suptitle(f"{one.work.title}: fastest layout that fits", x=0.01, ha="left", fontsize=12)
            axes = part.subplots(1, 3)
            panel(axes[0], one, 0, lambda best: best.numbers["time"], "Step with all-to-all in the open (s)")
            panel(
                axes[1],
                one,
                0,
                lambda best: 100 * best.exposed,
                "Exposed communication of experts (% of the step)",
            )
            panel(
                axes[2],
                one,
                1,
                lambda best: best.numbers["time"],
                "Step with all-to-all under other micro-batches (s)",
            )
            axes[1].legend(frameon=False, fontsize=9)
    return figure


def most_and_others(degrees: dict[str, float]) -> str:
    """The degree that most networks ask for, and the others with theirs."""
    by = {ep: [name for name, of in degrees.items() if of == ep] for ep in sorted(set(degrees.values()))}
    most = max(by, key=lambda ep: len(by[ep]))
    others = "; ".join(f"{ep:.0f}: {', '.join(names)}" for ep, names in by.items() if ep != most)
    return f"{most:.0f}" + (f" ({others})" if others else "")


def workload_finding(found: Found) -> str:
    """How the best degree and the exposed communication change with the network."""
    in_open, hidden = (
        {network: found.best(network, number) for network in NETWORKS} for number in HIDDEN.values()
    )
    best_degrees, hidden_degrees = (
        most_and_others({n: one.layout[_EP] for n, one in of.items()}) for of in (in_open, hidden)
    )
    shares = [one.exposed for one in in_open.values()]
    best = in_open["rail"].numbers["time"]
    largest = max(ep for ep in found.degrees if all(found.best(network, 0, ep) for network in NETWORKS))
    wide = {network: found.best(network, 0, largest) for network in NETWORKS}
    longer = {network: one.numbers["time"] / best - 1 for network, one in wide.items()}
    slowest = max(longer, key=longer.get)
    alike = [wide[name].numbers["time"] for name in ("rail", "dragonfly", "fat tree 1:1")]
    node = in_open["NVLink of 64"].numbers["time"] / best - 1
    return (
        f"{found.work.title}: with its all-to-all in the open the best degree of expert parallelism is {best_degrees}, and"
        f" {min(shares):.1%} to {max(shares):.1%} of the step are exposed; under other micro-batches it is {hidden_degrees}."
        f" In the open at degree {largest:.0f}, {wide['rail'].exposed:.0%} of the step is exposed with rails, {longer['rail']:+.0%}"
        f" over the best step, and {wide[slowest].exposed:.0%} with {slowest}, {longer[slowest]:+.0%}; rails, dragonfly and full"
        f" fat tree differ by their hops, {max(alike) / min(alike) - 1:.1%} at most. NVLink among 64 devices changes the best step"
        f" by {node:+.0%}. "
    )


def trained_finding(table: Table) -> str:
    _, published, ours, error, exposed, head, _, without, peak, _ = table.rows[0]
    return (
        f"As it was trained, DeepSeek-V3's step of {published:.1f} s (180,000 H800 hours per trillion tokens) comes out at"
        f" {ours:.1f} s, {error:+.0%}: {exposed:.1f} s of it are exposed all-to-all, which the paper hides altogether; without it"
        f" the step would take {without:.1f} s. We send a token to each of its eight experts in 16 bits; there it goes to at most"
        f" four nodes, once to each, and in fp8 on the way to the experts. {head:.1f} s are the projections to the vocabulary, of"
        f" the next token and the one after, on a last stage that here has as many layers as others. Without recomputation"
        f" {peak:.0f} GiB would be needed; the paper recomputes what is cheap in a layer, between our nothing and everything."
    )


def main() -> None:
    arguments = options(__doc__, "moe_parallelism", "DeepSeek-V3 only")
    nvlink = float(dp.load_system(SYSTEM).network[0].bandwidth)
    found = [Found(work, nvlink) for work in ([DEEPSEEK] if arguments.quick else [DEEPSEEK, MIXTRAL])]
    trained = as_trained(found[0])
    tables = [best_table(found), degree_table(found), trained]
    finding = "".join(workload_finding(one) for one in found) + trained_finding(trained)
    publish(arguments.out, tables, draw(found), finding)


if __name__ == "__main__":
    main()
