"""A design as a page: what was asked, what came of it, beside what is sold, and what holds it back."""

from typing import TYPE_CHECKING

from rich.table import Table

from diffperf import units
from diffperf.api.against_table import against_lines
from diffperf.api.limit_sentences import limit_sentences
from diffperf.errors import counted
from diffperf.quantity import Choice
from diffperf.report.html_page import Section, page, parts_of
from diffperf.report.tables import table

if TYPE_CHECKING:
    from diffperf.api.codesign_answer import CodesignAnswer


def codesign_page(answer: "CodesignAnswer") -> str:
    """The page as text."""
    from diffperf.api import codesign_answer as texts

    result = answer.result
    summary = [texts.verdict(result), *texts.nominal_lines(result.problem)]
    summary += [*texts.remade_lines(result), *texts.conflict_lines(result)]
    sections = [
        Section("", [*summary, *texts.strategy_lines(result), *texts.basis_lines(result)]),
        Section("The design", [texts.design_table(result), answer.figure()]),
    ]
    if answer.bought:
        sections.append(Section("Beside what is sold", parts_of(against_lines(result, answer.bought))))
    held = limit_sentences(result)
    if result.problem.constraints:
        limits = [*([held] if held else []), texts.constraint_table(result)]
        sections.append(Section("What holds it back", limits))
    sections += [Section(title, parts_of(lines)) for title, lines in answer.explained()]
    sections += [
        Section("What was asked", [_asked(answer), _variables(answer), *answer.warnings]),
        Section("Report", texts.comparison_tables(result)),
        Section("The chip", [table(result.outcome.chip)]),
        Section("How it was searched", [texts.search_line(result)]),
    ]
    return page(answer.title, sections)


def _asked(answer: "CodesignAnswer") -> str:
    """The question in a sentence."""
    problem = answer.result.problem
    verb = "Least" if problem.sense > 0 else "Most"
    baseline = problem.baseline.system
    limits = f"with {', '.join(map(str, problem.constraints))}"
    runs = ""
    if len(problem.workloads) > 1:
        models = [problem.baseline.model, *(job.model for job in problem.baseline.beside)]
        named = zip(problem.workloads, models, strict=True)
        shares = [f"{each.name} ({model.name} {each.phase}, {each.share:.0%})" for each, model in named]
        runs = f" of {' and '.join(shares)}, by their shares of the baseline's time,"
    devices = counted(baseline.n_devices, "device")
    return (
        f"{verb} {problem.objective}{runs} on {devices}, from {baseline.name} "
        f"in the technology {problem.baseline.technology.name}, {limits}. Free to change:"
    )


def _variables(answer: "CodesignAnswer") -> Table:
    """The variables with their ranges."""
    table = Table("variable", "from", "to", box=None, pad_edge=False)
    for variable in answer.result.problem.variables:
        unit, choices = getattr(variable.declared, "unit", ""), variable.values
        if isinstance(variable.declared, Choice):
            choices = [variable.declared.alternatives[row.argmax()] for row in variable.choices]
        if choices is not None:
            shown = [each if isinstance(each, str) else units.show(each, unit) for each in choices]
            table.add_row(variable.name, ", ".join(shown), "")
            continue
        table.add_row(variable.name, units.show(variable.low, unit), units.show(variable.high, unit))
    return table
