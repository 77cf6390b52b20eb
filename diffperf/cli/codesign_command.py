"""diffperf codesign: which chip to build."""

from typing import TYPE_CHECKING, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from diffperf import units
from diffperf.api.question import COMMAND_LINE, describe_strategy
from diffperf.cli.group import Interrupted
from diffperf.cli.options import json_option, options, plot_option
from diffperf.cli.terminal import console, write_json
from diffperf.report.tables import outputs, show, table

if TYPE_CHECKING:  # the search takes a second to import, which `diffperf --help` need not wait for
    from diffperf.explore.codesign.problem import DesignProblem
    from diffperf.explore.codesign.result import Codesign, ConstraintRow


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
    loaded, result = search(problem, starts, seed)
    out = console(json_file)
    devices = float(result.design.system.n_devices)
    title = f"{loaded.name}: {loaded.baseline.model.name} {loaded.phase} on {devices:,.0f} devices"
    strategy = describe_strategy(result.design.strategy, loaded.phase)
    out.print(f"[bold]{title}[/bold]", strategy, "", verdict(result), "", sep="\n", soft_wrap=True)
    for part in (design_table(result), comparison_table(result), constraint_table(result)):
        out.print(part, "", sep="\n")
    out.print(table(result.outcome.chip, "chip"))
    out.print(f"\nKKT residual {result.stationarity:.1e} after {result.evaluations:,} evaluations")
    write_json(result.as_dict(), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.codesign(result, title), plot)
    if result.interrupted:
        raise Interrupted("interrupted: this is the best design so far")
    if not result.feasible:
        ctx.exit(3)


def search(name: str, starts: int, seed: int) -> "tuple[DesignProblem, Codesign]":
    """The named design problem and its best design, with a bar on the terminal while the search runs."""
    from diffperf.explore.codesign.problem_file import load_problem
    from diffperf.explore.codesign.search import codesign as best_design

    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("reading the problem", total=1.0)

        def progress(stage: str, done: float) -> None:
            bar.update(task, description=stage, completed=done)

        problem = load_problem(name, COMMAND_LINE)
        return problem, best_design(problem, starts=starts, seed=seed, progress=progress)


def verdict(result: "Codesign") -> str:
    """In a sentence: what was gained, or what cannot be met."""
    problem, unit = result.problem, result.objective_unit
    if not result.feasible:
        missed = [
            f"{row.constraint} is missed by {row.excess:.1%} "
            f"(reaches {units.show(row.value, row.constraint.declared.unit)})"
            for row in result.constraints()
            if row.excess > 0
        ]
        missed += [result.broken_rule] if result.broken_rule else []
        return (
            "[bold red]No design satisfies every constraint.[/bold red] The least-violating one follows: "
            + "; ".join(missed)
        )
    change = result.objective / result.baseline_objective - 1
    before, after = units.show(result.baseline_objective, unit), units.show(result.objective, unit)
    return (
        f"[bold]{problem.objective} {after}[/bold] against the baseline's {before} ({change:+.1%}), "
        "every constraint satisfied"
    )


def _section(title: str, columns: dict[str, Literal["left", "right"]]) -> Table:
    """An empty table with a title and the given columns, each with its side."""
    section = Table(title=title, box=None, pad_edge=False, title_justify="left", title_style="bold")
    for name, side in columns.items():
        section.add_column(name, justify=side)
    return section


def design_table(result: "Codesign") -> Table:
    """Every variable in the baseline and in the design."""
    section = _section("design", {"variable": "left", "baseline": "right", "design": "right"})
    for row in result.variables():
        section.add_row(row.path.removeprefix("design.").replace("_", " "), row.baseline, row.design)
    return section


def comparison_table(result: "Codesign") -> Table:
    """The design's report beside the baseline's."""
    section = _section("report", {"": "left", "baseline": "right", "design": "right", "change": "right"})
    ours, theirs = outputs(result.outcome.report), outputs(result.problem.baseline_outcome.report)
    heading = ""
    for path, (declared, value) in ours.items():
        before, parent = theirs[path][1], path.rpartition(".")[0]
        if parent != heading:
            section.add_row(f"[bold]{parent.replace('_', ' ').replace('.', ', ')}[/bold]")
            heading = parent
        change = f"{float(value) / float(before) - 1:+.1%}" if float(before) else ""
        text = "  " * bool(parent) + declared.doc
        section.add_row(text, show(before, declared), show(value, declared), change)
    return section


def constraint_table(result: "Codesign") -> Table:
    """Every constraint, how full it is, and what one more unit of it would be worth."""
    section = _section(
        "constraints", {"constraint": "left", "value": "right", "": "left", "shadow price": "left"}
    )
    for row in result.constraints():
        state = "[red]violated[/red]" if row.excess > 0 else "[bold]active[/bold]" if row.active else "slack"
        value = units.show(row.value, row.constraint.declared.unit)
        section.add_row(str(row.constraint), value, state, shadow_price(result, row))
    return section


def shadow_price(result: "Codesign", row: "ConstraintRow") -> str:
    """What 1 % and one unit more of a limit change; empty where the constraint is not active."""
    if not row.active or row.percent is None or row.price is None:
        return ""
    text = f"1 % more changes {result.problem.objective} by {row.percent:+.3g} %"
    if not row.constraint.limit:
        return text
    unit = row.constraint.declared.unit or "unit"
    return f"{text} ({signed(row.price, result.objective_unit)} per {unit})"


def signed(value: float, unit: str) -> str:
    """A value with its unit and its sign, also where it is positive."""
    return ("+" if value > 0 else "−") + units.show(abs(value), unit, 3)
