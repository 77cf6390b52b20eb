"""dp.codesign: which chip to build."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import numpy as np
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.against_table import against_lines
from diffperf.api.answer import Answer
from diffperf.api.basis import basis_of_design, describe_basis_of_design
from diffperf.api.boundary import answering, asker_of
from diffperf.api.explanation import Explanation
from diffperf.api.from_python import file_name, whole_number
from diffperf.api.limit_sentences import limit_sentences
from diffperf.api.question import describe_strategy
from diffperf.errors import ConfigError, counted
from diffperf.explore.codesign.against import BoughtSystem, bought_systems
from diffperf.explore.codesign.problem import Constraint, DesignProblem, Uncertainty, output_of
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.result import Codesign, ConstraintRow
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.search_state import POPULATION, Progress
from diffperf.explore.codesign.unpaid import Unpaid
from diffperf.explore.codesign.variables import Variable
from diffperf.quantity import locate
from diffperf.report.tables import as_dict, is_nothing, outputs, show, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COSTS_AS_MUCH = 0.01  # of the cost of the sold chip, that its remake may differ by without a word
_MISSED = 1e-6  # excess of a limit, relative to it, that is worth telling


@answering("codesign")
def codesign(
    problem: DesignProblem | str | Path | Mapping[str, Any],
    *,
    population: int = POPULATION,
    seed: int = 0,
    budget_seconds: float = math.inf,
    checkpoint: str | Path | None = None,
    against: str | Sequence[str] = (),
    explain: bool = False,
    progress: Progress | None = None,
) -> "CodesignAnswer":
    """The chip and package that a design problem asks for, by an evolving population and descents along
    gradients.

    **Arguments:**

    - `problem`: the name of a shipped problem (see `diffperf list problems`), the path of a TOML file, or its
      table.
    - `population`: designs that evolve together; `seed`: of the sample that they start from.
    - `budget_seconds`: after which the search stops with the best design so far.
    - `checkpoint`: a file for the state of the search, from which the same call goes on after it was stopped;
      it is deleted when the search is through.
    - `against`: names of systems as they are sold, which run the same workloads, each in the best layout that
      the problem leaves open.
    - `explain`: also the next-best value of every choice and what would have to be true for it to win, the
      regret of every workload of a mix, and in how many samples of the calibrated values the design is better
      than the baseline and the systems that are sold. Takes some times as long as the search.
    - `progress`: called with a word on what is going on and the fraction of it that is done.

    **Raises:** `ConfigError`, in one line. Where no design satisfies every constraint, the answer is not
    `feasible`: its design is the one that misses the least, and it names the constraints in conflict.
    """
    asker = asker_of("codesign")
    whole_number(asker, "population", population, 16, 1_000_000)
    whole_number(asker, "seed", seed, 0, None)
    if not budget_seconds > 0:
        raise ConfigError(asker, "budget_seconds", f"{budget_seconds}", "more than 0", "name some seconds")
    chosen: dict[str, Any] = {} if progress is None else {"progress": progress}
    return searched(
        problem,
        (asker, "problem"),
        against,
        explain,
        population=population,
        seed=seed,
        budget_seconds=budget_seconds,
        checkpoint=file_name(asker, "checkpoint", checkpoint),
        **chosen,
    )


def searched(
    problem: DesignProblem | str | Path | Mapping[str, Any],
    asked_by: tuple[str, str],
    against: Sequence[str],
    explain: bool,
    warn: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> "CodesignAnswer":
    """The answer to a problem; `settings` are those of `Search`.

    `warn` is called with a line on every variable that nothing pays for or that changes nothing, before the
    search, which somebody may not want to wait for. **Raises:** `ConfigError` that names `asked_by`.
    """
    search = Search(load_problem(problem, *asked_by), **settings)
    unpaid, idle = tuple(search.unpaid()), tuple(variable for _, variable in search.without_effect)
    for line in warning_lines(search.problem, unpaid, idle):
        warn(line)
    bought = bought_systems(search.problem, against, asked_by[0])
    result = search.answer()
    explanation = Explanation.of(search, result, bought) if explain else None
    return CodesignAnswer(
        result=result, unpaid=unpaid, bought=tuple(bought), explanation=explanation, idle=idle
    )


def warning_lines(problem: DesignProblem, unpaid: Sequence[Unpaid], idle: Sequence[Variable]) -> list[str]:
    """What is odd about the variables of a problem: nothing pays for them, or they change nothing."""
    lines = [unpaid_line(each) for each in unpaid]
    vector = problem.vector
    for begin, variable in vector.placed():
        if variable in idle:
            held = show(vector.value(vector.start, begin, variable), variable.declared)
            lines.append(no_effect_line(variable, variable.shown_in(vector.baseline), held))
    return lines


@dataclasses.dataclass(frozen=True, repr=False)
class CodesignAnswer(Answer):
    """The best design of a problem, beside its baseline.

    - `result`: everything that the search came to.
    - `unpaid`: the variables that nothing in the problem pays for, and that the search takes to their bounds.
    - `bought`: systems as they are sold, with the same workloads.
    - `explanation`: why the design is what it is, where that was asked for.
    - `idle`: the variables that change neither the objective nor a limit, which stay as in the baseline.
    """

    result: Codesign
    unpaid: tuple[Unpaid, ...] = ()
    bought: tuple[BoughtSystem, ...] = ()
    explanation: Explanation | None = None
    idle: tuple[Variable, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """What is odd about the variables of the problem."""
        return warning_lines(self.result.problem, self.unpaid, self.idle)

    @property
    def feasible(self) -> bool:
        """Whether the design satisfies every constraint."""
        return self.result.feasible

    @property
    def title(self) -> str:
        problem, devices = self.result.problem, float(self.result.design.system.n_devices)
        jobs = [problem.baseline.model, *(job.model for job in problem.baseline.beside)]
        runs = [f"{job.name} {each.phase}" for job, each in zip(jobs, problem.workloads, strict=True)]
        if len(runs) > 1:
            named = zip(problem.workloads, runs, strict=True)
            runs = [f"{each.name} ({run}, {each.share:.0%} of the time)" for each, run in named]
        return f"{problem.name}: {' beside '.join(runs)} on {counted(devices, 'device')}"

    def lines(self) -> list[RenderableType]:
        return [*self.warnings, *self.result_lines()]

    def result_lines(self) -> list[RenderableType]:
        """The lines without the warnings about the problem, which a terminal shows before the search."""
        result = self.result
        lines: list[RenderableType] = [
            f"[bold]{self.title}[/bold]",
            *strategy_lines(result),
            *basis_lines(result),
            "",
            verdict(result),
            *nominal_lines(result.problem),
            *baseline_lines(result.problem),
            *remade_lines(result),
            *conflict_lines(result),
            "",
        ]
        for part in (design_table(result), *comparison_tables(result), constraint_table(result)):
            lines += [part, ""]
        lines += [*limit_sentences(result), ""]
        if self.bought:
            lines += [*against_lines(result, self.bought), ""]
        for title, explanation in self.explained():
            lines += [f"[bold]{title}[/bold]", *explanation, ""]
        return [*lines, table(result.outcome.chip, "chip"), "", search_line(result)]

    def explained(self) -> list[tuple[str, list[RenderableType]]]:
        """Answers beyond the design that were asked for, each with its heading."""
        return self.explanation.sections(self.result) if self.explanation else []

    def to_html(self) -> str:
        """The answer as a page of its own, without references to other files."""
        from diffperf.api.codesign_page import codesign_page

        return codesign_page(self)

    def to_dict(self) -> dict[str, Any]:
        unpaid = {each.variable.name: each.end for each in self.unpaid}
        bought = {
            each.name: {name: as_dict(report) for name, report in each.reports.items()}
            for each in self.bought
        }
        explained = {"explanation": self.explanation.as_dict()} if self.explanation else {}
        basis = basis_of_design(str(self.result.design.technology.name))
        idle = [variable.name for variable in self.idle]
        sections = {"basis": basis, "unpaid": unpaid, "without_effect": idle, "against": bought}
        return self.result.as_dict() | sections | explained

    def rows(self) -> list[dict[str, Any]]:
        """A row for each variable, in the baseline and in the design."""
        return [dataclasses.asdict(row) for row in self.result.variables()]

    def figure(self) -> "Figure":
        """The search, the design's time beside the baseline's, and the constraints."""
        from diffperf.report import plots

        return plots.codesign(self.result, self.title)


def search_line(result: Codesign) -> str:
    """Outcome of the search, in a line."""
    line = f"after {counted(result.evaluations, 'evaluation')}"
    if result.priced and not result.problem.all_whole:
        line = f"KKT residual {result.stationarity:.1e} {line}"
    return f"{result.stopped}: the best design so far, {line}" if result.stopped else line


def verdict(result: Codesign) -> str:
    """The gain of the design, or the constraints that cannot be met, in a sentence."""
    problem, unit = result.problem, result.objective_unit
    if not result.feasible:
        missed = [
            f"{row.constraint} is missed by {row.excess:.1%} "
            f"(reaches {units.show(row.value, row.constraint.declared.unit)})"
            for row in result.constraints()
            if row.excess > _MISSED
        ]
        missed += [result.broken_rule] if result.broken_rule else []
        judged = "" if problem.uncertainty is None else f" {judged_over(problem.uncertainty)}"
        said = f"No design satisfies every constraint{judged}."
        if result.stopped:
            said = f"No design that satisfies every constraint{judged} was found in {_duration(result)}; the "
            said += "search had not ended."
        return f"[bold red]{said}[/bold red] The least-violating one follows: {'; '.join(missed)}"
    change = result.objective / result.baseline_objective - 1
    before, after = units.show(result.baseline_objective, unit), units.show(result.objective, unit)
    judged = problem.uncertainty and f", {judged_over(problem.uncertainty)}"
    satisfied = f"every constraint satisfied{judged or ''}"
    if result.relative:
        return (
            f"[bold]{problem.objective} of the workloads, by their shares, {result.objective:.4g} of the "
            f"baseline's[/bold] ({change:+.1%}), {satisfied}"
        )
    gained = f"[bold]{problem.objective} {after}[/bold] against the baseline's {before} ({change:+.1%})"
    return f"{gained}, {satisfied}"


def baseline_lines(problem: DesignProblem) -> list[str]:
    """A line about a baseline that does not fit memory: no system reaches its figures."""
    reports = problem.baseline_outcome.reports(problem.workloads[0].name)
    excess = {name: float(locate(report, "memory.excess")[0]) for name, report in reports.items()}
    if max(excess.values()) <= _MISSED:
        return []
    over = ", ".join(
        f"{name + ' ' if len(excess) > 1 else ''}{1 + share:.3g} times what a device has"
        for name, share in excess.items()
        if share > _MISSED
    )
    searched = [each.name for each in problem.vector.variables if "strategy." in each.path]
    layout = f"; it has the file's {', '.join(searched)} or their defaults, which the search did not choose"
    return [
        f"[bold yellow]The baseline does not fit memory[/bold yellow] ({over}): no system reaches its "
        f"figures, and the change is no gain over one{layout if searched else ''}"
    ]


def remade_lines(result: Codesign) -> list[str]:
    """What the sold chip costs remade in the technology, where a cost is limited or optimized."""
    problem = result.problem
    asked = [problem.objective, *(constraint.quantity for constraint in problem.constraints)]
    if result.remade is None or not any("cost." in path for path in asked):
        return []
    sold, remade = (
        float(output_of(outcome, "cost.manufacturing"))
        for outcome in (problem.baseline_outcome, result.remade)
    )
    change = remade / sold - 1
    if abs(change) <= _COSTS_AS_MUCH:
        return []
    return [
        f"The sold chip remade in {problem.baseline.technology.name} costs {units.show(remade, 'USD')}, "
        f"{abs(change):.1%} {'more' if change > 0 else 'less'} than the baseline's {units.show(sold, 'USD')}."
    ]


def no_effect_line(variable: Variable, baseline: str, held: str) -> str:
    """A warning that a variable makes no difference; it is held at the value next to the baseline's."""
    place = "the baseline" if held == baseline else "what is next to the baseline"
    return (
        f"[bold yellow]{variable.name} changes neither the objective nor a limit[/bold yellow]; held at "
        f"{place} ({held})"
    )


