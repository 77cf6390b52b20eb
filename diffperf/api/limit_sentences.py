"""Sentences about the limits that hold a design back: "One more dollar of cost.manufacturing lowers time
by 7.7 ms".
"""

import math

from diffperf import units
from diffperf.explore.codesign.problem import Constraint
from diffperf.explore.codesign.refused_steps import Step
from diffperf.explore.codesign.result import Codesign, ConstraintRow
from diffperf.quantity import Quantity

# How one more of a unit is called.
_ONE_MORE = {"USD": "One more dollar", "W": "One more watt", "mm^2": "One more mm²", "V": "One more volt"}
_SHOWN = 3  # digits
_STEPS = 3  # sentences on whole numbers, at most
_NOTHING_BINDS = "No limit holds the design back: a little more of any buys nothing."
# Where every variable is whole there are no slopes: only the next numbers were tried, one at a time.
_NOTHING_REFUSED = "No limit refuses a next whole number that would improve the design."
# Prices are those of a design whose whole numbers and choices stay as they are.
_WHOLE_NUMBERS_STAY = (
    "All of this is with the whole numbers and choices of the design as they are: they may need much more "
    "of a limit to change."
)


def limit_sentences(result: Codesign) -> list[str]:
    """A sentence for every constraint that holds the design back, the dearest first, and one for the rest.

    Empty where the design is not feasible, or the search was stopped before its multipliers were known.
    """
    if not result.priced:
        return []
    rows = sorted(result.constraints(), key=lambda row: -(row.multiplier or 0.0))
    sentences = [_sentence(result, row) for row in rows if row.sloped]
    only_steps = not sentences and bool(result.unpriced_steps)
    sentences += [step_sentence(result, step) for step in result.unpriced_steps[:_STEPS]]
    slack = [row.constraint.quantity for row in rows if not row.active]
    if not sentences:
        sentences.append(_NOTHING_REFUSED if result.problem.all_whole else _NOTHING_BINDS)
    elif slack:
        sentences.append(_slack_sentence(result, slack, only_steps))
    partly_whole = any(each.whole for each in result.problem.variables) and not result.problem.all_whole
    if partly_whole and not only_steps:
        sentences.append(_WHOLE_NUMBERS_STAY)
    return sentences


def _slack_sentence(result: Codesign, slack: list[str], only_steps: bool) -> str:
    """What is known of limits that neither a slope nor a next whole number asks to move.

    `only_steps`: no sentence on slopes says that whole numbers and choices stay as they are.
    """
    if result.problem.all_whole:
        return f"No next whole number that would improve the design needs more of {_listed(slack)}."
    nothing = f"a little more of {_listed(slack)} buys nothing."
    if only_steps:
        return f"With the whole numbers and choices of the design as they are, {nothing}"
    return nothing[0].upper() + nothing[1:]


def _sentence(result: Codesign, row: ConstraintRow) -> str:
    """Worth of more of one limit, in a sentence."""
    constraint, objective = row.constraint, result.problem.objective
    assert row.percent is not None
    assert row.price is not None, "the design is priced"
    percent = f"{abs(row.percent):.3g} %"
    verb = "raises" if row.percent > 0 else "lowers"
    unit = constraint.declared.unit
    if not constraint.limit:
        return f"1 % of room in {constraint.quantity} {verb} {objective} by {percent}."
    if unit not in _ONE_MORE or constraint.limit < 10 or result.relative:
        return f"1 % more of {constraint.quantity} {verb} {objective} by {percent}."
    worth = units.show(abs(row.price), result.objective_unit, _SHOWN)
    return (
        f"{_ONE_MORE[unit]} of {constraint.quantity} {verb} {objective} by {worth} (1 % more, by {percent})."
    )


def step_sentence(result: Codesign, step: Step) -> str:
    """What the next whole number of a variable needs, and what it is worth."""
    problem, sign = result.problem, -result.problem.sense
    share = math.expm1(sign * step.gain)
    verb, worth = "raises" if share > 0 else "lowers", f"{100 * abs(share):.3g} %"
    if not result.relative:
        worth = f"{units.show(abs(share) * result.objective, result.objective_unit, _SHOWN)} ({worth})"
    needs = " and ".join(_needed(problem.constraints[index], more) for index, more in step.needs.items())
    return f"{_step_name(step)} needs {needs}, and {verb} {problem.objective} by {worth}."


def _step_name(step: Step) -> str:
    """The subject of a sentence on a step: "The next compute unit", or "strategy.micro_batch 4"."""
    name, declared = step.variable.name, step.variable.declared
    assert isinstance(declared, Quantity)
    if name.startswith("design.") and name.endswith("s") and step.value == step.before + 1:
        return f"The next {name.removeprefix('design.').removesuffix('s').replace('_', ' ')}"
    before, after = (units.show(value, declared.unit) for value in (step.before, step.value))
    return f"{name} {after} in place of {before}"


def _needed(constraint: Constraint, more: float) -> str:
    """How far a limit would have to move."""
    amount, word = (
        units.show(more, constraint.declared.unit, _SHOWN),
        "more" if constraint.sense > 0 else "less",
    )
    return f"{amount} {word} of {constraint.quantity}"


def _listed(names: list[str]) -> str:
    """Names with commas and a last "or"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
