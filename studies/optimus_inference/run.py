"""Llama-2 latencies that Optimus (arXiv 2407.14645) was validated on, as NVIDIA measured them, and ours.

One sequence of 200 tokens is continued by 200 tokens in fp16, on one to eight A100 or H100 with tensor
parallelism, by TensorRT-LLM of the NeMo framework. `published.csv` has the measured latencies and their
source. The predictions of Optimus itself are not among them: we have no table of its inference latencies.

    python studies/optimus_inference/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.inference import GenerationReport
from diffperf.hardware.system import System
from diffperf.report.plots import PALETTE
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from reporting import (
    Table,
    evaluate_cases,
    parse_options,
    parts_of_measured,
    publish,
    read_rows,
    stack_cases,
)

PUBLISHED = Path(__file__).parent / "published.csv"
STACK = "tensorrt-llm-nemo"
SYSTEMS = {"A100": "dgx-a100", "H100": "dgx-h100"}
INPUT_LENGTH, OUTPUT_LENGTH = 200, 200  # tokens, in all rows

# The parts of a latency in the figure, and the fields of the breakdown of a decode pass that each adds up.
PARTS = {
    "linear layers": ("matmul",),
    "attention": ("attention",),
    "element-wise": ("elementwise",),
    "vocabulary projection": ("head",),
    "tensor-parallel": ("tensor_parallel",),
    "host": ("host",),
}


@dataclasses.dataclass(frozen=True)
class Latency:
    """A measured latency, our estimate, and the time that reading the weights takes at least."""

    row: dict[str, str]
    weight_reading: float  # s
    report: GenerationReport

    @property
    def measured(self) -> float:
        """The measured latency in s."""
        return float(self.row["seconds"])

    @property
    def error(self) -> float:
        """The relative error of our estimate."""
        return float(self.report.time) / self.measured - 1

    @property
    def label(self) -> str:
        """The model and the devices, for the figure."""
        size = self.row["model"].removeprefix("llama-2-").upper()
        return f"{size}, {self.row['devices']} {self.row['accelerator']}"

    def part(self, fields: tuple[str, ...]) -> float:
        """The seconds of some fields of the breakdown in all decode passes."""
        passes = OUTPUT_LENGTH - 1
        return passes * sum(float(getattr(self.report.decode, field)) for field in fields)


def inputs_of(row: dict[str, str]) -> tuple[Model, System, Strategy]:
    """Returns model, system and strategy of a measured row."""
    devices = int(row["devices"])
    strategy = {
        "tp": devices,
        "global_batch": 1,
        "sequence_length": INPUT_LENGTH,
        "output_length": OUTPUT_LENGTH,
        "precision": "fp16",
    }
    system = dp.load_system(SYSTEMS[row["accelerator"]], devices, stack=STACK)
    return dp.load_model(row["model"]), system, dp.load_strategy(strategy)


def weight_reading_seconds(system: System, report: GenerationReport) -> float:
    """Returns the seconds that reading a device's weights once a token takes at the peak bandwidth."""
    bandwidth = float(system.accelerator.memory[-1].bandwidth)
    return OUTPUT_LENGTH * float(report.memory.weights) / bandwidth


def estimate_latencies() -> list[Latency]:
    """Estimates all measured latencies, those of one accelerator in one program."""
    latencies = []
    for accelerator in SYSTEMS:
        rows = [row for row in read_rows(PUBLISHED) if row["accelerator"] == accelerator]
        cases = [inputs_of(row) for row in rows]
        for case in cases:
            dp.check(*case, phase="generate")
        reports = evaluate_cases(dp.generate, *stack_cases(cases))
        latencies += [
            Latency(row=row, weight_reading=weight_reading_seconds(system, report), report=report)
            for row, (_, system, _), report in zip(rows, cases, reports, strict=True)
        ]
    return latencies