def judged_over(uncertainty: Uncertainty) -> str:
    """How a design is judged over what is uncertain, as words."""
    return f"in the {_measure_of_samples(uncertainty)} of what is uncertain"


def _measure_of_samples(uncertainty: Uncertainty) -> str:
    """What a design is judged by: "worst of 8 samples"."""
    measures = {"mean": "mean", "quantile": f"{uncertainty.quantile:g} quantile", "worst": "worst"}
    return f"{measures[uncertainty.measure]} of {len(uncertainty.factors)} samples"


def nominal_lines(problem: DesignProblem) -> list[str]:
    """Which figures are those of the samples that a robust design is judged over, and which are not."""
    if problem.uncertainty is None:
        return []
    return [
        f"Values beside limits are the {_measure_of_samples(problem.uncertainty)}, by which the limits are "
        "judged; all other figures, the objective too, are nominal: every uncertain input is as given."
    ]


def _duration(result: Codesign) -> str:
    """How long a search took, as text."""
    return f"{result.seconds:.1f} s" if result.seconds < 10 else f"{result.seconds:,.0f} s"


def unpaid_line(unpaid: Unpaid) -> str:
    """A warning that the answer for a variable will be its bound."""
    variable, end = unpaid.variable, units.show(unpaid.end, unpaid.declared.unit)
    return (
        f"[bold yellow]nothing pays for {variable.name}[/bold yellow]: moving it to {end} costs nothing that "
        "this problem limits, so that the search will end there; limit what it costs, or leave it out"
    )


