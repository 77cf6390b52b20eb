"""dp.estimate: the estimate of one configuration, and where its time and memory go."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from rich.console import RenderableType

from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import asked, phase_of, relaxation
from diffperf.api.idle_settings import describe_idle_settings
from diffperf.api.input_values import plain
from diffperf.api.layout_lines import (
    describe_choice,
    describe_clock,
    describe_conversion,
    describe_fit,
    describe_greatest,
    describe_overlap,
    describe_quantization,
    describe_search_hint,
    describe_utilization,
)
from diffperf.api.operator_tables import collective_table, operator_table
from diffperf.api.point_answer import PointAnswer
from diffperf.api.question import Question
from diffperf.api.renting import describe_rent, rent_of_run, rented
from diffperf.api.whole_training import describe_training, number_of_tokens, training_totals
from diffperf.errors import ConfigError
from diffperf.explore.bottlenecks import CollectiveTime, Listing, Operator, listing
from diffperf.explore.calibrate.interval import Interval
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.plan.greatest import greatest_batch, greatest_length
from diffperf.load import refuse_inference_fields
from diffperf.quantity import locate
from diffperf.relax import Exact, Relaxation
from diffperf.report.tables import as_dict, outputs, table
from diffperf.workload.strategy import Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@answering("estimate")
def estimate(
    model: Any,
    system: Any,
    phase: str = "training",
    *,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    operators: bool = False,
    tokens: float | str | None = None,
    rent: bool = False,
    smooth: float | None = None,
    band: float | None = None,
    **strategy: Any,
) -> "EstimateAnswer":
    """The time, memory, energy and cost of a model on a system.

        dp.estimate("gpt3-175b", "dgx-a100", devices=64, tp=8, pp=8, global_batch=64)

    **Arguments:**

    - `model`, `system`: names (see `diffperf list`), paths, tables, or modules that are loaded already; a
      model may be a Hugging Face config, as a path, a table or an object.
    - `phase`: "training", "prefill", "decode" or "generate".
    - `devices`: how many, in place of the system's own number.
    - `stack`, `calibration`: other software, and other fitted values ("none" for none).
    - `set`: values of other inputs by path, such as `{"hbm.bandwidth": "4 TB/s", "model.hidden": 8192}`.
    - `operators`: adds every operator and collective.
    - `tokens`: adds what training on so many tokens takes.
    - `rent`: adds the price in a cloud.
    - `smooth`: the sharpness of a smooth estimate, and `band` the share of their number that waves of work
      are averaged over (see `dp.Smooth`).
    - `strategy`: fields of the strategy. Degrees that are not given are those of the fastest layout that
      fits memory.

    **Raises:** `ConfigError`, in one line, for what cannot be used and for a layout that is not possible.
    """
    asker = asker_of("estimate")
    if tokens is not None:
        tokens = number_of_tokens(tokens, asker, "tokens")
    own = ("phase", "operators", "tokens", "rent")
    question = asked(
        "estimate",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=(*own, "devices", "stack", "calibration", "set", "smooth", "band"),
    )
    relax = relaxation(asker, smooth, band)
    return EstimateAnswer.of(
        question, phase_of(asker, phase), relax, tokens=tokens, rent=rent, list_operators=operators
    )


@dataclasses.dataclass(frozen=True, repr=False)
class EstimateAnswer(PointAnswer):
    """The estimate of a question: `answer.report.time` is its time in s.

    - `training`: what a whole training takes, where its tokens are given.
    - `rent`: USD for the run or the whole training, on rented devices and on owned ones, where asked for.
    - `operators`, `collectives`: those of the phase, where they are asked for.
    """

    layout: Layout
    training: dict[str, float] | None
    rent: dict[str, float] | None
    operators: list[Operator]
    collectives: list[CollectiveTime]

    @classmethod
    def of(
        cls,
        question: Question,
        phase: str = "training",
        relax: Relaxation | None = None,
        *,
        tokens: float | None = None,
        rent: bool = False,
        list_operators: bool = False,
    ) -> "EstimateAnswer":
        """Answers a question; `tokens`, `rent` and `list_operators` ask for more."""
        if phase != "training" and tokens:
            remedy = "drop --tokens or --phase"
            raise ConfigError(question.asker, "--tokens", f"phase {phase}", "the training phase", remedy)
        if rent:
            rented(question.system, question.asker)  # refuses a system without a rent before the estimate
        question.refuse_unused(phase)
        refuse_inference_fields(question.table, phase, question.asker)
        relax = Exact() if relax is None else relax
        layout = question.layout(phase, relax)
        c = question.with_layout(layout, relax)
        training = training_totals(c, layout.report, tokens) if tokens else None
        listed = listing(c, phase) if list_operators else Listing([], [])
        return cls(
            question=question,
            phase=phase,
            configuration=c,
            layout=layout,
            training=training,
            rent=_rent(question, layout, training) if rent else None,
            operators=listed.operators,
            collectives=listed.collectives,
        )

    @property
    def report(self) -> Any:
        """Report of the phase: time, memory, energy and cost."""
        return self.layout.report

    @property
    def interval(self) -> Interval | None:
        """The 90 % interval of the time; None where the system is not calibrated."""
        return self.certainty.interval

    @property
    def strategy(self) -> Strategy:
        """The whole strategy, with the fields that were chosen."""
        return self.layout.strategy

    @property
    def fits(self) -> bool:
        """Whether the configuration fits the memory of the devices."""
        return self.layout.fits

    @functools.cached_property
    def greatest(self) -> dict[str, float]:
        """Greatest sizes of inference that fit the memory: the sequences of a batch, `global_batch`, and
        the tokens of its prompts, `sequence_length`; each with the other as it is, and 0 where nothing
        fits. Empty in training.
        """
        if self.phase == "training":
            return {}
        with jax.enable_x64(True):
            batch = greatest_batch(self.configuration, self.phase)
            length = greatest_length(self.configuration, self.phase) if batch else 0.0
        return {"global_batch": batch, "sequence_length": length}

    def lines(self) -> list[RenderableType]:
        """Lines and tables of the answer, as the terminal shows them."""
        return [
            f"[bold]{self.title}[/bold]",
            self.described_strategy,
            *self.question.described_overrides(),
            *describe_idle_settings(self.question, self.strategy),
            *describe_choice(self.layout),
            *describe_search_hint(self.question, self.phase),
            *describe_conversion(self.question, self.strategy),
            *describe_quantization(self.question, self.strategy, self.phase),
            *describe_overlap(self.question, self.strategy, self.phase),
            describe_fit(self.layout),
            *self._described_greatest(),
            self.certainty.line(),
            *(describe_utilization(self.report) if self.phase == "training" else []),
            *describe_clock(self.question, self.report),
            *(describe_training(self.training) if self.training else []),
            *([self._described_rent()] if self.rent else []),
            "",
            table(self.layout.report),
            *([operator_table(self.operators, self.phase)] if self.operators else []),
            *([collective_table(self.collectives, self.phase)] if self.collectives else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything in internal units, for JSON."""
        question, layout = self.question, self.layout
        listed = [dataclasses.asdict(operator) | {"bound": operator.bound} for operator in self.operators]
        sent = [dataclasses.asdict(collective) for collective in self.collectives]
        return {
            "phase": self.phase,
            "fits": layout.fits,
            "chosen": layout.chosen,
            **({"greatest": self.greatest} if self.greatest else {}),
            **self.certainty.as_dict(),
            "report": as_dict(layout.report),
            "inputs": as_dict(question.with_layout(layout)),
            **({"operators": listed, "collectives": sent} if listed else {}),
            **({"training": self.training} if self.training else {}),
            **({"rent": self.rent} if self.rent else {}),
            **({"overrides": question.overrides} if question.overrides else {}),
        }

    def _described_greatest(self) -> list[str]:
        """A line about the largest batch and the longest prompts, in inference."""
        if not self.greatest:
            return []
        sizes = self.greatest["global_batch"], self.greatest["sequence_length"]
        return [describe_greatest(self.configuration, self.phase, *sizes)]

    def _described_rent(self) -> str:
        """A line about the rent of what was estimated."""
        assert self.rent is not None  # the caller asks only where a rent is wanted
        run = {"training": "A step", "generate": "The batch"}.get(self.phase, "The pass")
        return describe_rent(self.question.system, "The training" if self.training else run, self.rent)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each number of the report."""
        return [
            {
                "output": path,
                "value": plain(value),
                "unit": declared.unit,
                "meaning": declared.doc,
            }
            for path, (declared, value) in outputs(self.report).items()
        ]

    def figure(self) -> "Figure":
        """Figure of the parts of the time, and of the parts of the memory."""
        from diffperf.report import plots

        return plots.breakdown(self.report, f"{self.title}\n{self.described_strategy}")


def _rent(question: Question, layout: Layout, training: dict[str, float] | None) -> dict[str, float]:
    """USD for the run of a layout, or the whole training, on rented devices and on owned ones."""
    if training is not None:
        return rent_of_run(question.system, training["time"], training["cost"])
    time, owned = (locate(layout.report, path)[0] for path in ("time", "cost.run"))
    return rent_of_run(question.system, time, owned)
