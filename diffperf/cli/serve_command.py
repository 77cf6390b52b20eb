"""diffperf serve: the best layout under targets for the latencies, why the others lose, and launch flags."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from diffperf import units
from diffperf.api.question import COMMAND_LINE, Question, describe_system
from diffperf.api.renting import describe_rent, rent_of_tokens, rented
from diffperf.cli.options import (
    STRATEGY_FIELDS,
    Decorator,
    declared_option,
    json_option,
    options,
    plot_option,
    question_options,
)
from diffperf.cli.serve_answer import (
    DoesNotServe,
    describe_best,
    describe_losers,
    describe_search,
    layout_table,
    refusal,
    serving_json,
)
from diffperf.cli.terminal import console, progress, write_json
from diffperf.cli.training_and_rent_options import rent_option
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.plan.pools_plan import POOLS, plan_with_pools
from diffperf.explore.plan.serving_flags import ENGINES, launch_flags
from diffperf.explore.plan.serving_layouts import SERVING_FIELDS
from diffperf.explore.plan.serving_plan import SERVING_OBJECTIVES, ServingPlan
from diffperf.explore.plan.serving_search import CAPS, CHUNKS, PERCENTILES, ServingSearch, Targets
from diffperf.load import checked, declared_at, literal
from diffperf.quantity import replace
from diffperf.report.tables import table
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import TRAINING_FIELDS

# Fields of a strategy that follow from the requests: how many sequences run at once, and how long they are.
_OF_REQUESTS = ("global_batch", "sequence_length", "output_length")
_FIELDS = tuple(name for name in STRATEGY_FIELDS if name not in TRAINING_FIELDS and name not in _OF_REQUESTS)
# Options of the fields of requests that are not named like the field.
_FLAGS = {"input_length": "input", "output_length": "output"}
_SEARCHED_LIMITS = {
    "chunk": f"the best of {', '.join(f'{chunk:g}' for chunk in CHUNKS)}",
    "batch_cap": f"as the load needs, up to {CAPS[-1]:g}",
    "rate": "what the devices serve",
    "concurrency": "what the devices serve",
}


def _flag(name: str) -> str:
    """The option of a field of the requests, without its dashes."""
    return _FLAGS.get(name, name.replace("_", "-"))


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every field of `Requests` but the kind of the load, which follows from the options."""
    fields = [field for field in dataclasses.fields(Requests) if field.name != "load"]
    decorators: list[Decorator] = [
        declared_option(field, _flag(field.name), _SEARCHED_LIMITS.get(field.name, field.default))
        for field in fields
    ]
    return options(*decorators)(command)


