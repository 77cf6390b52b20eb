"""diffperf estimate: the estimate of one configuration, and where its time and memory go."""

import dataclasses
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE, Question, describe_strategy
from diffperf.cli.long_training import describe_training, tokens_option, training_totals
from diffperf.cli.options import (
    json_option,
    options,
    phase_option,
    plot_option,
    question_options,
    smooth_option,
)
from diffperf.cli.rent_option import describe_rent, rent_of_run, rent_option, rented
from diffperf.cli.terminal import column_table, console, progress, write_json
from diffperf.errors import ConfigError
from diffperf.explore.bottlenecks import (
    CollectiveTime,
    Operator,
    collectives,
    memory_bound_share,
    operators,
)
from diffperf.explore.calibrate.interval import Interval, interval
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.plan.candidates import DEGREES
from diffperf.quantity import locate
from diffperf.relax import Relaxation
from diffperf.report.tables import as_dict, table
from diffperf.workload.configuration import Configuration

_SHOWN_BOUND = 0.05  # share of an operator's time from which a resource is named as what bounds it


@click.command()
@click.option(
    "--operators",
    "list_operators",
    is_flag=True,
    help="list every operator and collective of the phase, and which resource bounds each operator",
)
@options(
    tokens_option, phase_option, question_options(), rent_option, smooth_option, json_option, plot_option
)
def estimate(
    question: Question,
    phase: str,
    list_operators: bool,
    tokens: float | None,
    rent: bool,
    relax: Relaxation,
    json_file: str | None,
    plot: Path | None,
) -> None:
    """Estimate MODEL on SYSTEM: time, memory, energy and cost, and where they go.

    MODEL and SYSTEM are names (see diffperf list), TOML files, or for MODEL a Hugging Face config.json.
    Degrees of parallelism that are not given are set to the fastest layout that fits memory.
    """
    if phase != "training" and tokens:
        remedy = "drop --tokens or --phase"
        raise ConfigError(COMMAND_LINE, "--tokens", f"phase {phase}", "the training phase", remedy)
    if rent:
        rented(question.system)  # refuses a system without a rent before the estimate takes its time
    with progress(f"compiling and estimating {phase}"):
        layout = question.layout(phase, relax)
    inputs = Configuration(question.model, question.system, layout.strategy, relax)
    training = training_totals(inputs, layout.report, tokens) if tokens else None
    answer = Answer(
        question=question,
        phase=phase,
        layout=layout,
        interval=time_interval(question, layout, phase, relax),
        training=training,
        rent=_rent(question, layout, training) if rent else None,
        operators=operators(inputs, phase) if list_operators else [],
        collectives=collectives(inputs, phase) if list_operators else [],
    )
    console(json_file).print(*answer.lines(), sep="\n", soft_wrap=True)
    write_json(answer.as_dict(), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.breakdown(layout.report, f"{answer.title}\n{answer.described_strategy}"), plot)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The estimate of a question.

    - `interval`: how sure its time is, where the system is calibrated.
    - `training`: what a whole training takes, where its tokens are given.
    - `rent`: USD for the run or the whole training, on rented devices and on owned ones, where asked for.
    - `operators`, `collectives`: those of the phase, where they are asked for.
    """

    question: Question
    phase: str
    layout: Layout
    interval: Interval | None
    training: dict[str, float] | None
    rent: dict[str, float] | None
    operators: list[Operator]
    collectives: list[CollectiveTime]

    @property
    def title(self) -> str:
        return self.question.summary(self.phase)

    @property
    def described_strategy(self) -> str:
        return describe_strategy(self.layout.strategy, self.phase)

    def lines(self) -> list[str | Table]:
        """What the terminal shows."""
        return [
            f"[bold]{self.title}[/bold]",
            self.described_strategy,
            *describe_choice(self.layout),
            *describe_conversion(self.question, self.layout),
            describe_fit(self.layout),
            *([self._described_interval()] if self.interval else []),
            *(describe_training(self.training) if self.training else []),
            *([self._described_rent()] if self.rent else []),
            "",
            table(self.layout.report),
            *([operator_table(self.operators, self.phase)] if self.operators else []),
            *([collective_table(self.collectives, self.phase)] if self.collectives else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything in internal units, for JSON."""
        question, layout = self.question, self.layout
        listed = [dataclasses.asdict(operator) | {"bound": operator.bound} for operator in self.operators]
        sent = [dataclasses.asdict(collective) for collective in self.collectives]
        return {
            "phase": self.phase,
            "fits": layout.fits,
            "chosen": layout.chosen,
            **({"time_interval": self.interval.as_dict()} if self.interval else {}),
            "report": as_dict(layout.report),
            "inputs": as_dict(Configuration(question.model, question.system, layout.strategy)),
            **({"operators": listed, "collectives": sent} if listed else {}),
            **({"training": self.training} if self.training else {}),
            **({"rent": self.rent} if self.rent else {}),
        }

    def _described_interval(self) -> str:
        """A line about how sure the time is."""
        assert self.interval is not None  # the caller asks only for a calibrated system
        time, (low, high) = self.interval, (units.show(end, "s") for end in self.interval.ends)
        line = f"Time {units.show(time.time, 's')} ± {time.relative:.1%} (90 %: {low} to {high})"
        if not time.stack:
            return line
        system = self.question.system
        stack = system.stack if self.phase == "training" else system.inference_stack
        return f"{line}; the numbers of {stack.name} are estimates"

    def _described_rent(self) -> str:
        """A line about the rent of what was estimated."""
        assert self.rent is not None  # the caller asks only where a rent is wanted
        run = {"training": "A step", "generate": "The batch"}.get(self.phase, "The pass")
        return describe_rent(self.question.system, "The training" if self.training else run, self.rent)


