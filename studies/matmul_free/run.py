"""MatMul-free LM (arXiv 2406.02528): what fusing its linear layers does to training, and what having no KV cache does to serving.

Training of the 1.3B model on one A100 80 GB with the plain and the fused BitLinear (stacks `matmulfree-unfused`, `-fused`, whose
element-wise kernels are counted from the published code) against the published time and memory (`published.csv`). Then serving,
with packed ternary weights, against a transformer of the same width, depth and parameters over the context.

    python studies/matmul_free/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

import diffperf as dp
from diffperf.estimate.inference import GenerationReport
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, FAINT, GREY, ORANGE, bare
from diffperf.workload.model import Model

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, at, each, options, publish, read_rows, style

HERE = Path(__file__).parent
SYSTEM, BATCH, LENGTH = "dgx-a100", 28, 1024
STACKS = ("unfused", "fused")
RECOMPUTE = ("none", "full")
SERVED, OUTPUT = 16, 128  # sequences served at once; tokens that each generates

# Mixed precision as PyTorch's autocast has it: weights, gradients and both moments in fp32, 16 bytes a parameter.
TRAINING = {
    "sequence_length": LENGTH,
    "weight_precision": "fp32",
    "gradient_precision": "fp32",
    "optimizer_bytes": "8 B",
}

# Served models: whether a transformer, the format of the weights, colour and dashes of a line.
MODELS = {
    "transformer, bf16": (True, "bf16", BLUE, "-"),
    "transformer, ternary": (True, "ternary", BLUE, (0, (2, 2))),
    "MatMul-free, bf16": (False, "bf16", ORANGE, "-"),
    "MatMul-free, ternary": (False, "ternary", ORANGE, (0, (2, 2))),
}


def transformer(model: Model) -> Model:
    """The same dimensions with attention, as many query as KV heads: the paper's Transformer++."""
    return dataclasses.replace(
        model, layers=tuple(dataclasses.replace(kind, recurrence=None) for kind in model.layers)
    )


# --- training


def train(batches: list[int]) -> dict[tuple[str, str, int], TrainingReport]:
    """A step in one micro-batch by stack, recomputation and batch."""
    model, base = dp.load_model("matmulfree-1.3b"), dp.load_strategy(TRAINING)
    cases = [(recompute, batch) for recompute in RECOMPUTE for batch in batches]
    weights = np.stack([np.eye(3)[("none", "selective", "full").index(recompute)] for recompute, _ in cases])
    sizes = np.array([batch for _, batch in cases], float)
    found = {}
    for stack in STACKS:
        system = dp.load_system(SYSTEM, 1, stack=f"matmulfree-{stack}")

        def step(recompute, batch, system=system) -> TrainingReport:
            strategy = replace(base, {"recompute": recompute, "global_batch": batch, "micro_batch": batch})
            return dp.training_step(model, system, strategy)

        reports = each(step, weights, sizes)
        found |= {(stack, *case): at(reports, i) for i, case in enumerate(cases)}
    return found


def training_table(
    steps: dict[tuple[str, str, int], TrainingReport], published: dict[str, dict[str, float]]
) -> Table:
    cells = []
    for recompute in RECOMPUTE:
        for stack in STACKS:
            report = steps[stack, recompute, BATCH]
            time, memory, peak = (
                published["time"][stack],
                published["memory"][stack],
                report.memory.peak / 1e9,
            )
            states = (report.memory.weights + report.memory.gradients + report.memory.optimizer) / 1e9
            cells.append(
                (stack, recompute, report.time, time, report.time / time - 1, report.breakdown.elementwise / report.time,
                 states, report.memory.activations / 1e9, peak, memory, peak / memory - 1)
            )  # fmt: skip
    columns = {
        "BitLinear": "", "recomputed": "", "step s": ".2f", "published s": ".2f", "error": "+.0%", "element-wise": ".0%",
        "states GB": ".1f", "activations GB": ".1f", "peak GB": ".1f", "published GB": ".0f", "error ": "+.0%",
    }  # fmt: skip
    title = (
        f"A training step of MatMul-free LM 1.3B: {BATCH} sequences of {LENGTH:,} tokens on one A100 80 GB"
    )
    return Table("training", title, columns, cells)


# --- serving


