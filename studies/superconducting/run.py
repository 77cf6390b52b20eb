"""Superconducting boards against GPUs over the bandwidth of the link between 4 K and 77 K.

imec's superconducting digital system (arXiv 2411.08645) has logic and JSRAM at 4 K and cryo-DRAM at 77 K.
First come the published board and hundred boards beside the shipped configs, and what the watts of the
board are spent on by our estimates (`derivation.py`). Then training and inference are estimated over the
bandwidth of the link to cryo-DRAM, beside H100 and B200. Energies are at the wall: those of boards include
their cooling, those of GPUs and hosts are multiplied by the facility's PUE. Boards have no software yet:
their stack, latencies and efficiencies are estimates, those of the GPUs are calibrated. We have not read
the times of the paper.

    python studies/superconducting/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import diffperf as dp
from diffperf.cost.network_cost import network_cost
from diffperf.cost.ownership import facility_energy
from diffperf.estimate.inference import decode, prefill
from diffperf.estimate.training import training_step
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, replace
from diffperf.relax import Exact
from diffperf.report import plots
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
import derivation
from reporting import Table, figure_style, parse_options, publish, stack_cases

BOARDS = "superconducting-boards"
NAMES = {BOARDS: "board", "dgx-h100": "H100", "hgx-b200": "B200"}
COLOURS = {BOARDS: plots.BLUE, "dgx-h100": plots.GREY, "hgx-b200": plots.ORANGE}
BANDWIDTHS = np.logspace(12, 15, 31)  # byte/s of the link of a board
UNBOUNDED = 1e16  # byte/s: a link that no longer binds
NEAR = 1.1  # a link saturates where the time is this many times that with an unbounded link
DEGREES = ("tp", "pp", "micro_batch")
TB, TOKENS_PER_MTOKEN, JOULES_PER_KWH = 1e12, 1e6, 3.6e6


@dataclasses.dataclass(frozen=True)
class Workload:
    """A phase of a model, with the number of devices of each system and the layouts that it tries there, each
    a tuple of `DEGREES`.
    """

    title: str
    model: str
    phase: str
    strategy: dict[str, Any]
    layouts: Mapping[str, tuple[int, Sequence[tuple[int, int, int]]]]

    def estimate(self) -> Callable[[Any, System, Strategy], Any]:
        """Returns the estimator's function of the phase."""
        return {"training": training_step, "prefill": prefill, "decode": decode}[self.phase]

    @property
    def tokens(self) -> float:
        """Tokens of one step, of all prompts, or of one decode pass."""
        per_sequence = 1 if self.phase == "decode" else self.strategy["sequence_length"]
        return self.strategy["global_batch"] * per_sequence


SERVED = {"global_batch": 64, "sequence_length": 1024, "output_length": 512}
TRAINED = {"global_batch": 512, "sequence_length": 2048, "recompute": "selective", "zero": "1"}
SMALL = {BOARDS: (1, [(1, 1, 1)]), "dgx-h100": (8, [(8, 1, 1)]), "hgx-b200": (8, [(8, 1, 1)])}
LARGE = SMALL | {"dgx-h100": (16, [(8, 2, 1)])}
TRAINING = {
    BOARDS: (64, [(8, 1, 1), (8, 1, 4), (4, 1, 4), (2, 1, 4), (2, 1, 8)]),
    "dgx-h100": (64, [(8, 8, 1), (8, 4, 1), (8, 4, 2), (4, 8, 1), (4, 16, 1)]),
    "hgx-b200": (64, [(8, 8, 1), (8, 4, 2), (4, 8, 1), (4, 4, 1), (4, 8, 2)]),
}
WORKLOADS = (
    Workload("Training of GPT-3 175B", "gpt3-175b", "training", TRAINED, TRAINING),
    Workload("Prefill of Llama-2 70B", "llama-2-70b", "prefill", SERVED, SMALL),
    Workload("Decoding of Llama-2 70B", "llama-2-70b", "decode", SERVED, SMALL),
    Workload("Prefill of Llama-3.1 405B", "llama-3.1-405b", "prefill", SERVED, LARGE),
    Workload("Decoding of Llama-3.1 405B", "llama-3.1-405b", "decode", SERVED, LARGE),
)
QUICK = (WORKLOADS[0], WORKLOADS[2])


