"""Fits a few physical parameters of each accelerator to thousands of measured kernels and collectives.

Fits the calibratable parameters of every accelerator that has data (data/README.md), and writes a
calibration file and a figure for each and a table of errors. Errors are cross-validated by families of
shapes. The sources that were not fitted then check the result.

    python studies/calibration/run.py [--quick] [--hardware ID] [--out DIR] [--write-configs]
"""

import sys
import time
from pathlib import Path

from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.calibration_file import write_calibration
from diffperf.explore.measured.statistics import Errors
from diffperf.explore.measured.table import read_measurements
from diffperf.explore.measured.validate import validate
from diffperf.load import config_root
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, parse_options, publish

DATA = Path(__file__).parent / "data"
FITTED = (
    "aic-gemm",
    "aic-attention",
    "aic-nccl",
    "vidur",
    "vtrain-allreduce",
    "simumax-gemm",
    "llmcompass",
)
# Where an accelerator has the GEMMs of aiconfigurator, these small or throttled sets check the fit instead.
CHECKS = ("simumax-gemm", "llmcompass", "rapid-ncu", "stas-mamf", "flashattention")
QUICK = "l40s"

# The largest ratio of the cross-validated to the configured median error of a fit that is shipped: a choice.
LARGEST_ERROR_RATIO = 1.5


def hardware_of(source: str) -> set[str]:
    """Returns the hardware that a source has rows of, by the names in the tables."""
    return {row["hardware"] for row in read_measurements(DATA / f"{source}.csv").rows}


def fitted_files(hardware: str, hardware_by_source: dict[str, set[str]]) -> list[Path]:
    """Returns the tables that the parameters of an accelerator are fitted to."""
    sources = [source for source in FITTED if hardware in hardware_by_source[source]]
    if "aic-gemm" in sources:
        sources = [source for source in sources if source not in CHECKS]
    return [DATA / f"{source}.csv" for source in sources]


def generalizes(calibrated: Calibrated) -> bool:
    """Whether no kind of table is predicted much worse, cross-validated, than with the configured values."""
    groups = [calibrated.groups[str(kind)] for kind in set(calibrated.kinds)]
    return all(
        group.cross_validated.median_ape < LARGEST_ERROR_RATIO * group.before.median_ape for group in groups
    )


def median_and_tail(errors: Errors) -> str:
    """Returns the median and the 90th percentile of the errors as text."""
    return f"{errors.median_ape:.1%} / {errors.p90_ape:.1%}"


def fitted_table(results: dict[str, Calibrated]) -> Table:
    """Tabulates the errors on the rows that were fitted."""
    columns = {
        "hardware": ("hardware", ""),
        "group": ("rows of", ""),
        "count": ("n", ",.0f"),
        "configured": ("as configured", ""),
        "fitted": ("fitted", ""),
        "cross_validated": ("cross-validated", ""),
        "coverage": ("in 90 % interval", ".1%"),
    }
    rows = [
        {
            "hardware": hardware,
            "group": name,
            "count": group.before.n,
            "configured": median_and_tail(group.before),
            "fitted": median_and_tail(group.after),
            "cross_validated": median_and_tail(group.cross_validated),
            "coverage": group.coverage,
        }
        for hardware, calibrated in results.items()
        for name, group in calibrated.groups.items()
    ]
    title = "Fitted rows: median / 90th percentile of |predicted ÷ measured − 1|"
    return Table("fitted", title, columns, rows)


def checked_table(calibrations: dict[str, Path], hardware_by_source: dict[str, set[str]]) -> Table:
    """Tabulates the errors on the rows of sources that were not fitted."""
    columns = {
        "hardware": ("hardware", ""),
        "source": ("source", ""),
        "count": ("n", ",.0f"),
        "configured": ("as configured", ""),
        "calibrated": ("calibrated", ""),
        "bias": ("bias", "+.1%"),
    }
    rows = []
    for hardware, calibration in calibrations.items():
        fitted = fitted_files(hardware, hardware_by_source)
        for source in CHECKS:
            path = DATA / f"{source}.csv"
            if hardware not in hardware_by_source[source] or path in fitted:
                continue
            before, after = (
                validate(path, choice).summaries("hardware")[hardware].metrics.get("latency_s")
                for choice in ("none", calibration)
            )
            if before is not None and after is not None:
                rows.append(
                    {
                        "hardware": hardware,
                        "source": source,
                        "count": after.n,
                        "configured": median_and_tail(before),
                        "calibrated": median_and_tail(after),
                        "bias": after.bias,
                    }
                )
    title = "Sources that were not fitted: median / 90th percentile, bias"
    return Table("checked", title, columns, rows)


def fit(hardware: str, files: list[Path], out: Path) -> Calibrated:
    """Fits the parameters of one accelerator; writes its calibration file and its figure."""
    start = time.perf_counter()
    calibrated = calibrate(files, hardware)
    seconds = time.perf_counter() - start
    rows = sum(source.rows for source in calibrated.sources)
    print(f"{hardware}: {len(calibrated.parameters)} parameters, {rows:,} rows, {seconds:.1f} s")
    write_calibration(calibrated, out / f"{hardware}.toml")
    plots.save(plots.calibration(calibrated, f"{hardware}: {rows:,} rows"), out / f"{hardware}.png")
    return calibrated


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__,
        "calibration",
        f"one small accelerator ({QUICK})",
        hardware={"help": "one accelerator, by its name in the data"},
        write_configs={"action": "store_true", "help": "also ship the fits that generalize"},
    )
    hardware_by_source = {source: hardware_of(source) for source in {*FITTED, *CHECKS}}
    all_hardware = sorted(set().union(*(hardware_by_source[source] for source in FITTED)))
    only = options.hardware or (QUICK if options.quick else None)
    results, calibrations = {}, {}
    for hardware in [name for name in all_hardware if only in (None, name)]:
        calibrated = fit(hardware, fitted_files(hardware, hardware_by_source), options.out)
        results[hardware], calibrations[hardware] = calibrated, options.out / f"{hardware}.toml"
        if options.write_configs and generalizes(calibrated):
            write_calibration(calibrated, config_root() / "calibrations" / f"{hardware}.toml")
    publish(options.out, [fitted_table(results), checked_table(calibrations, hardware_by_source)])


if __name__ == "__main__":
    main()
