"""Activation memory by recomputation method, and model states by ZeRO stage, against published values.

Activations: the models of Korthikanti et al. (arXiv 2205.05198) in the layouts of Table 3; one layer
against the formulas of Table 2, a device of the first stage against Figures 1 and 7
(`published_activations.csv`). Model states and communication: 7.5 billion parameters on 64 data-parallel
ranks against the ZeRO paper (arXiv 1910.02054, `published_zero.csv`).

    python studies/memory_by_recomputation/run.py [--quick] [--out DIR]
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import diffperf as dp
from diffperf.hardware.system import System

sys.path.append(str(Path(__file__).parents[1]))
from activations import (
    GIB,
    PublishedActivations,
    activation_finding,
    activation_table,
    draw_activations,
)
from reporting import Table, figure_style, parse_options, publish
from zero import RANKS, draw_states, draw_volume, sharding_table, zero_finding


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


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "memory_by_recomputation", "changes nothing: all cases take seconds")
    published, system = PublishedActivations.read(), dp.load_system("dgx-a100", RANKS)
    activation, zero = activation_table(published), sharding_table(system)
    finding = activation_finding(activation) + zero_finding(zero)
    publish(options.out, [activation, zero], finding, {"figure": draw(activation, zero, published, system)})


if __name__ == "__main__":
    main()