def conflict_lines(result: Codesign) -> list[str]:
    """Constraints that no design satisfies together, and the changes of limits that would make them
    satisfiable.
    """
    conflict, constraints = result.conflict, result.problem.constraints
    if conflict is None:
        return []
    if not conflict.sets:
        return ["no conflict of constraints explains it: the rules of layouts allow none of the designs"]
    lines = []
    for number, indices in enumerate(conflict.sets):
        names = [str(constraints[index]) for index in indices]
        start = "also in conflict, without these" if number else "in conflict"
        if len(names) == 1:
            lines.append(f"{start}: within the bounds of the variables, no design has {names[0]}")
        else:
            together = "each of these can be met without one of the others, but not all together"
            lines.append(f"{start}: {together}: {' and '.join(names)}")
    for number, relief in enumerate(conflict.reliefs):
        changes = [
            _moved_limit(constraints[index], limit)
            for index, limit in zip(relief.constraints, relief.limits, strict=True)
        ]
        least = "the cheapest way out" if len(changes) == len(conflict.sets) else "a way out"
        lines.append(f"  {'or' if number else least}: {' and '.join(changes)}")
    return lines


def _moved_limit(constraint: Constraint, limit: float) -> str:
    """A constraint with another limit, and by how much that differs from its own."""
    change = limit / constraint.limit - 1 if constraint.limit else limit
    moved = units.show(limit, constraint.declared.unit)
    return f"{constraint.quantity} {constraint.relation} {moved} ({change:+.1%})"


