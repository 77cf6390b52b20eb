"""dp.plan: the best of all strategies to train with, and why the others lose."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.basis import Certainty, basis
from diffperf.api.boundary import answering, as_arguments, asker_of
from diffperf.api.from_python import asked, whole_number
from diffperf.api.plan_tables import (
    describe_margin,
    describe_search,
    flag_lines,
    plan_json,
    reason_table,
    strategy_json,
    strategy_table,
)
from diffperf.api.question import COMMAND_LINE, Question, describe_strategy, describe_system
from diffperf.api.renting import describe_rent, rent_of_run, rented
from diffperf.api.whole_training import describe_training, number_of_tokens, training_totals
from diffperf.errors import ConfigError
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.plan.plan import Plan, RankedStrategy, Search, largest_part, smallest_system
from diffperf.explore.plan.plan import plan as rank_strategies
from diffperf.load import refuse_inference_fields
from diffperf.report.tables import as_dict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_SCHEDULES = ("1f1b",)  # of which a plan chooses where none are named


@answering("plan")
def plan(
    model: Any,
    system: Any,
    *,
    by: str = "time",
    top: int = 10,
    schedules: str | Sequence[str] | None = None,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    tokens: float | str | None = None,
    rent: bool = False,
    **strategy: Any,
) -> "PlanAnswer":
    """The best strategies to train a model on a system, of all, and why those behind the best lose.

    **Arguments:** as of `dp.estimate`, and

    - `by`: "time", "cost" or "energy", what the best strategy takes the least of.
    - `top`: how many strategies to rank.
    - `schedules`: the pipeline schedules to choose from, by default "1f1b" alone.

    **Raises:** `ConfigError`, in one line. Where nothing fits memory, the answer has no `best`, and says what
    would.
    """
    asker = asker_of("plan")
    whole_number(asker, "top", top, 1, 1000)
    tokens = None if tokens is None else number_of_tokens(tokens, asker, "tokens")
    own = ("by", "top", "schedules", "devices", "stack", "calibration", "set", "tokens", "rent")
    question = asked(
        "plan",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=own,
    )
    search = search_of(question, None if schedules is None else tuple(schedules), rent)
    return PlanAnswer.of(question, search, by, top, tokens=tokens, rent=rent)


def search_of(question: Question, schedules: tuple[str, ...] | None, rent: bool) -> Search:
    """The strategies that a question leaves open, with "1f1b" alone where no schedules are named.

    **Raises:** `ConfigError` where a rent is asked for in vain, and for schedules beside a given one.
    """
    if schedules is not None and "schedule" in question.table:
        found = f"{', '.join(schedules)} beside --schedule {question.table['schedule']}"
        expected = "schedules to choose from, or the one to use"
        raise ConfigError(question.asker, "--schedules", found, expected, "leave one of them out")
    schedules = DEFAULT_SCHEDULES if schedules is None else schedules
    question.refuse_unused("training")
    refuse_inference_fields(question.table, "training", question.asker)
    if rent:
        rented(question.system, question.asker)  # before the search takes its time
    return Search.of(question.model, question.system, question.table, schedules, question.asker)


@dataclasses.dataclass(frozen=True, repr=False)
class PlanAnswer(Answer):
    """The best strategies, ranked, with their reports.

    - `training`, `rent`: what a whole training takes and what it costs on rented devices, where asked for.
    - `larger`: where nothing fits memory, the smallest larger system that some strategy fits, if any.
    """

    question: Question
    search: Search
    ranked: Plan
    training: dict[str, float] | None
    rent: dict[str, float] | None
    larger: tuple[Search, Plan] | None

    @classmethod
    def of(
        cls,
        question: Question,
        search: Search,
        by: str = "time",
        top: int = 10,
        *,
        tokens: float | None = None,
        rent: bool = False,
        advance: Callable[[int], None] = lambda candidates: None,
    ) -> "PlanAnswer":
        """Ranks the strategies of a search."""
        ranked = rank_strategies(search, by, top, advance, question.asker)
        if not ranked.best:
            return cls(
                question=question,
                search=search,
                ranked=ranked,
                training=None,
                rent=None,
                larger=smallest_system(search),
            )
        best, training, costs = ranked.best[0], None, None
        if tokens is not None:
            chosen = dataclasses.replace(search.inputs, strategy=best.strategy)
            training = training_totals(chosen, best.report, tokens)
        if rent:
            run = best.report.time, best.report.cost.run
            costs = rent_of_run(question.system, *((training["time"], training["cost"]) if training else run))
        return cls(
            question=question, search=search, ranked=ranked, training=training, rent=costs, larger=None
        )

    @property
    def best(self) -> tuple[RankedStrategy, ...]:
        """The best strategies, the best first; empty where none fits memory."""
        return self.ranked.best

    @property
    def fits(self) -> bool:
        """Whether some strategy fits memory."""
        return bool(self.ranked.best)

    def lines(self) -> list[RenderableType]:
        lines: list[RenderableType] = [*describe_search(self.question, self.search, self.ranked)]
        if not self.fits:
            return [*lines, f"[bold red]{self.refusal[0].upper()}{self.refusal[1:]}[/bold red]"]
        best, by = self.ranked.best[0], self.ranked.by
        lines += ["", f"Best by {by}: {self.described_strategy}"]
        lines += [
            Certainty.of(self.question, self.question.with_layout(self.layout), "training").line(),
            "",
            strategy_table(self.ranked),
        ]
        if self.training is not None:
            lines += ["", *describe_training(self.training)]
        if self.rent is not None:
            what = "The training" if self.training else "A step"
            lines += ["", describe_rent(self.question.system, what, self.rent)]
        if len(self.ranked.best) > 1:
            lines += ["", "Why the others lose", reason_table(self.ranked)]
        margin = describe_margin(self.search, best)
        return [*lines, *(margin if self.question.asker == COMMAND_LINE else map(as_arguments, margin))]

    @property
    def layout(self) -> Layout:
        """The best strategy as a layout: its report is that of an estimate."""
        best = self.ranked.best[0]
        return Layout(best.strategy, best.report, {}, self.ranked.possible)

    @property
    def described_strategy(self) -> str:
        """The best strategy in a line."""
        return describe_strategy(self.ranked.best[0].strategy, "training")

    @property
    def refusal(self) -> str:
        """Reasons why no strategy fits: the parts of the memory, and a system that would have enough of
        it.
        """
        least = self.ranked.least
        assert least is not None, (
            "a plan without a best strategy has one that exceeds the memory by the least"
        )
        if self.larger is None:
            most = float(self.search.inputs.system.network[-1].size)
            remedy = f"no system of up to {most:,.0f} devices fits either, by doubling"
        else:
            larger, better = self.larger
            remedy = f"the smallest that fits, by doubling, is {describe_system(larger.inputs.system)}"
            remedy += f" with {describe_strategy(better.best[0].strategy, 'training')}"
        memory = least.report.memory
        part, size = largest_part(memory)
        peak, capacity = units.show(memory.peak, "byte"), units.show(memory.capacity, "byte")
        return (
            f"no strategy fits memory: the least too large ({describe_strategy(least.strategy, 'training')}) "
            f"needs {peak} of the {capacity} of a device, most of it {part} ({units.show(size, 'byte')}); "
            f"{remedy}"
        )

    def to_dict(self) -> dict[str, Any]:
        answer = plan_json(self.search, self.ranked) | {"basis": basis(self.question.system, "training")}
        if not self.fits:
            assert self.ranked.least is not None  # as for `refusal`
            devices = None if self.larger is None else float(self.larger[0].inputs.system.n_devices)
            return answer | {"least": strategy_json(self.ranked.least), "smallest_system": devices}
        answer |= {"training": self.training} if self.training else {}
        return answer | ({"rent": self.rent} if self.rent else {})

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the best strategies: its fields and its main outputs."""
        return [
            as_dict(each.strategy)
            | {
                "time": float(each.report.time),
                "mfu": float(each.report.mfu),
                "memory.peak": float(each.report.memory.peak),
                "cost.run": float(each.report.cost.run),
                "energy.total": float(each.report.energy.total),
                "behind": str(each.behind or ""),
            }
            for each in self.ranked.best
        ]

    def flags(self) -> list[str]:
        """The best strategy as flags of Megatron-LM."""
        return flag_lines(self.question, self.search, self.ranked.best[0])

    def figure(self) -> "Figure":
        """Figure of the parts of the best strategy's time, and of the parts of the memory."""
        from diffperf.report import plots

        shown = self.ranked.best[0] if self.ranked.best else self.ranked.least
        assert shown is not None  # as for `refusal`
        title = describe_strategy(shown.strategy, "training")
        return plots.breakdown(shown.report, f"{self.question.summary('training')}\n{title}")
