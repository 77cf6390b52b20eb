"""DRAM technology against inference latency: an A100 whose device memory has 0.6 to 6.8 TB/s.

Optimus (arXiv 2407.14645) explores how inference latency falls with DRAM technology. Here one sequence of 200
tokens is continued by 200 tokens in fp16: Llama-2-13B on 2 and 8 devices, Llama-2-70B on 8. All but the
bandwidth of device memory is the A100's; `technologies.csv` has the bandwidths. We have not read the
latencies of the paper; NVIDIA's measured latencies on A100 stand beside ours at its bandwidth.

    python studies/memory_technology/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.inference import GenerationReport
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, locate, replace
from diffperf.report.plots import BLUE, GREY, INK, ORANGE, PALETTE, RED, bare
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, evaluate_cases, figure_style, parse_options, publish, read_rows, stack_cases

TECHNOLOGIES = Path(__file__).parent / "technologies.csv"
MEASURED = Path(__file__).parents[1] / "optimus_inference" / "published.csv"
CASES = (("llama-2-13b", 2), ("llama-2-13b", 8), ("llama-2-70b", 8))  # model and devices
INPUT_LENGTH, OUTPUT_LENGTH = 200, 200  # tokens
TB = 1e12
UNBOUNDED = 1e15  # byte/s: device memory that no longer binds

# What binds, and the inputs that grow with it. Latencies, launches and the host are the rest.
RESOURCES = {
    "HBM": ("accelerator.memory.hbm.bandwidth",),
    "L2": ("accelerator.memory.l2.bandwidth",),
    "compute": ("accelerator.matrix.fp16.rate", "accelerator.vector"),
    "power": ("accelerator.power_limit", "accelerator.static_power"),
    "network bandwidth": ("network.nvlink.bandwidth",),
}
# Inputs of the network that are times: growth divides them.
NETWORK_TIMES = (
    "network.nvlink.latency",
    "network.nvlink.startup",
    "network.nvlink.ramp",
    "inference_stack.collective_overhead",
)
BOUNDS = (*RESOURCES, "network latency", "kernel latency and host")
COLOURS = (RED, ORANGE, BLUE, PALETTE[9], PALETTE[4], PALETTE[3], GREY)

# The parts of a latency in the figure, and the fields of the breakdown of a decode pass that each adds up.
PARTS = {
    "linear layers": ("matmul", "head"),
    "attention": ("attention",),
    "element-wise": ("elementwise",),
    "tensor-parallel": ("tensor_parallel",),
    "host": ("host",),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """A latency with a technology: the estimate, and the share of it that each resource binds."""

    model: str
    devices: int
    technology: str
    bandwidth: float  # byte/s
    report: GenerationReport
    bounds: dict[str, float]

    @property
    def seconds(self) -> float:
        """The latency in s."""
        return float(self.report.time)

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of the prefill, and of every part of all decode passes."""
        passes = OUTPUT_LENGTH - 1
        decode = {
            name: passes * sum(float(getattr(self.report.decode, field)) for field in fields)
            for name, fields in PARTS.items()
        }
        return {"prefill": float(self.report.time_to_first_token)} | decode


def grown(system: System, growth: Float[Array, " resources"]) -> System:
    """Returns the system with every resource grown by a logarithm, and shorter latencies of the network."""
    values = {
        path: locate(system, path)[0] * jnp.exp(growth[index])
        for index, paths in enumerate(RESOURCES.values())
        for path in paths
    }
    values |= {path: locate(system, path)[0] * jnp.exp(-growth[-1]) for path in NETWORK_TIMES}
    return replace(system, values)