def _target(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float:
    """A time in seconds, infinite where there is none."""
    if text is None:
        return math.inf
    flag, expected = parameter.opts[0], 'a time above 0, such as "500 ms"'
    try:
        seconds = units.parse(literal(text), "s")
    except units.UnitError as problem:
        raise ConfigError(COMMAND_LINE, flag, f'"{text}"', expected, str(problem)) from None
    if not seconds > 0:
        raise ConfigError(COMMAND_LINE, flag, f'"{text}"', expected, "leave the option out for no target")
    return seconds


def _percentile(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    if text not in PERCENTILES:
        remedy = "the estimate has the mean and the 90th percentile"
        raise ConfigError(COMMAND_LINE, "--percentile", f'"{text}"', " or ".join(PERCENTILES), remedy)
    return text


def _engine(ctx: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and name not in ENGINES:
        hint = did_you_mean(name, tuple(ENGINES))
        raise ConfigError(COMMAND_LINE, "--flags", f'"{name}"', "one of " + ", ".join(ENGINES), hint)
    return name


def _pools(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    if text not in POOLS:
        hint = did_you_mean(text, POOLS)
        raise ConfigError(COMMAND_LINE, "--pools", f'"{text}"', " or ".join(POOLS), hint)
    return text


@click.command()
@click.option(
    "--ttft", metavar="TIME", callback=_target, help='longest time to first token, such as "500 ms"'
)
@click.option(
    "--tpot", metavar="TIME", callback=_target, help='longest time per output token after it, such as "30 ms"'
)
@click.option(
    "--percentile",
    default="mean",
    show_default=True,
    metavar="|".join(PERCENTILES),
    callback=_percentile,
    help="what of the requests' times the targets hold for",
)
@click.option(
    "--by",
    default="throughput",
    show_default=True,
    metavar="|".join(SERVING_OBJECTIVES),
    help="what the best layout has the most of: output tokens per device, per dollar or per joule",
)
@click.option(
    "--pools",
    default="both",
    show_default=True,
    metavar="|".join(POOLS),
    callback=_pools,
    help="devices that all prefill and decode (aggregated), or a pool of workers for prompts and another for "
    "answers (disaggregated)",
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="how many of the best layouts to print",
)
@click.option(
    "--flags",
    "engine",
    metavar="|".join(ENGINES),
    callback=_engine,
    help="print the launch flags of the best layout for this serving software",
)
@options(
    request_options,
    rent_option,
    question_options(SERVING_FIELDS, "searched", _FIELDS),
    json_option,
    plot_option,
)
def serve(
    question: Question,
    ttft: float,
    tpot: float,
    percentile: str,
    by: str,
    pools: str,
    top: int,
    engine: str | None,
    rent: bool,
    json_file: str | None,
    plot: Path | None,
    **requests: Any,
) -> None:
    """Find the best layout to serve MODEL on SYSTEM under targets for its latencies, and why others lose.

    The search covers tensor, pipeline and expert parallelism, data-parallel attention, replicas, the tokens
    of a step and the running batch; and pairs of pools, of which one prefills and the other decodes, with all
    splits of the devices between them. Every layout runs at the largest load that meets the targets. Without
    --rate and --concurrency all devices are used. With either, the number of replicas follows from the load,
    and --devices is the most that they may take. Where nothing serves, the exit code is 3.
    """
    refuse_batches(question)
    if rent:
        rented(question.system)  # refuses a system without a rent before the search takes its time
    asked, given = read_requests(requests)
    check_context(question, asked)
    search = ServingSearch.of(
        question.model,
        question.system,
        question.table,
        asked,
        given,
        Targets(ttft, tpot, percentile),
        float(question.system.n_devices) if question.gives_devices else math.inf,
        COMMAND_LINE,
    )
    with progress("comparing layouts"):
        ranked = plan_with_pools(search, by, top, file=COMMAND_LINE, pools=pools)
    terminal = console(json_file)
    terminal.print(*describe_search(question, search, ranked), sep="\n")
    costs = rent_of_tokens(question.system, ranked.best[0].report) if rent and ranked.best else None
    answer = serving_json(search, ranked, engine) | ({"rent": costs} if costs else {})
    write_json(answer, json_file)
    if plot:
        draw(question, search, ranked, plot)
    if not ranked.best:
        with progress("looking for a system that fits"):
            raise DoesNotServe(refusal(search, ranked))
    best = ranked.best[0]
    terminal.print("", *describe_best(search, ranked), "", layout_table(search, ranked), sep="\n")
    terminal.print("", *describe_losers(search, ranked), sep="\n", soft_wrap=True)
    whole = best.report if best.prefill is None else best.prefill.report
    terminal.print("", table(whole, "The best layout"), sep="\n")
    if costs is not None:
        terminal.print("", describe_rent(question.system, "A million output tokens", costs), sep="\n")
    if engine is not None:
        flags = launch_flags(question.model, best, engine)
        terminal.print("", f"[bold]Flags for {engine}[/bold]", *flags, sep="\n", soft_wrap=True)


def read_requests(texts: dict[str, Any]) -> tuple[Requests, dict[str, float]]:
    """The requests, and the fields of them that the command line gives.

    **Raises:** `ConfigError` for a bad value, or where both a rate and a number of clients are given.
    """
    given = {}
    for name, text in texts.items():
        if text is not None:
            declared, value = declared_at(Requests(), name, COMMAND_LINE), literal(text)
            # A plain number is a rate per second: nobody means anything else.
            value = f"{text} 1/s" if name == "rate" and isinstance(value, int | float) else value
            given[name] = checked(declared, value, COMMAND_LINE, f"--{_flag(name)}")
    if "rate" in given and "concurrency" in given:
        expected = "a rate of requests or a number of clients"
        raise ConfigError(COMMAND_LINE, "--rate", "--concurrency too", expected, "drop one of them")
    return replace(Requests(), given), given


def refuse_batches(question: Question) -> None:
    """Raises `ConfigError` where `--set` gives the strategy a batch or a length, which the requests say."""
    for name in _OF_REQUESTS:
        if name in question.table:
            found, expected = "a field that follows from the requests", "options of the requests"
            remedy = "use --input, --output, --concurrency or --batch-cap"
            raise ConfigError(COMMAND_LINE, f"strategy.{name}", found, expected, remedy)


def check_context(question: Question, requests: Requests) -> None:
    """Raises `ConfigError` where requests are longer than the positions that the model has learned."""
    longest, positions = requests.input_length + requests.output_length, question.model.learned_positions
    if 0 < positions < longest:
        found = f"requests of {float(longest):,.0f} tokens, prompt and answer"
        expected = f"at most the {float(positions):,.0f} positions of {question.model.name}"
        raise ConfigError(COMMAND_LINE, "--input, --output", found, expected, "shorten them")


def draw(question: Question, search: ServingSearch, ranked: ServingPlan, file: Path) -> None:
    """Draws the front of interactivity and throughput, with the target and the best layout."""
    from diffperf.report import plots

    best = ranked.best[0] if ranked.best else None
    figure = plots.serving_front(
        ranked.front.interactivity,
        ranked.front.throughput,
        ranked.front.met,
        ranked.front.best,
        1 / search.targets.per_token,
        None
        if best is None
        else (
            1 / float(search.targets.latencies(best.report)[1]),
            float(best.report.tokens_per_second_per_device),
            best.name,
        ),
        f"{question.model.name} served on\n{describe_system(question.system, 'decode')}",
    )
    plots.save(figure, file)
