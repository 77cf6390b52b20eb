"""From 12 to 1 nm: where does logic stop to help the training of a GPT of 7.5 billion parameters, and what
binds then?

Optimus (arXiv 2407.14645) explores technology nodes from 12 to 1 nm with generations of HBM and networks, for
a GPT of 7 billion parameters on 1,024 devices. What is compared is its main finding, at second hand and
without its curves: logic saturates at 5 to 3 nm with memory of the class of HBM2E, and network and memory
bind then. Here the accelerators come out of node, die area and power limit (`grid.py`); a step has 1,024
sequences of 2,048 tokens in bf16. Nodes below 3 nm, HBM4 and later, and GDR are estimates.

    python studies/technology_scaling/run.py [--quick] [--out DIR]
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf.report.plots import BLUE, GREY, INK, ORANGE, PALETTE, RED, bare

sys.path.append(str(Path(__file__).parents[1]))
from grid import (
    DIE,
    LAYOUTS,
    LEAST_GAIN,
    MEMORIES,
    NETWORKS,
    NODES,
    POWER_LIMITS,
    RESOURCES,
    Results,
    evaluate_grid,
    saturation,
)
from reporting import Table, figure_style, parse_options, publish

NODE_NAMES = tuple(NODES.values())
MEMORY_NAMES = tuple(MEMORIES.values())
PUBLISHED_MEMORY = "hbm2e"  # the memory of the published finding
NEWEST = "hbm4e"
SHOWN_MEMORY, SHOWN_NETWORK = "hbm3e", 2  # of the table of power limits
# Resources of an accelerator as it is; the power limit and the die area act through them.
BINDING = RESOURCES[:4]
COLOURS = dict(zip((*BINDING, "latency, fixed"), (BLUE, RED, PALETTE[4], ORANGE, GREY), strict=True))


def node_name(index: int | None) -> str:
    """Returns a node as text; a dash stands for none."""
    return "–" if index is None else f"{NODE_NAMES[index]} nm"


def saturations(results: Results, limit: int) -> list[list[int | None]]:
    """Returns the node at which logic saturates by network and memory, under a power limit."""
    return [[saturation(times) for times in of_network] for of_network in results.time[limit]]


def next_bound(shares: np.ndarray) -> tuple[str, float]:
    """Returns the resource beside compute that binds most, and its elasticity."""
    index = 1 + int(np.argmax(shares[1 : len(BINDING)]))
    return RESOURCES[index], float(shares[index])


# --- tables


def times_table(results: Results) -> Table:
    """Tabulates the time of a step by network, memory and node, and where logic saturates."""
    columns = {"network": ("network", ""), "memory": ("memory", "")}
    columns |= {f"n{name}": (f"{name} nm", ",.0f") for name in NODE_NAMES}
    columns |= {"saturation": ("saturates at", ""), "lower": (f"at {POWER_LIMITS[1]:,.0f} W", "")}
    own, lower = (saturations(results, limit) for limit in (0, 1))
    rows: list[dict[str, Any]] = []
    for network, memory in np.ndindex(len(NETWORKS), len(MEMORIES)):
        times = results.time[0, network, memory]
        row = {"network": NETWORKS[network].name, "memory": MEMORY_NAMES[memory]}
        row |= {f"n{name}": 1e3 * time for name, time in zip(NODE_NAMES, times, strict=True)}
        saturated = {"saturation": own[network][memory], "lower": lower[network][memory]}
        rows.append(row | {key: node_name(index) for key, index in saturated.items()})
    title = (
        f"ms of a step, dies of at most {DIE:.0f} mm², {POWER_LIMITS[0]:,.0f} W; logic saturates where no"
        f" later node brings {LEAST_GAIN:.0%}"
    )
    return Table("times", title, columns, rows)


def bounds_table(results: Results) -> Table:
    """Tabulates what binds where logic saturates, or at the last node, under the higher power limit."""
    columns = {"network": ("network", ""), "memory": ("memory", ""), "node": ("node", "")}
    columns |= {"rate": ("peak PFLOP/s", ".2f"), "layout": ("layout", "")}
    columns |= {name: (name, ".0%") for name in BINDING} | {"rest": ("latency, fixed", ".0%")}
    columns |= {name: (name, ".0%") for name in RESOURCES[len(BINDING) :]}
    rows: list[dict[str, Any]] = []
    for network, memory in np.ndindex(len(NETWORKS), len(MEMORIES)):
        saturated = saturation(results.time[0, network, memory])
        place = (0, network, memory, len(NODES) - 1 if saturated is None else saturated)
        shares = results.elasticity[place]
        tp, pp, dp, micro_batch = LAYOUTS[results.layout[place]]
        row = {
            "network": NETWORKS[network].name,
            "memory": MEMORY_NAMES[memory],
            "node": node_name(place[-1]) + (" (last)" if saturated is None else ""),
            "rate": results.rate[place] / 1e15,
            "layout": f"tp{tp} pp{pp} dp{dp} mb{micro_batch}",
            "rest": 1 - float(sum(shares[: len(BINDING)])),
        }
        rows.append(row | dict(zip(RESOURCES, map(float, shares), strict=True)))
    title = "What binds where logic saturates: elasticities of the time, by the exact gradient"
    return Table("bounds", title, columns, rows)


def limits_table(results: Results) -> Table:
    """Tabulates rate, die area and time of a step by node under both power limits, with HBM3E and XDR."""
    columns: dict[str, tuple[str, str]] = {"node": ("node", "")}
    for limit in POWER_LIMITS:
        columns |= {
            f"rate_{limit:.0f}": (f"PFLOP/s, {limit:,.0f} W", ".2f"),
            f"area_{limit:.0f}": ("mm²", ".0f"),
            f"time_{limit:.0f}": ("ms", ".0f"),
        }
    memory = list(MEMORIES).index(SHOWN_MEMORY)
    rows: list[dict[str, Any]] = []
    for node, name in enumerate(NODE_NAMES):
        row: dict[str, Any] = {"node": f"{name} nm"}
        for index, limit in enumerate(POWER_LIMITS):
            place = (index, SHOWN_NETWORK, memory, node)
            row |= {
                f"rate_{limit:.0f}": results.rate[place] / 1e15,
                f"area_{limit:.0f}": DIE * results.area[place],
                f"time_{limit:.0f}": 1e3 * results.time[place],
            }
        rows.append(row)
    title = f"Peak bf16 rate, fastest die and step: {MEMORIES[SHOWN_MEMORY]}, {NETWORKS[SHOWN_NETWORK].name}"
    return Table("limits", title, columns, rows)


# --- figure and report


def draw(results: Results) -> Figure:
    """Draws the time of a step over the node for every network, and what binds it with HBM2E."""
    with figure_style():
        figure = Figure(figsize=(15, 7.5), layout="constrained")
        panels = figure.subplots(2, len(NETWORKS), sharex=True, sharey="row")
        for index, network in enumerate(NETWORKS):
            _draw_times(panels[0, index], results, index)
            _draw_bounds(panels[1, index], results, index)
            panels[0, index].set_title(network.name)
        panels[0, 0].set_ylabel(f"ms of a step at {POWER_LIMITS[0]:,.0f} W")
        panels[1, 0].set_ylabel(f"what binds with {MEMORIES[PUBLISHED_MEMORY]}")
        for axes in panels[:, -1]:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    return figure


def _draw_times(axes: Axes, results: Results, network: int) -> None:
    """Draws the times of all memories with a network; a ring marks where logic saturates."""
    places = np.arange(len(NODES))
    for memory, (name, colour) in enumerate(zip(MEMORY_NAMES, PALETTE, strict=False)):
        times = 1e3 * results.time[0, network, memory]
        axes.plot(places, times, "o-", color=colour, markersize=4, linewidth=1.4, label=name)
        node = saturation(times)
        if node is not None:
            axes.plot(node, times[node], "o", color="none", markeredgecolor=INK, markersize=9)
    lower = 1e3 * results.time[1, network, MEMORY_NAMES.index(MEMORIES[PUBLISHED_MEMORY])]
    label = f"{MEMORIES[PUBLISHED_MEMORY]}, {POWER_LIMITS[1]:,.0f} W"
    axes.plot(places, lower, color=GREY, linewidth=1.4, linestyle=(0, (4, 2)), label=label)
    axes.set_yscale("log")
    ticks = (100, 200, 400, 800, 1600)
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    bare(axes, keep="left")


def _draw_bounds(axes: Axes, results: Results, network: int) -> None:
    """Draws the elasticities of the time to the resources of the accelerator over the node."""
    memory = list(MEMORIES).index(PUBLISHED_MEMORY)
    shares = np.maximum(results.elasticity[0, network, memory, :, : len(BINDING)].T, 0)
    shares = np.concatenate([shares, np.maximum(1 - shares.sum(axis=0), 0)[None]])
    axes.stackplot(range(len(NODES)), shares, colors=list(COLOURS.values()), labels=list(COLOURS))
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(NODES)), NODE_NAMES)
    axes.set_xlabel("node (nm)")
    bare(axes, keep="left")


def network_finding(results: Results, network: int, memory: str) -> str:
    """Writes where logic saturates with a network and a memory, and what binds there beside compute."""
    index = list(MEMORIES).index(memory)
    node = saturation(results.time[0, network, index])
    shares = results.elasticity[0, network, index, -1 if node is None else node]
    resource, share = next_bound(shares)
    place = "does not saturate by 1 nm" if node is None else f"saturates at {node_name(node)}"
    return (
        f"with {NETWORKS[network].name} logic {place}, and there compute binds {shares[0]:.0%} of the time"
        f" and {resource} {share:.0%}"
    )


def power_finding(results: Results) -> str:
    """Writes what the lower power limit changes."""
    counts = [
        sum(node is not None for row in saturations(results, limit) for node in row) for limit in (0, 1)
    ]
    pairs, (high, low) = len(NETWORKS) * len(MEMORIES), POWER_LIMITS
    place = (1, SHOWN_NETWORK, list(MEMORIES).index(SHOWN_MEMORY), -1)
    slower = np.max(results.time[1] / np.minimum.accumulate(results.time[1], axis=-1)) - 1
    return (
        f"Logic saturates before 1 nm in {counts[0]} of {pairs} pairs of network and memory at"
        f" {high:,.0f} W and in {counts[1]} at {low:,.0f} W, where denser logic cannot be clocked: the"
        f" fastest die of 1 nm has {DIE * results.area[place]:.0f} of {DIE:.0f} mm² with"
        f" {MEMORIES[SHOWN_MEMORY]} and {NETWORKS[SHOWN_NETWORK].name}. Nodes beyond 2 nm"
        f" are up to {slower:.0%} slower there than the best before: at the least voltage of 0.55 V they take"
        " more energy by the estimates of their nominal voltages."
    )


def finding(results: Results) -> str:
    """Writes what the tables show."""
    published = MEMORIES[PUBLISHED_MEMORY]
    texts = [network_finding(results, index, PUBLISHED_MEMORY) for index in range(len(NETWORKS))]
    last = results.time[0, -1, :, -1]
    newest, old = (last[list(MEMORIES).index(name)] for name in (NEWEST, PUBLISHED_MEMORY))
    ratios = results.time[0, :, :, 0] / results.time[0, :, :, -1]
    return (
        f"Under {POWER_LIMITS[0]:,.0f} W and with {published}: {'; '.join(texts)}. So the published"
        f" saturation at 5 to 3 nm comes out with {NETWORKS[0].name} and with {NETWORKS[1].name}, and the"
        f" network binds then. Memory binds only behind faster networks: with {NETWORKS[-1].name},"
        f" {MEMORIES[NEWEST]} at 1 nm is {old / newest:.2f} times as fast as {published}. From 12 to 1 nm a"
        f" step becomes {np.min(ratios):.1f} to {np.max(ratios):.1f} times as fast, by network and memory."
        f" {power_finding(results)}"
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "technology_scaling", "changes nothing: one program takes seconds")
    results = evaluate_grid()
    tables = [times_table(results), bounds_table(results), limits_table(results)]
    publish(options.out, tables, finding(results), {"figure": draw(results)})


if __name__ == "__main__":
    main()