def estimate(
    model: Model, system: System, strategy: Strategy, bandwidth: Scalar
) -> tuple[GenerationReport, Float[Array, " resources"]]:
    """Returns the report with a bandwidth of device memory, and the relative fall of the latency by the
    relative growth of every resource.
    """
    system = replace(system, {"accelerator.memory.hbm.bandwidth": bandwidth})

    def latency(growth: Float[Array, " resources"]) -> tuple[Scalar, GenerationReport]:
        report = dp.generate(model, grown(system, growth), strategy)
        return report.time, report

    slopes, report = jax.grad(latency, has_aux=True)(jnp.zeros(len(RESOURCES) + 1))
    return report, -slopes / report.time


def estimate_points() -> list[Point]:
    """Estimates all cases with all technologies, and with unbounded device memory, in one program."""
    technologies = {row["technology"]: float(row["tb_per_s"]) * TB for row in read_rows(TECHNOLOGIES)}
    technologies["unbounded"] = UNBOUNDED
    named = [(*case, *technology) for case in CASES for technology in technologies.items()]
    inputs = []
    for model, devices, _, bandwidth in named:
        strategy = {
            "tp": devices,
            "global_batch": 1,
            "sequence_length": INPUT_LENGTH,
            "output_length": OUTPUT_LENGTH,
            "precision": "fp16",
        }
        system = dp.load_system("dgx-a100", devices, stack="tensorrt-llm-nemo")
        inputs.append((dp.load_model(model), system, dp.load_strategy(strategy), np.array(bandwidth)))
    results = evaluate_cases(estimate, *stack_cases(inputs))
    points = []
    for (model, devices, technology, bandwidth), (report, shares) in zip(named, results, strict=True):
        bounds = dict(zip(BOUNDS, [*map(float, shares), 1 - float(sum(shares))], strict=True))
        points.append(
            Point(
                model=model,
                devices=devices,
                technology=technology,
                bandwidth=bandwidth,
                report=report,
                bounds=bounds,
            )
        )
    return points


def measured_seconds(model: str, devices: int) -> float:
    """Returns NVIDIA's measured latency on A100 in s."""
    rows = {(row["model"], row["accelerator"], row["devices"]): row for row in read_rows(MEASURED)}
    return float(rows[model, "A100", str(devices)]["seconds"])


def latencies_table(points: list[Point]) -> Table:
    """Tabulates every latency with its parts and with what binds it."""
    columns = {
        "model": ("model", ""),
        "devices": ("devices", ".0f"),
        "technology": ("technology", ""),
        "tb_per_s": ("TB/s", ".2f"),
        "seconds": ("s", ".3f"),
        "speedup": ("over GDDR6", ".2f"),
        "measured_s": ("measured s", ".3f"),
        "hbm": ("HBM", ".0%"),
        "l2": ("L2", ".0%"),
        "compute": ("compute", ".0%"),
        "power": ("power", ".0%"),
        "network": ("network", ".0%"),
        "rest": ("launch, latency, host", ".0%"),
    }
    rows = []
    for model, devices in CASES:
        case = [point for point in points if (point.model, point.devices) == (model, devices)]
        for point in case:
            own = point.technology == "HBM2E"
            rows.append(
                {
                    "model": model,
                    "devices": devices,
                    "technology": point.technology,
                    "tb_per_s": None if point.bandwidth == UNBOUNDED else point.bandwidth / TB,
                    "seconds": point.seconds,
                    "speedup": case[0].seconds / point.seconds,
                    "measured_s": measured_seconds(model, devices) if own else None,
                    "hbm": point.bounds["HBM"],
                    "l2": point.bounds["L2"],
                    "compute": point.bounds["compute"],
                    "power": point.bounds["power"],
                    "network": point.bounds["network bandwidth"] + point.bounds["network latency"],
                    "rest": point.bounds["kernel latency and host"],
                }
            )
    title = "Latency by device memory of an A100, and what binds it"
    return Table("latencies", title, columns, rows)