def latencies_table(latencies: list[Latency]) -> Table:
    """Tabulates every latency."""
    columns = {
        "model": ("model", ""),
        "accelerator": ("accelerator", ""),
        "devices": ("tp", ""),
        "measured_s": ("measured s", ".2f"),
        "ours_s": ("ours s", ".2f"),
        "error": ("error", "+.1%"),
        "weight_reading_s": ("weights at peak bandwidth s", ".2f"),
        "first_token_ms": ("first token ms", ".1f"),
        "token_ms": ("ms a token", ".2f"),
        "tensor_parallel": ("tensor-parallel", ".0%"),
    }
    rows = [
        {
            "model": latency.row["model"],
            "accelerator": latency.row["accelerator"],
            "devices": latency.row["devices"],
            "measured_s": latency.measured,
            "ours_s": latency.report.time,
            "error": latency.error,
            "weight_reading_s": latency.weight_reading,
            "first_token_ms": 1e3 * latency.report.time_to_first_token,
            "token_ms": 1e3 * latency.report.time_per_output_token,
            "tensor_parallel": latency.report.decode.tensor_parallel / latency.report.time_per_output_token,
        }
        for latency in latencies
    ]
    title = f"Latency of {INPUT_LENGTH} tokens in and {OUTPUT_LENGTH} out, one sequence, {STACK}"
    return Table("latencies", title, columns, rows)


def errors_table(latencies: list[Latency]) -> Table:
    """Tabulates mean, worst and bias of the errors, by accelerator, by devices and over all rows."""
    columns = {
        "rows": ("rows", ""),
        "count": ("n", ".0f"),
        "mean": ("mean |error|", ".1%"),
        "worst": ("worst", "+.1%"),
        "bias": ("bias", "+.1%"),
    }
    groups = {
        name: [latency for latency in latencies if latency.row["accelerator"] == name] for name in SYSTEMS
    }
    for devices in sorted({int(latency.row["devices"]) for latency in latencies}):
        groups[f"tp {devices}"] = [latency for latency in latencies if int(latency.row["devices"]) == devices]
    groups["all"] = latencies
    rows = []
    for name, members in groups.items():
        errors = np.array([latency.error for latency in members])
        rows.append(
            {
                "rows": name,
                "count": len(members),
                "mean": np.abs(errors).mean(),
                "worst": errors[np.abs(errors).argmax()],
                "bias": errors.mean(),
            }
        )
    return Table("errors", "Errors of the latency", columns, rows)


def draw(latencies: list[Latency]) -> Figure:
    """Draws the parts of our latencies over the measured latencies, and the least time for the weights."""
    measured = np.array([latency.measured for latency in latencies])
    prefill = np.array([float(latency.report.time_to_first_token) for latency in latencies])
    parts = [("prefill", PALETTE[9], prefill / measured)]
    for colour, (name, fields) in zip(PALETTE[::2] + PALETTE[1::2], PARTS.items(), strict=False):
        seconds = np.array([latency.part(fields) for latency in latencies])
        parts.append((name, colour, seconds / measured))
    least = [latency.weight_reading / latency.measured for latency in latencies]
    return parts_of_measured(
        "Estimated over measured latency",
        names=[latency.label for latency in latencies],
        parts=parts,
        others=("weights at peak bandwidth", least),
        remarks=[f"{latency.error:+.1%}" for latency in latencies],
        remarks_at=1.13,
        right=1.25,
        height=7.2,
    )


def finding(latencies: list[Latency]) -> str:
    """Writes what the tables show."""
    errors = np.array([latency.error for latency in latencies])
    worst = latencies[int(np.abs(errors).argmax())]
    signed = ", ".join(
        f"{np.mean([latency.error for latency in latencies if int(latency.row['devices']) == devices]):+.1%}"
        f" on {devices}"
        for devices in (1, 2, 4, 8)
    )
    single = [
        latency.weight_reading / latency.measured for latency in latencies if latency.row["devices"] == "1"
    ]
    eight = [
        latency.weight_reading / latency.measured for latency in latencies if latency.row["devices"] == "8"
    ]
    return (
        f"Over NVIDIA's {len(latencies)} latencies, on which Optimus was validated, our mean error is"
        f" {np.abs(errors).mean():.1%}, our worst {worst.error:+.1%} ({worst.label}) and our bias"
        f" {errors.mean():+.1%}; by devices the mean is {signed}. The launch of kernels and of"
        " collectives, the efficiency of attention and the host's time in the stack were calibrated on these"
        " rows, so the errors are of a fit and not of a prediction. We have no table of the inference"
        " latencies that Optimus predicts, and state none. On one device reading the weights at the peak"
        f" bandwidth accounts for {min(single):.0%} to {max(single):.0%} of the measured latency, on eight"
        f" for {min(eight):.0%} to {max(eight):.0%}: there launches, all-reduces and the host bind."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "optimus_inference", "changes nothing: all latencies take seconds")
    latencies = estimate_latencies()
    tables = [latencies_table(latencies), errors_table(latencies)]
    publish(options.out, tables, finding(latencies), {"figure": draw(latencies)})


if __name__ == "__main__":
    main()
