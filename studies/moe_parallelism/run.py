"""Mixtures of experts in five dimensions of parallelism: how the network decides on expert parallelism.

All layouts of Mixtral 8x22B on 512 H100 with long sequences, and of DeepSeek-V3 on 2,048 with its own batch:
tensor, pipeline, context, expert and data parallelism, tensor parallelism of the experts, micro-batch,
recomputation. For every network the fastest layout that fits, by the degree of expert parallelism, with the
all-to-all of tokens to experts exposed or hidden under other micro-batches. And DeepSeek-V3 as it was trained
(`published.csv`).

    python studies/moe_parallelism/run.py [--quick] [--out DIR]
"""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp

sys.path.append(str(Path(__file__).parents[1]))
from layouts import (
    DEEPSEEK,
    DISPATCHES,
    MIXTRAL,
    NETWORKS,
    RAIL,
    RECOMPUTATIONS,
    SYSTEM,
    Best,
    Layout,
    Results,
    network_inputs,
)
from reporting import Table, binary_axis, figure_style, parse_options, publish, read_rows

PUBLISHED = Path(__file__).parent / "published.csv"
NVLINK_H800 = 200e9  # byte/s in one direction: 400 GB/s in both, NVIDIA H800 datasheet


def best_of(results: Results, network: str, dispatch: str, ep: int | None = None) -> Best:
    """Returns the best layout, where one is known to fit."""
    best = results.best(network, dispatch, ep)
    assert best is not None, f"{results.work.title}: no layout fits on {network}"
    return best


# --- tables


def best_table(all_results: list[Results]) -> Table:
    """Tabulates the best layout on every network, and how much slower the best layout with rails is there."""
    columns = {
        "model": ("model", ""),
        "dispatch": ("all-to-all", ""),
        "network": ("network", ""),
        "ep": ("ep", ".0f"),
        "tp": ("tp", ".0f"),
        "pp": ("pp", ".0f"),
        "cp": ("cp", ".0f"),
        "dp": ("dp", ".0f"),
        "expert_tp": ("expert tp", ".0f"),
        "micro_batch": ("mb", ".0f"),
        "recompute": ("recompute", ""),
        "step_s": ("step s", ".2f"),
        "mfu": ("MFU", ".1%"),
        "exposed": ("exposed", ".1%"),
        "rail_layout": ("layout of rail", "+.1%"),
    }
    rows = []
    for results, dispatch in itertools.product(all_results, DISPATCHES):
        rail = best_of(results, RAIL, dispatch)
        for network in NETWORKS:
            best = best_of(results, network, dispatch)
            layout = best.layout
            rows.append(
                {
                    "model": results.work.model,
                    "dispatch": dispatch,
                    "network": network,
                    **layout.degrees,
                    "expert_tp": layout.expert_tp or layout.tp,
                    "recompute": layout.recompute,
                    "step_s": best.time,
                    "mfu": best.numbers["mfu"],
                    "exposed": best.exposed,
                    "rail_layout": results.on(network)["time"][rail.index] / best.time - 1,
                }
            )
    title = "The fastest layouts that fit; exposed all-to-all; how much slower the best layout of rails is"
    return Table("best", title, columns, rows)


def degree_table(all_results: list[Results]) -> Table:
    """Tabulates the best step and its exposed all-to-all by network and degree of expert parallelism."""
    degrees = sorted({ep for results in all_results for ep in results.degrees})
    columns = {
        "model": ("model", ""),
        "dispatch": ("all-to-all", ""),
        "measure": ("measure", ""),
        "network": ("network", ""),
    } | {f"ep_{ep}": (f"ep {ep}", ".2f") for ep in degrees}
    measures = {"step s": "time", "exposed s": "experts"}
    rows = []
    for results, dispatch, measure, network in itertools.product(all_results, DISPATCHES, measures, NETWORKS):
        row = {
            "model": results.work.model,
            "dispatch": dispatch,
            "measure": measure,
            "network": network,
        }
        for ep in degrees:
            if (best := results.best(network, dispatch, ep)) is not None:
                row[f"ep_{ep}"] = best.numbers[measures[measure]]
        rows.append(row)
    return Table("degrees", "The fastest layouts that fit, by degree of expert parallelism", columns, rows)


