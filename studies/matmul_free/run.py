"""MatMul-free language models (arXiv 2406.02528): fused linear layers in training, no KV cache in serving.

Training: the 1.3B model on one A100 80 GB with the plain and the fused BitLinear against the published time
and memory (`published.csv`). The element-wise kernels of the stacks `matmulfree-unfused` and
`matmulfree-fused` are counted from the published code. Serving: packed ternary weights over the context,
against a transformer of the same width, depth and number of parameters, and a pass of 13B against Figure 4(d)
of the paper (`published_serving.csv`).

    python studies/matmul_free/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

import diffperf as dp
from diffperf.estimate.inference import GenerationReport
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, GREY, ORANGE, bare
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from inference import draw_large, large_finding, large_table, transformer_like
from reporting import (
    Table,
    binary_axis,
    choice_weights,
    evaluate_cases,
    figure_style,
    label_point,
    parse_options,
    publish,
    read_rows,
)

HERE = Path(__file__).parent
SYSTEM = "dgx-a100"
BATCH, SEQUENCE_LENGTH = 28, 1024  # of the published training step
OTHER_BATCH = 2**8  # the batch as another extraction of the paper's text reads it
STACKS = ("unfused", "fused")
RECOMPUTATIONS = ("none", "full")
SERVED_SEQUENCES, OUTPUT_LENGTH = 16, 128

# Mixed precision of PyTorch's autocast: weights, gradients and both moments in fp32, 16 bytes a parameter.
TRAINING = {
    "sequence_length": SEQUENCE_LENGTH,
    "weight_precision": "fp32",
    "gradient_precision": "fp32",
    "optimizer_bytes": "8 B",
}


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A kind of model with a format of its weights, and how the figure draws it."""

    attention: bool
    weight_precision: str
    colour: str
    dashes: str | tuple = "-"


DASHED = (0, (2, 2))
SERVED_MODELS = {
    "transformer, bf16": ServedModel(attention=True, weight_precision="bf16", colour=BLUE),
    "transformer, ternary": ServedModel(
        attention=True, weight_precision="ternary", colour=BLUE, dashes=DASHED
    ),
    "MatMul-free, bf16": ServedModel(attention=False, weight_precision="bf16", colour=ORANGE),
    "MatMul-free, ternary": ServedModel(
        attention=False, weight_precision="ternary", colour=ORANGE, dashes=DASHED
    ),
}


# --- training


@dataclasses.dataclass(frozen=True)
class Step:
    """The estimate of a training step of one micro-batch."""

    stack: str
    recompute: str
    batch: int
    report: TrainingReport


def estimate_steps(batches: list[int]) -> list[Step]:
    """Estimates training steps of the 1.3B model for all stacks, recomputations and batches."""
    model, base = dp.load_model("matmulfree-1.3b"), dp.load_strategy(TRAINING)
    cases = [(recompute, batch) for recompute in RECOMPUTATIONS for batch in batches]
    weights = np.stack([choice_weights(Strategy, "recompute", recompute) for recompute, _ in cases])
    sizes = np.array([batch for _, batch in cases], float)
    steps = []
    for stack in STACKS:
        system = dp.load_system(SYSTEM, 1, stack=f"matmulfree-{stack}")

        def step(recompute: jax.Array, batch: jax.Array, system=system) -> TrainingReport:
            values = {"recompute": recompute, "global_batch": batch, "micro_batch": batch}
            return dp.training_step(model, system, replace(base, values))

        reports = evaluate_cases(step, weights, sizes)
        steps += [Step(stack, *case, report) for case, report in zip(cases, reports, strict=True)]
    return steps


def training_table(steps: list[Step]) -> Table:
    """Tabulates the steps with the published batch beside the published time and memory."""
    columns = {
        "stack": ("BitLinear", ""),
        "recompute": ("recomputed", ""),
        "step_s": ("step s", ".2f"),
        "published_s": ("published s", ".2f"),
        "time_error": ("error", "+.0%"),
        "elementwise": ("element-wise", ".0%"),
        "states_gb": ("states GB", ".1f"),
        "activations_gb": ("activations GB", ".1f"),
        "peak_gb": ("peak GB", ".1f"),
        "published_gb": ("published GB", ".0f"),
        "memory_error": ("error", "+.0%"),
    }
    published = {row["quantity"]: row for row in read_rows(HERE / "published.csv")}
    rows = []
    chosen = [step for step in steps if step.batch == BATCH]
    for step in sorted(chosen, key=lambda step: RECOMPUTATIONS.index(step.recompute)):
        report, memory = step.report, step.report.memory
        seconds, gigabytes = (float(published[name][step.stack]) for name in ("time", "memory"))
        rows.append(
            {
                "stack": step.stack,
                "recompute": step.recompute,
                "step_s": report.time,
                "published_s": seconds,
                "time_error": report.time / seconds - 1,
                "elementwise": report.breakdown.elementwise / report.time,
                "states_gb": (memory.weights + memory.gradients + memory.optimizer) / 1e9,
                "activations_gb": memory.activations / 1e9,
                "peak_gb": memory.peak / 1e9,
                "published_gb": gigabytes,
                "memory_error": memory.peak / 1e9 / gigabytes - 1,
            }
        )
    title = f"A training step of 1.3B: {BATCH} sequences of {SEQUENCE_LENGTH:,} tokens on one A100 80 GB"
    return Table("training", title, columns, rows)


