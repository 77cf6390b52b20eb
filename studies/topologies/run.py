"""Which topology of a scale-up network earns its price, and from which price of a switch's ports on?

64 GB200 are one domain whose network is a switch, a fat tree, a dragonfly, or has no switches: all devices
joined to all, a hypercube, tori, meshes or a ring. All give a device the same bandwidth, which is varied too.
Three workloads run on them: a dense model is trained with tensor parallelism within eight devices, a mixture
of experts is trained with its experts on all 64, and DeepSeek-V3 is served with its experts on all 64. What
counts is the work for a dollar of owning and running the whole system: tokens over `cost.rate`.

Prices of links and ports are estimates by bandwidth (`LINK`, `PORT`). So the study gives for every topology
without switches the price of a port at which the switch earns as much. A published comparison of four
topologies for serving (arXiv 2605.00254) stands beside ours.

    python studies/topologies/run.py [--quick] [--out DIR]
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.cost.network_cost import tier_costs
from diffperf.estimate.phases import estimate
from diffperf.hardware.network import TOPOLOGIES, NetworkTier
from diffperf.hardware.system import System
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.report.plots import BLUE, FAINT, GREY, INK, ORANGE, RED
from diffperf.workload.configuration import Configuration

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, choice_weights, figure_style, parse_options, publish

DEVICES = 64
SWITCH = "switch"
# USD for a byte/s and direction: of a link with its connectors, and of a port of a switch. Estimates: passive
# copper as `configs/links/nvlink4.toml` has it, and a switch of 51.2 Tbit/s for $32,000 (range $13,000 to
# $64,000).
LINK, PORT = 4e-9, 5e-9
RADIX = {"fat_tree": 16.0}  # ports of a switch: two levels; elsewhere one switch joins all devices
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # on the bandwidth of NVLink 5
QUICK_FACTORS = (0.5, 1.0)
SHOWN = {
    "switch": BLUE,
    "fully_connected": ORANGE,
    "torus_3d": RED,
    "mesh_3d": GREY,
    "ring": INK,
}  # in the figure, by colour
# arXiv 2605.00254, abstract: topologies without switches against a scale-up switch, in throughput for a
# dollar over all serving scenarios, and what narrower links add.
PUBLISHED = {"without switches": (20.6, 56.2), "narrower links": (0.0, 27.0)}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A phase of a model in a layout on all devices."""

    name: str
    model: str
    phase: str
    layout: dict[str, Any]