def as_trained_table(results: Results) -> Table:
    """Tabulates DeepSeek-V3 in its own layout on H800: the step of the published device hours, and ours."""
    columns = {
        "recompute": ("recompute", ""),
        "published_s": ("published s", ".2f"),
        "step_s": ("ours s", ".2f"),
        "error": ("error", "+.0%"),
        "experts_s": ("exposed all-to-all s", ".2f"),
        "head_s": ("head s", ".2f"),
        "bubble_s": ("bubble s", ".2f"),
        "without_experts_s": ("ours without all-to-all s", ".2f"),
        "peak_gib": ("peak GiB", ".0f"),
        "fits": ("fits", ""),
    }
    row = read_rows(PUBLISHED)[0]
    tokens = float(row["global_batch"]) * float(row["sequence_length"])
    hours = float(row["device_hours_per_trillion_tokens"]) / float(row["devices"])
    published = 3600 * hours * tokens / 1e12
    degrees = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "dp", "micro_batch")}
    layouts = [
        Layout(**degrees, expert_tp=0, recompute=recompute, dispatch="hidden") for recompute in RECOMPUTATIONS
    ]
    numbers = results.run(network_inputs(NVLINK_H800), layouts, row["schedule"], row["precision"])
    rail, rows = list(NETWORKS).index(RAIL), []
    for position, layout in enumerate(layouts):
        step = {name: values[rail, position] for name, values in numbers.items()}
        rows.append(
            {
                "recompute": layout.recompute,
                "published_s": published,
                "step_s": step["time"],
                "error": step["time"] / published - 1,
                "experts_s": step["experts"],
                "head_s": step["head"],
                "bubble_s": step["bubble"],
                "without_experts_s": step["time"] - step["experts"],
                "peak_gib": step["peak"] / 2**30,
                "fits": "yes" if step["fits"] else "no",
            }
        )
    title = "DeepSeek-V3 as trained: 2,048 H800, fp8, pp 16, ep 64, DualPipe"
    return Table("as_trained", title, columns, rows)


# --- figure


def draw_panel(
    axes: Axes, results: Results, dispatch: str, measure: Callable[[Best], float], title: str
) -> None:
    """Draws a measure of the best layouts over the degree of expert parallelism, a line for each network."""
    for name, network in NETWORKS.items():
        points = [(ep, measure(best)) for ep in results.degrees if (best := results.best(name, dispatch, ep))]
        axes.plot(
            *zip(*points, strict=True),
            color=network.colour,
            linestyle=network.dashes,
            linewidth=2,
            marker="o",
            markersize=3.5,
            label=name,
        )
    binary_axis(axes, results.degrees, [f"{ep:g}" for ep in results.degrees], "expert-parallel degree")
    axes.set_ylim(bottom=0)
    axes.set_title(title)


def draw(all_results: list[Results]) -> Figure:
    """Draws a row of panels for each workload."""
    exposed, hidden = DISPATCHES
    with figure_style():
        figure = Figure(figsize=(14.5, 4.6 * len(all_results)), layout="constrained")
        parts = np.atleast_1d(figure.subfigures(len(all_results), 1))
        for part, results in zip(parts, all_results, strict=True):
            part.suptitle(f"{results.work.title}: fastest layout that fits", x=0.01, ha="left", fontsize=12)
            left, middle, right = part.subplots(1, 3)
            draw_panel(left, results, exposed, lambda best: best.time, "Step with exposed all-to-all (s)")
            draw_panel(
                middle,
                results,
                exposed,
                lambda best: 100 * best.exposed,
                "Exposed all-to-all (% of the step)",
            )
            draw_panel(right, results, hidden, lambda best: best.time, "Step with hidden all-to-all (s)")
            middle.legend(frameon=False, fontsize=9)
    return figure