# --- serving


@dataclasses.dataclass(frozen=True)
class Served:
    """The estimate of generating tokens with a served model after a context."""

    name: str
    context: int
    report: GenerationReport

    @property
    def fits(self) -> bool:
        """Whether the peak memory of the device is within its capacity."""
        return bool(self.report.memory.excess <= 0)


def estimate_serving(model: Model, batch: int, contexts: list[int]) -> list[Served]:
    """Estimates generation after each context by all served models, with the stack of TensorRT-LLM."""
    system = dp.load_system(SYSTEM, 1, stack="tensorrt-llm")
    results = []
    for name, served in SERVED_MODELS.items():
        variant = transformer_like(model) if served.attention else model
        base = dp.load_strategy(
            {
                "global_batch": batch,
                "output_length": OUTPUT_LENGTH,
                "weight_precision": served.weight_precision,
            }
        )

        def generate(context: jax.Array, variant=variant, base=base) -> GenerationReport:
            return dp.generate(variant, system, replace(base, {"sequence_length": context}))

        reports = evaluate_cases(generate, np.array(contexts, float))
        results += [Served(name, context, report) for context, report in zip(contexts, reports, strict=True)]
    return results


def serving_table(results: list[Served]) -> Table:
    """Tabulates memory and time of all served models and contexts."""
    columns = {
        "model": ("model", ""),
        "context": ("context", ",.0f"),
        "weights_gb": ("weights GB", ".2f"),
        "cache_gb": ("cache or state GB", ".4f"),
        "activations_gb": ("activations GB", ".2f"),
        "peak_gb": ("peak GB", ".2f"),
        "fits": ("fits", ""),
        "token_ms": ("ms a token", ".2f"),
    }
    rows = [
        {
            "model": served.name,
            "context": served.context,
            "weights_gb": served.report.memory.weights / 1e9,
            "cache_gb": served.report.memory.kv_cache / 1e9,
            "activations_gb": served.report.memory.activations / 1e9,
            "peak_gb": served.report.memory.peak / 1e9,
            "fits": "yes" if served.fits else "no",
            "token_ms": 1e3 * served.report.time_per_output_token,
        }
        for served in results
    ]
    return Table("serving", f"Serving 2.7B: {SERVED_SEQUENCES} sequences on one A100 80 GB", columns, rows)


# --- figure


def draw_training(axes: Axes, table: Table, ours: str, published: str, form: str, title: str) -> None:
    """Draws two columns of the training table, without recomputation, as bars."""
    rows = [row for row in table.rows if row["recompute"] == "none"]
    bars = ((-0.2, published, GREY, "published"), (0.2, ours, BLUE, "ours"))
    for x, row in enumerate(rows):
        for shift, column, colour, label in bars:
            axes.bar(x + shift, row[column], width=0.38, color=colour, label=label if x == 0 else None)
            label_point(axes, format(row[column], form), x + shift, row[column])
    axes.set_xticks(range(len(rows)), [row["stack"] for row in rows])
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    bare(axes)


def draw_batches(axes: Axes, steps: list[Step]) -> None:
    """Draws the tokens a second of training over the batch."""
    batches = sorted({step.batch for step in steps})
    for stack, colour in zip(STACKS, (GREY, BLUE), strict=True):
        chosen = [step for step in steps if (step.stack, step.recompute) == (stack, "none")]
        speeds = [step.batch * SEQUENCE_LENGTH / step.report.time / 1e3 for step in chosen]
        sizes = [step.batch for step in chosen]
        axes.plot(sizes, speeds, "o-", color=colour, linewidth=2, markersize=4, label=stack)
    binary_axis(axes, batches, [str(batch) for batch in batches], f"sequences of {SEQUENCE_LENGTH:,} tokens")
    axes.set_ylim(bottom=0)
    axes.set_title("Training 1.3B, thousand tokens a second")
    axes.legend(frameon=False, fontsize=9)


def draw_serving(axes: Axes, results: list[Served]) -> None:
    """Draws the memory that stays between passes, weights and cache, over the context."""
    contexts = sorted({served.context for served in results})
    for name, model in SERVED_MODELS.items():
        memories = [served.report.memory for served in results if served.name == name]
        gigabytes = [(memory.weights + memory.kv_cache) / 1e9 for memory in memories]
        axes.plot(contexts, gigabytes, color=model.colour, linestyle=model.dashes, linewidth=2, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} GB"))
    binary_axis(axes, contexts, [f"{context // 1024}k" for context in contexts], "tokens of context")
    axes.set_title(f"Weights and cache, 2.7B, {SERVED_SEQUENCES} sequences")
    axes.legend(frameon=False, fontsize=9)