def served(model: Model, batch: float, contexts: list[int]) -> dict[tuple[str, int], GenerationReport]:
    """Generation after each context by model of `MODELS`, with the same stack for all of them: TensorRT-LLM's."""
    system = dp.load_system(SYSTEM, 1, stack="tensorrt-llm")
    found = {}
    for name, (attends, precision, *_) in MODELS.items():
        chosen = transformer(model) if attends else model
        base = dp.load_strategy(
            {"global_batch": batch, "output_length": OUTPUT, "weight_precision": precision}
        )

        def run(context, chosen=chosen, base=base) -> GenerationReport:
            return dp.generate(chosen, system, replace(base, {"sequence_length": context}))

        reports = each(run, np.array(contexts, float))
        found |= {(name, context): at(reports, i) for i, context in enumerate(contexts)}
    return found


def serving_table(reports: dict[tuple[str, int], GenerationReport]) -> Table:
    cells = [
        (name, context, report.memory.weights / 1e9, report.memory.kv_cache / 1e9, report.memory.activations / 1e9,
         report.memory.peak / 1e9, "yes" if report.memory.excess <= 0 else "no", 1e3 * report.time_per_output_token)
        for (name, context), report in reports.items()
    ]  # fmt: skip
    columns = {
        "model": "", "context": ",.0f", "weights GB": ".2f", "cache or state GB": ".4f", "activations GB": ".2f",
        "peak GB": ".2f", "fits": "", "ms a token": ".2f",
    }  # fmt: skip
    return Table("serving", f"Serving 2.7B: {SERVED} sequences on one A100 80 GB", columns, cells)


def large() -> Model:
    """The paper's 13B, whose dimensions it does not say: those of Llama 2 13B, with the recurrence."""
    model, llama = dp.load_model("matmulfree-2.7b"), dp.load_model("llama-2-13b")
    kinds = tuple(dataclasses.replace(kind, recurrence=model.layers[0].recurrence) for kind in llama.layers)
    return dataclasses.replace(llama, layers=kinds)


def large_table(row: dict[str, str]) -> Table:
    """Weights, cache, activations and reserve of the 13B model against the paper's Figure 4(d)."""
    reports = served(large(), 1, [2048])
    cells = []
    for name, column in (("MatMul-free, ternary", "matmul_free_gb"), ("transformer, bf16", "transformer_gb")):
        report = reports[name, 2048]
        memory, published = report.memory.peak / 1e9, float(row[column])
        weights = report.memory.weights / 1e9
        cells.append((name, weights, report.memory.kv_cache / 1e9, memory, published, memory / published - 1))
    columns = {
        "model": "", "weights GB": ".2f", "cache or state GB": ".4f", "peak GB": ".2f", "published GB": ".2f", "error": "+.0%",
    }  # fmt: skip
    return Table("serving_13b", "Serving 13B: one sequence of 2,048 tokens", columns, cells)


# --- figure


def draw_training(axes: Axes, table: Table, ours: int, published: int, form: str, title: str) -> None:
    """Bars of what the steps without recomputation take beside the published."""
    for x, row in enumerate(table.rows[: len(STACKS)]):
        for shift, value, colour, label in (
            (-0.2, row[published], GREY, "published"),
            (0.2, row[ours], BLUE, "ours"),
        ):
            axes.bar(x + shift, value, width=0.38, color=colour, label=label if x == 0 else None)
            axes.annotate(
                format(value, form),
                (x + shift, value),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    axes.set_xticks(range(len(STACKS)), STACKS)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    bare(axes)


def draw_batches(axes: Axes, steps: dict[tuple[str, str, int], TrainingReport]) -> None:
    batches = sorted({batch for *_, batch in steps})
    for stack, colour in zip(STACKS, (GREY, BLUE), strict=True):
        speeds = [batch * LENGTH / steps[stack, "none", batch].time / 1e3 for batch in batches]
        axes.plot(batches, speeds, "o-", color=colour, linewidth=2, markersize=4, label=stack)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"sequences of {LENGTH:,} tokens")
    axes.set_ylim(bottom=0)
    axes.set_title("Training 1.3B, thousand tokens a second")
    axes.grid(color=FAINT, linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)


