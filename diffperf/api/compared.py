"""One cell of a comparison: the best layout of a model on a system in a phase, with its figures."""

import dataclasses
from typing import Any

from diffperf import units
from diffperf.api.basis import Certainty, basis
from diffperf.api.question import Question
from diffperf.cost.ownership import rental
from diffperf.errors import ConfigError
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.plan.candidates import FIELDS
from diffperf.explore.plan.greatest import ANSWERING
from diffperf.explore.plan.plan import Search
from diffperf.explore.plan.plan import plan as rank_strategies
from diffperf.relax import Exact
from diffperf.workload.strategy import Strategy

# What is compared, all of which is better the more there is of it: heading, unit, and meaning.
FIGURES = {
    "tokens_per_second_per_device": ("tok/s/dev", "token/s", "tokens per second and device"),
    "tokens_per_dollar_owned": ("Mtok/$", "token/USD", "tokens per dollar of an owned system"),
    "tokens_per_dollar_rented": ("rented", "token/USD", "tokens per dollar of rented devices"),
    "tokens_per_joule": ("tok/J", "token/J", "tokens per joule"),
}


@dataclasses.dataclass(frozen=True)
class Compared:
    """A model on a system in a phase, in the best layout that was found.

    - `layout`: the degrees of parallelism in words; empty where no layout is possible.
    - `global_batch`, `sequence_length`, `output_length`, `precision`: the work of the layout, the output in
      phases that answer; None where no layout is possible.
    - `problem`: why there are no figures; empty where there are some.
    - `time`: of the phase, in s, and `low` and `high` the ends of its 90 % interval where it is calibrated.
    - `tokens_per_dollar_rented`: None where no rent of the accelerator is published.
    - `tokens_per_second_per_megawatt`: of the facility, with hosts, network and cooling; `tokens_per_joule`
      is of the devices.
    - `mfu`: of a training step, else None.
    - `basis`: what the figures rest on, as `diffperf.api.basis` says it.
    """

    model: str
    system: str
    phase: str
    stack: str
    devices: float
    layout: str = ""
    global_batch: float | None = None
    sequence_length: float | None = None
    output_length: float | None = None
    precision: str | None = None
    fits: bool = False
    problem: str = ""
    time: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_device: float | None = None
    tokens_per_dollar_owned: float | None = None
    tokens_per_dollar_rented: float | None = None
    tokens_per_joule: float | None = None
    tokens_per_second_per_megawatt: float | None = None
    mfu: float | None = None
    memory_peak: float | None = None
    memory_capacity: float | None = None
    basis: str = ""

    @classmethod
    def of(cls, question: Question, phase: str) -> "Compared":
        """Searches the best layout of a question: in training of everything that `diffperf plan` searches.

        **Raises:** `ConfigError` where no layout is possible.
        """
        layout = _best(question, phase)
        named = dataclasses.replace(
            cls._named(question, phase),
            layout=describe_layout(layout.strategy),
            **_work(layout.strategy, phase),
            **_memory(layout.report),
        )
        if not layout.fits:
            return named
        spread = Certainty.of(question, question.with_layout(layout), phase).interval
        figures = _figures(question, layout.report)
        ends = {} if spread is None else dict(zip(("low", "high"), map(float, spread.ends), strict=True))
        rests_on = basis(question.system, phase)
        return dataclasses.replace(named, fits=True, problem="", basis=rests_on, **figures, **ends)

    @classmethod
    def without_layout(cls, question: Question, phase: str, problem: ConfigError) -> "Compared":
        """A question that no layout is possible for."""
        why = f"{problem.key}: {problem.found}, not {problem.expected}"
        return dataclasses.replace(cls._named(question, phase), problem=why)

    @classmethod
    def _named(cls, question: Question, phase: str) -> "Compared":
        """The names of a question, without figures."""
        return cls(
            model=str(question.model.name),
            system=str(question.system.name),
            phase=phase,
            stack=str(question.system.stack_of(phase).name),
            devices=float(question.system.n_devices),
        )

    @property
    def relative(self) -> float | None:
        """Half the width of the interval, as a share of the time; None where the system is not calibrated."""
        return None if self.high is None or self.time is None else self.high / self.time - 1


def _best(question: Question, phase: str) -> Layout:
    """The best layout of a question; where none fits, the one that exceeds the memory by the least."""
    if phase != "training":
        return question.layout(phase, Exact())
    search = Search.of(question.model, question.system, question.table, file=question.asker)
    ranked = rank_strategies(search, top=1, file=question.asker)
    best = ranked.best[0] if ranked.best else ranked.least
    assert best is not None, "a plan without a best strategy has a least one"
    return Layout(best.strategy, best.report, {}, ranked.possible)


def _work(strategy: Strategy, phase: str) -> dict[str, Any]:
    """What a layout works on: its sequences, their tokens, and their number format."""
    return {
        "global_batch": float(strategy.global_batch),
        "sequence_length": float(strategy.sequence_length),
        "output_length": float(strategy.output_length) if phase in ANSWERING else None,
        "precision": strategy.precision.likeliest(),
    }


def _figures(question: Question, report: Any) -> dict[str, float | None]:
    """Time, throughput and price of a report, in internal units."""
    devices, rate = float(question.system.n_devices), float(report.tokens_per_second)
    owned = float(report.cost.rate)  # USD/s
    rent = float(rental(question.system))  # USD/s, 0 where none is published
    return {
        "time": float(report.time),
        "tokens_per_second": rate,
        "tokens_per_second_per_device": rate / devices,
        "tokens_per_dollar_owned": rate / owned,
        "tokens_per_dollar_rented": rate / rent if rent > 0 else None,
        "tokens_per_joule": rate / (float(report.power) * devices),
        "tokens_per_second_per_megawatt": rate / (float(report.cost.facility_power) / 1e6),
        "mfu": float(report.mfu) if hasattr(report, "mfu") else None,
    }


def _memory(report: Any) -> dict[str, Any]:
    """Bytes of a device's memory that a layout needs and has, and the problem with that in words."""
    peak, capacity = float(report.memory.peak), float(report.memory.capacity)
    needs = f"does not fit: needs {peak / capacity:.0%} of the memory"
    return {"memory_peak": peak, "memory_capacity": capacity, "problem": needs}


def describe_layout(strategy: Strategy) -> str:
    """The degrees of a layout that are not 1, and what else a plan searches where it is not the default."""
    names = ("tp", "pp", "dp", "cp", "ep")
    shown = [
        f"{name} {units.plain(getattr(strategy, name))}"
        for name in names
        if float(getattr(strategy, name)) > 1
    ]
    if float(strategy.expert_tp) not in (0, float(strategy.tp)):
        shown.append(f"expert tp {units.plain(strategy.expert_tp)}")
    default = Strategy()
    for name, text in (("zero", "ZeRO {}"), ("recompute", "{} recompute")):
        value = getattr(strategy, name).likeliest()
        if value != getattr(default, name).likeliest():
            shown.append(text.format(value))
    classes = [
        name for name in FIELDS if name.startswith("recompute_") and float(getattr(strategy, name)) > 0
    ]
    words = [name.removeprefix("recompute_").replace("_", " ") for name in classes]
    shown += [f"recompute of {' + '.join(words)}"] if words else []
    return ", ".join(shown) or "one device"
