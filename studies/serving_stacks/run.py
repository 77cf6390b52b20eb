"""How well inference and serving are predicted, and the parameters of serving stacks that runs determine.

Fits the parameters of each stack to its own runs on all hardware together, on top of the shipped calibrations
of the accelerators' kernels and collectives, and reports the errors on runs that were left out of the fit: of
near configurations, of whole models and of whole accelerators. Then compares the shipped stacks with every
table.

    python studies/serving_stacks/run.py [--quick] [--stack NAME] [--table FILE] [--out DIR]

With --table, the stacks that are marked so are fitted to a table of your own in the columns that
`diffperf validate` reads; those of DeepSeek-R1 are meant for the closed-loop runs of InferenceX
(SemiAnalysis), whose licence does not allow this repository to hold them.
"""

import dataclasses
import sys
from pathlib import Path

from diffperf.explore.calibrate.calibrate import calibrate_stack
from diffperf.explore.calibrate.calibrated import Calibrated
from diffperf.explore.calibrate.observations import of_stack
from diffperf.explore.measured.conditions import where
from diffperf.explore.measured.table import Measurements, read_measurements
from diffperf.explore.measured.validate import validate
from diffperf.load import load_stack
from diffperf.report import plots

sys.path.append(str(Path(__file__).parents[1]))
from fitted_stacks import errors_table, fit_rows, fits_table, median_and_tail
from reporting import Table, parse_options, publish

DATA = Path(__file__).parent / "data"
FILES = {"ml-energy": DATA.parents[1] / "power" / "data" / "ml-energy.csv"}  # of other studies
TABLES = (
    "nvidia-llama2",
    "trtllm-static",
    "fastertransformer",
    "argonne",
    "llamacpp",
    "lmdeploy",
    "koyeb",
    "papers-misc-inf",
    "aic-silicon",
)
QUICK_TABLES = ("nvidia-llama2", "lmdeploy", "koyeb")
TIMES = {"latency_s": "latency", "tpot_s": "per token"}  # what the figure shows, by its column
COLUMNS = ("latency_s", "ttft_s", "tpot_s", "throughput_tokens_per_s")

PRIOR_SPREAD = 0.5  # of the logarithm of a stack's parameter: a factor of e at two standard deviations
# What a fit leaves out together, by the heading of its errors; None for near configurations.
LEFT_OUT = {"left out": None, "models out": "model", "hardware out": "hardware"}


@dataclasses.dataclass(frozen=True)
class ServingFit:
    """A stack, the runs that its parameters are fitted to, and the parameters.

    - `table`: the name of a shipped table; None for the table of the command line.
    - `conditions`: those that the rows meet, as of `diffperf calibrate --where`.
    - `column`: the measured column, where it is another than the times to first token and per token.
    - `others`: the name of a shipped table whose rows of the stack count too, those that meet
      `others_conditions`.
    """

    stack: str
    table: str | None
    parameters: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    column: str | None = None
    others: str | None = None
    others_conditions: tuple[str, ...] = ()

    def tables(self, own: Path | None) -> list[Measurements]:
        """Returns the tables with the runs of the fit; `own` is the table of the command line."""
        tables = [self.rows(own)]
        if self.others is None:
            return tables
        return [*tables, where(read_measurements(DATA / f"{self.others}.csv"), self.others_conditions)]

    def rows(self, own: Path | None) -> Measurements:
        """Returns the runs of the first table; `own` is that of the command line."""
        file = FILES.get(self.table, DATA / f"{self.table}.csv") if self.table is not None else own
        assert file is not None, "a fit without a table of its own needs that of the command line"
        return where(read_measurements(file), self.conditions)

    def run(self, own: Path | None) -> dict[str, Calibrated]:
        """Fits the parameters, once for each way to leave runs out.

        A way is skipped where all runs of the stack are of one model, or of one accelerator.
        """
        tables = self.tables(own)
        other_software = of_stack(load_stack(self.stack), tables[0].platforms)
        runs = [row for table in tables for row in table.rows if other_software(row) is None]
        results = {}
        for heading, column in LEFT_OUT.items():
            if column is None or len({row[column] for row in runs}) > 1:
                results[heading] = calibrate_stack(
                    tables,
                    self.stack,
                    self.parameters,
                    prior_spread=PRIOR_SPREAD,
                    leave_out=column,
                    column=self.column,
                )
        return results


