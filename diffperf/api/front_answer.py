"""The best designs along one limit of a design problem: `diffperf codesign --front`."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from diffperf import units
from diffperf.api.answer import Answer
from diffperf.api.basis import basis_of_design
from diffperf.api.boundary import answering, asker_of
from diffperf.api.codesign_answer import basis_lines
from diffperf.api.from_python import whole_number
from diffperf.api.varied_ranges import two_ends
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.codesign.limit_front import Front
from diffperf.explore.codesign.limit_front import front as best_along
from diffperf.explore.codesign.problem import Constraint, DesignProblem
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.result import ACTIVE_MULTIPLIER, Codesign
from diffperf.explore.codesign.search import Search
from diffperf.explore.codesign.search_state import POPULATION

if TYPE_CHECKING:
    from matplotlib.figure import Figure


POINTS = 9  # limits of a front


@answering("codesign_front")
def codesign_front(
    problem: DesignProblem | str | Path | Mapping[str, Any],
    front: str,
    *,
    points: int = POINTS,
    population: int = POPULATION,
    seed: int = 0,
) -> "FrontAnswer":
    """The best designs of a problem along one limit, such as its budget.

    **Arguments:**

    - `problem`: as for `dp.codesign`.
    - `front`: "QUANTITY=LOW..HIGH", a quantity that the problem limits and the ends of its limit: with units,
      or as in "cost.manufacturing=0.6x..1.4x" multiples of the problem's limit.
    - `points`: how many limits, of equal differences.
    - `population`, `seed`: as for `dp.codesign`.

    **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("codesign_front")
    whole_number(asker, "points", points, 2, 1000)
    whole_number(asker, "population", population, 16, 1_000_000)
    whole_number(asker, "seed", seed, 0, None)
    return searched_front(problem, (asker, "problem"), front, points, population=population, seed=seed)


def searched_front(
    problem: DesignProblem | str | Path | Mapping[str, Any],
    asked_by: tuple[str, str],
    front: str,
    points: int,
    advance: Callable[[float], None] = lambda done: None,
    **settings: Any,
) -> "FrontAnswer":
    """The best designs of a problem along one limit; `settings` are those of `Search`.

    `advance` is called with the fraction done. **Raises:** `ConfigError` that names `asked_by`.
    """
    search = Search(load_problem(problem, *asked_by), **settings)
    span = front_range(search.problem, front, asked_by[0])
    return FrontAnswer(best_along(search, span.constraint, span.limits(points), advance))


@dataclasses.dataclass(frozen=True)
class FrontRange:
    """The constraint whose limit varies, and the ends of the limit's range."""

    constraint: int
    low: float
    high: float

    def limits(self, points: int) -> np.ndarray:
        """Limits of equal differences, ends included."""
        return np.linspace(self.low, self.high, points)


def front_range(problem: DesignProblem, text: str, asker: str) -> FrontRange:
    """The range of "QUANTITY=LOW..HIGH", each end a quantity or, as in 0.6x, a multiple of the limit.

    **Raises:** `ConfigError`, in one line.
    """
    form = "QUANTITY=LOW..HIGH, such as cost.manufacturing=0.6x..1.4x"
    quantity, _, ends = text.partition("=")
    pair = two_ends(ends)
    if pair is None:
        raise ConfigError(asker, "front", f'"{text}"', form, "give both ends of the range")
    quantities = [constraint.quantity for constraint in problem.constraints]
    if quantity not in quantities:
        hint = did_you_mean(quantity, quantities)
        hint = hint if hint.startswith("did") else "add a [[constraint]] on it"
        raise ConfigError(asker, "front", f'"{quantity}"', "a quantity that the problem limits", hint)
    index = quantities.index(quantity)
    begin, end = (_end(problem.constraints[index], each, asker) for each in pair)
    if not 0 <= begin < end:
        raise ConfigError(asker, "front", f'"{ends}"', "0 ≤ LOW < HIGH", "swap the ends")
    return FrontRange(index, begin, end)


def _end(constraint: Constraint, text: str, asker: str) -> float:
    """One end of the range, in the unit of the constraint."""
    if match := re.fullmatch(r"\s*(\d*\.?\d+)\s*x\s*", text):
        return float(match[1]) * constraint.limit
    try:
        return units.parse(text, constraint.declared.unit)
    except units.UnitError as problem:
        expected = f"a multiple of the limit, such as 0.6x, or {constraint.declared.unit or 'a number'}"
        raise ConfigError(asker, "front", f'"{text}"', expected, str(problem)) from None