def draw_case(times: Axes, shares: Axes, case: list[Point]) -> None:
    """Draws parts and bounds of the latency over the bandwidth, with the measured latency and the limit."""
    *bounded, unbounded = case
    bandwidths = [point.bandwidth / TB for point in bounded]
    colours = (PALETTE[9], PALETTE[0], PALETTE[2], PALETTE[4], RED, PALETTE[1])
    parts = [[point.parts[name] for point in bounded] for name in unbounded.parts]
    times.stackplot(bandwidths, parts, colors=colours, labels=list(unbounded.parts))
    times.plot(bandwidths, [point.seconds for point in bounded], "o", color=INK, markersize=3)
    times.axhline(unbounded.seconds, color=INK, linewidth=1, linestyle=(0, (4, 2)), label="unbounded memory")
    own = next(point for point in bounded if point.technology == "HBM2E")
    measured = measured_seconds(own.model, own.devices)
    marker = {"color": "white", "markeredgecolor": INK, "markersize": 7}
    times.plot(own.bandwidth / TB, measured, "D", label="measured on A100", **marker)
    times.set_title(f"{own.model}, {own.devices} devices")
    bounds = [[max(point.bounds[name], 0.0) for point in bounded] for name in BOUNDS]
    shares.stackplot(bandwidths, bounds, colors=COLOURS, labels=BOUNDS)
    shares.set_ylim(0, 1)
    shares.set_xlabel("bandwidth of device memory (TB/s)")
    for axes in (times, shares):
        axes.set_xlim(bandwidths[0], bandwidths[-1])
        bare(axes, keep="left")
        axes.set_xticks(bandwidths, [f"{value:.2g}" for value in bandwidths], fontsize=8)


def draw(points: list[Point]) -> Figure:
    """Draws the parts of the latency and what binds it over the bandwidth, for all cases."""
    with figure_style():
        figure = Figure(figsize=(14, 8), layout="constrained")
        panels = figure.subplots(2, len(CASES))
        for column, (model, devices) in enumerate(CASES):
            case = [point for point in points if (point.model, point.devices) == (model, devices)]
            draw_case(panels[0, column], panels[1, column], case)
        panels[0, 0].set_ylabel("latency (s)")
        panels[1, 0].set_ylabel("share that binds the latency")
        for axes in panels[:, -1]:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    return figure


def case_finding(case: list[Point]) -> str:
    """Writes how far faster memory helps a case, and what binds it then."""
    *bounded, unbounded = case
    first, last = bounded[0], bounded[-1]
    own = next(point for point in bounded if point.technology == "HBM2E")
    saturated = [
        point.technology for point in bounded if max(point.bounds, key=point.bounds.__getitem__) != "HBM"
    ]
    others = sorted(BOUNDS[1:], key=lambda name: -last.bounds[name])[:2]
    return (
        f"{first.model} on {first.devices}: {first.seconds:.2f} s with GDDR6, {own.seconds:.2f} with HBM2E,"
        f" {last.seconds:.2f} with {last.technology}, {unbounded.seconds:.2f} with unbounded memory; "
        + (
            f"HBM is no longer what binds most from {saturated[0]} on"
            if saturated
            else "HBM binds most throughout"
        )
        + f", and at {last.technology} it binds {last.bounds['HBM']:.0%}, {others[0]}"
        f" {last.bounds[others[0]]:.0%}, {others[1]} {last.bounds[others[1]]:.0%}."
    )


def finding(points: list[Point]) -> str:
    """Writes what the table shows."""
    texts = [
        case_finding([point for point in points if (point.model, point.devices) == case]) for case in CASES
    ]
    return (
        " ".join(texts)
        + " All other numbers are the A100's: 40 MiB of L2 with 7.2 TB/s, NVLink 3, 400 W, HBM2e's energy a"
        " byte and its efficiency of 80 % for every technology, the launches of TensorRT-LLM of 2023. Newer"
        " memory takes less energy a byte, and newer software launches faster. We have not read"
        " the paper's latencies, so none stand beside ours."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "memory_technology", "changes nothing: all cases take seconds")
    points = estimate_points()
    publish(options.out, [latencies_table(points)], finding(points), {"figure": draw(points)})


if __name__ == "__main__":
    main()