def draw_serving(axes: Axes, reports: dict[tuple[str, int], GenerationReport]) -> None:
    """Weights and cache, which stay between passes, over the context."""
    contexts = sorted({context for _, context in reports})
    for name, (_, _, colour, dashes) in MODELS.items():
        memories = [reports[name, context].memory for context in contexts]
        held = [(memory.weights + memory.kv_cache) / 1e9 for memory in memories]
        axes.plot(contexts, held, color=colour, linestyle=dashes, linewidth=2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(contexts, [f"{context // 1024}k" for context in contexts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} GB"))
    axes.set_xlabel("tokens of context")
    axes.set_title(f"Weights and cache, 2.7B, {SERVED} sequences")
    axes.grid(color=FAINT, linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)


def training_finding(table: Table) -> str:
    unfused, fused, _, again = table.rows
    parameters = float(dp.load_model("matmulfree-1.3b").parameters)
    least = 6 * parameters * 2**8 * LENGTH / float(dp.load_system(SYSTEM).accelerator.matrix.bf16.rate)
    return (
        "Counting the element-wise kernels of the published code, without a fit to its times, a step of the 1.3B model takes"
        f" {unfused[2]:.2f} s with the plain BitLinear and {fused[2]:.2f} s with the fused one, published {unfused[3]:g} and"
        f" {fused[3]:g} s ({unfused[4]:+.0%} and {fused[4]:+.0%}): {unfused[2] / fused[2]:.2f} times as fast for the published"
        f" {unfused[3] / fused[3]:.2f}. Memory does not come out: we count {unfused[8]:.0f} and {fused[8]:.0f} GB, published"
        f" {unfused[9]:g} and {fused[9]:g} GB. States of {fused[6] * 1e9 / parameters:.0f} bytes a parameter, with the ternary"
        f" weights of a step among them, take {fused[6]:.1f} GB and leave {fused[9] - fused[6]:.1f} of the published"
        f" {fused[9]:g} GB, where the layers keep {fused[7]:.0f} GB by our count; with all of it computed again the peak is"
        f" {again[8]:.0f} GB, but the step {again[2]:.2f} s. So published time and memory do not belong to one setting that we"
        f" know how to state. The text's batch has been read as {BATCH} and as 2⁸; the second needs {least:.1f} s of arithmetic"
        " alone at an A100's peak rate."
    )


def serving_finding(reports: dict[tuple[str, int], GenerationReport], large: Table) -> str:
    attending, free = (
        {c: r for (n, c), r in reports.items() if n == f"{name}, ternary"}
        for name in ("transformer", "MatMul-free")
    )
    shortest, longest = min(attending), max(attending)
    fitting = max(context for context, report in attending.items() if report.memory.excess <= 0)
    slow, quick = (
        [1e3 * of[context].time_per_output_token for context in (shortest, fitting)]
        for of in (attending, free)
    )
    small, dense = large.rows
    return (
        f" In serving 2.7B to {SERVED} sequences the KV cache of a transformer of the same size grows to"
        f" {attending[longest].memory.kv_cache / 1e9:.0f} GB at {longest:,} tokens, and with packed weights {fitting:,} tokens are"
        f" the longest context that fits; the state of the recurrence stays at {free[longest].memory.kv_cache / 1e6:.1f} MB. A"
        f" token takes {slow[0]:.1f} ms after {shortest:,} tokens and {slow[1]:.1f} ms after {fitting:,} with attention,"
        f" {quick[0]:.1f} and {quick[1]:.1f} ms without. Packing saves memory here and no time: products count their weights at"
        f" the operands' 16 bits, not as kernels that unpack them on their way. For 13B we get {small[3]:.1f} GB with packed"
        f" weights, published {small[4]:g}, and {dense[3]:.1f} GB for the transformer, published {dense[4]:g},"
        f" {dense[4] / dense[1]:.2f} times its weights at 16 bits."
    )


def main() -> None:
    arguments = options(__doc__, "matmul_free", "batches from 4 and contexts to 8,192 tokens")
    published = {
        row["quantity"]: {stack: float(row[stack]) for stack in STACKS}
        for row in read_rows(HERE / "published.csv")
    }
    steps = train([4, 8, 16, BATCH] if arguments.quick else [1, 2, 4, 8, 16, BATCH])
    training = training_table(steps, published)
    contexts = [2**i for i in range(10, 14 if arguments.quick else 16)]
    reports = served(dp.load_model("matmulfree-2.7b"), SERVED, contexts)
    big = large_table(read_rows(HERE / "published_serving.csv")[0])

    with style():
        figure = Figure(figsize=(13, 9), layout="constrained")
        axes = figure.subplots(2, 2)
        draw_training(axes[0, 0], training, 2, 3, ".2f", "Step of the 1.3B model (s)")
        draw_training(axes[0, 1], training, 8, 9, ".0f", "Peak memory (GB)")
        draw_batches(axes[1, 0], steps)
        draw_serving(axes[1, 1], reports)
    publish(
        arguments.out,
        [training, serving_table(reports), big],
        figure,
        training_finding(training) + serving_finding(reports, big),
    )


if __name__ == "__main__":
    main()
