"""Training steps that Optimus (arXiv 2407.14645) was validated on: published times, its predictions and ours.

Eight steps are from Megatron-LM of 2022 (arXiv 2205.05198, Table 5), three larger ones from Megatron-LM of
2021 (arXiv 2104.04473, Table 1), whose seconds follow from their published TFLOP/s. `published.csv` has the
steps with their layouts and sources.

    python studies/optimus_training/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.estimate.training import TrainingReport
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

SEQUENCE_LENGTH = 2048  # tokens, in all steps
PUBLISHED = Path(__file__).parent / "published.csv"

# The parts of a step in the figure, and the fields of the breakdown that each adds up.
PARTS = {
    "linear layers": ("matmul",),
    "attention": ("attention",),
    "element-wise": ("elementwise",),
    "recomputation": ("recompute",),
    "tensor-parallel": ("tensor_parallel",),
    "pipeline bubble": ("pipeline_bubble",),
    "pipeline transfers": ("pipeline_transfers",),
    "gradients": ("data_parallel",),
    "head, optimizer, host": ("head", "optimizer", "host"),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A published training step, the prediction of Optimus, and our estimate."""

    row: dict[str, str]
    published: float  # s
    optimus: float  # s
    report: TrainingReport

    @property
    def label(self) -> str:
        """The model, the devices and the recomputation of the step, for tables and the figure."""
        size = self.row["model"].removeprefix("gpt3-").upper()
        method = {"full": "full", "selective": "selective + SP"}[self.row["recompute"]]
        return f"{size}, {self.row['devices']} A100, {method}"

    @property
    def early(self) -> bool:
        """Whether the step is from Megatron-LM of 2021, which published TFLOP/s in place of seconds."""
        return not self.row["seconds"]

    @property
    def error(self) -> float:
        """The relative error of our estimate."""
        return float(self.report.time) / self.published - 1

    @property
    def optimus_error(self) -> float:
        """The relative error of the prediction of Optimus."""
        return self.optimus / self.published - 1


def published_seconds(row: dict[str, str], model: Model) -> float:
    """Returns the published seconds of a step, or the seconds that its published TFLOP/s stand for.

    The published FLOP of a step are 96·B·s·l·h²·(1 + s/6h + V/16lh), which includes recomputation (arXiv
    2104.04473, Equation 3), for B sequences of s tokens, l layers of width h and a vocabulary of V.
    """
    if row["seconds"]:
        return float(row["seconds"])
    layers, hidden, vocabulary = float(model.depth), float(model.hidden), float(model.vocabulary)
    flops = 96 * float(row["global_batch"]) * SEQUENCE_LENGTH * layers * hidden**2
    flops *= 1 + SEQUENCE_LENGTH / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return flops / (float(row["tflops_per_device"]) * 1e12 * float(row["devices"]))


def inputs_of(row: dict[str, str]) -> tuple[Model, System, Strategy]:
    """Returns model, system and strategy of a published step.

    The steps ran in fp16 without FlashAttention and reduced gradients after the backward pass.
    """
    degrees = ("tp", "pp", "dp", "virtual_stages", "micro_batch", "global_batch")
    strategy = {name: int(row[name]) for name in degrees} | {
        "sequence_length": SEQUENCE_LENGTH,
        "recompute": row["recompute"],
        "sequence_parallel": row["sequence_parallel"] == "true",
        "attention": "standard",
        "overlap_gradients": False,
        "precision": "fp16",
    }
    system = dp.load_system("dgx-a100", int(row["devices"]), stack="megatron-lm")
    return dp.load_model(row["model"]), system, dp.load_strategy(strategy)


def estimate_steps() -> list[Step]:
    """Estimates all published steps."""
    rows = read_rows(PUBLISHED)
    cases = [inputs_of(row) for row in rows]
    for case in cases:
        dp.check(*case)
    reports = evaluate_cases(dp.training_step, *stack_cases(cases))
    return [
        Step(
            row=row,
            published=published_seconds(row, model),
            optimus=float(row["optimus_seconds"]),
            report=report,
        )
        for row, (model, _, _), report in zip(rows, cases, reports, strict=True)
    ]


