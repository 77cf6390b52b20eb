"""A pass of 13B over a prompt, against the memory and latency of Figure 4(d) of the paper."""

import dataclasses
from pathlib import Path

from matplotlib.axes import Axes
from reporting import Table, evaluate_cases, label_point, read_rows, stack_cases

import diffperf as dp
from diffperf.estimate.inference import PassReport
from diffperf.report.plots import BLUE, GREY, bare
from diffperf.workload.model import Model

PUBLISHED = Path(__file__).parent / "published_serving.csv"
SYSTEM = "dgx-a100"  # the paper names no GPU with the figure; its training ran on A100 80 GB
PROMPT = 2048  # tokens, one sequence


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reading of what the paper ran: kind of model, software, format of products and of weights."""

    name: str
    attention: bool
    stack: str
    precision: str
    weight_precision: str

    @property
    def column(self) -> str:
        """The start of the names of the published columns."""
        return "transformer" if self.attention else "matmul_free"


READINGS = (
    Reading("MatMul-free, plain kernels", False, "matmulfree-unfused", "bf16", "ternary"),
    Reading("MatMul-free, fused kernels", False, "matmulfree-fused", "bf16", "ternary"),
    Reading("transformer, bf16", True, "huggingface", "bf16", "bf16"),
    Reading("transformer, fp32", True, "huggingface", "fp32", "fp32"),
)


def transformer_like(model: Model) -> Model:
    """Returns the model with attention in place of its recurrence, the paper's Transformer++."""
    layers = tuple(dataclasses.replace(kind, recurrence=None) for kind in model.layers)
    return dataclasses.replace(model, layers=layers)


def large_model() -> Model:
    """Returns the recurrence with the dimensions of Llama 2 13B; the paper does not state its own."""
    model, llama = dp.load_model("matmulfree-2.7b"), dp.load_model("llama-2-13b")
    recurrence = model.layers[0].recurrence
    layers = tuple(dataclasses.replace(kind, recurrence=recurrence) for kind in llama.layers)
    return dataclasses.replace(llama, layers=layers)


def estimate_readings() -> dict[str, PassReport]:
    """Estimates a pass over the prompt by every reading, those of one kind of model in one program."""
    reports: dict[str, PassReport] = {}
    for attention in (False, True):
        readings = [reading for reading in READINGS if reading.attention == attention]
        model = transformer_like(large_model()) if attention else large_model()
        cases = []
        for reading in readings:
            strategy = {
                "global_batch": 1,
                "sequence_length": PROMPT,
                "precision": reading.precision,
                "weight_precision": reading.weight_precision,
            }
            system = dp.load_system(SYSTEM, 1, stack=reading.stack)
            cases.append((model, system, dp.load_strategy(strategy)))
        results = evaluate_cases(dp.prefill, *stack_cases(cases))
        reports |= {reading.name: report for reading, report in zip(readings, results, strict=True)}
    return reports


def large_table() -> Table:
    """Tabulates memory and latency of 13B by all readings against Figure 4(d) of the paper."""
    columns = {
        "model": ("model", ""),
        "weights_gb": ("weights GB", ".2f"),
        "peak_gb": ("peak GB", ".2f"),
        "published_gb": ("published GB", ".2f"),
        "memory_error": ("error", "+.0%"),
        "pass_ms": ("ms", ".0f"),
        "published_ms": ("published ms", ".0f"),
        "time_error": ("error", "+.0%"),
        "elementwise": ("element-wise", ".0%"),
    }
    published = read_rows(PUBLISHED)[0]
    reports = estimate_readings()
    rows = []
    for reading in READINGS:
        report = reports[reading.name]
        gigabytes, milliseconds = (float(published[f"{reading.column}_{unit}"]) for unit in ("gb", "ms"))
        rows.append(
            {
                "model": reading.name,
                "weights_gb": report.memory.weights / 1e9,
                "peak_gb": report.memory.peak / 1e9,
                "published_gb": gigabytes,
                "memory_error": report.memory.peak / 1e9 / gigabytes - 1,
                "pass_ms": 1e3 * report.time,
                "published_ms": milliseconds,
                "time_error": 1e3 * report.time / milliseconds - 1,
                "elementwise": report.breakdown.elementwise / report.time,
            }
        )
    return Table("serving_13b", f"Serving 13B: a pass over one prompt of {PROMPT:,} tokens", columns, rows)


def draw_large(axes: Axes, table: Table, ours: str, published: str, title: str) -> None:
    """Draws two columns of the table of 13B as bars."""
    for x, row in enumerate(table.rows):
        bars = ((-0.2, published, GREY, "published"), (0.2, ours, BLUE, "ours"))
        for shift, column, colour, label in bars:
            axes.bar(x + shift, row[column], width=0.38, color=colour, label=label if x == 0 else None)
            value = float(row[column])
            label_point(axes, format(value, ",.0f" if value >= 100 else ".3g"), x + shift, value)
    axes.set_xticks(range(len(table.rows)), [row["model"].replace(", ", "\n") for row in table.rows])
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    bare(axes)


def large_finding(table: Table) -> str:
    """Writes what the table of 13B shows."""
    rows = {row["model"]: row for row in table.rows}
    plain, fused, half, single = (rows[reading.name] for reading in READINGS)
    parameters = float(large_model().parameters)
    return (
        f" For 13B the paper gives {single['published_gb']:g} GB and {single['published_ms']:.0f} ms of its"
        " transformer and does not say of what the latency is. A pass over the prompt in fp32 comes near"
        f" both: {single['peak_gb']:.1f} GB and {single['pass_ms']:.0f} ms ({single['memory_error']:+.0%} and"
        f" {single['time_error']:+.0%}; its weights alone would take {4 * parameters / 1e9:.0f} GB, so the"
        f" paper's 13B has fewer than ours); in bf16 it takes {half['peak_gb']:.1f} GB and"
        f" {half['pass_ms']:.0f} ms. Of the MatMul-free model we get {fused['peak_gb']:.1f} GB, published"
        f" {fused['published_gb']:g}, and {plain['pass_ms']:.0f} ms with plain and {fused['pass_ms']:.0f} ms"
        f" with fused kernels, published {fused['published_ms']:.0f}: a pass is"
        f" {2 * parameters * PROMPT / 1e12:.0f} TFLOP, which we time with bf16 products at the efficiency of"
        " cuBLAS; the published run used BitBLAS, whose efficiency for prompts we do not know. If the"
        " transformer ran in fp32, the published factor of"
        f" {single['published_ms'] / fused['published_ms']:.1f} in time is one of number formats before it is"
        f" one of architecture: in bf16 we get a factor of {half['pass_ms'] / fused['pass_ms']:.1f}."
    )
