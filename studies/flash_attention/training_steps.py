"""Training steps of GPT-2 medium with standard attention and with FlashAttention."""

import dataclasses
import itertools
from pathlib import Path

import jax
import numpy as np
from attention_core import length_axis
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from reporting import Table, capacity_line, choice_weights, evaluate_cases, label_point, read_rows

import diffperf as dp
from diffperf.estimate.training import TrainingReport
from diffperf.quantity import replace
from diffperf.report.plots import BLUE, INK, ORANGE
from diffperf.workload.strategy import Strategy

SYSTEM, DEVICES = "dgx-a100-40gb", 8  # "8×A100-40GB", appendix E.2 of the paper
TOKENS = 512 * 1024  # of a step
PUBLISHED_LENGTH = 1024  # tokens of a sequence in the published runs
PUBLISHED = Path(__file__).parent / "published_training.csv"
SECONDS_A_DAY = 86400.0


@dataclasses.dataclass(frozen=True)
class Method:
    """An attention kernel with a recomputation method, and the colour of its lines."""

    attention: str
    recompute: str
    colour: str


METHODS = {
    "standard": Method("standard", "none", BLUE),
    "standard, recomputed": Method("standard", "selective", "#8cc0e8"),
    "flash": Method("flash", "none", ORANGE),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """The estimate of a training step with a method, a sequence length and a micro-batch."""

    method: str
    length: int
    micro_batch: int
    report: TrainingReport

    @property
    def fits(self) -> bool:
        """Whether the peak memory of every device is within its capacity."""
        return bool(self.report.memory.excess <= 0)


def published_seconds() -> dict[str, float]:
    """Returns the seconds of a step by attention kernel, from the published days of training."""
    return {
        row["kernel"]: float(row["days"]) * SECONDS_A_DAY / float(row["steps"])
        for row in read_rows(PUBLISHED)
    }


def estimate_steps(lengths: list[int]) -> list[Step]:
    """Estimates steps of Megatron-LM with FlashAttention's first version.

    All methods and lengths are combined with all micro-batches that are powers of two and that a device's
    share of the batch contains.
    """
    cases = [
        (method, length, 2**power)
        for method, length in itertools.product(METHODS, lengths)
        for power in range((TOKENS // length // DEVICES).bit_length())
    ]
    model, system = dp.load_model("gpt2-medium"), dp.load_system(SYSTEM, DEVICES, stack="megatron-lm")
    first_version = dp.load_system(SYSTEM, DEVICES, stack="flash-attention-1").stack
    system = replace(system, {"stack.attention_efficiency": first_version.attention_efficiency})
    base = dp.load_strategy({"dp": DEVICES, "precision": "fp16", "overlap_gradients": False})

    def step(attention: jax.Array, recompute: jax.Array, length: jax.Array, micro_batch: jax.Array):
        strategy = replace(
            base,
            {
                "attention": attention,
                "recompute": recompute,
                "sequence_length": length,
                "global_batch": TOKENS / length,
                "micro_batch": micro_batch,
            },
        )
        return dp.training_step(replace(model, {"learned_positions": length}), system, strategy)

    methods = [METHODS[name] for name, _, _ in cases]
    reports = evaluate_cases(
        step,
        np.stack([choice_weights(Strategy, "attention", method.attention) for method in methods]),
        np.stack([choice_weights(Strategy, "recompute", method.recompute) for method in methods]),
        np.array([length for _, length, _ in cases], float),
        np.array([micro_batch for _, _, micro_batch in cases], float),
    )
    return [Step(*case, report) for case, report in zip(cases, reports, strict=True)]


Fastest = dict[tuple[str, int], Step]  # by method and length


def fastest_steps(steps: list[Step]) -> Fastest:
    """Returns the step with the fastest micro-batch that fits, or with one sequence where none does."""
    fastest: Fastest = {}
    for step in steps:
        key = step.method, step.length
        if step.micro_batch == 1 or (step.fits and step.report.time < fastest[key].report.time):
            fastest[key] = step
    return fastest


def training_table(fastest: Fastest, published: dict[str, float]) -> Table:
    """Tabulates the fastest steps beside the published ones."""
    columns = {
        "tokens": ("tokens", ",.0f"),
        "attention": ("attention", ""),
        "micro_batch": ("micro-batch", ".0f"),
        "step_s": ("step s", ".3f"),
        "published_s": ("published s", ".3f"),
        "error": ("error", "+.0%"),
        "attention_share": ("in attention", ".0%"),
        "mfu": ("MFU", ".0%"),
        "peak_gb": ("peak GB", ".1f"),
        "fits": ("fits", ""),
    }
    rows = []
    for step in sorted(fastest.values(), key=lambda step: step.length):
        report = step.report
        measured = published.get(step.method) if step.length == PUBLISHED_LENGTH else None
        rows.append(
            {
                "tokens": step.length,
                "attention": step.method,
                "micro_batch": step.micro_batch,
                "step_s": report.time,
                "published_s": measured,
                "error": report.time / measured - 1 if measured else None,
                "attention_share": report.breakdown.attention / report.time,
                "mfu": report.mfu,
                "peak_gb": report.memory.peak / 1e9,
                "fits": "yes" if step.fits else "no",
            }
        )
    title = f"A step of GPT-2 medium, {TOKENS:,} tokens on {DEVICES} A100 40 GB"
    return Table("training", title, columns, rows)


# --- figure


def draw_speed(axes: Axes, fastest: Fastest, published: dict[str, float]) -> None:
    """Draws the tokens a second of the fastest steps that fit, over the length of sequences."""
    lengths = sorted({step.length for step in fastest.values()})
    for name, method in METHODS.items():
        fitting = [fastest[name, length] for length in lengths if fastest[name, length].fits]
        axes.plot(
            [step.length for step in fitting],
            [step.report.tokens_per_second / 1e3 for step in fitting],
            "o-",
            color=method.colour,
            linewidth=2,
            markersize=4,
            label=f"{name}, ours",
        )
        if name in published:
            speed = TOKENS / published[name] / 1e3
            look = {"color": method.colour, "markeredgecolor": INK, "markersize": 7}
            axes.plot([PUBLISHED_LENGTH], [speed], "D", label=f"{name}, published", **look)
    axes.set_ylim(bottom=0)
    length_axis(axes, lengths)
    axes.set_title("Training of GPT-2 medium, thousand tokens a second, where it fits")
    axes.legend(frameon=False, fontsize=9)


def draw_memory(axes: Axes, steps: list[Step]) -> None:
    """Draws the peak memory of one sequence at a time over its length."""
    lengths = sorted({step.length for step in steps})
    for name, method in METHODS.items():
        peaks = [
            float(step.report.memory.peak) / 1e9
            for step in steps
            if step.method == name and step.micro_batch == 1
        ]
        # The line of recomputed standard attention may lie under that of FlashAttention: its width shows it.
        width = 5 if name == "standard, recomputed" else 2
        axes.plot(lengths, peaks, color=method.colour, linewidth=width, label=name)
    capacity = float(steps[0].report.memory.capacity) / 1e9
    capacity_line(axes, capacity)
    label_point(axes, f"{capacity:.1f} GB", lengths[0], capacity, ha="left")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} GB"))
    length_axis(axes, lengths)
    axes.set_title("Peak memory, one sequence at a time")
    axes.legend(frameon=False, fontsize=9)


# --- finding


def finding(fastest: Fastest, published: dict[str, float]) -> str:
    """Writes what the table of training steps shows."""
    times = {name: float(fastest[name, PUBLISHED_LENGTH].report.time) for name in published}
    speedup, published_speedup = (seconds["standard"] / seconds["flash"] for seconds in (times, published))
    errors = {name: times[name] / published[name] - 1 for name in published}
    longest = {
        name: max(step.length for step in fastest.values() if step.method == name and step.fits)
        for name in METHODS
    }
    last = fastest["flash", longest["flash"]].report
    most = max(step.length for step in fastest.values())
    return (
        f" Training GPT-2 medium gets {speedup:.2f} times faster, published {published_speedup:.2f} times."
        f" Both steps come out too fast ({errors['standard']:+.0%} and {errors['flash']:+.0%}): the"
        " published days may include evaluation and data loading, and the stack, calibrated on models of"
        f" 22B and more, has no gaps between small kernels. One sequence at a time, of at most {most:,}"
        f" tokens, fits {last.memory.capacity / 1e9:.0f} GB up to {longest['standard']:,} tokens with"
        f" standard attention, {longest['standard, recomputed']:,} with recomputed attention and"
        f" {longest['flash']:,} with FlashAttention, which then still takes"
        f" {last.breakdown.attention / last.time:.0%} of the step."
    )
