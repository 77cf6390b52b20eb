"""diffperf serve: the best layout under targets for the latencies, why the others lose, and launch flags."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from diffperf.api.asked_requests import OF_REQUESTS, flag_of, target_time
from diffperf.api.question import COMMAND_LINE, Question
from diffperf.api.serve_answer import ServeAnswer, one_of, search_of_layouts
from diffperf.cli.answer_output import show
from diffperf.cli.options import (
    STRATEGY_FIELDS,
    Decorator,
    declared_option,
    json_option,
    options,
    plot_option,
    question_options,
)
from diffperf.cli.terminal import progress
from diffperf.cli.training_and_rent_options import rent_option
from diffperf.errors import ConfigError
from diffperf.explore.plan.pools_plan import POOLS
from diffperf.explore.plan.serving_flags import ENGINES
from diffperf.explore.plan.serving_layouts import SERVING_FIELDS
from diffperf.explore.plan.serving_plan import SERVING_OBJECTIVES
from diffperf.explore.plan.serving_search import CAPS, CHUNKS, PERCENTILES, Targets
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import TRAINING_FIELDS

_FIELDS = tuple(name for name in STRATEGY_FIELDS if name not in TRAINING_FIELDS and name not in OF_REQUESTS)
_SEARCHED_LIMITS = {
    "chunk": f"the best of {', '.join(f'{chunk:g}' for chunk in CHUNKS)}",
    "batch_cap": f"as the load needs, up to {CAPS[-1]:g}",
    "rate": "what the devices serve",
    "concurrency": "what the devices serve",
}


class DoesNotServe(click.ClickException):
    """No layout fits memory, meets the targets and serves the load."""

    exit_code = 3


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every field of `Requests` but the kind of the load, which follows from the options."""
    fields = [field for field in dataclasses.fields(Requests) if field.name != "load"]
    decorators: list[Decorator] = [
        declared_option(field, flag_of(field.name), _SEARCHED_LIMITS.get(field.name, field.default))
        for field in fields
    ]
    return options(*decorators)(command)


def _target(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float:
    """A time in seconds, infinite where there is none."""
    return target_time(text, COMMAND_LINE, parameter.opts[0])


def _percentile(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    if text not in PERCENTILES:
        remedy = "the estimate has the mean and the 90th percentile"
        raise ConfigError(COMMAND_LINE, "--percentile", f'"{text}"', " or ".join(PERCENTILES), remedy)
    return text


def _engine(ctx: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    return None if name is None else one_of(COMMAND_LINE, "--flags", name, tuple(ENGINES))


def _pools(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    return one_of(COMMAND_LINE, "--pools", text, POOLS)


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
    help="statistic that must meet the targets: the mean, or a percentile of the requests",
)
@click.option(
    "--by",
    default="throughput",
    show_default=True,
    metavar="|".join(SERVING_OBJECTIVES),
    help="quantity to maximize: output tokens per device, per dollar or per joule",
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
    help="number of the best layouts to print",
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
    splits of the devices between them. Without --rate and --concurrency all devices are used, each layout at
    its best load that meets the targets. With either, the number of replicas follows from the load: engines
    bear up to the largest one that meets the targets, and --devices is the most that they may take. Where
    nothing serves, the exit code is 3.
    """
    search = search_of_layouts(question, requests, Targets(ttft, tpot, percentile), rent)
    with progress("comparing layouts"):
        answer = ServeAnswer.of(
            question, search=search, by=by, top=top, pools=pools, engine=engine, rent=rent
        )
    show(answer, json_file=json_file, plot=plot, lines=None if answer.serves else answer.headline)
    if not answer.serves:
        with progress("looking for a system that fits"):
            raise DoesNotServe(answer.refusal)
