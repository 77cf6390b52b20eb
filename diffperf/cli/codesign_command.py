"""diffperf codesign: which chip to build."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from diffperf.api.question import COMMAND_LINE
from diffperf.cli.answer_output import show, text_output
from diffperf.cli.completion import names_of
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, options, page_file, plot_option

if TYPE_CHECKING:  # the search takes a second to import, which `diffperf --help` need not wait for
    from diffperf.api.codesign_answer import CodesignAnswer
    from diffperf.api.front_answer import FrontAnswer


@click.command()
@click.argument("problem", shell_complete=names_of("problems"))
@click.option(
    "--population",
    type=click.IntRange(16, 1_000_000),
    default=1024,
    show_default=True,
    help="designs that evolve together",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="seed of the sample of designs",
)
@click.option(
    "--budget-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=math.inf,
    show_default="no limit",
    help="show the best design so far after this time",
)
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    help="file from which the same command goes on after it was stopped; deleted at the end",
)
@click.option(
    "--against",
    metavar="SYSTEMS",
    shell_complete=names_of("systems"),
    help="systems as they are sold to compare with, each in its best layout, such as dgx-h100,mi300x-8",
)
@click.option(
    "--front",
    metavar="QUANTITY=LOW..HIGH",
    help="the best designs along one limit, such as cost.manufacturing=0.6x..1.4x",
)
@click.option(
    "--points", type=click.IntRange(2, 1000), default=9, show_default=True, help="limits of a front"
)
@click.option(
    "--explain",
    is_flag=True,
    help="also next-best choices and what would have to be true for them to win, regret of every workload, "
    "and how sure the order is",
)
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    callback=page_file,
    help="write the answer as a page: the design, its figures, and what holds it back",
)
@options(json_option, plot_option)
@click.pass_context
def codesign(
    ctx, problem, population, seed, against, explain, front, points, html_file, json_file, plot, **stops
):
    """Find which chip and package to build for PROBLEM.

    PROBLEM is a name from `diffperf list problems`, or a TOML file. Prints the design beside the baseline,
    its report, the constraints that hold it back and what relaxing each would be worth. Where no design
    satisfies every constraint, it prints which of them conflict and what would make room. Ctrl-C stops the
    search and shows the best design so far.
    """
    settings = {"population": population, "seed": seed}
    if front is not None:
        along = search_front(problem, front, points, **settings)
        show(along, text_output(html_file, along.to_html), json_file=json_file, plot=plot)
        feasible, stopped = along.feasible, along.front.designs[-1].stopped
    else:
        names = [name.strip() for name in against.split(",")] if against else []
        answer = search(problem, names, explain, **settings, **stops)
        page = text_output(html_file, answer.to_html)
        show(answer, page, json_file=json_file, plot=plot, lines=answer.result_lines)
        feasible, stopped = answer.feasible, answer.result.stopped
    if stopped == "interrupted":
        raise Interrupted("interrupted: this is the best design so far")
    if not feasible:
        ctx.exit(3)


@contextlib.contextmanager
def progress_bar() -> Iterator[tuple[Progress, Callable[[str, float], None]]]:
    """A bar on the terminal, and what moves it: a word on what is going on, and the fraction done."""
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("reading the problem", total=1.0)
        yield bar, lambda stage, done: bar.update(task, description=stage, completed=done)


def search_front(problem: str, front: str, points: int, **settings: Any) -> "FrontAnswer":
    """The best designs of the named problem along one limit, with a bar on the terminal."""
    from diffperf.api.front_answer import searched_front

    with progress_bar() as (_, progress):
        asked_by = COMMAND_LINE, ""
        return searched_front(
            problem, asked_by, front, points, lambda done: progress(front, done), **settings
        )


def search(problem: str, against: list[str], explain: bool, **settings: Any) -> "CodesignAnswer":
    """The best design of the named problem, with a bar on the terminal while the search runs."""
    from diffperf.api.codesign_answer import searched

    with progress_bar() as (bar, progress):

        def warn(line: str) -> None:
            bar.console.print(line, soft_wrap=True)

        return searched(problem, (COMMAND_LINE, ""), against, explain, warn, progress=progress, **settings)