def _rent(question: Question, layout: Layout, training: dict[str, float] | None) -> dict[str, float]:
    """USD for the run of a layout, or the whole training, on rented devices and on owned ones."""
    if training is not None:
        return rent_of_run(question.system, training["time"], training["cost"])
    time, owned = (locate(layout.report, path)[0] for path in ("time", "cost.run"))
    return rent_of_run(question.system, time, owned)


def operator_table(listed: list[Operator], phase: str) -> Table:
    """Operators of a phase on a device of the slowest stage: the time of all runs, and what bounds it."""
    share = memory_bound_share(listed)
    title = f"operators of {_passes(phase)} ({share:.1%} of their time is bound by memory bandwidth)"
    rows = column_table("operator", "runs", "time", "share", title=title)
    rows.add_column("bound by", justify="left")
    total = sum(operator.time for operator in listed)
    for operator in listed:
        bounds = sorted(operator.bounds.items(), key=lambda bound: -bound[1])
        rows.add_row(
            _row_name(operator, phase),
            f"{operator.count:,.4g}",
            units.show(operator.time, "s"),
            f"{operator.time / total:.1%}",
            ", ".join(f"{resource} {part:.0%}" for resource, part in bounds if part >= _SHOWN_BOUND),
        )
    return rows


def collective_table(listed: list[CollectiveTime], phase: str) -> Table:
    """Collectives of a phase on a device of the slowest stage: the time of all runs, hidden or exposed."""
    title = f"collectives of {_passes(phase)}"
    rows = column_table("collective", "runs", "time", "exposed", title=title)
    for collective in listed:
        rows.add_row(
            _row_name(collective, phase),
            f"{collective.count:,.4g}",
            units.show(collective.time, "s"),
            units.show(collective.exposed, "s"),
        )
    return rows


def _passes(phase: str) -> str:
    """What the rows of a listing belong to."""
    return {"training": "a step", "generate": "the prefill and of one decode pass"}.get(phase, "the pass")


def _row_name(row: Operator | CollectiveTime, phase: str) -> str:
    """The name of a row; a generation says which of its passes the row belongs to."""
    return f"{row.pass_name}: {row.name}" if phase == "generate" else row.name


def time_interval(question: Question, layout: Layout, phase: str, relax: Relaxation) -> Interval | None:
    """How sure the time is, where the system is calibrated."""
    if question.calibration is None:
        return None
    configuration = Configuration(question.model, question.system, layout.strategy, relax)
    return interval(question.calibration, configuration, phase)


def describe_choice(layout: Layout) -> list[str]:
    """Lines about what was chosen for the user, and why."""
    degrees = [f"{name} {value:g}" for name, value in layout.chosen.items() if name in DEGREES]
    if layout.candidates == 1:
        why = "the only layout possible" if len(degrees) > 1 else "what the other degrees leave"
    else:
        best = "the fastest that fits memory" if layout.fits else "the least too large"
        why = f"{best} of {layout.candidates} layouts"
    lines = [f"Chosen: {', '.join(degrees)} ({why})"] if degrees else []
    if "global_batch" in layout.chosen:
        lines.append(f"Chosen: global batch {layout.chosen['global_batch']:g} (one micro-batch per device)")
    return lines


def describe_conversion(question: Question, layout: Layout) -> list[str]:
    """A line about operands that the accelerator has no matrix units for, where there are any."""
    accelerator, name = question.system.accelerator, layout.strategy.precision.likeliest()
    units_of = accelerator.multiplied_in(name)
    if units_of == name:
        return []
    return [f"{accelerator.name} has no matrix units for {name}: products are computed in {units_of}"]


def describe_fit(layout: Layout) -> str:
    """A line about whether the configuration fits memory, and by how much it does not."""
    peak, capacity = (float(locate(layout.report, f"memory.{name}")[0]) for name in ("peak", "capacity"))
    if layout.fits:
        return f"Fits memory: {units.show(peak, 'byte')} of {units.show(capacity, 'byte')} per device"
    needs = f"needs {units.show(peak, 'byte')} of the {units.show(capacity, 'byte')} of a device"
    over = f"{units.show(peak - capacity, 'byte')} ({peak / capacity - 1:.1%}) too much"
    return f"[bold red]Does not fit memory[/bold red]: {needs}, {over}"
