"""diffperf codesign: which chip to build."""

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from diffperf import units
from diffperf.cli.group import Interrupted
from diffperf.cli.options import describe_strategy, json_option, options, plot_option
from diffperf.cli.terminal import console, write_json
from diffperf.report.tables import outputs, show, table


@click.command()
@click.argument("study")
@click.option(
    "--starts", type=click.IntRange(min=2), default=64, show_default=True, help="points of the multi-start"
)
@click.option("--seed", type=int, default=0, show_default=True, help="of the starting points")
@options(json_option, plot_option)
@click.pass_context
def codesign(ctx, study, starts, seed, json_file, plot):
    """Find by gradient which chip and package to build for STUDY (a name from diffperf list studies, or a TOML file).

    Prints the design beside the baseline, its report, the constraints that hold it back and what relaxing each would be worth.
    Ctrl-C stops the search and shows the best design so far.
    """
    from diffperf.explore.codesign.problem import load_study
    from diffperf.explore.codesign.search import codesign as search

    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("reading the study", total=1.0)
        loaded = load_study(study)
        found = search(
            loaded,
            starts=starts,
            seed=seed,
            progress=lambda stage, done: bar.update(task, description=stage, completed=done),
        )

    out = console(json_file)
    baseline = loaded.baseline
    title = f"{loaded.name}: {baseline.model.name} {loaded.phase} on {float(baseline.system.n_devices):,.0f} devices"
    out.print(
        f"[bold]{title}[/bold]",
        describe_strategy(baseline.strategy, loaded.phase),
        "",
        sep="\n",
        soft_wrap=True,
    )
    out.print(verdict(found), "", sep="\n", soft_wrap=True)
    for part in (
        design_table(found),
        "",
        comparison_table(found),
        "",
        constraint_table(found),
        "",
        table(found.outcome.chip, "chip"),
    ):
        out.print(part)
    out.print(f"\nKKT residual {found.stationarity:.1e} after {found.evaluations:,} evaluations")
    write_json(found.as_dict(), json_file)
    if plot:
        from diffperf.report import plots

        plots.save(plots.codesign(found, title), plot)
    if found.interrupted:
        raise Interrupted("interrupted: this is the best design so far")
    if not found.feasible:
        ctx.exit(3)


def verdict(found) -> str:
    """In a sentence: what was gained, or what cannot be met."""
    study, unit = found.study, found.objective_unit
    if not found.feasible:
        broken = [
            f"{constraint} is missed by {excess:.1%} (reaches {units.show(value, constraint.declared.unit)})"
            for (constraint, value, _, _), excess in zip(found.constraints(), found.excess, strict=True)
            if excess > 0
        ]
        return (
            "[bold red]No design satisfies every constraint.[/bold red] The least-violating one follows: "
            + "; ".join(broken)
        )
    change = found.objective / found.baseline_objective - 1
    was, now = units.show(found.baseline_objective, unit), units.show(found.objective, unit)
    return f"[bold]{study.objective} {now}[/bold] against the baseline's {was} ({change:+.1%}), every constraint satisfied"


def design_table(found) -> Table:
    rows = Table(title="design", box=None, pad_edge=False, title_justify="left", title_style="bold")
    for name, justify in (("variable", "left"), ("baseline", "right"), ("design", "right")):
        rows.add_column(name, justify=justify)
    for path, was, now in found.variables():
        rows.add_row(path.removeprefix("design.").replace("_", " "), was, now)
    return rows


def comparison_table(found) -> Table:
    """The design's report beside the baseline's."""
    rows = Table(title="report", box=None, pad_edge=False, title_justify="left", title_style="bold")
    for name, justify in (("", "left"), ("baseline", "right"), ("design", "right"), ("change", "right")):
        rows.add_column(name, justify=justify)
    ours, theirs = outputs(found.outcome.report), outputs(found.study.baseline_outcome.report)
    section = ""
    for path, (declared, value) in ours.items():
        was, parent = theirs[path][1], path.rpartition(".")[0]
        if parent != section:
            rows.add_row(f"[bold]{parent.replace('_', ' ').replace('.', ', ')}[/bold]")
            section = parent
        change = f"{float(value) / float(was) - 1:+.1%}" if float(was) else ""
        rows.add_row("  " * bool(parent) + declared.doc, show(was, declared), show(value, declared), change)
    return rows


def constraint_table(found) -> Table:
    """Every constraint, how full it is, and what one more unit of it would be worth."""
    rows = Table(title="constraints", box=None, pad_edge=False, title_justify="left", title_style="bold")
    for name, justify in (("constraint", "left"), ("value", "right"), ("", "left"), ("shadow price", "left")):
        rows.add_column(name, justify=justify)
    for (constraint, value, multiplier, _), excess in zip(found.constraints(), found.excess, strict=True):
        state = (
            "[red]violated[/red]" if excess > 0 else "[bold]active[/bold]" if multiplier > 1e-3 else "slack"
        )
        price = (
            f"1 % more changes {found.study.objective} by {-multiplier * found.study.sense:+.3g} %"
            if multiplier > 1e-3
            else ""
        )
        if price and constraint.limit:
            per_unit = found.shadow_price(found.study.constraints.index(constraint))
            price += f" ({signed(per_unit, found.objective_unit)} per {constraint.declared.unit or 'unit'})"
        rows.add_row(str(constraint), units.show(value, constraint.declared.unit), state, price)
    return rows


def signed(value: float, unit: str) -> str:
    return ("+" if value > 0 else "−") + units.show(abs(value), unit, 3)
