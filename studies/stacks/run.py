"""How well training runs are predicted, and what each software stack costs: the few figures of configs/stacks that runs tell.

Fits each stack's figures to its own runs, on top of the shipped calibration of the accelerator's kernels and collectives, and says
what families of configurations left out of the fit are predicted with. Then holds the shipped stacks against every table: step
times, memory, and which runs ran out of it.

    python studies/stacks/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from diffperf import units
from diffperf.explore.calibrate.calibrate import Calibrated, calibrate
from diffperf.explore.measured.table import Measurements, Row, read_measurements
from diffperf.explore.measured.validate import Summary, Validation, validate
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from reporting import options

DATA = Path(__file__).parent / "data"
TABLES = (
    "korthikanti",
    "vtrain",
    "mosaic",
    "hf-ultrascale",
    "bloom-planning",
    "moe-folding",
    "nemo",
    "others",
)
STANDSTILL = 0.02  # MFU of runs that mostly wait


def _in_nodes(row: Row) -> bool:
    """Runs of the Ultra-Scale Playbook's cluster above 2 % MFU, with tensor parallelism inside a node, after a bug fix."""
    fixed = "before nanotron PP bug fix" not in (row["assumptions"] or "")
    return bool(row["mfu"] and row["mfu"] > STANDSTILL and fixed and row["tp"] <= 8)


def _dense(row: Row) -> bool:
    return not row["experts"]


def _in_format(precision: str) -> Callable[[Row], bool]:
    return lambda row: _dense(row) and row["precision"] == precision


def _experts(row: Row) -> bool:
    """Those of gpt-oss take much longer than others' of their size, which is not explained."""
    return bool(row["experts"]) and not row["model"].startswith("gpt-oss")


@dataclasses.dataclass(frozen=True)
class Fit:
    """A stack on an accelerator: the runs that tell, and the figures they tell."""

    table: str
    hardware: str
    stack: str
    parameters: tuple[str, ...]
    tell: Callable[[Row], bool] = lambda row: True

    def rows(self) -> Measurements:
        table = read_measurements(DATA / f"{self.table}.csv")
        return dataclasses.replace(
            table, rows=[row for row in table.rows if row["hardware"] == self.hardware and self.tell(row)]
        )

    def fitted(self) -> Calibrated:
        paths = [name if "." in name else f"stack.{name}" for name in self.parameters]
        return calibrate(
            [self.rows()], self.hardware, paths, stack=self.stack, prior_spread=0.5, calibration=None
        )


_KERNELS = ("elementwise_traffic", "matrix_efficiency", "attention_efficiency", "overlap_contention")
FITS = (
    Fit("mosaic", "h100-sxm5-80gb", "llm-foundry-fsdp-hopper", _KERNELS),
    Fit("mosaic", "a100-sxm4-80gb", "llm-foundry-fsdp", _KERNELS),
    Fit("mosaic", "a100-sxm4-40gb", "llm-foundry-fsdp", _KERNELS),
    Fit("vtrain", "a100-sxm4-80gb", "megatron-deepspeed", ("host_launch", "matrix_efficiency")),
    Fit(
        "hf-ultrascale",
        "h100-sxm5-80gb",
        "nanotron",
        (
            "elementwise_traffic",
            "matrix_efficiency",
            "host_launch",
            "step_overhead",
            "network_efficiency",
            "rank_stall",
        ),
        _in_nodes,
    ),
    Fit("nemo", "h100-sxm5-80gb", "nemo", ("matrix_efficiency", "attention_efficiency")),
    Fit("moe-folding", "h100-sxm5-80gb", "megatron-core", ("matrix_efficiency", "overlap_contention")),
    Fit("nemo", "gb200", "megatron-bridge-26.04", ("matrix_efficiency", "attention_efficiency"), _dense),
    Fit("nemo", "h100-sxm5-80gb", "megatron-bridge-26.04", ("routing_wait",), _experts),
    Fit("nemo", "gb200", "megatron-bridge-26.04", ("routing_wait",), _experts),
    *(
        Fit(
            "nemo",
            "gb300",
            "megatron-bridge-26.04",
            (f"accelerator.matrix.{name}.efficiency",),
            _in_format(name),
        )
        for name in ("fp8", "mxfp8", "nvfp4")
    ),
    Fit("others", "tpu-v5e", "maxtext", ("matrix_efficiency",)),
    Fit("others", "tpu-v5p", "maxtext", ("matrix_efficiency",)),
    Fit("others", "tpu-v4", "maxtext", ("matrix_efficiency",)),
)


