"""How well a few physical parameters explain tens of thousands of measured kernels and collectives, and what they are.

Fits the calibratable parameters of every accelerator that has data (data/README.md) and writes configs/calibrations/, a table of
errors and a figure for each. Errors are cross-validated by families of shapes. Tables from other sources than the ones fitted
(`CHECKS`) are then predicted without having been seen.

    python studies/calibration/run.py [--quick] [--hardware ID] [--out DIR] [--write-configs]
"""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diffperf.explore.calibrate.calibrate import Calibrated, calibrate
from diffperf.explore.calibrate.calibration_file import write_calibration
from diffperf.explore.measured.platforms import PLATFORMS
from diffperf.explore.measured.table import read_measurements
from diffperf.explore.measured.validate import Errors, validate
from diffperf.load import config_root
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from reporting import options

DATA = Path(__file__).parent / "data"
FITTED = ("aic-gemm", "aic-attention", "aic-nccl", "vidur", "vtrain-allreduce", "simumax-gemm", "llmcompass")
# Where an accelerator has aiconfigurator's GEMMs, the small or throttled sets of other sources are left to check the fit.
CHECKS = ("simumax-gemm", "llmcompass", "rapid-ncu", "stas-mamf", "flashattention")
QUICK = "l40s"


def hardware_of(name: str) -> set[str]:
    """The accelerators with a system that a data file has rows of."""
    return {row["hardware"] for row in read_measurements(DATA / f"{name}.csv").rows} & PLATFORMS.keys()


def files_of(hardware: str, present: dict[str, set[str]]) -> list[Path]:
    """What is fitted for an accelerator."""
    names = [name for name in FITTED if hardware in present[name]]
    if "aic-gemm" in names:
        names = [name for name in names if name not in CHECKS]
    return [DATA / f"{name}.csv" for name in names]


def generalizes(found: Calibrated) -> bool:
    """Whether the fit is worth shipping: no kind of table may be predicted, left out, half again as badly as configured."""
    kinds = [found.groups[str(kind)] for kind in set(found.kinds)]
    return all(one.cross_validated.median_ape < 1.5 * one.before.median_ape for one in kinds)


def percent(errors: Errors) -> str:
    return f"{errors.median_ape:.1%} / {errors.p90_ape:.1%}"


def fitted_table(results: dict[str, Calibrated]) -> Table:
    rows = Table(title="median / 90th percentile of |predicted ÷ measured − 1|", box=None)
    for index, name in enumerate(
        ("hardware", "rows of", "n", "as configured", "fitted", "cross-validated", "in 90 % interval")
    ):
        rows.add_column(name, justify="right" if index > 1 else "left")
    for hardware, found in results.items():
        for name, errors in found.groups.items():
            inside = "–" if errors.coverage is None else f"{errors.coverage:.1%}"
            shares = (percent(one) for one in (errors.before, errors.after, errors.cross_validated))
            rows.add_row(hardware, name, f"{errors.before.n:,}", *shares, inside)
    return rows


def checked_table(
    results: dict[str, Calibrated], calibrations: dict[str, Path], present: dict[str, set[str]]
) -> Table:
    """Errors on the rows of sources that were not fitted."""
    rows = Table(title="sources that were not fitted: median / 90th percentile, bias", box=None)
    for index, name in enumerate(("hardware", "source", "n", "as configured", "calibrated", "bias")):
        rows.add_column(name, justify="right" if index > 1 else "left")
    for hardware in results:
        unseen = [
            name
            for name in CHECKS
            if hardware in present[name] and DATA / f"{name}.csv" not in files_of(hardware, present)
        ]
        for name in unseen:
            before, after = (
                validate(DATA / f"{name}.csv", choice)
                .summaries("hardware")[hardware]
                .metrics.get("latency_s")
                for choice in ("none", calibrations[hardware])
            )
            if after is not None:
                rows.add_row(
                    hardware, name, f"{after.n:,}", percent(before), percent(after), f"{after.bias:+.1%}"
                )
    return rows


def main():
    arguments = options(
        __doc__,
        "calibration",
        f"one small accelerator ({QUICK})",
        hardware={"help": "one accelerator, by its id in the data"},
        write_configs={"action": "store_true", "help": "also ship those fits that generalize"},
    )
    arguments.out.mkdir(parents=True, exist_ok=True)

    present = {name: hardware_of(name) for name in {*FITTED, *CHECKS}}
    chosen = arguments.hardware or (QUICK if arguments.quick else None)
    everything = [name for name in PLATFORMS if files_of(name, present)]
    results, written = {}, {}
    for hardware in [name for name in everything if chosen in (None, name)]:
        start = time.perf_counter()
        found = calibrate(files_of(hardware, present), hardware)
        seconds = time.perf_counter() - start
        rows = sum(source.rows for source in found.sources)
        print(f"{hardware}: {len(found.parameters)} parameters, {rows:,} rows, {seconds:.1f} s")
        results[hardware], written[hardware] = found, arguments.out / f"{hardware}.toml"
        write_calibration(found, written[hardware])
        if arguments.write_configs and generalizes(found):
            write_calibration(found, config_root() / "calibrations" / f"{hardware}.toml")
        plots.save(plots.calibration(found, f"{hardware}: {rows:,} rows"), arguments.out / f"{hardware}.png")

    with (arguments.out / "errors.txt").open("w", encoding="utf-8") as file:
        for console in (Console(width=150), Console(file=file, width=150)):
            console.print(fitted_table(results), "", checked_table(results, written, present), sep="\n")


if __name__ == "__main__":
    main()
