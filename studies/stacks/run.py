"""How well training runs are predicted, and the parameters of software stacks that measured runs determine.

Fits the parameters of each stack to its own runs, on top of the shipped calibration of the accelerator's
kernels and collectives, and reports the errors on families of configurations that were left out of the fit.
Then compares the shipped stacks with every table: step times, memory, and which runs ran out of memory. Last,
every framework is left out as a whole, as if nobody had measured it.

    python studies/stacks/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.figure import Figure

from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.measured.statistics import Summary
from diffperf.explore.measured.table import Measurements, Row, read_measurements
from diffperf.explore.measured.validate import Validation, validate
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from fitted_stacks import errors_table, fit_rows, fits_table, median_and_tail
from frameworks_left_out import errors_by_framework, table_of
from reporting import Table, parse_options, publish

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
QUICK_TABLES = ("korthikanti", "mosaic")
NANOTRON = "hf-ultrascale"
NANOTRON_BEFORE_FIX = "nanotron-stalled-pipeline"

STANDSTILL = 0.02  # MFU up to which a run mostly waits: a choice
LARGEST_JOB = 512  # devices
SHORT_BUBBLE = 1 / 8  # of the time of the micro-batches, without interleaving: a choice
PRIOR_SPREAD = 0.5  # of the logarithm of a stack's parameter: a factor of e at two standard deviations

# --- which runs a fit takes


def every_run(row: Row) -> bool:
    """Whether a fit to all runs of a table takes this one: always."""
    return True


def works(row: Row) -> bool:
    """Whether a nanotron run works, after the fix of its pipeline, on fewer devices than the largest job.

    Runs on 512 devices without a pipeline take up to seven times as long as others of their kind, which is
    not explained.
    """
    moves = bool(row["mfu"] and row["mfu"] > STANDSTILL)
    return moves and not stalls_at_messages(row) and row["n_devices"] < LARGEST_JOB


def stalls_at_messages(row: Row) -> bool:
    """Whether a nanotron run was made before the fix of its pipeline."""
    return row["framework"] == NANOTRON_BEFORE_FIX


def dense(row: Row) -> bool:
    """Whether the model of a run has no experts."""
    return not row["experts"]


def dense_in(precision: str) -> Callable[[Row], bool]:
    """Returns a function that tells whether a run is of a dense model in a number format."""
    return lambda row: dense(row) and row["precision"] == precision


def with_experts(row: Row) -> bool:
    """Whether the model of a run has experts, gpt-oss excepted.

    Runs of gpt-oss take much longer than others of their size, which is not explained.
    """
    return bool(row["experts"]) and not row["model"].startswith("gpt-oss")


def hardly_a_bubble(row: Row) -> bool:
    """Whether the bubble of a run is short, however its pipeline interleaves stages, which is not published.

    The table assumes one stage a device. Runs with few micro-batches are faster beside those with many than
    that allows.
    """
    replicas = row["n_devices"] / (row["tp"] * row["pp"] * row["cp"])
    micro_batches = row["global_batch"] / (replicas * row["micro_batch"])
    return (row["pp"] - 1) / micro_batches < SHORT_BUBBLE


def on_one_node(row: Row) -> bool:
    """Whether a run took no more devices than a node has."""
    return row["n_devices"] <= row["devices_per_node"]


# --- fits


@dataclasses.dataclass(frozen=True)
class TrainingFit:
    """A stack on an accelerator, the runs that its parameters are fitted to, and the parameters.

    A parameter without a dot in its name is one of the stack.
    """

    table: str
    hardware: str
    stack: str
    parameters: tuple[str, ...]
    takes: Callable[[Row], bool] = every_run

    def rows(self) -> Measurements:
        """Returns the runs of the fit."""
        table = read_measurements(DATA / f"{self.table}.csv")
        rows = [row for row in table.rows if row["hardware"] == self.hardware and self.takes(row)]
        return dataclasses.replace(table, rows=rows)

    def run(self) -> Calibrated:
        """Fits the parameters."""
        paths = [name if "." in name else f"stack.{name}" for name in self.parameters]
        return calibrate(
            [self.rows()],
            self.hardware,
            paths,
            stack=self.stack,
            prior_spread=PRIOR_SPREAD,
            calibration=None,
        )


FSDP_PARAMETERS = ("elementwise_traffic", "matrix_efficiency", "attention_efficiency", "collective_units")
NANOTRON_PARAMETERS = (
    "elementwise_traffic",
    "matrix_efficiency",
    "host_launch",
    "step_overhead",
    "network_efficiency",
    "rank_stall",
    "group_stall",
)
KERNEL_PARAMETERS = ("matrix_efficiency", "attention_efficiency")
MEGATRON_CORE_PARAMETERS = ("matrix_efficiency", "collective_units", "network_efficiency")
BRIDGE = "megatron-bridge-26.04"
BRIDGE_ON_BLACKWELL = f"{BRIDGE}-blackwell"
FITS = (
    TrainingFit("mosaic", "h100-sxm5-80gb", "llm-foundry-fsdp-hopper", FSDP_PARAMETERS),
    TrainingFit("mosaic", "a100-sxm4-80gb", "llm-foundry-fsdp", FSDP_PARAMETERS),
    TrainingFit("mosaic", "a100-sxm4-40gb", "llm-foundry-fsdp", FSDP_PARAMETERS),
    TrainingFit("vtrain", "a100-sxm4-80gb", "vtrain", ("host_launch", "head_launch"), takes=on_one_node),
    TrainingFit(NANOTRON, "h100-sxm5-80gb", "nanotron", NANOTRON_PARAMETERS, takes=works),
    TrainingFit(
        NANOTRON, "h100-sxm5-80gb", NANOTRON_BEFORE_FIX, ("message_stall",), takes=stalls_at_messages
    ),
    TrainingFit("nemo", "h100-sxm5-80gb", "nemo", KERNEL_PARAMETERS),
    TrainingFit("moe-folding", "h100-sxm5-80gb", "megatron-core", MEGATRON_CORE_PARAMETERS),
    TrainingFit(
        "moe-folding", "h100-sxm5-80gb", "megatron-core", MEGATRON_CORE_PARAMETERS, takes=hardly_a_bubble
    ),
    TrainingFit("nemo", "gb200", BRIDGE_ON_BLACKWELL, KERNEL_PARAMETERS, takes=dense),
    TrainingFit("nemo", "h100-sxm5-80gb", BRIDGE, ("routing_wait",), takes=with_experts),
    TrainingFit("nemo", "gb200", BRIDGE_ON_BLACKWELL, ("routing_wait",), takes=with_experts),
    *(
        TrainingFit(
            "nemo",
            "gb300",
            BRIDGE_ON_BLACKWELL,
            (f"accelerator.matrix.{name}.efficiency",),
            takes=dense_in(name),
        )
        for name in ("fp8", "mxfp8", "nvfp4")
    ),
    TrainingFit("others", "tpu-v5e", "maxtext", ("matrix_efficiency",)),
    TrainingFit("others", "tpu-v5p", "maxtext", ("matrix_efficiency",)),
    TrainingFit("others", "tpu-v4", "maxtext", ("matrix_efficiency",)),
)


# --- tables

COLUMNS = ("step_time_s", "mfu", "peak_memory_bytes", "reserved_memory_bytes")


def fits(results: dict[TrainingFit, Calibrated]) -> Table:
    """Tabulates the parameters of the stacks and the errors of the fits."""
    headings = {"as_shipped": "as shipped", "after": "after", "left_out": "left out"}
    rows = []
    for fit, calibrated in results.items():
        errors = (calibrated.before, calibrated.after, calibrated.held_out)
        shown = dict(zip(headings, map(median_and_tail, errors), strict=True))
        rows += fit_rows(fit.stack, fit.hardware, calibrated, shown)
    title = "Parameters of stacks; median / 90th percentile of |predicted ÷ measured − 1| of step times"
    return fits_table(rows, title, headings)


def groups_of(validations: dict[str, Validation]) -> Iterator[tuple[str, Summary]]:
    """Yields every group of every table, and of the nanotron runs also those above a standstill."""
    for name, validation in validations.items():
        yield from map(_without_mfu_of_times, validation.summaries("group").items())
        if name == NANOTRON:
            moving = [run for run in validation.evaluations if run.measured.get("mfu", 0.0) > STANDSTILL]
            yield _without_mfu_of_times((f"… above {STANDSTILL:.0%} MFU", validation.summary(moving)))


def _without_mfu_of_times(group: tuple[str, Summary]) -> tuple[str, Summary]:
    """Returns a group, without errors of the MFU where step times were measured, from which it follows."""
    name, summary = group
    if "step_time_s" not in summary.metrics:
        return group
    metrics = {column: errors for column, errors in summary.metrics.items() if column != "mfu"}
    return name, dataclasses.replace(summary, metrics=metrics)


def draw(validations: dict[str, Validation]) -> Figure:
    """Draws predicted against measured step times of all groups."""
    points = {
        group: pair
        for validation in validations.values()
        for group, pair in validation.points_by("group", "step_time_s").items()
    }
    return plots.predicted_against_measured(points, "step time", "s")


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "stacks", "one stack, and the tables of less than a hundred runs")
    results = {fit: fit.run() for fit in (FITS[:1] if options.quick else FITS)}
    names = QUICK_TABLES if options.quick else TABLES
    validations = {name: validate(DATA / f"{name}.csv") for name in names}
    unmeasured = errors_by_framework([DATA / f"{name}.csv" for name in names], validations, STANDSTILL)
    tables = [fits(results), errors_table(groups_of(validations), COLUMNS), table_of(unmeasured)]
    publish(options.out, tables, figures={"step_times": draw(validations)})


if __name__ == "__main__":
    main()