@dataclasses.dataclass(frozen=True, repr=False)
class FrontAnswer(Answer):
    """The best design of every limit: `front` has all that the searches came to."""

    front: Front

    @property
    def problem(self) -> DesignProblem:
        return self.front.designs[0].problem

    @property
    def constraint(self) -> Constraint:
        """The constraint whose limit varies."""
        return self.problem.constraints[self.front.constraint]

    @property
    def feasible(self) -> bool:
        """Whether any limit leaves a design that satisfies every constraint."""
        return any(design.feasible for design in self.front.designs)

    @property
    def title(self) -> str:
        return f"{self.problem.name}: the best designs along {self.constraint.quantity}"

    def lines(self) -> list[RenderableType]:
        return [f"[bold]{self.title}[/bold]", *basis_lines(self.front.designs[0]), "", self.table()]

    def table(self) -> Table:
        """One row for each limit."""
        unit = self.constraint.declared.unit
        table = Table(box=None, pad_edge=False)
        headings = [f"limit {self.constraint.relation}", self.problem.objective]
        headings += ["change", "1 % more changes it by", "also held back by"]
        headings += [path.removeprefix("design.").replace("_", " ") for path in self._paths()]
        for heading in headings:
            table.add_column(heading, justify="right")
        for place, (limit, design) in enumerate(zip(self.front.limits, self.front.designs, strict=True)):
            cells = [units.show(float(limit), unit)]
            if design.feasible:
                row = design.constraints()[self.front.constraint]
                change = design.objective / design.baseline_objective - 1
                cells += [units.show(design.objective, design.objective_unit), f"{change:+.1%}"]
                cells += [f"{row.percent:+.3g} %" if row.sloped else self._secant_text(place)]
                cells += [", ".join(self._others(design)) or "–"]
                cells += [each.design for each in design.variables()]
            else:
                cells += ["no design", *["–"] * (len(headings) - 2)]
            table.add_row(*cells)
        return table

    def _neighbour(self, place: int) -> int | None:
        """The limit next to one, above it where there is one, that leaves a design too."""
        others = [place + 1, place - 1]
        designs = self.front.designs
        return next((i for i in others if 0 <= i < len(designs) and designs[i].feasible), None)

    def _secant_text(self, place: int) -> str:
        """The change per cent of the limit between two neighbouring limits, where whole numbers leave no
        slope."""
        other, limits, designs = self._neighbour(place), self.front.limits, self.front.designs
        if other is None or not limits[place] or not limits[other]:
            return "nothing"
        change = math.log(designs[other].objective / designs[place].objective)
        secant = change / math.log(limits[other] / limits[place])
        return "nothing" if abs(secant) < ACTIVE_MULTIPLIER else f"{secant:+.3g} % (between limits)"

    def _secant(self, place: int) -> float | None:
        """The change of the objective per unit of the limit, between two neighbouring limits."""
        other = self._neighbour(place)
        if other is None or not self.front.designs[place].feasible:
            return None
        change = self.front.designs[other].objective - self.front.designs[place].objective
        return float(change / (self.front.limits[other] - self.front.limits[place]))

    def _paths(self) -> list[str]:
        return [variable.name for variable in self.problem.variables]

    def _others(self, design: Codesign) -> list[str]:
        """The other constraints that hold a design back."""
        rows = enumerate(design.constraints())
        return [
            row.constraint.quantity for index, row in rows if row.active and index != self.front.constraint
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "problem": self.problem.name,
            "basis": basis_of_design(str(self.problem.baseline.technology.name)),
            "quantity": self.constraint.quantity,
            "limits": self.front.limits.tolist(),
            "designs": [design.as_dict() for design in self.front.designs],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each limit, in internal units: the objective, the price of the limit, the design."""
        rows = []
        for place, (limit, design) in enumerate(zip(self.front.limits, self.front.designs, strict=True)):
            price = design.constraints()[self.front.constraint].price
            row = {"limit": float(limit), "feasible": design.feasible, "shadow_price": price}
            row["secant"] = self._secant(place)
            row[self.problem.objective] = design.objective if design.feasible else None
            rows.append(row | {each.path: each.design for each in design.variables()})
        return rows

    def to_html(self) -> str:
        """The table and the figure as a page of its own, without references to other files."""
        from diffperf.report.html_page import Section, page

        return page(
            self.title, [Section("", [*basis_lines(self.front.designs[0]), self.table(), self.figure()])]
        )

    def figure(self) -> "Figure":
        """The objective along the limits, and how the design changes."""
        from diffperf.report import plots

        return plots.codesign_front(self)
