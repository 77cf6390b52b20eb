"""diffperf codesign: which chip to build."""

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from diffperf.api.answer import print_lines
from diffperf.api.question import COMMAND_LINE
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import console, write_json

if TYPE_CHECKING:  # the search takes a second to import, which `diffperf --help` need not wait for
    from diffperf.api.codesign_answer import CodesignAnswer


@click.command()
@click.argument("problem")
@click.option(
    "--starts", type=click.IntRange(min=2), default=64, show_default=True, help="points of the multi-start"
)
@click.option("--seed", type=int, default=0, show_default=True, help="seed of the starting points")
@options(json_option, plot_option)
@click.pass_context
def codesign(ctx, problem, starts, seed, json_file, plot):
    """Find by gradient which chip and package to build for PROBLEM.

    PROBLEM is a name from `diffperf list problems`, or a TOML file. Prints the design beside the baseline,
    its report, the constraints that hold it back and what relaxing each would be worth. Ctrl-C stops the
    search and shows the best design so far.
    """
    answer = search(problem, starts, seed)
    print_lines(console(json_file), answer.lines())
    write_json(answer.to_dict(), json_file)
    if plot:
        answer.plot(plot)
    if answer.result.interrupted:
        raise Interrupted("interrupted: this is the best design so far")
    if not answer.feasible:
        ctx.exit(3)


def search(name: str, starts: int, seed: int) -> "CodesignAnswer":
    """The best design of the named problem, with a bar on the terminal while the search runs."""
    from diffperf.api.codesign_answer import CodesignAnswer
    from diffperf.explore.codesign.problem_file import load_problem
    from diffperf.explore.codesign.search import codesign as best_design

    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("reading the problem", total=1.0)

        def progress(stage: str, done: float) -> None:
            bar.update(task, description=stage, completed=done)

        problem = load_problem(name, COMMAND_LINE)
        return CodesignAnswer(best_design(problem, starts=starts, seed=seed, progress=progress))