# --- finding


def most_common_degree(degrees: dict[str, int]) -> str:
    """Returns the degree that is best on most networks, and the other degrees with their networks."""
    networks = {
        ep: [network for network, degree in degrees.items() if degree == ep]
        for ep in sorted(set(degrees.values()))
    }
    most = max(networks, key=lambda ep: len(networks[ep]))
    others = "; ".join(f"{ep}: {', '.join(names)}" for ep, names in networks.items() if ep != most)
    return f"{most}" + (f" ({others})" if others else "")


def workload_finding(results: Results) -> str:
    """Writes how the best degree and the exposed all-to-all change with the network."""
    exposed, hidden = (
        {network: best_of(results, network, dispatch) for network in NETWORKS} for dispatch in DISPATCHES
    )
    exposed_degree, hidden_degree = (
        most_common_degree({network: best.layout.ep for network, best in bests.items()})
        for bests in (exposed, hidden)
    )
    shares = [best.exposed for best in exposed.values()]
    best = exposed[RAIL].time
    largest = max(
        ep for ep in results.degrees if all(results.best(network, DISPATCHES[0], ep) for network in NETWORKS)
    )
    wide = {network: best_of(results, network, DISPATCHES[0], largest) for network in NETWORKS}
    longer = {network: layout.time / best - 1 for network, layout in wide.items()}
    slowest = max(longer, key=lambda network: longer[network])
    alike = [wide[network].time for network in (RAIL, "dragonfly", "fat tree 1:1")]
    large_domain = exposed["NVLink of 64"].time / best - 1
    return (
        f"{results.work.title}: with exposed all-to-all the best degree of expert parallelism is"
        f" {exposed_degree}, and {min(shares):.1%} to {max(shares):.1%} of the step are exposed; with"
        f" hidden all-to-all it is {hidden_degree}. At degree {largest}, {wide[RAIL].exposed:.0%} of the"
        f" step is exposed with rails, which takes {longer[RAIL]:+.0%} over the best step, and"
        f" {wide[slowest].exposed:.0%} with {slowest}, {longer[slowest]:+.0%}; rails, dragonfly and full"
        f" fat tree differ by their hops, {max(alike) / min(alike) - 1:.1%} at most. NVLink among 64"
        f" devices changes the best step by {large_domain:+.0%}. "
    )


def as_trained_finding(table: Table) -> str:
    """Writes what the table of DeepSeek-V3 as trained shows."""
    row = table.rows[0]
    return (
        f"As it was trained, the step of DeepSeek-V3 of {row['published_s']:.1f} s (180,000 H800 hours per"
        f" trillion tokens) comes out at {row['step_s']:.1f} s, {row['error']:+.0%}:"
        f" {row['experts_s']:.1f} s of it are exposed all-to-all, which the paper hides altogether;"
        f" without it the step would take {row['without_experts_s']:.1f} s. We send a token to each of its"
        " eight experts in 16 bits; in the paper it goes to at most four nodes, once to each, and in fp8"
        " on the way to the experts. The projections to the vocabulary, of the next token and of the"
        f" following one, take {row['head_s']:.1f} s on a last stage that here has as many layers as"
        f" others. Without recomputation {row['peak_gib']:.0f} GiB would be needed; the paper recomputes"
        " the cheap parts of a layer, which lies between our none and full."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "moe_parallelism", "DeepSeek-V3 only")
    nvlink_bandwidth = float(dp.load_system(SYSTEM).network[0].bandwidth)
    workloads = [DEEPSEEK] if options.quick else [DEEPSEEK, MIXTRAL]
    all_results = [Results(work, nvlink_bandwidth) for work in workloads]
    as_trained = as_trained_table(all_results[0])
    tables = [best_table(all_results), degree_table(all_results), as_trained]
    finding = "".join(workload_finding(results) for results in all_results) + as_trained_finding(as_trained)
    publish(options.out, tables, finding, {"figure": draw(all_results)})


if __name__ == "__main__":
    main()