OVERHEAD_PARAMETERS = ("kernel_overhead", "engine_step", "engine_sequence")
WITH_COLLECTIVES = (*OVERHEAD_PARAMETERS, "collective_overhead")
SLOWER_KERNELS = (*WITH_COLLECTIVES, "attention_efficiency", "matrix_efficiency")


def server(*late: str) -> tuple[str, ...]:
    """Returns the parameters of a stack that serves requests, with those that delay first tokens by steps."""
    return (
        *OVERHEAD_PARAMETERS,
        "exposed_start",
        "prompt_launch",
        "request_overhead",
        *late,
        "routing_kernels",
        "separate_conversion",
        "product_latency",
        "matrix_efficiency",
    )


SERVER = server("stream_interval")
DENSE_SERVER = tuple(name for name in SERVER if name != "routing_kernels")  # four of its 67 runs have experts
PROMPT_SERVER = server()  # TensorRT-LLM's PyTorch flow sends first tokens at once
# Requests of equal lengths come while engines prefill for those before them.
SCHEDULED_SERVER = server("scheduled_steps")
POLLING_SERVER = server("poll_interval")
# Where other runs determine the rates of products; the other two hardly act on these runs.
MEASURED_PRODUCTS = tuple(
    name for name in POLLING_SERVER if name not in ("prompt_launch", "product_latency", "matrix_efficiency")
)
# Rates of kernels on MI300X that nobody has measured.
OF_MI300 = ("narrow_efficiency", "attention_efficiency")
ONE_POOL = ("disaggregated=false", "spec_method=none")
LATEST = ("latest=true", *ONE_POOL)
# AMD's own build of SGLang 0.5.2 takes 1.3 times as long as 0.5.5 on MI355X.
PUBLIC_IMAGES = ("framework=sglang lmsysorg*", *ONE_POOL)
POOLS = ("latest=true", "disaggregated=true", "spec_method=none")

FITS = (
    ServingFit(
        "tensorrt-llm-nemo", "nvidia-llama2", ("kernel_overhead", "attention_efficiency", "engine_step")
    ),
    ServingFit(
        "fastertransformer",
        "fastertransformer",
        (*OVERHEAD_PARAMETERS, "collective_overhead", "matrix_efficiency"),
    ),
    ServingFit(
        "tensorrt-llm-0.5",
        "trtllm-static",
        (*OVERHEAD_PARAMETERS, "attention_efficiency", "matrix_efficiency"),
    ),
    ServingFit("tensorrt-llm", "argonne", WITH_COLLECTIVES),
    ServingFit("tensorrt-llm-0.7", "trtllm-static", SLOWER_KERNELS),
    ServingFit("vllm", "argonne", WITH_COLLECTIVES),
    ServingFit("vllm-rocm", "argonne", SLOWER_KERNELS),
    ServingFit("vllm-xpu", "argonne", WITH_COLLECTIVES),
    ServingFit("deepspeed-mii", "argonne", WITH_COLLECTIVES),
    # The ML.ENERGY Benchmark.
    ServingFit("vllm-0.8", "ml-energy", WITH_COLLECTIVES, ("ep=1",)),
    ServingFit("vllm-0.8", "ml-energy", ("untuned_efficiency",), ("ep>1",)),
    ServingFit("lmdeploy", "lmdeploy", OVERHEAD_PARAMETERS),
    ServingFit("llama.cpp", "llamacpp", ("kernel_overhead", "engine_step", "matrix_efficiency")),
    ServingFit("llama.cpp-metal", "llamacpp", ("kernel_overhead", "engine_step", "matrix_efficiency")),
    # Not its 11 runs of DeepSeek, of release 1.1, which seem to predict several tokens at once.
    ServingFit("tensorrt-llm-1", "aic-silicon", SCHEDULED_SERVER, ("framework=trtllm 1.0*",)),
    # Nor those of the third post-release of 1.2.0rc6 and of 1.1 on Blackwell.
    ServingFit(
        "tensorrt-llm-1-blackwell",
        None,
        SERVER,
        ONE_POOL,
        others="aic-silicon",
        others_conditions=("framework!=trtllm 1.1*", "framework!=*post3*"),
    ),
    ServingFit(
        "tensorrt-llm-1.3", None, (*OVERHEAD_PARAMETERS, "request_overhead", "routing_kernels"), ONE_POOL
    ),
    ServingFit("tensorrt-llm-pytorch", "aic-silicon", PROMPT_SERVER),
    ServingFit("tensorrt-llm-pytorch-blackwell", "aic-silicon", PROMPT_SERVER),
    ServingFit("vllm-2025", "aic-silicon", SERVER),
    ServingFit("vllm-2025-blackwell", "aic-silicon", DENSE_SERVER),
    ServingFit("vllm-0.12-blackwell", "aic-silicon", ("kernel_overhead", "unpacking_efficiency")),
    ServingFit("vllm-0.16", "aic-silicon", SERVER),
    ServingFit("vllm-0.16-blackwell", "aic-silicon", SERVER),
    # With the rates of products as fitted to these runs (0.6), other models would take too long.
    ServingFit("sglang", None, MEASURED_PRODUCTS, PUBLIC_IMAGES, others="aic-silicon"),
    ServingFit("sglang-rocm", None, POLLING_SERVER, PUBLIC_IMAGES),
    ServingFit("sglang-rocm-mi300", None, (*MEASURED_PRODUCTS, *OF_MI300), PUBLIC_IMAGES),
    ServingFit("sglang-0.5.12", None, POLLING_SERVER, LATEST),
    ServingFit("sglang-0.5.12-rocm", None, POLLING_SERVER, LATEST),
    ServingFit("sglang-0.5.12-rocm-mi300", None, MEASURED_PRODUCTS, LATEST),
    ServingFit("sglang-blackwell", None, POLLING_SERVER, LATEST),
    ServingFit("atom", None, POLLING_SERVER, LATEST),
    # Median first tokens are those of the steady state; means are over whole runs, their starts among them.
    *(
        ServingFit(stack, None, ("start_steps",), LATEST, column="ttft_mean_s")
        for stack in (
            "sglang-0.5.12",
            "sglang-0.5.12-rocm",
            "sglang-0.5.12-rocm-mi300",
            "sglang-blackwell",
            "atom",
        )
    ),
    # With pools of their own for prompts.
    *(
        ServingFit(stack, None, ("handover",), POOLS)
        for stack in (
            "sglang",
            "sglang-0.5.12-rocm",
            "tensorrt-llm-pytorch",
            "tensorrt-llm-pytorch-blackwell",
        )
    ),
)