@dataclasses.dataclass(frozen=True)
class Curve:
    """A workload on a system: its time, its energy and its cost per token at every bandwidth of the link.

    Systems of GPUs have no such link: their arrays have one element.
    """

    workload: Workload
    system: str
    devices: int
    bandwidth: Float[np.ndarray, " points"]  # byte/s
    time: Float[np.ndarray, " points"]  # s of a step, of all prompts or of a decode pass
    joules: Float[np.ndarray, " points"]  # of a token, at the wall
    dollars: Float[np.ndarray, " points"]  # of a token: depreciation and electricity

    @property
    def title(self) -> str:
        """The number of devices and their name, such as 64 boards."""
        plural = "s" if self.system == BOARDS and self.devices > 1 else ""
        return f"{self.devices} {NAMES[self.system]}{plural}"

    def at(self, bandwidth: float) -> tuple[float, float, float]:
        """Returns the time, and the J and USD of a token, at a bandwidth between the points of the curve."""
        if len(self.bandwidth) == 1:
            return float(self.time[0]), float(self.joules[0]), float(self.dollars[0])
        place = np.log(bandwidth), np.log(self.bandwidth)
        ordinates = (self.time, self.joules, self.dollars)
        time, joules, dollars = (float(np.exp(np.interp(*place, np.log(values)))) for values in ordinates)
        return time, joules, dollars

    @property
    def saturation(self) -> float:
        """The bandwidth in byte/s beyond which a wider link saves less than a tenth of the time."""
        return float(np.interp(-NEAR * self.time[-1], -self.time, self.bandwidth))

    def bandwidth_for(self, time: float) -> float | None:
        """Returns the bandwidth in byte/s that a phase of `time` seconds takes, None beyond the curve."""
        if not self.time[-1] <= time <= self.time[0]:
            return None
        return float(np.exp(np.interp(-np.log(time), -np.log(self.time), np.log(self.bandwidth))))


def with_link(system: System, bandwidth: Scalar | float) -> System:
    """Returns a system of boards with another bandwidth of the link to cryo-DRAM.

    The published power is that of the board with the shipped link. What the traffic of a wider one takes at
    the wall is allowed on top of it.
    """
    dram = system.accelerator.device_memory
    more = jnp.maximum(bandwidth - dram.bandwidth, 0) * dram.energy
    return replace(
        system,
        {
            "accelerator.memory.cryo-dram.bandwidth": jnp.asarray(bandwidth, float),
            "accelerator.power_limit": system.accelerator.power_limit + more,
        },
    )


def curve(workload: Workload, name: str) -> Curve:
    """Returns a workload on a system, with the fastest layout that fits at every bandwidth of the link."""
    devices, layouts = workload.layouts[name]
    system, model, phase = dp.load_system(name, devices), dp.load_model(workload.model), workload.estimate()
    bandwidths = np.append(BANDWIDTHS, UNBOUNDED) if name == BOARDS else np.zeros(1)
    strategies = stack_cases(
        [
            dp.load_strategy(workload.strategy | dict(zip(DEGREES, layout, strict=True)), n_devices=devices)
            for layout in layouts
        ]
    )

    def point(bandwidth: Scalar, strategy: Strategy) -> Float[Array, " 4"]:
        linked = with_link(system, bandwidth) if name == BOARDS else system
        report = phase(model, linked, strategy)
        network = network_cost(linked, Exact())
        joules = facility_energy(linked, report.time, report.energy.total, network) / workload.tokens
        dollars = report.cost.run / workload.tokens
        return jnp.stack([report.time, joules, dollars, report.memory.excess])

    grid = jax.vmap(jax.vmap(point, in_axes=(None, 0)), in_axes=(0, None))
    *values, excess = np.moveaxis(np.asarray(jax.jit(grid)(bandwidths, strategies)), -1, 0)
    assert np.any(excess <= 0), f"no layout of {workload.title} fits {name}"
    best = np.argmin(np.where(excess <= 0, values[0], np.inf), axis=1)[:, None]
    chosen = (np.take_along_axis(of_layouts, best, axis=1)[:, 0] for of_layouts in values)
    return Curve(workload, name, devices, bandwidths, *chosen)


# --- tables