def draw(training: Table, large: Table, steps: list[Step], results: list[Served]) -> Figure:
    """Draws the figure of the study."""
    with figure_style():
        figure = Figure(figsize=(13, 13), layout="constrained")
        (times, memory), (batches, serving), (large_memory, latency) = figure.subplots(3, 2)
        draw_training(times, training, "step_s", "published_s", ".2f", "Step of the 1.3B model (s)")
        draw_training(memory, training, "peak_gb", "published_gb", ".0f", "Peak memory (GB)")
        draw_batches(batches, steps)
        draw_serving(serving, results)
        draw_large(large_memory, large, "peak_gb", "published_gb", "Memory of serving 13B (GB)")
        draw_large(latency, large, "pass_ms", "published_ms", "Pass of 13B over 2,048 tokens (ms)")
    return figure


# --- finding


def training_finding(table: Table) -> str:
    """Writes what the table of training shows."""
    rows = {(row["stack"], row["recompute"]): row for row in table.rows}
    plain, fused, recomputed = (
        rows[key] for key in (("unfused", "none"), ("fused", "none"), ("fused", "full"))
    )
    parameters = float(dp.load_model("matmulfree-1.3b").parameters)
    peak_rate = float(dp.load_system(SYSTEM).accelerator.matrix.bf16.rate)
    least_seconds = 6 * parameters * OTHER_BATCH * SEQUENCE_LENGTH / peak_rate
    states = fused["states_gb"]
    return (
        "Counting the element-wise kernels of the published code, without a fit to its times, a step of"
        f" the 1.3B model takes {plain['step_s']:.2f} s with the plain BitLinear and {fused['step_s']:.2f}"
        f" s with the fused one, published {plain['published_s']:g} and {fused['published_s']:g} s"
        f" ({plain['time_error']:+.0%} and {fused['time_error']:+.0%}):"
        f" {plain['step_s'] / fused['step_s']:.2f} times as fast, published"
        f" {plain['published_s'] / fused['published_s']:.2f}. The published memory does not come out: we"
        f" count {plain['peak_gb']:.0f} and {fused['peak_gb']:.0f} GB, published {plain['published_gb']:g}"
        f" and {fused['published_gb']:g} GB. States of {states * 1e9 / parameters:.0f} bytes a parameter,"
        f" the ternary weights of a step included, take {states:.1f} GB and leave"
        f" {fused['published_gb'] - states:.1f} of the published {fused['published_gb']:g} GB, where the"
        f" layers keep {fused['activations_gb']:.0f} GB by our count; with full recomputation the peak is"
        f" {recomputed['peak_gb']:.0f} GB, but the step takes {recomputed['step_s']:.2f} s. So published"
        " time and memory do not belong to one setting that we can state. The batch in the text has been"
        f" read as {BATCH} and as 2⁸; the second needs {least_seconds:.1f} s of arithmetic alone at the"
        " peak rate of an A100."
    )


def serving_finding(results: list[Served]) -> str:
    """Writes what the table of serving 2.7B shows."""
    by_case = {(served.name, served.context): served for served in results}
    contexts = sorted({served.context for served in results})
    shortest, longest = contexts[0], contexts[-1]
    fitting = max(context for context in contexts if by_case["transformer, ternary", context].fits)
    attention_ms, recurrence_ms = (
        [1e3 * by_case[name, context].report.time_per_output_token for context in (shortest, fitting)]
        for name in ("transformer, ternary", "MatMul-free, ternary")
    )
    cache = by_case["transformer, ternary", longest].report.memory.kv_cache
    state = by_case["MatMul-free, ternary", longest].report.memory.kv_cache
    ternary, dense = (
        1e3 * float(by_case[name, shortest].report.time_per_output_token)
        for name in ("MatMul-free, ternary", "MatMul-free, bf16")
    )
    return (
        f" In serving 2.7B to {SERVED_SEQUENCES} sequences the KV cache of a transformer of the same size"
        f" grows to {cache / 1e9:.0f} GB at {longest:,} tokens, and with packed weights {fitting:,} tokens"
        f" are the longest context that fits; the state of the recurrence stays at {state / 1e6:.1f} MB. A"
        f" token takes {attention_ms[0]:.1f} ms after {shortest:,} tokens and {attention_ms[1]:.1f} ms"
        f" after {fitting:,} with attention, {recurrence_ms[0]:.1f} and {recurrence_ms[1]:.1f} ms without."
        f" Packed weights save memory and time: {ternary:.1f} ms a token without attention for {dense:.1f} ms"
        " in bf16, because the estimator unpacks weights while it loads them."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "matmul_free", "batches from 4 and contexts to 8,192 tokens")
    steps = estimate_steps([4, 8, 16, BATCH] if options.quick else [1, 2, 4, 8, 16, BATCH])
    contexts = [2**power for power in range(10, 14 if options.quick else 16)]
    results = estimate_serving(dp.load_model("matmulfree-2.7b"), SERVED_SEQUENCES, contexts)
    training, large = training_table(steps), large_table()
    publish(
        options.out,
        [training, serving_table(results), large],
        training_finding(training) + serving_finding(results) + large_finding(large),
        {"figure": draw(training, large, steps, results)},
    )


if __name__ == "__main__":
    main()