def fits(results: dict[ServingFit, dict[str, Calibrated]]) -> Table:
    """Tabulates the parameters of the stacks, and the errors as shipped, as fitted and on runs left out."""
    headings = {"as_shipped": "as shipped", "after": "as fitted"}
    headings |= {heading: heading for heading in LEFT_OUT}
    rows = []
    for fit, by_heading in results.items():
        first = next(iter(by_heading.values()))
        errors = {"as_shipped": median_and_tail(first.before), "after": median_and_tail(first.after)}
        errors |= dict.fromkeys(LEFT_OUT, "–")
        errors |= {heading: median_and_tail(one.held_out) for heading, one in by_heading.items()}
        rows += fit_rows(fit.stack, first.hardware, first, errors)
    title = (
        "Parameters of serving stacks; median / 90th percentile of |predicted ÷ measured − 1| as shipped, as"
        " fitted,\nand by fits that had not seen near configurations, the model, the accelerator"
    )
    return fits_table(rows, title, headings)


def main() -> None:
    """Runs the study."""
    options = parse_options(
        __doc__,
        "serving_stacks",
        "one stack, and the smallest tables",
        stack={"help": "fit this stack alone", "choices": sorted({fit.stack for fit in FITS})},
        table={
            "type": Path,
            "metavar": "FILE",
            "help": "a table of your own, for the stacks without one here",
        },
    )
    chosen = [fit for fit in FITS if fit.table is not None or options.table is not None]
    if options.stack:
        chosen = [fit for fit in chosen if fit.stack == options.stack]
    elif options.quick:
        chosen = chosen[:1]
    results = {fit: fit.run(options.table) for fit in chosen}
    names = () if options.stack else QUICK_TABLES if options.quick else TABLES
    validations = {name: validate(DATA / f"{name}.csv") for name in names}
    groups = [group for one in validations.values() for group in one.summaries("group").items()]
    tables = [fits(results), errors_table(groups, COLUMNS)]
    points = {
        f"{group}, {TIMES[column]}": pair
        for one in validations.values()
        for column in TIMES
        for group, pair in one.points_by("group", column).items()
    }
    figure = plots.predicted_against_measured(points, "time", "s") if points else None
    figures = {} if figure is None else {"times": figure}
    publish(options.out, tables, figures=figures)


if __name__ == "__main__":
    main()