def published_table() -> Table:
    """Tabulates the published board and hundred boards beside the shipped configs, and GPUs."""
    rows = []
    for system, boards in ((BOARDS, 1), (BOARDS, derivation.BOARDS)):
        board = dp.load_system(system, boards).accelerator
        ours = boards * sum(derivation.full_rate_power(board).values())
        published_rate, published_power = boards * derivation.BOARD_RATE, boards * derivation.BOARD_POWER
        rows.append(_rate_row(f"published, boards: {boards}", published_rate, published_power))
        rows.append(_rate_row(f"ours, boards: {boards}", boards * float(board.matrix.bf16.rate), ours))
    for system, boards in (("dgx-h100", 8), ("hgx-b200", 8)):
        gpu = dp.load_system(system).accelerator
        limits = boards * float(gpu.power_limit)
        rows.append(_rate_row(f"{boards} × {NAMES[system]}", boards * float(gpu.matrix.bf16.rate), limits))
    columns = {
        "system": ("", ""),
        "rate": ("peak bf16 PFLOP/s", ",.1f"),
        "power": ("W at full rate", ",.0f"),
        "efficiency": ("TFLOP/s per W", ".3g"),
    }
    title = "Peak rate and power: boards at the wall with cooling, GPUs by thermal design power without"
    return Table("published", title, columns, rows)


def _rate_row(name: str, rate: float, power: float) -> dict[str, str | float]:
    """Returns the row of a system with a peak rate in FLOP/s and a power in W."""
    return {"system": name, "rate": rate / 1e15, "power": power, "efficiency": rate / power / 1e12}


def power_table() -> Table:
    """Tabulates what the watts of a board at full rate are spent on, over the range of its cooling."""
    board = dp.load_system(BOARDS).accelerator
    low, high = (derivation.full_rate_power(board, *cooling) for cooling in derivation.COOLING_RANGE)
    cases = {"low": low, "power": derivation.full_rate_power(board), "high": high}
    rows: list[dict[str, Any]] = [
        {"part": part, **{case: watts[part] for case, watts in cases.items()}} for part in low
    ]
    rows.append({"part": "total", **{case: sum(watts.values()) for case, watts in cases.items()}})
    columns = {"part": ("", "")}
    cooling = (derivation.COOLING_4K, derivation.COOLING_77K)
    for case, (at_4k, at_77k) in zip(
        cases, (derivation.COOLING_RANGE[0], cooling, derivation.COOLING_RANGE[1]), strict=True
    ):
        columns[case] = (f"W at {at_4k:.0f} and {at_77k:.0f} W/W", ",.0f")
    title = "Power of a board at full rate by our estimates, with three coolings of 4 K and 77 K"
    return Table("power", title, columns, rows)


def workloads_table(curves: Sequence[Curve]) -> Table:
    """Tabulates times and energies with the shipped link, the link that saturates, and GPUs."""
    shipped = float(dp.load_system(BOARDS).accelerator.device_memory.bandwidth)
    rows = []
    for result in curves:
        of_boards = result.system == BOARDS
        links = (shipped, result.saturation) if of_boards else (shipped,)
        for link in links:
            time, joules, dollars = result.at(link)
            row = {
                "workload": result.workload.title,
                "system": result.title,
                "link": link / TB if of_boards else None,
                "time": 1e3 * time,
                "per_token": 1e6 * time / result.workload.tokens,
                "power": joules * result.workload.tokens / time / result.devices,
                "joules": joules,
                "kwh": joules * TOKENS_PER_MTOKEN / JOULES_PER_KWH,
                "dollars": dollars * TOKENS_PER_MTOKEN,
            }
            rows.append(row)
    columns = {
        "workload": ("", ""),
        "system": ("system", ""),
        "link": ("link TB/s", ",.0f"),
        "time": ("time ms", ",.4g"),
        "per_token": ("µs/token", ",.3g"),
        "power": ("W per device", ",.0f"),
        "joules": ("J/token", ".3g"),
        "kwh": ("kWh/Mtoken", ".3g"),
        "dollars": ("$/Mtoken", ".3g"),
    }
    title = (
        "A step, all prompts or a decode pass: boards with the shipped link, and with a link that saturates, "
        "at the price of the board as shipped; watts are at the wall, with host"
    )
    return Table("workloads", title, columns, rows)