WORKLOADS = (
    Workload(
        "training Llama 3.1 70B",
        "llama-3.1-70b",
        "training",
        {
            "tp": 8,
            "dp": 8,
            "global_batch": 128,
            "sequence_length": 8192,
            "zero": "1",
            "recompute": "selective",
        },
    ),
    Workload(
        "training Qwen3 235B-A22B",
        "qwen3-235b-a22b",
        "training",
        {"dp": 64, "ep": 64, "global_batch": 512, "sequence_length": 4096, "zero": "3", "recompute": "full"},
    ),
    Workload(
        "serving DeepSeek-V3",
        "deepseek-v3",
        "decode",
        {"dp": 64, "ep": 64, "global_batch": 4096, "sequence_length": 4096, "precision": "fp8"},
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A workload on a topology at a bandwidth: tokens/s, and USD/s of the system and of its ports' price."""

    workload: str
    topology: str
    factor: float
    tokens: float
    rate: float
    per_port_price: float  # USD/s for each USD that a byte/s of a port costs
    network: float  # USD of the scale-up network per device

    @property
    def value(self) -> float:
        """Tokens for a dollar."""
        return self.tokens / self.rate


def system_with(system: System, topology: Any, radix: Any, factor: Any, port: Any) -> System:
    """The system whose innermost tier has a topology, ports of a switch, a bandwidth and a price of ports.

    Switches reduce in the network where there is one level of them.
    """
    tier: NetworkTier = system.network[0]
    rated = tier.bandwidth
    reducing = topology[TOPOLOGIES.index(SWITCH)]
    values = {
        "size": real(DEVICES),
        "topology": topology,
        "radix": radix,
        "bandwidth": rated * factor,
        "rated_bandwidth": rated,
        "price": real(0.1),  # all of the tier's price is that of links and ports
        "link_price": LINK * rated,
        "port_price": port * rated,
        "in_network_reduction": tier.in_network_reduction * reducing,
    }
    return replace(system, {f"network.{tier.name}.{name}": value for name, value in values.items()})


def outcomes(workload: Workload, factors: Sequence[float]) -> list[Outcome]:
    """All topologies at all bandwidths, in one program."""
    model = dp.load_model(workload.model)
    system = dp.load_system("gb200-nvl72", n_devices=DEVICES)
    strategy = dp.load_strategy(workload.layout, n_devices=DEVICES)
    cases = [(topology, factor) for topology in TOPOLOGIES for factor in factors]
    weights = jnp.stack([jnp.asarray(choice_weights(NetworkTier, "topology", name)) for name, _ in cases])
    radix = jnp.asarray([RADIX.get(name, 64.0) for name, _ in cases])

    def one(weights: jax.Array, radix: jax.Array, factor: jax.Array) -> tuple:
        def report(port: jax.Array) -> Any:
            changed = system_with(system, weights, radix, factor, port)
            return estimate(
                Configuration(model=model, system=changed, strategy=strategy, relax=Exact()), workload.phase
            )

        at, slope = report(real(PORT)), jax.grad(lambda port: report(port).cost.rate)(real(PORT))
        network = tier_costs(system_with(system, weights, radix, factor, real(PORT)), Exact())[0].price
        return at.tokens_per_second, at.cost.rate, slope, network

    numbers = jax.device_get(jax.jit(jax.vmap(one))(weights, radix, jnp.asarray([f for _, f in cases])))
    return [
        Outcome(
            workload=workload.name,
            topology=name,
            factor=factor,
            tokens=float(numbers[0][index]),
            rate=float(numbers[1][index]),
            per_port_price=float(numbers[2][index]),
            network=float(numbers[3][index]),
        )
        for index, (name, factor) in enumerate(cases)
    ]


def break_even_port(switch: Outcome, direct: Outcome) -> float:
    """The price of a port in USD for a byte/s at which the switch and a topology without ports earn alike.

    The cost of the switched system is linear in that price, the other's does not depend on it.
    """
    without_ports = switch.rate - PORT * switch.per_port_price
    return (switch.tokens * direct.rate / direct.tokens - without_ports) / switch.per_port_price


def at(results: Sequence[Outcome], workload: str, topology: str, factor: float = 1.0) -> Outcome:
    """The outcome of a workload on a topology at a bandwidth."""
    key = (workload, topology, factor)
    return next(each for each in results if (each.workload, each.topology, each.factor) == key)


def best(results: Sequence[Outcome], workload: str, topology: str) -> Outcome:
    """The outcome of a workload on a topology at the bandwidth that earns most for a dollar."""
    own = [each for each in results if each.workload == workload and each.topology == topology]
    return max(own, key=lambda each: each.value)


def rows_of(results: Sequence[Outcome], workload: str) -> list[dict[str, Any]]:
    """The table's rows of a workload: every topology at the bandwidth of NVLink 5, and at its best."""
    switch = at(results, workload, SWITCH)
    rows = []
    for topology in TOPOLOGIES:
        own, most = at(results, workload, topology), best(results, workload, topology)
        ports = own.per_port_price > 0
        rows.append(
            {
                "workload": workload,
                "topology": topology.replace("_", " "),
                "speed": own.tokens / switch.tokens,
                "network": own.network,
                "value": 100 * (own.value / switch.value - 1),
                "port": None if ports else _price_text(break_even_port(switch, own)),
                "factor": most.factor,
                "most": 100 * (most.value / switch.value - 1),
            }
        )
    return rows


def _price_text(price: float) -> str:
    """A price for a byte/s in USD for a GB/s; words where it is none."""
    return f"{1e9 * price:.2f}" if price > 0 else "not even for nothing"


COLUMNS = {
    "workload": ("workload", ""),
    "topology": ("topology", ""),
    "speed": ("tokens/s over the switch's", ".3f"),
    "network": ("network, $", ",.0f"),
    "value": ("tokens for a dollar, %", "+.1f"),
    "port": ("the switch earns alike at $ a GB/s of a port", ""),
    "factor": ("best bandwidth, of NVLink 5's", "g"),
    "most": ("tokens for a dollar there, %", "+.1f"),
}


def describe(results: Sequence[Outcome]) -> str:
    """What the study finds, in sentences."""
    serving = WORKLOADS[-1].name
    switch, full = at(results, serving, SWITCH), at(results, serving, "fully_connected")
    torus = at(results, serving, "torus_3d")
    narrow = best(results, serving, SWITCH)
    low, high = PUBLISHED["without switches"]
    sentences = [
        f"Serving DeepSeek-V3 on {DEVICES} devices, a network that joins all to all earns "
        f"{_change(full, switch)} for a dollar beside a switch of the same bandwidth, and a 3D torus "
        f"{_change(torus, switch)}; published for serving are {low} to {high} % more without switches, at "
        "the prices and on the topologies of that paper.",
        f"The switch earns most at {narrow.factor:g} times the bandwidth of NVLink 5 "
        f"({_change(narrow, switch)}); published are up to {PUBLISHED['narrower links'][1]:g} % by narrower "
        "links.",
    ]
    for workload in dict.fromkeys(each.workload for each in results):
        own = at(results, workload, SWITCH)
        others = [best(results, workload, name) for name in TOPOLOGIES]
        winner = max(others, key=lambda each: each.value)
        topology = winner.topology.replace("_", " ")
        sentences.append(
            f"{workload[0].upper()}{workload[1:]} earns most on a {topology} network "
            f"of {winner.factor:g} times that bandwidth ({_change(winner, own)})."
        )
    return " ".join(sentences)


def _change(outcome: Outcome, reference: Outcome) -> str:
    return f"{100 * (outcome.value / reference.value - 1):+.1f} %"


def draw(results: Sequence[Outcome]) -> Figure:
    """Tokens for a dollar over the bandwidth, a panel for each workload."""
    names = list(dict.fromkeys(each.workload for each in results))
    figure = Figure(figsize=(4.2 * len(names), 4.2), layout="constrained")
    for axes, workload in zip(np.atleast_1d(figure.subplots(1, len(names), sharey=True)), names, strict=True):
        switch = at(results, workload, SWITCH)
        for topology, colour in SHOWN.items():
            own = sorted(
                (each for each in results if each.workload == workload and each.topology == topology),
                key=lambda each: each.factor,
            )
            shares = [100 * each.value / switch.value for each in own]
            axes.plot(
                [each.factor for each in own], shares, "o-", color=colour, label=topology.replace("_", " ")
            )
        axes.set_xscale("log", base=2)
        ticks = sorted({each.factor for each in results})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_title(workload[0].upper() + workload[1:])
        axes.set_xlabel("bandwidth of a device over NVLink 5's 900 GB/s")
        axes.grid(color=FAINT, linewidth=0.8)
    first = figure.axes[0]
    first.set_ylabel("tokens for a dollar, % of the switch at 900 GB/s")
    first.legend(frameon=False)
    return figure


def main() -> None:
    options = parse_options(
        __doc__, "topologies", "two bandwidths, and the training of the dense model and the serving alone"
    )
    factors = QUICK_FACTORS if options.quick else FACTORS
    workloads = (WORKLOADS[0], WORKLOADS[-1]) if options.quick else WORKLOADS
    results = [outcome for workload in workloads for outcome in outcomes(workload, factors)]
    assert all(math.isfinite(each.value) for each in results)
    rows = [row for workload in workloads for row in rows_of(results, workload.name)]
    with figure_style():
        figure = draw(results)
    title = f"{DEVICES} GB200 on one scale-up network, beside a switch of NVLink 5's bandwidth"
    publish(
        options.out, [Table("topologies", title, COLUMNS, rows)], describe(results), {"topologies": figure}
    )


if __name__ == "__main__":
    main()