def steps_table(steps: list[Step]) -> Table:
    """Tabulates the time of every step."""
    columns = {
        "step": ("step", ""),
        "published_s": ("published s", ".2f"),
        "ours_s": ("ours s", ".2f"),
        "optimus_s": ("Optimus s", ".1f"),
        "error": ("our error", "+.1%"),
        "optimus_error": ("error of Optimus", "+.1%"),
        "mfu": ("MFU", ".1%"),
        "bubble": ("bubble", ".1%"),
        "gradients": ("gradients", ".1%"),
    }
    rows = [
        {
            "step": step.label,
            "published_s": step.published,
            "ours_s": step.report.time,
            "optimus_s": step.optimus,
            "error": step.error,
            "optimus_error": step.optimus_error,
            "mfu": step.report.mfu,
            "bubble": step.report.breakdown.pipeline_bubble / step.report.time,
            "gradients": step.report.breakdown.data_parallel / step.report.time,
        }
        for step in steps
    ]
    return Table("steps", "Step times", columns, rows)


def errors_table(steps: list[Step]) -> Table:
    """Tabulates mean, worst and bias of the errors, by source and over all steps."""
    columns = {
        "steps": ("steps", ""),
        "count": ("n", ".0f"),
        "by": ("by", ""),
        "mean": ("mean |error|", ".1%"),
        "worst": ("worst", "+.1%"),
        "bias": ("bias", "+.1%"),
    }
    groups = {
        "Megatron-LM 2022": [step for step in steps if not step.early],
        "Megatron-LM 2021": [step for step in steps if step.early],
        "all": steps,
    }
    rows = []
    for group, members in groups.items():
        for by, name in (("ours", "error"), ("Optimus", "optimus_error")):
            errors = np.array([getattr(step, name) for step in members])
            rows.append(
                {
                    "steps": group,
                    "count": len(members),
                    "by": by,
                    "mean": np.abs(errors).mean(),
                    "worst": errors[np.abs(errors).argmax()],
                    "bias": errors.mean(),
                }
            )
    return Table("errors", "Errors of the step time", columns, rows)


def draw(steps: list[Step]) -> Figure:
    """Draws the parts of our step times and the predictions of Optimus over the published times."""
    published, parts = np.array([step.published for step in steps]), []
    for colour, (name, fields) in zip(PALETTE, PARTS.items(), strict=False):
        seconds = [sum(float(getattr(step.report.breakdown, field)) for field in fields) for step in steps]
        parts.append((name, colour, seconds / published))
    return parts_of_measured(
        "Predicted over published step time",
        names=[step.label for step in steps],
        parts=parts,
        others=("Optimus", [step.optimus for step in steps] / published),
        remarks=[f"{step.error:+.1%}, Optimus {step.optimus_error:+.1%}" for step in steps],
        remarks_at=1.03,
        right=1.36,
        height=5.4,
    )


def finding(steps: list[Step]) -> str:
    """Writes what the tables show."""
    errors = np.array([step.error for step in steps])
    optimus = np.array([step.optimus_error for step in steps])
    early = np.array([step.early for step in steps])
    # 530B with full recomputation ran as one pipeline in 2022 and as nine pipelines in 2021.
    single, replicated = (
        step for step in steps if (step.row["model"], step.row["recompute"]) == ("gpt3-530b", "full")
    )
    reduction = replicated.report.breakdown.data_parallel / replicated.published
    return (
        f"Over the {len(steps)} steps that Optimus was validated on, our mean error is"
        f" {np.abs(errors).mean():.1%} and our worst {np.abs(errors).max():.1%}; those of Optimus are"
        f" {np.abs(optimus).mean():.1%} and {np.abs(optimus).max():.1%}. On the eight steps of 2022 ours"
        f" are {np.abs(errors[~early]).mean():.1%} and {np.abs(errors[~early]).max():.1%}, with a bias of"
        f" {errors[~early].mean():+.1%}. Our estimates of the three steps of 2021 are"
        f" {-errors[early].mean():.1%} too low on average. Those steps ran an older Megatron-LM: 530B with"
        " full recomputation has the same work per device in both papers and one more reduction of"
        f" gradients in 2021, which we estimate at {reduction:.1%} of the step, while the published step"
        f" is {replicated.published / single.published - 1:.1%} longer. No parameter is fitted to the rows"
        " of 2021; those of 2022 are among the data that the network latency of the system, its GEMM"
        " efficiency and the stack were calibrated on."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "optimus_training", "changes nothing: all steps take seconds")
    steps = estimate_steps()
    tables = [steps_table(steps), errors_table(steps)]
    publish(options.out, tables, finding(steps), {"figure": draw(steps)})


if __name__ == "__main__":
    main()