def crossings_table(curves: Sequence[Curve]) -> Table:
    """Tabulates the bandwidth of the link at which boards are as fast as GPUs, and where it saturates."""
    rows = []
    for boards in (result for result in curves if result.system == BOARDS):
        row: dict[str, Any] = {"workload": boards.workload.title, "saturation": boards.saturation / TB}
        for rival in (other for other in curves if other.workload == boards.workload and other != boards):
            link = boards.bandwidth_for(float(rival.time[0]))
            row[rival.system] = None if link is None else link / TB
            row[f"speedup_{rival.system}"] = float(rival.time[0] / boards.at(boards.saturation)[0])
            row[f"energy_{rival.system}"] = float(rival.joules[0] / boards.at(boards.saturation)[1])
        rows.append(row)
    columns = {"workload": ("", ""), "saturation": ("saturates at TB/s", ",.0f")}
    for system in ("dgx-h100", "hgx-b200"):
        columns |= {
            system: (f"as fast as {NAMES[system]} at", ".3g"),
            f"speedup_{system}": (f"time of {NAMES[system]}", ",.3g"),
            f"energy_{system}": (f"J of {NAMES[system]}", ",.3g"),
        }
    title = "Link per board, and time and J per token of GPUs over those of boards whose link saturates"
    return Table("crossings", title, columns, rows)


# --- figure and report


def draw(curves: Sequence[Curve]) -> Figure:
    """Draws time and energy per token over the bandwidth of the link, a column for each workload."""
    workloads = list(dict.fromkeys(result.workload.title for result in curves))
    shipped = float(dp.load_system(BOARDS).accelerator.device_memory.bandwidth)
    with figure_style():
        figure = Figure(figsize=(3.4 * len(workloads) + 1, 6.4), layout="constrained")
        panels = figure.subplots(2, len(workloads), sharex=True, squeeze=False)
        for column, title in zip(panels.T, workloads, strict=True):
            own = [result for result in curves if result.workload.title == title]
            for axes, quantity in zip(column, ("time", "joules"), strict=True):
                _draw_panel(axes, own, quantity, shipped)
            column[0].set_title(title)
            column[1].set_xlabel("link of a board (TB/s)")
        panels[0, 0].set_ylabel("time per token (µs)")
        panels[1, 0].set_ylabel("energy per token at the wall (J)")
    return figure


def _draw_panel(axes: Axes, curves: Sequence[Curve], quantity: str, shipped: float) -> None:
    """Draws the time or the energy per token of one workload on all systems."""
    for result in curves:
        values = 1e6 * result.time / result.workload.tokens if quantity == "time" else result.joules
        label, colour = result.title, COLOURS[result.system]
        if result.system != BOARDS:
            axes.axhline(values[0], color=colour, linewidth=1.5, linestyle="--", label=label)
            continue
        axes.plot(result.bandwidth[:-1] / TB, values[:-1], color=colour, linewidth=2, label=label)
        link = result.saturation
        height = np.interp(link, result.bandwidth, values)
        axes.plot(link / TB, height, "o", color=colour, label="link saturates")
    axes.axvline(shipped / TB, color=plots.INK, linewidth=1, linestyle=":", label="link as shipped")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(color=plots.FAINT, linewidth=0.8)
    if quantity == "time":
        axes.legend(frameon=False, fontsize=8)


def finding(curves: Sequence[Curve], power: Table) -> str:
    """Returns the results of the study in words."""
    total = power.rows[-1]["power"]
    texts = [f"A board at full rate draws {total:,.0f} W at the wall by our estimates, 5,000 W published."]
    for boards in (result for result in curves if result.system == BOARDS):
        others = [result for result in curves if result.workload == boards.workload and result != boards]
        time, joules, _ = boards.at(boards.saturation)
        ratios = " and ".join(
            f"{other.title} take {float(other.time[0]) / time:.3g} times as long and "
            f"{float(other.joules[0]) / joules:.3g} times the joules"
            for other in others
        )
        watts = joules * boards.workload.tokens / time / boards.devices
        texts.append(
            f"{boards.workload.title} on {boards.title}: the link of a board saturates at "
            f"{boards.saturation / TB:,.0f} TB/s and {watts / 1e3:.1f} kW a board, where {ratios}."
        )
    return " ".join(texts)


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__, "superconducting", "trains one model and decodes with one, on boards and B200"
    )
    workloads = QUICK if options.quick else WORKLOADS
    systems = [name for name in NAMES if not (options.quick and name == "dgx-h100")]
    curves = [curve(workload, system) for workload in workloads for system in systems]
    power = power_table()
    tables = [published_table(), power, workloads_table(curves), crossings_table(curves)]
    publish(options.out, tables, finding(curves, power), {"link": draw(curves)})


if __name__ == "__main__":
    main()