def _section(title: str, columns: dict[str, Literal["left", "right"]]) -> Table:
    """An empty table with a title and the given columns, each with its side."""
    section = Table(title=title, box=None, pad_edge=False, title_justify="left", title_style="bold")
    for name, side in columns.items():
        section.add_column(name, justify=side)
    return section


def design_table(result: Codesign) -> Table:
    """Every variable in the baseline and in the design."""
    section = _section("design", {"variable": "left", "baseline": "right", "design": "right"})
    for row in result.variables():
        section.add_row(row.path.removeprefix("design.").replace("_", " "), row.baseline, row.design)
    return section


def strategy_lines(result: Codesign) -> list[str]:
    """The layout of each workload."""
    strategies = [result.design.strategy, *(job.strategy for job in result.design.beside)]
    lines = []
    for strategy, workload in zip(strategies, result.problem.workloads, strict=True):
        prefix = f"{workload.name}: " if result.relative else ""
        lines.append(prefix + describe_strategy(strategy, workload.phase))
    return lines


def basis_lines(result: Codesign) -> list[str]:
    """Basis of the figures: a line for training, and one for inference, with their workloads."""
    technology, template = str(result.design.technology.name), result.design.system
    names: dict[str, list[str]] = {}
    for workload in result.problem.workloads:
        described = describe_basis_of_design(technology, template, workload.phase)
        names.setdefault(described, []).append(workload.name)
    if len(names) == 1:
        return list(names)
    return [f"{', '.join(each)}: {described[0].lower()}{described[1:]}" for described, each in names.items()]


