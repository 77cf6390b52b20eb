"""dp.serve: the best layout to serve a model under targets for its latencies, and why the others lose."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.asked_requests import read_requests, refuse_batches, target_time
from diffperf.api.basis import basis, describe_basis
from diffperf.api.boundary import answering, as_arguments, asker_of
from diffperf.api.context_window import check_context
from diffperf.api.from_python import asked, whole_number
from diffperf.api.input_values import plain
from diffperf.api.layout_lines import describe_conversion
from diffperf.api.question import Question, describe_system
from diffperf.api.renting import describe_rent, rent_of_tokens, rented
from diffperf.api.serving_lines import (
    describe_best,
    describe_losers,
    describe_search,
    layout_table,
    refusal,
    serving_json,
)
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.calibrate.interval import Interval, interval
from diffperf.explore.plan.pools_plan import POOLS, plan_with_pools
from diffperf.explore.plan.serving_flags import ENGINES, launch_flags
from diffperf.explore.plan.serving_plan import ServedLayout, ServingPlan
from diffperf.explore.plan.serving_search import PERCENTILES, ServingSearch, Targets
from diffperf.quantity import replace
from diffperf.relax import larger
from diffperf.report.tables import as_dict, table
from diffperf.workload.configuration import Configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@answering("serve")
def serve(
    model: Any,
    system: Any,
    *,
    ttft: str | float | None = None,
    tpot: str | float | None = None,
    input: float | None = None,
    output: float | None = None,
    rate: str | float | None = None,
    concurrency: float | None = None,
    requests: Mapping[str, Any] | None = None,
    percentile: str | float = "mean",
    by: str = "throughput",
    pools: str = "both",
    top: int = 10,
    flags: str | None = None,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    rent: bool = False,
    **strategy: Any,
) -> "ServeAnswer":
    """The best layouts to serve a model under targets for its latencies, and why the others lose.

        dp.serve("llama-3-8b", "dgx-h100", ttft="500 ms", tpot="30 ms", input=2048, output=512)

    **Arguments:** `model`, `system`, `devices`, `stack`, `calibration`, `set`, `rent` and the fields of the
    strategy as of `dp.estimate`, and

    - `ttft`, `tpot`: the longest times to the first token and per token after it, in s or with a unit.
    - `input`, `output`: tokens of a prompt and of its answer.
    - `rate`, `concurrency`: the load, requests a second or clients; without either all devices are used.
    - `requests`: other fields of the requests by name, such as "chunk" and "batch_cap".
    - `percentile`: "mean" or 90, what of the requests' times the targets hold for.
    - `by`: "throughput", "cost" or "energy".
    - `pools`: "both", "aggregated" or "disaggregated".
    - `flags`: the serving software whose launch flags are printed.

    **Raises:** `ConfigError`, in one line. Where nothing serves, the answer has no `best`, and says
    what would.
    """
    asker = asker_of("serve")
    whole_number(asker, "top", top, 1, 1000)
    own = ("ttft", "tpot", "input", "output", "rate", "concurrency", "requests", "percentile", "by", "pools")
    question = asked(
        "serve",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=(*own, "top", "flags", "devices", "stack", "calibration", "set", "rent"),
    )
    percentile = one_of(asker, "percentile", _name_of(percentile), PERCENTILES)
    one_of(asker, "pools", pools, POOLS)
    if flags is not None:
        one_of(asker, "flags", flags, tuple(ENGINES))
    given = {"input_length": input, "output_length": output, "rate": rate, "concurrency": concurrency}
    texts = {name: plain(value) for name, value in (given | dict(requests or {})).items()}
    targets = Targets(target_time(ttft, asker, "ttft"), target_time(tpot, asker, "tpot"), percentile)
    search = search_of_layouts(question, texts, targets, rent)
    return ServeAnswer.of(question, search=search, by=by, top=top, pools=pools, engine=flags, rent=rent)


def _name_of(percentile: Any) -> str:
    """A percentile as the command line names it: "90" for the number 90, too."""
    number = plain(percentile)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return f"{number:g}" if is_number else str(number)


def one_of(asker: str, key: str, name: str, names: tuple[str, ...]) -> str:
    """The name itself. Raises `ConfigError` where it is not one of some names."""
    if name not in names:
        raise ConfigError(asker, key, f'"{name}"', " or ".join(names), did_you_mean(name, names))
    return name


def search_of_layouts(
    question: Question, requests: Mapping[str, Any], targets: Targets, rent: bool
) -> ServingSearch:
    """The layouts that a question leaves open, for requests with the fields that the user gives."""
    refuse_batches(question)
    question.refuse_unused("prefill", "decode")
    if rent:
        rented(question.system, question.asker)  # refuses a system without a rent before the search
    asked_requests, given = read_requests(requests, question.asker)
    tokens = float(asked_requests.input_length + asked_requests.output_length)
    check_context(question.model, tokens, question.asker, "--input, --output")
    return ServingSearch.of(
        question.model,
        system=question.system,
        table=question.table,
        requests=asked_requests,
        given=given,
        targets=targets,
        most_devices=float(question.system.n_devices) if question.gives_devices else math.inf,
        file=question.asker,
    )


@dataclasses.dataclass(frozen=True, repr=False)
class ServeAnswer(Answer):
    """The best layouts, ranked.

    - `engine`: the serving software whose launch flags are wanted.
    - `rent`: USD for a million output tokens on rented devices and on owned ones, where asked for.
    - `interval`: of the time of a decode pass of the best layout, which the time per output token follows;
      None where the system is not calibrated, or nothing serves.
    """

    question: Question
    search: ServingSearch
    ranked: ServingPlan
    engine: str | None
    rent: dict[str, float] | None
    interval: Interval | None

    @classmethod
    def of(
        cls,
        question: Question,
        search: ServingSearch,
        by: str,
        top: int,
        pools: str,
        engine: str | None,
        rent: bool,
    ) -> "ServeAnswer":
        """Ranks the layouts of a search."""
        ranked = plan_with_pools(search, by, top, file=question.asker, pools=pools)
        costs = rent_of_tokens(question.system, ranked.best[0].report) if rent and ranked.best else None
        sure = _decode_interval(question, ranked.best[0]) if ranked.best else None
        return cls(question=question, search=search, ranked=ranked, engine=engine, rent=costs, interval=sure)

    @property
    def best(self) -> tuple[ServedLayout, ...]:
        """The best layouts, the best first; empty where none serves."""
        return self.ranked.best

    @property
    def serves(self) -> bool:
        """Whether some layout fits memory, meets the targets and serves the load."""
        return bool(self.ranked.best)

    @property
    def refusal(self) -> str:
        """Reason why nothing serves: the quantity that falls short, its amount, and the nearest layout
        that works.
        """
        return refusal(self.search, self.ranked)

    def headline(self) -> list[RenderableType]:
        """The question, and the number of layouts that are left after each condition."""
        return [*describe_search(self.question, self.search, self.ranked)]

    def lines(self) -> list[RenderableType]:
        if not self.serves:
            why = as_arguments(self.refusal)
            return [*self.headline(), f"[bold red]{why[0].upper()}{why[1:]}[/bold red]"]
        search, ranked, best = self.search, self.ranked, self.ranked.best[0]
        lines = [*self.headline(), describe_basis(self.question.system, "decode")]
        lines += describe_conversion(self.question, best.strategy)
        lines += [*self._described_interval(), ""]
        lines += [*describe_best(search, ranked), "", layout_table(search, ranked)]
        lines += ["", *describe_losers(search, ranked)]
        whole = best.report if best.prefill is None else best.prefill.report
        lines += ["", table(whole, "The best layout")]
        if self.rent is not None:
            lines += ["", describe_rent(self.question.system, "A million output tokens", self.rent)]
        if self.engine is not None:
            flags = launch_flags(self.question.model, best, self.engine)
            lines += ["", f"[bold]Flags for {self.engine}[/bold]", *flags]
        return lines

    def _described_interval(self) -> list[str]:
        """A line about how sure the time of a decode pass is, where that is known."""
        if self.interval is None:
            return []
        low, high = (units.show(end, "s") for end in self.interval.ends)
        batch = float(self.best[0].report.running)
        return [
            f"A decode pass of the best layout, {batch:.3g} sequences an engine, takes"
            f" {units.show(self.interval.time, 's')} ± {self.interval.relative:.1%} (90 %: {low} to {high});"
            " the time per output token follows it"
        ]

    def to_dict(self) -> dict[str, Any]:
        answer = serving_json(self.search, self.ranked, self.engine)
        answer |= {"basis": basis(self.question.system, "decode")}
        answer |= {"decode_interval": self.interval.as_dict()} if self.interval else {}
        return answer | ({"rent": self.rent} if self.rent else {})

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the best layouts."""
        return [
            {"layout": each.name, "copies": each.copies, "devices": float(each.devices), "limit": each.limit}
            | {name: value for name, value in as_dict(each.report).items() if isinstance(value, float)}
            for each in self.ranked.best
        ]

    def figure(self) -> "Figure":
        """The front of interactivity and throughput, with the target and the best layout."""
        from diffperf.report import plots

        search, ranked = self.search, self.ranked
        best = ranked.best[0] if ranked.best else None
        return plots.serving_front(
            ranked.front.interactivity,
            throughput=ranked.front.throughput,
            met=ranked.front.met,
            front=ranked.front.best,
            target=1 / search.targets.per_token,
            best=None
            if best is None
            else (
                1 / float(search.targets.latencies(best.report)[1]),
                float(best.report.tokens_per_second_per_device),
                best.name,
            ),
            title=f"{self.question.model.name} served on\n{describe_system(self.question.system, 'decode')}",
        )


def _decode_interval(question: Question, layout: ServedLayout) -> Interval | None:
    """The interval of the time of a decode pass of a layout, with the sequences that its engines decode for;
    None where the system is not calibrated.
    """
    if question.calibration is None:
        return None
    running, requests = layout.report.running, layout.requests
    batch = {
        "global_batch": larger(running, 1.0) * layout.strategy.dp,
        "sequence_length": requests.input_length,
        "output_length": requests.output_length,
    }
    strategy = replace(layout.strategy, batch)
    return interval(question.calibration, Configuration(question.model, question.system, strategy), "decode")