def fit_rows(fit: Fit, found: Calibrated) -> Iterator[tuple[str, ...]]:
    """A line for each figure; the errors beside the first."""
    before, after, held_out = (
        np.abs(np.expm1(errors)) for errors in (found.before, found.after, found.held_out)
    )
    shares = [
        f"{np.median(errors):.1%} / {np.quantile(errors, 0.9):.1%}" for errors in (before, after, held_out)
    ]
    for index, one in enumerate(found.parameters):
        value = f"{units.show(one.after, one.declared.unit)} ± {one.spread:.0%}"
        shown = (fit.stack, fit.hardware, f"{len(before):,}") if index == 0 else ("", "", "")
        errors = shares if index == 0 else ("", "", "")
        yield (
            *shown,
            one.path.removeprefix("stack."),
            units.show(one.before, one.declared.unit),
            value,
            *errors,
        )


def fits_table(results: dict[Fit, Calibrated]) -> Table:
    rows = Table(
        title="figures of stacks, and median / 90th percentile of |predicted ÷ measured − 1| of step times",
        box=None,
    )
    names = ("stack", "hardware", "runs", "figure", "shipped", "fitted", "as shipped", "after", "left out")
    for index, name in enumerate(names):
        rows.add_column(name, justify="right" if index > 3 or index == 2 else "left")
    for fit, found in results.items():
        for row in fit_rows(fit, found):
            rows.add_row(*row)
    return rows


def groups(found: dict[str, Validation]) -> Iterator[tuple[str, Summary]]:
    """Every group of every table; of the nanotron runs also those that are not at a standstill."""
    for validation in found.values():
        yield from validation.summaries("group").items()
        if "hf-ultrascale" in validation.by("group"):
            moving = [one for one in validation.evaluations if one.measured.get("mfu", 0.0) > STANDSTILL]
            yield f"… above {STANDSTILL:.0%} MFU", validation.summary(moving)


def errors_table(found: dict[str, Validation]) -> Table:
    rows = Table(title="all tables with the shipped configs", box=None)
    for index, name in enumerate(
        ("group", "column", "n", "mean", "median", "p90", "bias", "out of memory: accuracy")
    ):
        rows.add_column(name, justify="right" if index > 1 else "left")
    for group, summary in groups(found):
        for column in ("step_time_s", "mfu", "peak_memory_bytes", "reserved_memory_bytes"):
            if (errors := summary.metrics.get(column)) is None or (
                column == "mfu" and "step_time_s" in summary.metrics
            ):
                continue
            shares = (f"{share:.1%}" for share in (errors.mean_ape, errors.median_ape, errors.p90_ape))
            told = (
                f"{summary.oom.accuracy:.1%} of {summary.oom.n:,}"
                if summary.oom and "memory" in column
                else ""
            )
            rows.add_row(group, column, f"{errors.n:,}", *shares, f"{errors.bias:+.1%}", told)
    return rows


def main():
    arguments = options(__doc__, "stacks", "one stack and the tables of less than a hundred runs")
    arguments.out.mkdir(parents=True, exist_ok=True)

    fits = FITS[:1] if arguments.quick else FITS
    tables = ("korthikanti", "mosaic") if arguments.quick else TABLES
    results = {fit: fit.fitted() for fit in fits}
    found = {name: validate(DATA / f"{name}.csv") for name in tables}
    points = {
        group: pair
        for table in found.values()
        for group, pair in table.points_by("group", "step_time_s").items()
    }
    plots.save(plots.predicted_against_measured(points, "step time (s)"), arguments.out / "step_times.png")
    with (arguments.out / "errors.txt").open("w", encoding="utf-8") as file:
        for console in (Console(width=170), Console(file=file, width=170)):
            console.print(fits_table(results), "", errors_table(found), sep="\n")


if __name__ == "__main__":
    main()