def comparison_tables(result: Codesign) -> list[Table]:
    """The design's report beside the baseline's, for each workload."""
    first = result.problem.workloads[0].name
    ours, theirs = result.outcome.reports(first), result.problem.baseline_outcome.reports(first)
    titles = {name: f"report of {name}" if result.relative else "report" for name in ours}
    return [comparison(titles[name], ours[name], theirs[name]) for name in ours]


def comparison(title: str, design: eqx.Module, baseline: eqx.Module) -> Table:
    """One report beside the baseline's, without what is zero or negligible in both.

    A design may have a memory level that the baseline has not: storage, of which the baseline holds 0.
    """
    section = _section(title, {"": "left", "baseline": "right", "design": "right", "change": "right"})
    ours, theirs = outputs(design), outputs(baseline)
    heading = ""
    for path, (declared, value) in ours.items():
        before = theirs[path][1] if path in theirs else np.zeros(())
        parent, _, name = path.rpartition(".")
        wholes = [float(each[f"{parent}.total"][1]) for each in (ours, theirs) if f"{parent}.total" in each]
        whole, pair = min(wholes, default=0.0), (before, value)
        if not any(map(np.any, pair)) or all(is_nothing(name, declared, each, whole) for each in pair):
            continue
        if parent != heading:
            section.add_row(f"[bold]{parent.replace('_', ' ').replace('.', ', ')}[/bold]")
            heading = parent
        change = f"{float(value) / float(before) - 1:+.1%}" if float(before) > 0 else ""
        text = "  " * bool(parent) + declared.doc
        section.add_row(text, show(before, declared), show(value, declared), change)
    return section


def constraint_table(result: Codesign) -> Table:
    """Every constraint, how full it is, and what one more unit of it would be worth."""
    uncertainty = result.problem.uncertainty
    value = "value" if uncertainty is None else f"value, {_measure_of_samples(uncertainty)}"
    section = _section(
        "constraints", {"constraint": "left", value: "right", "": "left", "shadow price": "left"}
    )
    for row in result.constraints():
        state = "[red]violated[/red]" if row.excess > 0 else "[bold]active[/bold]" if row.active else "slack"
        if row.excess <= 0 and row.multiplier is None:
            state = "met"
        value = units.show(row.value, row.constraint.declared.unit)
        section.add_row(str(row.constraint), value, state, shadow_price(result, row))
    return section


def shadow_price(result: Codesign, row: ConstraintRow) -> str:
    """Changes of the objective by 1 % and by one unit more of a limit; empty where the constraint is not
    active.
    """
    if not row.sloped and row.steps:
        return "holds back whole numbers"
    if not row.sloped or row.percent is None or row.price is None:
        return ""
    text = f"1 % more changes {result.problem.objective} by {row.percent:+.3g} %"
    if not row.constraint.limit:
        return text
    unit = row.constraint.declared.unit or "unit"
    return f"{text} ({signed(row.price, result.objective_unit)} per {unit})"


def signed(value: float, unit: str) -> str:
    """A value with its unit and its sign, also where it is positive."""
    return ("+" if value > 0 else "−") + units.show(abs(value), unit, 3)
